//! The response to a denied request: a status, header fields, and a problem body (RFC 9457).

use std::ops::Not;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use serde::Serialize;
use tollgate::{Cause, Decision, Error, HoldsBound, Report, Summary, Timestamp};

use crate::Headers;
use crate::headers::{for_each_enforcing, policy_name, seconds_to_wait};

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const ABNORMAL_USAGE: &str = "https://iana.org/assignments/http-problem-types#abnormal-usage-detected";
/// The problem type of requests that are refused for lack of capacity.
pub const REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

// Checked at compile time.
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

/// The numbers of a decision, as in every JSON answer. Times are whole milliseconds, rounded up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Numbers {
    /// Whether the request may go ahead.
    pub allowed: bool,
    /// How many more requests of cost 1 would be admitted now: null if no limit covers the request.
    pub remaining: Option<u64>,
    /// When the limit that decided is fully available again, since the Unix epoch.
    pub reset_at: u64,
    /// The capacity of the limit that decided: null if no limit covers the request.
    pub limit: Option<u64>,
    /// The wait until this request would be admitted: 0 if it was admitted, null if it never fits.
    pub retry_after_ms: Option<u64>,
    /// The rule that decided.
    pub rule: Option<&'static str>,
    /// Whether a failure policy decided, because the store failed.
    pub degraded: bool,
    /// Units recorded beyond the limit and not paid off yet. Absent if nothing is owed.
    #[serde(skip_serializing_if = "is_zero")]
    pub owed: u64,
    /// The percentage in use of the fullest limit that warns. Absent if none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warning: Option<u64>,
    /// Whether a block denies the request. Absent if no block does.
    #[serde(skip_serializing_if = "Not::not")]
    pub blocked: bool,
    /// When the block ends, since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// Whose reservations and slots are too many, if that denies the request: `caller` or `all`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holds_full: Option<&'static str>,
}

impl From<&Decision> for Numbers {
    fn from(decision: &Decision) -> Self {
        let Summary { verdict, remaining, deciding } = decision.summary();
        let until = blocked_until(decision.cause());
        let remaining = deciding.map(|_| remaining);
        let reset_at = deciding.map_or(decision.now(), |report| report.outcome.reset_at);
        Self {
            allowed: decision.allowed(),
            remaining,
            owed: if remaining == Some(0) { decision.owed() } else { 0 },
            reset_at: reset_at.as_millis_ceil(),
            limit: deciding.map(|report| report.limit.capacity()),
            retry_after_ms: verdict.retry_after().map(millis_ceil),
            rule: deciding.map(|report| report.rule.as_str()),
            degraded: decision.degraded(),
            warning: decision.warnings().iter().filter_map(Report::warning).max(),
            blocked: until.is_some(),
            until,
            holds_full: holds_full(decision.cause()),
        }
    }
}

impl Numbers {
    /// A 200 response with these numbers as its body.
    #[must_use]
    pub fn into_response(self) -> Response<Bytes> {
        json_response(StatusCode::OK, JSON, self.to_json())
    }

    /// The JSON that serde would write, written by hand in a quarter of the time: a server answers
    /// most requests with this body.
    fn to_json(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(192);
        let flag = |flag: bool| if flag { "true" } else { "false" };
        let number = |out: &mut Vec<u8>, number: Option<u64>| match number {
            Some(number) => out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes()),
            None => out.extend_from_slice(b"null"),
        };
        out.extend_from_slice(b"{\"allowed\":");
        out.extend_from_slice(flag(self.allowed).as_bytes());
        out.extend_from_slice(b",\"remaining\":");
        number(&mut out, self.remaining);
        out.extend_from_slice(b",\"resetAt\":");
        number(&mut out, Some(self.reset_at));
        out.extend_from_slice(b",\"limit\":");
        number(&mut out, self.limit);
        out.extend_from_slice(b",\"retryAfterMs\":");
        number(&mut out, self.retry_after_ms);
        out.extend_from_slice(b",\"rule\":");
        match self.rule {
            // serde_json writes the rare name that needs escapes.
            Some(rule)
                if rule.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\') =>
            {
                out.push(b'"');
                out.extend_from_slice(rule.as_bytes());
                out.push(b'"');
            }
            rule => out.extend(serde_json::to_vec(&rule).unwrap_or_default()),
        }
        out.extend_from_slice(b",\"degraded\":");
        out.extend_from_slice(flag(self.degraded).as_bytes());
        if self.owed > 0 {
            out.extend_from_slice(b",\"owed\":");
            number(&mut out, Some(self.owed));
        }
        if self.warning.is_some() {
            out.extend_from_slice(b",\"warning\":");
            number(&mut out, self.warning);
        }
        if self.blocked {
            out.extend_from_slice(b",\"blocked\":true");
        }
        if self.until.is_some() {
            out.extend_from_slice(b",\"until\":");
            number(&mut out, self.until);
        }
        if let Some(bound) = self.holds_full {
            out.extend_from_slice(b",\"holdsFull\":\"");
            out.extend_from_slice(bound.as_bytes());
            out.push(b'"');
        }
        out.push(b'}');
        out
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// When the block that caused a denial ends, in whole milliseconds since the Unix epoch, rounded
/// up.
#[must_use]
pub fn blocked_until(cause: Cause) -> Option<u64> {
    match cause {
        Cause::Block { until } => Some(until.as_millis_ceil()),
        _ => None,
    }
}

/// Whose reservations and slots are too many, if that caused a denial.
fn holds_full(cause: Cause) -> Option<&'static str> {
    match cause {
        Cause::HoldsFull { bound: HoldsBound::Caller } => Some("caller"),
        Cause::HoldsFull { .. } => Some("all"),
        _ => None,
    }
}

