//! A decision as header fields: one encoder, three styles.
//!
//! Only this module rounds to seconds, and only up: no promised time is early.

use std::cell::RefCell;
use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use smallvec::SmallVec;
use tollgate::{Decision, MAX_COUNT, Overflow, Report, RuleName};

/// The field with what remains of each limit ([`HeaderStyle::Standard`]).
pub const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// The field with the limits ([`HeaderStyle::Standard`] and [`HeaderStyle::Trio`]).
pub const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// The field with the limits that are nearly used up (every style but [`HeaderStyle::Off`]).
pub const RATELIMIT_WARNING: HeaderName = HeaderName::from_static("ratelimit-warning");
const RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RATELIMIT_RESET: HeaderName = HeaderName::from_static("ratelimit-reset");
const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// The unit of a limit on concurrency, as the draft names it.
const SLOTS: &str = "concurrent-requests";

/// The fields that describe a decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderStyle {
    /// `RateLimit: "per-client";r=9;t=60` and `RateLimit-Policy: "per-client";q=10;w=60`, the
    /// current IETF draft: structured fields with a member for each limit.
    #[default]
    Standard,
    /// `RateLimit-Limit`, `-Remaining`, `-Reset` of the limit that decided, and `RateLimit-Policy:
    /// 10;w=60`: an earlier draft.
    Trio,
    /// `X-RateLimit-Limit`, `-Remaining`, `-Reset` of the limit that decided, the reset in seconds
    /// from now.
    X,
    /// As [`X`](Self::X), the reset in seconds since the Unix epoch.
    XEpoch,
    /// None. A denial still has `Retry-After`.
    Off,
}

/// Writes decisions as header fields.
///
/// ```
/// use http::HeaderMap;
/// use tollgate::{Limit, Limiter, MINUTE};
/// use tollgate_http::Headers;
///
/// let limiter = Limiter::new(Limit::fixed_window(10, MINUTE));
/// let mut headers = HeaderMap::new();
/// Headers::default().write(&limiter.check("alice")?, &mut headers);
/// assert_eq!(headers["ratelimit-policy"], "\"per-client\";q=10;w=60");
/// assert_eq!(headers["ratelimit"], "\"per-client\";r=9;t=60");
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    style: HeaderStyle,
    unit: Option<String>,
}

impl Headers {
    /// Header fields in this style.
    #[must_use]
    pub const fn new(style: HeaderStyle) -> Self {
        Self { style, unit: None }
    }

    /// Names the unit that is counted, if it is not requests: for example `content-bytes`. (Only
    /// [`HeaderStyle::Standard`] has it; characters that are not printable ASCII are left out.)
    #[must_use]
    pub fn unit(mut self, unit: impl Into<String>) -> Self {
        self.unit = Some(unit.into());
        self
    }

    /// Whether an admitted response gets no fields.
    pub(crate) const fn is_off(&self) -> bool {
        matches!(self.style, HeaderStyle::Off)
    }

    /// Writes the fields of a decision, and `Retry-After` on a denial. Fields of an inner limiter
    /// stay: the standard fields are lists, and the others describe one limit.
    pub fn write(&self, decision: &Decision, headers: &mut HeaderMap) {
        let has_inner = match self.style {
            HeaderStyle::Trio => headers.contains_key(RATELIMIT_LIMIT),
            HeaderStyle::X | HeaderStyle::XEpoch => headers.contains_key(X_LIMIT),
            HeaderStyle::Standard | HeaderStyle::Off => false,
        };
        let is_list = self.style == HeaderStyle::Standard;
        self.for_each(decision, |name, value| {
            if is_list && name != RETRY_AFTER || name == RATELIMIT_WARNING {
                headers.append(name, value);
            } else if !has_inner || name == RETRY_AFTER {
                headers.insert(name, value);
            }
        });
    }

    /// Calls `f` with the fields of a decision, and `Retry-After` on a denial.
    pub fn for_each(&self, decision: &Decision, mut f: impl FnMut(HeaderName, HeaderValue)) {
        match self.style {
            HeaderStyle::Standard => self.standard(decision, &mut f),
            HeaderStyle::Trio => trio(decision, &mut f),
            HeaderStyle::X => x(decision, |report| seconds_until_reset(decision, report), &mut f),
            HeaderStyle::XEpoch => {
                x(decision, |report| report.outcome.reset_at.as_nanos().div_ceil(1_000_000_000), &mut f);
            }
            HeaderStyle::Off => {}
        }
        if self.style != HeaderStyle::Off {
            warnings(decision, &mut f);
        }
        if let Some(seconds) = retry_after(decision) {
            f(RETRY_AFTER, HeaderValue::from(seconds));
        }
    }

