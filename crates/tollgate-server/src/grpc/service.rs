//! The one method: descriptors in, one decision, a status for each descriptor out.

use std::sync::Arc;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tollgate::{Clock as _, Decision, Error};
use tonic::{Request, Response, Status};

use super::answer::Answer;
use super::descriptors::{Asked, Sought};
use crate::app::{App, STOPWATCH};
use crate::metrics::Route;

/// The most descriptors of a request.
const DESCRIPTORS_MAX: usize = 256;

pub(super) struct RateLimits {
    app: Arc<App>,
}

impl RateLimits {
    pub(super) const fn new(app: Arc<App>) -> Self {
        Self { app }
    }

    async fn decide(&self, request: &RateLimitRequest) -> Result<RateLimitResponse, Status> {
        let settings = self.app.settings().clone();
        let sought = Sought::all(&self.app, &settings.domains, request)?;
        for refunded in sought.iter().filter_map(Sought::refunded) {
            // Whatever came of it is in the numbers.
            let _ = self.app.timed(self.app.limiter.refund(refunded)).await;
        }
        let mut answer = Answer::new(&settings.headers, sought.len());
        let asked: Vec<&Asked<'_>> = sought.iter().filter_map(Sought::asked).collect();
        let closed = sought.iter().any(Sought::is_closed);
        let each: Vec<Decision> = match asked.as_slice() {
            [] => Vec::new(),
            // Somebody is denied for certain: then nobody is charged.
            _ if closed => {
                let mut peeked = Vec::with_capacity(asked.len());
                for request in asked {
                    let decision = self.app.timed(self.app.limiter.peek(request)).await.map_err(refused)?;
                    answer.headers(&decision);
                    peeked.push(decision);
                }
                peeked
            }
            [only] => {
                let decision = self.app.check(*only).await.map_err(refused)?;
                answer.headers(&decision);
                vec![decision]
            }
            several => {
                let together = self.app.timed(self.app.limiter.check_together(several)).await;
                let together = together.map_err(refused)?;
                answer.headers(together.whole());
                together.into_each()
            }
        };
        let mut each = each.iter();
        for sought in &sought {
            let decision = if sought.asked().is_some() { each.next() } else { None };
            if let (Some(name), Some(decision)) = (sought.detailed(), decision) {
                self.app.top.count_as(name, sought.cost(), decision);
            }
            answer.status(sought, decision);
        }
        Ok(answer.finish())
    }
}

#[tonic::async_trait]
impl RateLimitService for RateLimits {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let began = STOPWATCH.now();
        let request = request.into_inner();
        if request.domain.is_empty() {
            return Err(Status::invalid_argument("the domain is empty; say which limits apply"));
        }
        if request.descriptors.is_empty() {
            return Err(Status::invalid_argument("there are no descriptors; say what to limit"));
        }
        if request.descriptors.len() > DESCRIPTORS_MAX {
            let many = request.descriptors.len();
            let sentence = format!("there are {many} descriptors; send at most {DESCRIPTORS_MAX}");
            return Err(Status::invalid_argument(sentence));
        }
        let mut answered = self.decide(&request).await;
        if answered.as_ref().is_err_and(|status| status.code() == tonic::Code::Aborted) {
            // The rules changed in between: once more by the new ones.
            answered = self.decide(&request).await;
        }
        self.app.metrics.took(Route::GRPC, STOPWATCH.now().since(began), 1);
        answered.map(Response::new)
    }
}

/// An error is never one that Envoy lets pass whatever its failure mode says.
fn refused(error: Error) -> Status {
    match error {
        Error::UnknownRule { .. } => Status::aborted(error.to_string()),
        error => Status::unavailable(error.to_string()),
    }
}
