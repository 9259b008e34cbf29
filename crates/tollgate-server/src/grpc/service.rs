//! The rate limit method: descriptors in, one decision, and a status for each descriptor out.

use std::sync::Arc;

use smallvec::SmallVec;
use tollgate::{Caller, Clock as _, Decision, Error, RequestBuf};
use tonic::{Code, Request, Response, Status};

use super::descriptors::ResolvedDescriptor;
use super::pb::envoy::service::ratelimit::v3::rate_limit_response::Code as Verdict;
use super::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use super::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use super::response::ResponseBuilder;
use crate::app::{App, STOPWATCH};
use crate::caller::Sender;
use crate::config::Settings;
use crate::metrics::Route;

/// The most descriptors of a request.
const DESCRIPTORS_MAX: usize = 64;

/// The most entries of a descriptor.
const ENTRIES_MAX: usize = 64;

pub(super) struct RateLimits {
    app: Arc<App>,
}

impl RateLimits {
    pub(super) const fn new(app: Arc<App>) -> Self {
        Self { app }
    }

    /// Decides a request.
    ///
    /// Where `grpc_refunds` is off, a refund is an error, which Envoy admits unless its
    /// `failure_mode_deny` is set. So the error comes last: the other descriptors are decided and
    /// charged first, and a denial among them is the response.
    ///
    /// The futures of all operations but a check are boxed: they are rare, and every call copies
    /// this one's.
    async fn decide(
        &self,
        settings: &Settings,
        request: &RateLimitRequest,
        caller: Caller,
    ) -> Result<RateLimitResponse, Status> {
        let descriptors = ResolvedDescriptor::all(&self.app, &settings.domains, request, caller)?;
        for refund in descriptors.iter().filter_map(ResolvedDescriptor::refund) {
            if settings.grpc_refunds {
                // A failed refund shows in the numbers of the response.
                let _ = self.app.timed(Box::pin(self.app.limiter.refund(refund))).await;
            }
        }
        let mut response = ResponseBuilder::new(&settings.headers, descriptors.len());
        let mut decisions = self.peeked(&descriptors).await?;
        let denied_already = decisions.iter().flatten().any(|decision| !decision.allowed())
            || descriptors.iter().any(|descriptor| descriptor.always_denied().is_some());
        let charged: SmallVec<[(usize, &RequestBuf<'_>); 4]> = descriptors
            .iter()
            .enumerate()
            .filter(|(index, _)| decisions[*index].is_none())
            .filter_map(|(index, descriptor)| Some((index, descriptor.request()?)))
            .collect();
        let requests = || charged.iter().map(|(_, request)| *request).collect::<Vec<_>>();
        let each = match charged.as_slice() {
            [] => {
                if let Some(only) = decisions.iter().flatten().next() {
                    response.headers(only);
                }
                Vec::new()
            }
            // One descriptor is denied already, so none is charged. No header fields: there is no
            // time to retry at.
            _ if denied_already => {
                self.app.timed(Box::pin(self.app.limiter.refuse_all(&requests()))).await.map_err(refused)?
            }
            [(index, only)] => {
                let decision = self.app.check(*only).await.map_err(refused)?;
                response.headers(&decision);
                decisions[*index] = Some(decision);
                Vec::new()
            }
            _ => {
                let together = self.app.timed(Box::pin(self.app.limiter.check_all(&requests()))).await;
                let together = together.map_err(refused)?;
                response.headers(together.whole());
                together.into_each()
            }
        };
        for ((index, _), decision) in charged.into_iter().zip(each) {
            decisions[index] = Some(decision);
        }
        for (descriptor, decision) in descriptors.iter().zip(&decisions) {
            response.status(descriptor, decision.as_ref());
        }
        if settings.deny_uncovered && descriptors.iter().all(ResolvedDescriptor::is_uncovered) {
            response.deny_all();
        }
        let allowed = response.allowed();
        let has_refund = request.descriptors.iter().any(|descriptor| descriptor.is_negative_hits);
        if allowed && has_refund && !settings.grpc_refunds {
            let sentence = "is_negative_hits refunds units, which is off; set `grpc_refunds = true` \
                            under [server] to allow it";
            return Err(Status::invalid_argument(sentence));
        }
        self.log_zero_limits(request, &descriptors);
        for (name, cost) in descriptors.iter().filter_map(ResolvedDescriptor::detailed) {
            self.app.decisions.top.count_as(name, allowed.then_some(cost), None, self.app.clock.now());
        }
        Ok(response.finish())
    }

    /// Logs the denials by limits of 0. The limiter takes no decision on them, so its observer does
    /// not log them. A limit without a name is logged as its domain.
    fn log_zero_limits(&self, request: &RateLimitRequest, descriptors: &[ResolvedDescriptor<'_>]) {
        for (descriptor, resolved) in request.descriptors.iter().zip(descriptors) {
            let Some((name, _)) = resolved.always_denied() else { continue };
            let rule = if name.is_empty() { &request.domain } else { name };
            let entries = descriptor.entries.iter().map(|entry| (entry.key.as_str(), entry.value.as_str()));
            self.app.decisions.denied_by_zero(entries, rule, self.app.clock.now());
        }
    }

    /// The decisions on the descriptors that are only checked.
    async fn peeked(&self, descriptors: &[ResolvedDescriptor<'_>]) -> Result<Vec<Option<Decision>>, Status> {
        let mut decisions = Vec::with_capacity(descriptors.len());
        for descriptor in descriptors {
            decisions.push(match descriptor.request().filter(|_| descriptor.is_check_only()) {
                Some(request) => {
                    Some(self.app.timed(Box::pin(self.app.limiter.peek(request))).await.map_err(refused)?)
                }
                None => None,
            });
        }
        Ok(decisions)
    }
}

#[tonic::async_trait]
impl RateLimitService for RateLimits {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let began = STOPWATCH.now();
        let span = self.app.telemetry().and_then(|telemetry| telemetry.sample(request.metadata().as_ref()));
        let sender = request.extensions().get::<Sender>().cloned();
        let sender = sender.expect("a connection adds its sender to every call");
        let request = request.into_inner();
        if request.domain.is_empty() {
            return Err(Status::invalid_argument("the domain is empty; name the domain whose limits apply"));
        }
        if request.descriptors.is_empty() {
            return Err(Status::invalid_argument("there are no descriptors; send at least one"));
        }
        let bounds = [("descriptors", request.descriptors.len(), DESCRIPTORS_MAX)].into_iter().chain(
            request.descriptors.iter().map(|descriptor| ("entries", descriptor.entries.len(), ENTRIES_MAX)),
        );
        if let Some((items, count, max)) = bounds.into_iter().find(|(_, count, max)| count > max) {
            return Err(Status::invalid_argument(format!("there are {count} {items}; send at most {max}")));
        }
        let snapshot = Arc::clone(&self.app.snapshot());
        let answer = snapshot.rules.scope(self.decide(&snapshot.settings, &request, sender.caller));
        let answered = match span {
            None => answer.await,
            // A limit of 0 denies without a decision of the limiter.
            Some(span) => span.trace("grpc", "ShouldRateLimit", answer, is_allowed).await,
        };
        if answered.as_ref().is_err_and(|status| status.code() == Code::ResourceExhausted) {
            self.app.refused_as_overloaded(&sender);
        }
        self.app.metrics.took(Route::GRPC, STOPWATCH.now().since(began), 1);
        answered.map(Response::new)
    }
}

/// The answer as a whole, unless it is an error.
fn is_allowed(answer: &Result<RateLimitResponse, Status>) -> Option<bool> {
    answer.as_ref().ok().map(|response| response.overall_code() == Verdict::Ok)
}

/// An error as a status on which Envoy applies its failure mode.
fn refused(error: Error) -> Status {
    if let Error::SlotNeeded { rule } = error {
        let sentence = format!(
            "rule {rule:?} limits how many requests are under way at once; Envoy cannot release a slot, \
             so acquire it over HTTP, or match on attributes that Envoy does not send"
        );
        return Status::failed_precondition(sentence);
    }
    if let Error::Overloaded { .. } = error {
        return Status::resource_exhausted(error.to_string());
    }
    Status::unavailable(error.to_string())
}