    fn standard(&self, decision: &Decision, f: &mut impl FnMut(HeaderName, HeaderValue)) {
        let (mut policies, mut left) = (Policies::new(), Members::default());
        for_each_enforcing(decision, |report| {
            policies.push(Policy::of(report));
            left.member(report.rule, report.index);
            left.integer(b";r=", report.outcome.remaining);
            left.integer(b";t=", seconds_until_growth(decision, report));
        });
        if let Some(value) = self.policies(&policies) {
            f(RATELIMIT_POLICY, value);
        }
        if let Some(value) = left.finish() {
            f(RATELIMIT, value);
        }
    }

    /// The value of `RateLimit-Policy`. Most responses of a thread have the same: the last is kept.
    fn policies(&self, policies: &Policies) -> Option<HeaderValue> {
        type Last = (Policies, Option<String>, Option<HeaderValue>);
        thread_local!(static LAST: RefCell<Last> = RefCell::default());
        let kept = LAST.try_with(|last| {
            let mut last = last.borrow_mut();
            if last.0 != *policies || last.1 != self.unit {
                *last = (policies.clone(), self.unit.clone(), self.format_policies(policies));
            }
            last.2.clone()
        });
        kept.unwrap_or_else(|_| self.format_policies(policies))
    }

    fn format_policies(&self, policies: &[Policy]) -> Option<HeaderValue> {
        let mut members = Members::default();
        for policy in policies {
            members.member(policy.rule, policy.index);
            members.integer(b";q=", policy.capacity);
            if let Some(window) = policy.window {
                members.integer(b";w=", window);
            }
            if let Some(unit) = if policy.window.is_none() { Some(SLOTS) } else { self.unit.as_deref() } {
                members.0.extend_from_slice(b";qu=");
                members.string(unit);
            }
        }
        members.finish()
    }
}

/// A member of `RateLimit-Policy`: a limit that enforces.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Policy {
    rule: RuleName,
    index: u16,
    capacity: u64,
    /// Whole seconds. `None` for slots, which come back when they are released.
    window: Option<u64>,
}

type Policies = SmallVec<[Policy; 4]>;

impl Policy {
    fn of(report: &Report) -> Self {
        let window = (!report.limit.is_concurrent()).then(|| seconds(window_of(report)).max(1));
        Self { rule: report.rule, index: report.index, capacity: report.limit.capacity(), window }
    }
}

/// A structured field (RFC 9651): a list of strings with parameters.
///
/// Written by hand, on the stack: a crate took as long for these two fields as the rest of the
/// layer. Tests parse the output with two other implementations.
#[derive(Default)]
struct Members(SmallVec<[u8; 128]>);

impl Members {
    /// Begins a member: the name of a limit.
    fn member(&mut self, rule: RuleName, index: u16) {
        if !self.0.is_empty() {
            self.0.extend_from_slice(b", ");
        }
        self.string(&rule);
        if index > 0 {
            self.0.pop();
            self.0.push(b'.');
            self.number(u64::from(index) + 1);
            self.0.push(b'"');
        }
    }

    /// A parameter with a key such as `;q=`.
    #[inline]
    fn integer(&mut self, key: &[u8; 3], value: u64) {
        self.0.extend_from_slice(key);
        self.number(value);
    }

    /// Counts and times are below 10^15, the bound of an integer in a structured field.
    #[inline]
    fn number(&mut self, value: u64) {
        self.0.extend_from_slice(itoa::Buffer::new().format(value.min(MAX_COUNT)).as_bytes());
    }

    /// A string in a structured field is printable ASCII, as names of rules are. Other characters
    /// are left out.
    fn string(&mut self, text: &str) {
        self.0.push(b'"');
        if text.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\') {
            self.0.extend_from_slice(text.as_bytes());
        } else {
            for byte in text.bytes().filter(|byte| (b' '..=b'~').contains(byte)) {
                if matches!(byte, b'"' | b'\\') {
                    self.0.push(b'\\');
                }
                self.0.push(byte);
            }
        }
        self.0.push(b'"');
    }

    /// The value, if there is a member.
    fn finish(&self) -> Option<HeaderValue> {
        if self.0.is_empty() { None } else { HeaderValue::from_bytes(&self.0).ok() }
    }
}

