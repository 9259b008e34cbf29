//! tollgate over HTTP: rate limit headers, who the client is, and a tower layer.
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
//! // Serve it with `app.into_make_service_with_connect_info::<std::net::SocketAddr>()`, so that the peer is known.
//! ```
//!
//! Over the limit it answers 429 itself, with `Retry-After` and a problem body, and the handler
//! never runs; otherwise the request passes through untouched, and the response says what is left.
//! Clones of the layer, and the services it makes for connections, share all state.
//!
//! By default the client is the peer's address, and no header is believed: see [`Identity`] and
//! [`Proxies`]. Rules may count by `client`, `method`, `path`, `host`, `header:NAME`, or any
//! [attribute](RateLimitLayer::attribute) that a function computes.
//!
//! For handlers that ask a limiter themselves there are [`rate_limit_headers`] and
//! [`too_many_requests`].

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod readme {}

mod asked;
mod body;
mod denied;
mod future;
#[cfg(feature = "grpc")]
mod grpc;
mod head;
mod headers;
mod identity;
mod layer;
mod service;

pub use asked::Asked;
pub use body::ResponseBody;
pub use denied::{
    Denied, Numbers, Problem, blocked_until, denied, denied_as, denied_with, json, millis_ceil,
    too_many_requests,
};
pub use future::ResponseFuture;
pub use head::{Head, PeerAddr};
pub use headers::{
    HeaderStyle, Headers, RATELIMIT, RATELIMIT_POLICY, policy_name, rate_limit_headers, retry_after,
};
pub use identity::{ForwardedBy, Identity, Proxies, UNIDENTIFIED};
pub use layer::{Answered, RateLimitLayer};
pub use service::RateLimit;
