//! Encodes decisions as Envoy's messages.

use std::time::Duration;

use tollgate::{Algorithm, CalendarUnit, DAY, Decision, HOUR, Limit, MINUTE, Report, SECOND};
use tollgate_http::{Headers, policy_name};

use super::descriptors::ResolvedDescriptor;
use super::pb::envoy::config::core::v3::HeaderValue;
use super::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use super::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use super::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};

/// Builds a response.
pub(super) struct ResponseBuilder<'a> {
    headers: &'a Headers,
    response: RateLimitResponse,
}

impl<'a> ResponseBuilder<'a> {
    pub(super) fn new(headers: &'a Headers, descriptors: usize) -> Self {
        let statuses = Vec::with_capacity(descriptors);
        let response = RateLimitResponse { overall_code: Code::Ok.into(), statuses, ..Default::default() };
        Self { headers, response }
    }

    /// Adds a decision's header fields.
    pub(super) fn headers(&mut self, decision: &Decision) {
        self.headers.for_each(decision, |name, value| {
            self.response.response_headers_to_add.push(HeaderValue {
                key: name.as_str().into(),
                value: value.to_str().unwrap_or_default().into(),
                raw_value: Vec::new(),
            });
        });
    }

    /// Adds the status of the next descriptor. One over its limit makes the response over limit.
    pub(super) fn status(&mut self, descriptor: &ResolvedDescriptor<'_>, decision: Option<&Decision>) {
        let ok = DescriptorStatus { code: Code::Ok.into(), ..Default::default() };
        let status = match (decision, descriptor.always_denied()) {
            (Some(decision), _) => decided(descriptor, decision),
            (None, Some((name, period))) => always_denied(name, period),
            _ if descriptor.is_unlimited() => DescriptorStatus { limit_remaining: u32::MAX, ..ok },
            _ => ok,
        };
        if status.code() == Code::OverLimit {
            self.response.overall_code = status.code;
        }
        self.response.statuses.push(status);
    }

    /// Makes every descriptor over limit.
    pub(super) fn deny_all(&mut self) {
        self.response.overall_code = Code::OverLimit.into();
        for status in &mut self.response.statuses {
            status.code = Code::OverLimit.into();
        }
    }

    /// Whether no descriptor so far is over its limit.
    pub(super) fn allowed(&self) -> bool {
        self.response.overall_code() == Code::Ok
    }

    pub(super) fn finish(self) -> RateLimitResponse {
        self.response
    }
}

/// The status of a decided descriptor: the numbers of the deciding limit or, if all are shadows, of
/// the first.
fn decided(descriptor: &ResolvedDescriptor<'_>, decision: &Decision) -> DescriptorStatus {
    let code = if decision.allowed() { Code::Ok } else { Code::OverLimit };
    let summary = decision.summary();
    let first = || decision.with_limits(|limits| limits.first().copied());
    let Some(report) = summary.deciding.or_else(first) else {
        return DescriptorStatus { code: code.into(), ..Default::default() };
    };
    let remaining = if report.shadow { report.outcome.remaining } else { summary.remaining };
    DescriptorStatus {
        code: code.into(),
        current_limit: Some(current_limit(descriptor, &report)),
        limit_remaining: u32::try_from(remaining).unwrap_or(u32::MAX),
        duration_until_reset: Some(duration(report.outcome.reset_at.since(decision.now()))),
        ..Default::default()
    }
}

/// The status of a descriptor that is always denied.
fn always_denied(name: &str, period: Duration) -> DescriptorStatus {
    let limit = RateLimit { name: name.into(), requests_per_unit: 0, unit: unit(period).into() };
    DescriptorStatus { code: Code::OverLimit.into(), current_limit: Some(limit), ..Default::default() }
}

fn current_limit(descriptor: &ResolvedDescriptor<'_>, report: &Report) -> RateLimit {
    let (count, unit) = rate(&report.limit);
    RateLimit {
        name: descriptor.name().map_or_else(|| policy_name(report), str::to_owned),
        requests_per_unit: u32::try_from(count).unwrap_or(u32::MAX),
        unit: unit.into(),
    }
}

/// The sustained rate of a limit.
fn rate(limit: &Limit) -> (u64, Unit) {
    match limit.algorithm() {
        Algorithm::TokenBucket(bucket) | Algorithm::Reserve { sustained: bucket, .. } => {
            (bucket.amount, unit(bucket.interval))
        }
        Algorithm::CalendarWindow { limit, unit, .. } => (limit, calendar_unit(unit)),
        _ => (limit.capacity(), unit(limit.period())),
    }
}

fn calendar_unit(unit: CalendarUnit) -> Unit {
    match unit {
        CalendarUnit::Hour => Unit::Hour,
        CalendarUnit::Day => Unit::Day,
        CalendarUnit::Week => Unit::Week,
        CalendarUnit::Month => Unit::Month,
        CalendarUnit::Year => Unit::Year,
        _ => Unit::Unknown,
    }
}

/// The unit of a period, if it is one.
fn unit(period: Duration) -> Unit {
    let units = [
        (SECOND, Unit::Second),
        (MINUTE, Unit::Minute),
        (HOUR, Unit::Hour),
        (DAY, Unit::Day),
        (DAY * 7, Unit::Week),
        (DAY * 30, Unit::Month),
        (DAY * 365, Unit::Year),
    ];
    units.iter().find(|(known, _)| *known == period).map_or(Unit::Unknown, |(_, unit)| *unit)
}

fn duration(span: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(span.subsec_nanos()).unwrap_or(0),
    }
}