/// A span in whole milliseconds, rounded up.
#[must_use]
pub fn millis_ceil(span: Duration) -> u64 {
    Timestamp::EPOCH.saturating_add(span).as_millis_ceil()
}

/// A problem body, with further members of type `M` beside the standard ones.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem<M> {
    /// The URI of the problem type.
    #[serde(rename = "type")]
    kind: &'static str,
    /// The problem type in words.
    title: &'static str,
    /// The status of the response.
    status: u16,
    /// This occurrence in words, and what to do.
    detail: String,
    #[serde(flatten)]
    #[cfg_attr(feature = "openapi", schema(inline))]
    members: M,
}

impl<M: Serialize> Problem<M> {
    /// A problem of the type `kind` (a URI, or `about:blank`).
    pub fn new(status: StatusCode, kind: &'static str, detail: String, members: M) -> Self {
        let title = status.canonical_reason().unwrap_or("Problem");
        Self { kind, title, status: status.as_u16(), detail, members }
    }

    /// A response with this body and its status.
    pub fn into_response(self) -> Response<Bytes> {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        // Does not fail: no body here has a map with keys that are not strings.
        json_response(status, PROBLEM, serde_json::to_vec(&self).unwrap_or_default())
    }
}

fn json_response(status: StatusCode, content_type: HeaderValue, body: Vec<u8>) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// The members of a denial's body beside those of a problem.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Denied<N = Numbers> {
    #[serde(flatten)]
    #[cfg_attr(feature = "openapi", schema(inline))]
    numbers: N,
    /// The names of the limits that denied the request, as in the header fields.
    #[serde(rename = "violated-policies")]
    violated_policies: Vec<String>,
}

/// The response to a denied request: 429 with `Retry-After` and the rate limit fields, or 503 if
/// it was denied because the store failed or is full, which is not the client's fault.
pub fn denied(decision: &Decision, headers: &Headers) -> Response<Bytes> {
    denied_with(decision, headers, Numbers::from(decision))
}

/// As [`denied`], with another status: for a proxy that accepts only some, such as 403 for a
/// denial, and takes any other for a failure.
pub fn denied_as(status: StatusCode, decision: &Decision, headers: &Headers) -> Response<Bytes> {
    let mut problem = problem(decision, Numbers::from(decision));
    problem.status = status.as_u16();
    with_headers(problem.into_response(), decision, headers)
}

/// As [`denied`], with other numbers in the body.
pub fn denied_with(decision: &Decision, headers: &Headers, numbers: impl Serialize) -> Response<Bytes> {
    with_headers(problem(decision, numbers).into_response(), decision, headers)
}

/// The response to a request that was refused as [overloaded](tollgate::Error::Overloaded): 503
/// with `Retry-After` and a problem body. Nothing was decided.
#[must_use]
pub fn overloaded(retry_after: Duration) -> Response<Bytes> {
    #[derive(Serialize)]
    struct Code {
        code: &'static str,
    }
    let error = Error::Overloaded { retry_after };
    let members = Code { code: error.code() };
    let status = StatusCode::SERVICE_UNAVAILABLE;
    let mut response = Problem::new(status, REDUCED_CAPACITY, error.to_string(), members).into_response();
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds_to_wait(retry_after)));
    response
}

