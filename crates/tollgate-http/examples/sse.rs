//! Server-sent events, two streams at a time for each address.
//!
//!     cargo run -p tollgate-http --example sse
//!     curl -N localhost:3000/ticks             # a third one at the same time is refused with 429

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::response::Sse;
use axum::response::sse::Event;
use axum::routing::get;
use futures_util::stream::{Stream, unfold};
use tollgate::{Limit, Limiter};
use tollgate_http::RateLimitLayer;

/// The body of the response holds the slot until the stream ends or the client leaves: there is
/// nothing to do for it here.
async fn ticks() -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let seconds = tokio::time::interval(Duration::from_secs(1));
    Sse::new(unfold((0_u64, seconds), |(tick, mut seconds)| async move {
        seconds.tick().await;
        Some((Ok(Event::default().data(tick.to_string())), (tick + 1, seconds)))
    }))
}

/// The application. A slot of a process that dies is free again after ten seconds.
pub(crate) fn app(limiter: Limiter) -> Router {
    let limit = RateLimitLayer::new(limiter).slot_ttl(Duration::from_secs(10));
    Router::new().route("/ticks", get(ticks)).layer(limit)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    let app = app(Limiter::new(Limit::concurrent(2)));
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