/// `RateLimit-Warning: "per-client";u=83`, a list of strings as `RateLimit` is: the limits that
/// warn ([`tollgate::Rule::warn_at`]), and the percentage of each that is in use.
fn warnings(decision: &Decision, f: &mut impl FnMut(HeaderName, HeaderValue)) {
    let mut warnings = Members::default();
    for report in &decision.warnings() {
        warnings.member(report.rule, report.index);
        warnings.integer(b";u=", report.warning().unwrap_or(0));
    }
    if let Some(value) = warnings.finish() {
        f(RATELIMIT_WARNING, value);
    }
}

fn trio(decision: &Decision, f: &mut impl FnMut(HeaderName, HeaderValue)) {
    let Some(report) = decision.deciding() else { return };
    let limit = report.limit.capacity();
    f(RATELIMIT_LIMIT, limit.into());
    f(RATELIMIT_REMAINING, report.units_left().into());
    f(RATELIMIT_RESET, seconds_until_reset(decision, &report).into());
    let window = match report.limit.is_concurrent() {
        true => String::new(),
        false => format!(";w={}", seconds(window_of(&report)).max(1)),
    };
    if let Ok(policy) = HeaderValue::try_from(format!("{limit}{window}")) {
        f(RATELIMIT_POLICY, policy);
    }
}

fn x(decision: &Decision, reset: impl Fn(&Report) -> u64, f: &mut impl FnMut(HeaderName, HeaderValue)) {
    let Some(report) = decision.deciding() else { return };
    f(X_LIMIT, report.limit.capacity().into());
    f(X_REMAINING, report.units_left().into());
    f(X_RESET, reset(&report).into());
}

/// The header fields of a decision, in the standard style.
#[must_use]
pub fn rate_limit_headers(decision: &Decision) -> HeaderMap {
    let mut headers = HeaderMap::new();
    Headers::default().write(decision, &mut headers);
    headers
}

/// The `Retry-After` of a denied request, in whole seconds: at least one, and not before the limit
/// that decided, or its overflow, has more to give. `None` if the request was admitted, or never
/// fits.
#[must_use]
pub fn retry_after(decision: &Decision) -> Option<u64> {
    if decision.allowed() {
        return None;
    }
    // An overflow may have more before the limit has.
    let deciding = decision.deciding().filter(|report| report.overflow == Overflow::None);
    let growth = deciding.map_or(0, |report| seconds_until_growth(decision, &report));
    Some(seconds_to_wait(decision.retry_after()?).max(growth))
}

/// A wait as `Retry-After` has it: whole seconds, rounded up, at least 1.
#[must_use]
pub fn seconds_to_wait(wait: Duration) -> u64 {
    seconds(wait).max(1)
}

/// The name of a limit: its rule's name, followed by its number from the rule's second limit on.
#[must_use]
pub fn policy_name(report: &Report) -> String {
    match report.index {
        0 => report.rule.to_string(),
        index => format!("{}.{}", report.rule, u32::from(index) + 1),
    }
}

/// Calls `f` with the limits that enforce, each name once: of several budgets under one limit, the
/// budget with the least remaining.
pub(crate) fn for_each_enforcing(decision: &Decision, mut f: impl FnMut(&Report)) {
    decision.with_limits(|limits| {
        let enforcing = || limits.iter().enumerate().filter(|(_, report)| !report.shadow);
        for (index, report) in enforcing() {
            let is_same = |other: &Report| other.index == report.index && other.rule == report.rule;
            let left = |index: usize, report: &Report| (report.outcome.remaining, index);
            let mut same = enforcing().filter(|(_, other)| is_same(other));
            if same.all(|(at, other)| left(index, report) <= left(at, other)) {
                f(report);
            }
        }
    });
}

/// The time in which the whole limit comes back; of a calendar window, the length of this one.
fn window_of(report: &Report) -> Duration {
    report.limit.period_at(report.outcome.now)
}

fn seconds_until_growth(decision: &Decision, report: &Report) -> u64 {
    seconds(report.outcome.grows_at.since(decision.now()))
}

fn seconds_until_reset(decision: &Decision, report: &Report) -> u64 {
    seconds(report.outcome.reset_at.since(decision.now()))
}

/// Whole seconds, rounded up.
fn seconds(span: Duration) -> u64 {
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests;