fn problem<N: Serialize>(decision: &Decision, numbers: N) -> Problem<Denied<N>> {
    let (status, kind, detail) = if decision.unavailable() {
        let detail = match decision.cause() {
            Cause::StoreFull => {
                let room_at = decision.reset_at().as_millis_ceil();
                format!("the rate limiter has no room for one more client; there may be at {room_at}")
            }
            _ => "the rate limiter cannot count at the moment; try again soon".to_owned(),
        };
        (StatusCode::SERVICE_UNAVAILABLE, REDUCED_CAPACITY, detail)
    } else if let Some(until) = blocked_until(decision.cause()) {
        let detail = format!("the client is blocked; the block ends at {until}");
        (StatusCode::TOO_MANY_REQUESTS, ABNORMAL_USAGE, detail)
    } else if let Some(bound) = holds_full(decision.cause()) {
        let whose = if bound == "caller" { "this caller has" } else { "the rate limiter has" };
        let detail = format!("{whose} too many reservations and slots; settle or release some");
        (StatusCode::TOO_MANY_REQUESTS, QUOTA_EXCEEDED, detail)
    } else if decision.cause() == Cause::Uncovered {
        let detail = "no rule covers the request, and such requests are denied; check its attributes";
        (StatusCode::TOO_MANY_REQUESTS, QUOTA_EXCEEDED, detail.to_owned())
    } else {
        let reset_at = decision.reset_at().as_millis_ceil();
        let detail = format!("rate limit exceeded; window resets at {reset_at}");
        (StatusCode::TOO_MANY_REQUESTS, QUOTA_EXCEEDED, detail)
    };
    let mut violated_policies = Vec::new();
    for_each_enforcing(decision, |report| {
        if !report.outcome.allowed() {
            violated_policies.push(policy_name(report));
        }
    });
    Problem::new(status, kind, detail, Denied { numbers, violated_policies })
}

fn with_headers(mut response: Response<Bytes>, decision: &Decision, headers: &Headers) -> Response<Bytes> {
    headers.write(decision, response.headers_mut());
    response
}

/// The response to a denied request, in the standard style: for handlers that call a limiter
/// themselves.
///
/// ```
/// use tollgate::{Limit, Limiter};
/// use tollgate_http::too_many_requests;
///
/// let limiter = Limiter::new(Limit::per_minute(1));
/// assert!(limiter.check("alice")?.allowed());
/// let response = too_many_requests(&limiter.check("alice")?);
/// assert_eq!(response.status(), 429);
/// assert_eq!(response.headers()["retry-after"], "60");
/// # Ok::<(), tollgate::Error>(())
/// ```
#[must_use]
pub fn too_many_requests(decision: &Decision) -> Response<Bytes> {
    denied(decision, &Headers::default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate::{HOUR, Limit, Limiter, ManualClock, MemoryStore, RuleSet};

    /// A full store is not the client's fault.
    #[test]
    fn e5_a_newcomer_to_a_full_table_gets_a_503_and_a_time() {
        let rules = RuleSet::per_client(Limit::fixed_window(9, HOUR));
        let limiter = Limiter::builder(rules).store(MemoryStore::new().max_keys(1));
        let limiter = limiter.clock(ManualClock::at(Timestamp::from_secs(1_800_000_000))).build().unwrap();
        assert!(limiter.check("in").unwrap().allowed());
        let response = too_many_requests(&limiter.check("new").unwrap());
        assert_eq!(
            (response.status().as_u16(), &response.headers()["retry-after"]),
            (503, &"3600".parse().unwrap())
        );
        let body: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!(body["type"], REDUCED_CAPACITY);
    }

    #[test]
    fn f1_numbers_written_by_hand_are_what_serialising_gives() {
        let rules = [None, Some("per-client"), Some("a \"quoted\" \\ name"), Some("")];
        for (index, rule) in rules.into_iter().enumerate() {
            for (remaining, retry_after_ms) in [(Some(0), None), (None, Some(7)), (Some(u64::MAX), Some(0))] {
                let even = index % 2 == 0;
                let numbers = Numbers {
                    allowed: even,
                    remaining,
                    reset_at: 1_700_000_000_000,
                    limit: remaining,
                    retry_after_ms,
                    rule,
                    degraded: !even,
                    owed: u64::from(even) * 7,
                    warning: even.then_some(80),
                    blocked: !even,
                    until: (!even).then_some(1_700_000_060_000),
                    holds_full: even.then_some("caller"),
                };
                let written = String::from_utf8(numbers.to_json()).unwrap();
                assert_eq!(written, serde_json::to_string(&numbers).unwrap());
            }
        }
    }
}
