//! What a denied client gets: a status, header fields, and a problem body (RFC 9457) with the
//! numbers.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use serde::Serialize;
use tollgate::{Decision, Timestamp};

use crate::Headers;
use crate::headers::{enforcing, policy_name};

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// The numbers of a decision, as they stand in every JSON answer. Times are whole milliseconds,
/// rounded up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Numbers {
    /// Whether the request may go ahead.
    pub allowed: bool,
    /// How many more requests of cost 1 would be admitted now: null if no limit covers it.
    pub remaining: Option<u64>,
    /// When the limit that decided is whole again, since the Unix epoch.
    pub reset_at: u64,
    /// The whole of the limit that decided: null if no limit covers it.
    pub limit: Option<u64>,
    /// How long until the same request is admitted: 0 if it was, null if it never will be.
    pub retry_after_ms: Option<u64>,
    /// The rule that decided.
    pub rule: Option<&'static str>,
    /// Whether the store had no say.
    pub degraded: bool,
}

impl From<&Decision> for Numbers {
    fn from(decision: &Decision) -> Self {
        let limited = decision.deciding().is_some();
        Self {
            allowed: decision.allowed(),
            remaining: limited.then(|| decision.remaining()),
            reset_at: decision.reset_at().as_millis_ceil(),
            limit: limited.then(|| decision.limit()),
            retry_after_ms: decision.retry_after().map(millis_ceil),
            rule: decision.rule().map(|rule| rule.as_str()),
            degraded: decision.degraded(),
        }
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
    /// A URI that says what kind of problem it is.
    #[serde(rename = "type")]
    kind: &'static str,
    /// The kind, in words.
    title: &'static str,
    /// The status of the response.
    status: u16,
    /// What happened this time, and what to do.
    detail: String,
    #[serde(flatten)]
    #[cfg_attr(feature = "openapi", schema(inline))]
    members: M,
}

impl<M: Serialize> Problem<M> {
    /// A problem of this kind (a URI, or `about:blank`), in a sentence.
    pub fn new(status: StatusCode, kind: &'static str, detail: String, members: M) -> Self {
        let title = status.canonical_reason().unwrap_or("Problem");
        Self { kind, title, status: status.as_u16(), detail, members }
    }

    /// The response with this body.
    pub fn into_response(self) -> Response<Bytes> {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        json(status, "application/problem+json", &self)
    }
}

/// A response with a JSON body.
pub fn json(status: StatusCode, content_type: &'static str, body: &impl Serialize) -> Response<Bytes> {
    // What is serialised here has no map with keys that are not strings: it does not fail.
    let mut response = Response::new(Bytes::from(serde_json::to_vec(body).unwrap_or_default()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// What the body of a denial has beside a problem's standard members.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Denied<N = Numbers> {
    #[serde(flatten)]
    #[cfg_attr(feature = "openapi", schema(inline))]
    numbers: N,
    /// The limits that denied it, as the header fields name them.
    #[serde(rename = "violated-policies")]
    violated_policies: Vec<String>,
}

/// The response to a denied request: 429 with `Retry-After` and the rate limit fields, or 503 if
/// it was denied because the store failed, which is not the client's fault.
pub fn denied(decision: &Decision, headers: &Headers) -> Response<Bytes> {
    denied_with(decision, headers, Numbers::from(decision))
}

/// The same with other numbers in its body.
pub fn denied_with(decision: &Decision, headers: &Headers, numbers: impl Serialize) -> Response<Bytes> {
    let (status, kind, detail) = if decision.unavailable() {
        let detail = "the rate limiter cannot count at the moment; try again soon".to_owned();
        (StatusCode::SERVICE_UNAVAILABLE, REDUCED_CAPACITY, detail)
    } else {
        let reset_at = decision.reset_at().as_millis_ceil();
        let detail = format!("rate limit exceeded; window resets at {reset_at}");
        (StatusCode::TOO_MANY_REQUESTS, QUOTA_EXCEEDED, detail)
    };
    let violated = enforcing(decision).filter(|report| !report.outcome.allowed());
    let members = Denied { numbers, violated_policies: violated.map(policy_name).collect() };
    let mut response = Problem::new(status, kind, detail, members).into_response();
    headers.write(decision, response.headers_mut());
    response
}

/// The response to a denied request, in the standard style: for handlers that ask a limiter
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
