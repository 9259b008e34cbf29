//! `grpc.health.v1`: readiness, as `/readyz` reports it.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::stream::{self, Stream, StreamExt as _};
use tollgate::{Clock as _, SECOND};
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::app::{App, STOPWATCH};

/// The known service names: the whole server, and the rate limit service.
const SERVICES: [&str; 2] = ["", "envoy.service.ratelimit.v3.RateLimitService"];

#[derive(Clone)]
pub(super) struct Health {
    app: Arc<App>,
}

impl Health {
    pub(super) const fn new(app: Arc<App>) -> Self {
        Self { app }
    }
}

async fn status(app: &App) -> ServingStatus {
    if app.not_ready_reason().await.is_none() { ServingStatus::Serving } else { ServingStatus::NotServing }
}

fn health_response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl health_server::Health for Health {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let service = request.into_inner().service;
        if !SERVICES.contains(&service.as_str()) {
            return Err(Status::not_found(format!("there is no service {service:?} here")));
        }
        Ok(Response::new(health_response(status(&self.app).await)))
    }

    /// Polls once a second, sends changes, and ends when the server stops.
    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let known = SERVICES.contains(&request.into_inner().service.as_str());
        let app = Arc::clone(&self.app);
        let changes = stream::unfold(None, move |last| {
            let app = Arc::clone(&app);
            async move {
                loop {
                    // The known state of the store, not a probe: many clients may watch.
                    let healthy = app.is_ready() && app.limiter.store().failure().is_none();
                    let now = match (known, healthy) {
                        (false, _) => ServingStatus::ServiceUnknown,
                        (true, true) => ServingStatus::Serving,
                        (true, false) => ServingStatus::NotServing,
                    };
                    if last != Some(now) {
                        return Some((now, Some(now)));
                    }
                    if !app.is_ready() {
                        return None;
                    }
                    STOPWATCH.sleep_until(STOPWATCH.now().saturating_add(SECOND)).await;
                }
            }
        });
        Ok(Response::new(Box::pin(changes.map(|status| Ok(health_response(status))))))
    }
}
