//! An echo service over websockets, two at a time for each address.
//!
//!     cargo run -p tollgate-http --example websocket
//!     websocat ws://localhost:3000/echo        # a third one at the same time is refused with 429

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::ws::{WebSocket, WebSocketUpgrade};
use axum::response::Response;
use axum::routing::any;
use tollgate::{Limit, Limiter};
use tollgate_http::{ConnectionSlot, RateLimitLayer};

/// The response to the handshake is over at once, and the connection lives on in the closure: it
/// takes the slot along.
async fn echo(upgrade: WebSocketUpgrade, slot: ConnectionSlot) -> Response {
    upgrade.on_upgrade(|socket| repeat(socket, slot))
}

/// Holds the slot, which is renewed, until the connection has ended.
async fn repeat(mut socket: WebSocket, _slot: ConnectionSlot) {
    while let Some(Ok(message)) = socket.recv().await {
        if socket.send(message).await.is_err() {
            return;
        }
    }
}

/// The application. A slot of a process that dies is free again after ten seconds.
pub(crate) fn app(limiter: Limiter) -> Router {
    let limit = RateLimitLayer::new(limiter).slot_ttl(Duration::from_secs(10));
    Router::new().route("/echo", any(echo)).layer(limit)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    let app = app(Limiter::new(Limit::concurrent(2)));
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
