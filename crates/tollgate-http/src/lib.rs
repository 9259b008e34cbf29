//! tollgate over HTTP: rate limit headers, client identification, and a tower layer.
//!
//! A service adds one layer and is protected:
//!
//! ```
//! use axum::{Router, routing::get};
//! use tollgate::{Limit, Limiter};
//! use tollgate_http::RateLimitLayer;
//!
//! let limiter = Limiter::new(Limit::per_second(10));
//! let app: Router = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .layer(RateLimitLayer::new(limiter));
//! // Serve `app.into_make_service_with_connect_info::<std::net::SocketAddr>()`: it adds the peer.
//! ```
//!
//! Over the limit the layer answers 429, with `Retry-After` and a problem body, and the handler
//! does not run. Otherwise the request passes through unchanged, and the response has the rate
//! limit fields. Clones of the layer, and the services it makes for connections, share all state.
//!
//! By default the client is the peer's address, and no header is trusted: see [`Identity`] and
//! [`Proxies`]. Rules may count by `client`, `method`, `path`, `host`, `header:NAME`, or any
//! [attribute](RateLimitLayer::attribute) that a function computes. A path is the one that the
//! client asked for, inside of axum's `nest` too, and rules see it
//! [normalised](tollgate::RuleSet::with_paths).
//!
//! A layer may hold a request [until it is admitted](RateLimitLayer::waiting) instead of denying
//! it. A limit on concurrency holds a slot until the body of the response has ended. The handler of
//! a websocket takes a [`ConnectionSlot`].
//!
//! Handlers that call a limiter themselves use [`rate_limit_headers`] and [`too_many_requests`].

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod readme {}

mod attributes;
mod body;
mod connection_slot;
mod denied;
mod future;
#[cfg(feature = "grpc")]
mod grpc;
mod head;
mod headers;
mod identity;
mod layer;
mod service;
mod waiting;

pub use body::ResponseBody;
pub use connection_slot::ConnectionSlot;
// For tollgate-server only.
#[doc(hidden)]
pub use denied::{Denied, Problem, REDUCED_CAPACITY, blocked_until, denied_with, millis_ceil};
pub use denied::{Numbers, denied, denied_as, overloaded, too_many_requests};
pub use future::ResponseFuture;
pub use head::{Head, PeerAddr};
pub use headers::{
    HeaderStyle, Headers, RATELIMIT, RATELIMIT_POLICY, RATELIMIT_WARNING, rate_limit_headers, retry_after,
};
// For tollgate-server only.
#[doc(hidden)]
pub use headers::{policy_name, seconds_to_wait};
pub use identity::{ForwardedBy, Identity, Proxies, UNIDENTIFIED};
pub use layer::{Answered, RateLimitLayer};
pub use service::RateLimit;
