use std::net::SocketAddr;

use axum::{Router, routing::get};
use tollgate::{Limit, Limiter};
use tollgate_http::RateLimitLayer;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let layer = RateLimitLayer::new(Limiter::new(Limit::per_second(10)));
    let app = Router::new().route("/", get(async || "hello")).layer(layer);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
}
