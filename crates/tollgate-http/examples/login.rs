//! A login that is limited by failed attempts: the right password costs nothing.
//!
//!     cargo run -p tollgate-http --example login
//!     curl -i -d wrong localhost:3000/login            # six times
//!     curl -i -d "open sesame" localhost:3000/login

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use tollgate::{Limit, Limiter};
use tollgate_http::RateLimitLayer;

async fn login(password: String) -> StatusCode {
    if password == "open sesame" { StatusCode::OK } else { StatusCode::UNAUTHORIZED }
}

/// The application: a burst of five failures, and one more every ten seconds.
pub(crate) fn app() -> Router {
    let failures = RateLimitLayer::new(Limiter::new(Limit::LOGIN))
        .charge_by_response(Duration::from_secs(30), |answered| u64::from(answered.status == 401));
    Router::new().route("/login", post(login)).layer(failures)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    axum::serve(listener, app().into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
