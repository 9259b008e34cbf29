//! The one method: descriptors in, one decision, a status for each descriptor out.

use std::sync::Arc;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tollgate::{Clock as _, Decision, Error};
use tonic::{Request, Response, Status};

use super::descriptors::{DescriptorRequest, ResolvedDescriptor};
use super::response::ResponseBuilder;
use crate::app::{App, STOPWATCH};
use crate::metrics::Route;

/// The most descriptors of a request.
const DESCRIPTORS_MAX: usize = 64;

/// How often a request is decided anew because the rules changed meanwhile.
const RETRIES_MAX: usize = 3;

/// The most entries of a descriptor.
const ENTRIES_MAX: usize = 64;

pub(super) struct RateLimits {
    app: Arc<App>,
}

impl RateLimits {
    pub(super) const fn new(app: Arc<App>) -> Self {
        Self { app }
    }

    /// Decides a request. What `refunded` says has been given back is not given back again.
    ///
    /// Where `grpc_refunds` is off, a descriptor that gives back is an error, which Envoy lets pass
    /// unless its `failure_mode_deny` is set. So the error comes last: the other descriptors are
    /// decided and charged as always, a denial of theirs is the answer, and what passes with the
    /// error is what they admit.
    async fn decide(
        &self,
        request: &RateLimitRequest,
        refunded: &mut [bool],
    ) -> Result<RateLimitResponse, Status> {
        let settings = self.app.settings().clone();
        let descriptors = ResolvedDescriptor::all(&self.app, &settings.domains, request)?;
        for (descriptor, done) in descriptors.iter().zip(refunded) {
            if let (Some(refunded), false) = (descriptor.refunded().filter(|_| settings.grpc_refunds), *done)
            {
                // Whatever came of it is in the numbers.
                *done = self.app.timed(self.app.limiter.refund(refunded)).await.is_ok();
            }
        }
        let mut response = ResponseBuilder::new(&settings.headers, descriptors.len());
        let requests: Vec<&DescriptorRequest<'_>> =
            descriptors.iter().filter_map(ResolvedDescriptor::request).collect();
        let always_denied = descriptors.iter().any(|descriptor| descriptor.always_denied().is_some());
        let each: Vec<Decision> = match requests.as_slice() {
            [] => Vec::new(),
            // Somebody is denied for certain: then nobody is charged.
            _ if always_denied => {
                let mut peeked = Vec::with_capacity(requests.len());
                for request in requests {
                    // No fields either: there is no time to come back at.
                    peeked.push(self.app.timed(self.app.limiter.peek(request)).await.map_err(refused)?);
                }
                peeked
            }
            [only] => {
                let decision = self.app.check(*only).await.map_err(refused)?;
                response.headers(&decision);
                vec![decision]
            }
            several => {
                let together = self.app.timed(self.app.limiter.check_together(several)).await;
                let together = together.map_err(refused)?;
                response.headers(together.whole());
                together.into_each()
            }
        };
        let mut each = each.iter();
        for descriptor in &descriptors {
            let decision = if descriptor.request().is_some() { each.next() } else { None };
            response.status(descriptor, decision);
        }
        let allowed = response.allowed();
        let has_refund = request.descriptors.iter().any(|descriptor| descriptor.is_negative_hits);
        if allowed && has_refund && !settings.grpc_refunds {
            let sentence = "is_negative_hits gives units back, which is off; set `grpc_refunds = true` \
                            under [server] to allow it";
            return Err(Status::invalid_argument(sentence));
        }
        for (name, cost) in descriptors.iter().filter_map(ResolvedDescriptor::detailed) {
            self.app.top.count_as(name, allowed.then_some(cost), self.app.clock.now());
        }
        Ok(response.finish())
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
        let bounds = [("descriptors", request.descriptors.len(), DESCRIPTORS_MAX)].into_iter().chain(
            request.descriptors.iter().map(|descriptor| ("entries", descriptor.entries.len(), ENTRIES_MAX)),
        );
        if let Some((what, many, most)) = bounds.into_iter().find(|(_, many, most)| many > most) {
            return Err(Status::invalid_argument(format!("there are {many} {what}; send at most {most}")));
        }
        let mut refunded = vec![false; request.descriptors.len()];
        let mut answered = self.decide(&request, &mut refunded).await;
        for _ in 0..RETRIES_MAX {
            if answered.as_ref().is_err_and(|status| status.code() == tonic::Code::Aborted) {
                // The rules changed in between: once more by the new ones.
                self.app.settled();
                answered = self.decide(&request, &mut refunded).await;
            }
        }
        if let Err(status) = &mut answered
            && status.code() == tonic::Code::Aborted
        {
            *status = Status::unavailable(status.message());
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
