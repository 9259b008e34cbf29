//! Resolves descriptors into requests.
//!
//! A domain defined in a YAML file of the rate limit service is decided by that file alone, which
//! compares values as they are. The descriptors of any other domain are decided by the rules, with
//! their entries and `domain` as attributes.

use std::borrow::Cow;
use std::collections::HashSet;
use std::iter;
use std::time::Duration;

use tollgate::{AsRequest, Caller, DAY, HOUR, Limit, MAX_COUNT, MINUTE, Request, RequestBuf, SECOND};
use tonic::Status;

use super::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use super::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use super::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use super::pb::envoy::r#type::v3::RateLimitUnit;
use crate::app::App;
use crate::envoy::{Domains, Matched, Verdict, attribute_names};
use crate::inline::{DESCRIPTOR, OVERRIDE};
use crate::value::{attribute_value, value_of};

/// The attribute of the request's domain.
const DOMAIN: &str = "domain";

/// A descriptor and how it is decided.
#[derive(Debug)]
pub(super) struct ResolvedDescriptor<'a> {
    resolution: Resolution<'a>,
    matched: Option<&'a Matched>,
    /// The descriptor's name, if its metrics list every value.
    detailed: Option<String>,
    cost: u64,
    /// Whether the cost is refunded instead of charged.
    negative: bool,
    /// Whether `hits_addend` is 0: the request of cost 1 is decided, and nothing is charged.
    check_only: bool,
}

#[derive(Debug)]
enum Resolution<'a> {
    /// No limit applies.
    NoLimit,
    /// The file says `unlimited`.
    Unlimited,
    /// The file or the descriptor allows 0 requests per period of this length.
    AlwaysDenied(Duration),
    /// The limiter decides.
    Limited(RequestBuf<'a>),
}

impl<'a> ResolvedDescriptor<'a> {
    /// Resolves all descriptors of a request.
    ///
    /// # Errors
    /// If an inline limit is invalid.
    pub(super) fn all(
        app: &App,
        domains: &'a Domains,
        request: &'a RateLimitRequest,
        caller: Caller,
    ) -> Result<Vec<Self>, Status> {
        let each = request.descriptors.iter().map(|descriptor| {
            // In protobuf 0 means unset.
            let default = || u64::from(request.hits_addend.max(1));
            let cost = descriptor.hits_addend.unwrap_or_else(default).min(MAX_COUNT);
            Self::one(app, domains, &request.domain, descriptor, cost)
        });
        let mut all = each.collect::<Result<Vec<_>, _>>()?;
        let matched = all.iter().filter_map(|descriptor| descriptor.matched);
        let replaced: HashSet<&String> = matched.flat_map(|matched| &matched.replaces).collect();
        for descriptor in &mut all {
            if descriptor.matched.is_some_and(|matched| replaced.contains(&matched.name)) {
                descriptor.resolution = Resolution::NoLimit;
            }
            if let Resolution::Limited(request) = &mut descriptor.resolution {
                *request = std::mem::take(request).caller(caller);
            }
        }
        Ok(all)
    }

    fn one(
        app: &App,
        domains: &'a Domains,
        domain: &'a str,
        descriptor: &'a RateLimitDescriptor,
        cost: u64,
    ) -> Result<Self, Status> {
        let negative = descriptor.is_negative_hits;
        let check_only = cost == 0 && !negative;
        // A refund is not charged. A check asks whether anything is left.
        let charged = if negative { 0 } else { cost.max(1) };
        let entries = || descriptor.entries.iter().map(|entry| (entry.key.as_str(), entry.value.as_str()));
        let keys = entries().map(|(key, _)| key);
        let values = entries().map(|(_, value)| value_of(value.as_bytes()));
        let resolved =
            |resolution, matched| Self { resolution, matched, detailed: None, cost, negative, check_only };
        if let Some(inline) = &descriptor.limit {
            let period = period(inline)?;
            let resolution = match u64::from(inline.requests_per_unit) {
                0 => Resolution::AlwaysDenied(period),
                count => {
                    let limit = app.limiter.inline(Limit::fixed_window(count, period));
                    let limit = limit.map_err(|error| Status::invalid_argument(error.to_string()))?;
                    let name = value_of(whole_name(domain, entries()).as_bytes()).into_owned();
                    let request: RequestBuf<'_> = iter::once((DESCRIPTOR, name)).collect();
                    Resolution::Limited(request.under(OVERRIDE, limit).cost(charged))
                }
            };
            return Ok(resolved(resolution, None));
        }
        let Some(known) = domains.get(domain) else {
            let names = attribute_names(iter::once(DOMAIN).chain(keys));
            let values = iter::once(domain).chain(entries().map(|(_, value)| value));
            let named = |(name, value): (Cow<'a, str>, &'a str)| {
                let value = attribute_value(&name, value.as_bytes());
                (name, value)
            };
            let request: RequestBuf<'_> = names.into_iter().zip(values).map(named).collect();
            return Ok(resolved(Resolution::Limited(request.cost(charged)), None));
        };
        let Some(matched) = known.find(entries()) else {
            app.decisions.uncovered(keys);
            return Ok(resolved(Resolution::NoLimit, None));
        };
        let resolution = match matched.verdict {
            Verdict::Unlimited => Resolution::Unlimited,
            Verdict::DenyAll(_) if matched.shadow => Resolution::NoLimit,
            Verdict::DenyAll(period) => Resolution::AlwaysDenied(period),
            Verdict::Rule(rule) => {
                let request: RequestBuf<'_> = attribute_names(keys).into_iter().zip(values).collect();
                Resolution::Limited(request.only(rule.as_str()).cost(charged))
            }
        };
        let detailed = matched.detailed.then(|| readable_name(domain, entries()));
        Ok(Self { detailed, ..resolved(resolution, Some(matched)) })
    }

