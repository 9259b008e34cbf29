//! A gRPC service: over the limit, calls end with RESOURCE_EXHAUSTED and a retry delay.
//!
//!     cargo run -p tollgate-http --features grpc --example tonic

use tokio::net::TcpListener;
use tollgate::{Limit, Limiter};
use tollgate_http::RateLimitLayer;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

/// Serves health checks behind a limiter.
pub(crate) async fn serve(listener: TcpListener, limiter: Limiter) -> Result<(), tonic::transport::Error> {
    let (_, health) = tonic_health::server::health_reporter();
    Server::builder()
        .layer(RateLimitLayer::new(limiter))
        .add_service(health)
        .serve_with_incoming(TcpIncoming::from(listener))
        .await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Five per minute and client.
    let limiter = Limiter::new(Limit::per_minute(5));
    serve(TcpListener::bind("127.0.0.1:50051").await?, limiter).await?;
    Ok(())
}