    /// The request to the limiter, if the limiter decides.
    pub(super) const fn request(&self) -> Option<&RequestBuf<'a>> {
        match &self.resolution {
            Resolution::Limited(request) => Some(request),
            Resolution::NoLimit | Resolution::Unlimited | Resolution::AlwaysDenied(_) => None,
        }
    }

    /// Whether the request is only decided, and nothing is charged.
    pub(super) const fn is_check_only(&self) -> bool {
        self.check_only
    }

    /// The refund, if the descriptor is one.
    pub(super) fn refund(&self) -> Option<DescriptorRefund<'_, 'a>> {
        let request = self.request().filter(|_| self.negative)?;
        Some(DescriptorRefund { request, cost: self.cost })
    }

    /// The name and the period of a limit that always denies.
    pub(super) fn always_denied(&self) -> Option<(&str, Duration)> {
        let name = self.matched.map_or(OVERRIDE, |matched| &matched.name);
        match self.resolution {
            Resolution::AlwaysDenied(period) => Some((name, period)),
            _ => None,
        }
    }

    /// Whether the file of its domain has no limit for it.
    pub(super) const fn is_uncovered(&self) -> bool {
        matches!(self.resolution, Resolution::NoLimit) && self.matched.is_none()
    }

    pub(super) const fn is_unlimited(&self) -> bool {
        matches!(self.resolution, Resolution::Unlimited)
    }

    /// The name of its limit, if the file gives one.
    pub(super) fn name(&self) -> Option<&str> {
        self.matched.map(|matched| matched.name.as_str()).filter(|name| !name.is_empty())
    }

    /// The name and the cost to count, if its metrics list every value.
    pub(super) fn detailed(&self) -> Option<(&str, u64)> {
        Some((self.detailed.as_deref()?, self.request().map(|_| self.cost).filter(|_| !self.negative)?))
    }
}

/// A descriptor's cost, refunded.
#[derive(Clone, Copy, Debug)]
pub(super) struct DescriptorRefund<'r, 'a> {
    request: &'r RequestBuf<'a>,
    cost: u64,
}

impl AsRequest for DescriptorRefund<'_, '_> {
    fn with_request<R>(&self, f: impl FnOnce(Request<'_>) -> R) -> R {
        self.request.with_request(|request| f(request.cost(self.cost)))
    }
}

/// The period of an inline limit.
fn period(inline: &RateLimitOverride) -> Result<Duration, Status> {
    let invalid = || {
        let unit = inline.unit;
        Status::invalid_argument(format!("the limit of a descriptor has the unknown unit {unit}"))
    };
    match RateLimitUnit::try_from(inline.unit).map_err(|_| invalid())? {
        RateLimitUnit::Unknown => Err(invalid()),
        RateLimitUnit::Second => Ok(SECOND),
        RateLimitUnit::Minute => Ok(MINUTE),
        RateLimitUnit::Hour => Ok(HOUR),
        RateLimitUnit::Day => Ok(DAY),
        RateLimitUnit::Month => Ok(DAY * 30),
        RateLimitUnit::Year => Ok(DAY * 365),
    }
}

/// A descriptor as an unambiguous text: each part is prefixed with its length.
fn whole_name<'a>(domain: &str, entries: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let parts = iter::once(domain).chain(entries.flat_map(|(key, value)| [key, value]));
    parts.map(|part| format!("{}:{part},", part.len())).collect()
}

/// A descriptor's name as in the metrics of Envoy's rate limit service.
fn readable_name<'a>(domain: &str, entries: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    entries.fold(domain.to_owned(), |name, (key, value)| format!("{name}.{key}_{value}"))
}
