//! Rules: the requests they cover, and the budgets those draw on.
//!
//! A rule covers a request when every attribute that it matches on has the required value and every
//! attribute of its key is present. All rules that cover a request have to admit it: a global cap
//! and a per-client cap are just two rules.

use smallvec::SmallVec;

use crate::key::push_value;
use crate::{CLIENT, Error, Request};

mod checked;
mod condition;
mod coverage;
mod limits;
mod name;
mod overflow;
mod overrides;
mod path;
mod seen;
mod set;
mod tag;

use checked::check_limits;
pub use condition::Values;
use condition::{Condition, all_match, check_matches};
pub use coverage::{Coverage, Obstacle};
pub use limits::Limits;
pub use name::RuleName;
pub use overrides::Override;
pub use path::Paths;
pub(crate) use set::Covered;
pub use set::RuleSet;
pub(crate) use tag::Tag;

/// The most attributes that a rule can count by.
pub(crate) const MAX_KEY_ATTRIBUTES: usize = 8;

/// The values of a key's attributes, on the stack.
pub(crate) type KeyValues<'a> = SmallVec<[&'a str; MAX_KEY_ATTRIBUTES]>;

/// What to do with a request when the store fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailurePolicy {
    /// Admit it, flagged degraded.
    #[default]
    Open,
    /// Deny it, flagged degraded.
    Closed,
    /// Decide in a local memory store, with a share of the limit, flagged degraded.
    Local,
}

/// A rule. It is checked, and takes effect, as part of a [`RuleSet`].
///
/// ```
/// use tollgate::{Limit, MINUTE, Rule, RuleSet, SECOND};
///
/// let rules = RuleSet::new([
///     Rule::new("global", Limit::per_second(5_000)),
///     Rule::new("per-client", [Limit::per_second(10), Limit::fixed_window(100, MINUTE)]).key(["client"]),
///     Rule::new("login", Limit::LOGIN).matching("path", "/login*").key(["client"]).shadow(),
/// ])?;
/// assert_eq!(rules.rules().len(), 3);
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    name: RuleName,
    matches: Vec<Condition>,
    key: Vec<String>,
    /// Whether the key is only the client: cached to avoid comparing names.
    by_client: bool,
    limits: Limits,
    cost: u64,
    shadow: bool,
    record_denied: bool,
    on_demand: bool,
    raw_path: bool,
    inline: bool,
    overflow: Option<RuleName>,
    /// Whether another rule of its set overflows into it.
    is_overflow: bool,
    max_keys: Option<u64>,
    on_store_error: FailurePolicy,
    warn_at: Option<u8>,
}

impl Rule {
    /// A rule that covers every request, with one global budget for each of its limits.
    #[must_use]
    pub fn new(name: &str, limits: impl Into<Limits>) -> Self {
        Self {
            name: RuleName::intern(name),
            matches: Vec::new(),
            key: Vec::new(),
            by_client: false,
            limits: limits.into(),
            cost: 1,
            shadow: false,
            record_denied: false,
            on_demand: false,
            raw_path: false,
            inline: false,
            overflow: None,
            is_overflow: false,
            max_keys: None,
            on_store_error: FailurePolicy::default(),
            warn_at: None,
        }
    }

    /// A rule whose limits come with requests ([`Request::under`]). It covers no other requests.
    ///
    /// Each combination of values of its key has one time, which all inline token buckets share,
    /// and one count per period, which all inline windows of that period share: see
    /// [`Budget`](crate::Budget).
    #[must_use]
    pub fn inline(name: &str) -> Self {
        Self { inline: true, on_demand: true, ..Self::new(name, Vec::new()) }
    }

    /// Counts by these attributes: each combination of their values has its own budget.
    #[must_use]
    pub fn key<A: Into<String>>(mut self, attributes: impl IntoIterator<Item = A>) -> Self {
        self.key = attributes.into_iter().map(Into::into).collect();
        self.by_client = matches!(self.key.as_slice(), [only] if only == CLIENT);
        self
    }

    /// Covers only requests whose `attribute` is one of `values`, or begins with one that ends in
    /// `*`: `"/login"`, `["POST", "PUT"]`. The values of `path` are [normalised](Paths) as the
    /// paths of requests are.
    #[must_use]
    pub fn matching(mut self, attribute: &str, values: impl Into<Values>) -> Self {
        self.matches.push(Condition::new(attribute, values));
        self
    }

    /// Charges `cost` for each unit of a request's cost.
    #[must_use]
    pub const fn cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    /// Makes it a shadow rule: charged and reported as if it enforced, but it never denies.
    #[must_use]
    pub const fn shadow(mut self) -> Self {
        self.shadow = true;
        self
    }

    /// Records the cost of a check that it denies, as [`Limiter::record`](crate::Limiter::record)
    /// would and in the same decision: on every limit of the budget, beyond the limit up to its
    /// [debt](crate::Limit::debt). For costs that were used before they are checked, such as those
    /// that Envoy charges after a response. A check that only other rules deny is not recorded, and
    /// neither are peeks, reservations and acquisitions. A shadow rule denies nothing.
    ///
    /// ```
    /// use tollgate::{Limit, Limiter, Request, Rule, RuleSet};
    ///
    /// let rule = Rule::new("tokens", Limit::per_hour(1000)).key(["client"]).record_denied();
    /// let limiter = Limiter::builder(RuleSet::new([rule])?).build()?;
    /// let decision = limiter.check(Request::client("alice").cost(1300))?;
    /// assert!(!decision.allowed());
    /// assert_eq!((decision.remaining(), decision.owed()), (0, 300));
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub const fn record_denied(mut self) -> Self {
        self.record_denied = true;
        self
    }

    /// Warns from this percentage of a limit on, for clients that slow down by themselves: an
    /// admitted decision has a [warning](crate::Decision::warnings) if at least that share is in
    /// use after it. Nothing is denied because of it. A shadow rule does not warn.
    ///
    /// ```
    /// use tollgate::{Limit, Limiter, MINUTE, Rule, RuleSet};
    ///
    /// let rule = Rule::new("per-client", Limit::fixed_window(5, MINUTE)).key(["client"]).warn_at(80);
    /// let limiter = Limiter::builder(RuleSet::new([rule])?).build()?;
    /// let used: Vec<Option<u64>> = (0..6)
    ///     .map(|_| Ok(limiter.check("alice")?.warnings().first().and_then(|report| report.warning())))
    ///     .collect::<Result<_, tollgate::Error>>()?;
    /// assert_eq!(used, [None, None, None, Some(80), Some(100), None]); // the last one is denied
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub const fn warn_at(mut self, percent: u8) -> Self {
        self.warn_at = Some(percent);
        self
    }

    /// Covers only requests that name it, with [`Request::only`] or [`Request::under`].
    #[must_use]
    pub const fn on_demand(mut self) -> Self {
        self.on_demand = true;
        self
    }

    /// Sees the path of a request that names it as it was sent, whatever the
    /// [setting](RuleSet::with_paths) of its set: for callers that compare values themselves.
    #[must_use]
    pub const fn raw_path(mut self) -> Self {
        self.raw_path = true;
        self
    }

    /// Draws what its own limits do not have of a cost on the budget of the rule with this name, in
    /// the same decision: a plan that falls back on bought credits.
    ///
    /// That rule is then [on demand](Self::on_demand). Its key consists of attributes of this
    /// rule's key, its cost is 1, and it has neither a match nor an overflow itself. A shadow rule
    /// has no overflow.
    ///
    /// ```
    /// use tollgate::{Limit, Limiter, Request, Rule, RuleSet};
    ///
    /// let limiter = Limiter::builder(RuleSet::new([
    ///     Rule::new("plan", Limit::per_hour(1000)).key(["client"]).overflow("credits"),
    ///     Rule::new("credits", Limit::per_day(5000)).key(["client"]),
    /// ])?)
    /// .build()?;
    /// assert!(limiter.check(Request::client("alice").cost(700))?.allowed());
    /// let decision = limiter.check(Request::client("alice").cost(800))?;
    /// let drawn: Vec<_> = decision.limits().iter().map(|limit| limit.overflow.drawn()).collect();
    /// assert_eq!(drawn, [Some(300), Some(500)]);
    /// assert_eq!(decision.remaining(), 4500, "what both together admit");
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn overflow(mut self, rule: &str) -> Self {
        self.overflow = Some(RuleName::intern(rule));
        self
    }

    /// Keeps at most this many keys in a bounded store, even if the store has room for more: a
    /// client that can name keys freely cannot use up the room of other rules.
    #[must_use]
    pub const fn max_keys(mut self, keys: u64) -> Self {
        self.max_keys = Some(keys);
        self
    }

    /// What to do when the store fails.
    #[must_use]
    pub const fn on_store_error(mut self, policy: FailurePolicy) -> Self {
        self.on_store_error = policy;
        self
    }

    /// The name.
    #[must_use]
    pub const fn name(&self) -> RuleName {
        self.name
    }

    /// The attributes that it counts by.
    #[must_use]
    pub fn key_attributes(&self) -> &[String] {
        &self.key
    }

    /// The conditions: attributes and the values of which they must have one, or begin with one if
    /// there is a `*` at its end. In a [`RuleSet`], the values of `path` are as its
    /// [setting](RuleSet::with_paths) says.
    pub fn matches(&self) -> impl Iterator<Item = (&str, Vec<String>)> {
        self.matches.iter().map(Condition::written)
    }

    /// The limits, unless an override applies.
    #[must_use]
    pub const fn limits(&self) -> Limits {
        self.limits
    }

    /// Units charged per unit of a request's cost.
    #[must_use]
    pub const fn unit_cost(&self) -> u64 {
        self.cost
    }

    /// Whether it is a shadow rule.
    #[must_use]
    pub const fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// Whether it records the cost of a check that it denies.
    #[must_use]
    pub const fn records_denied(&self) -> bool {
        self.record_denied
    }

    /// The percentage of a limit from which it warns, if it does.
    #[must_use]
    pub const fn warns_at(&self) -> Option<u8> {
        self.warn_at
    }

    /// Whether its decisions have reports: packed states do not say that a rule is a shadow, or
    /// when it warns.
    #[inline]
    pub(crate) const fn needs_reports(&self) -> bool {
        self.shadow || self.warn_at.is_some()
    }

    /// Whether it covers only requests that name it.
    #[must_use]
    pub const fn is_on_demand(&self) -> bool {
        self.on_demand
    }

    /// Whether its limits come with requests.
    #[must_use]
    pub const fn is_inline(&self) -> bool {
        self.inline
    }

    /// The rule whose budget covers what its own limits do not have.
    #[must_use]
    pub const fn overflow_rule(&self) -> Option<RuleName> {
        self.overflow
    }

    /// Whether another rule of its [`RuleSet`] overflows into it.
    #[must_use]
    pub const fn is_overflow(&self) -> bool {
        self.is_overflow
    }

    /// The most keys it can have, if it is bounded.
    #[must_use]
    pub const fn key_bound(&self) -> Option<u64> {
        self.max_keys
    }

    /// What it does when the store fails.
    #[must_use]
    pub const fn failure_policy(&self) -> FailurePolicy {
        self.on_store_error
    }

    /// Whether it counts by the client only.
    #[inline]
    pub(crate) const fn is_by_client(&self) -> bool {
        self.by_client
    }

    /// Appends the encoded values of its key.
    pub(crate) fn encode_key(
        &self,
        request: &Request<'_>,
        subject: &mut SmallVec<[u8; 64]>,
    ) -> Result<(), Error> {
        let mut attributes = self.key.iter();
        attributes.try_for_each(|name| push_value(subject, name, request.get(name).unwrap_or_default()))
    }

    /// The values of its key. `None` if the request lacks one: the rule does not cover it then.
    #[inline(always)]
    pub(crate) fn key_values<'a>(&self, request: &Request<'a>) -> Option<KeyValues<'a>> {
        let mut values = KeyValues::new();
        for attribute in &self.key {
            values.push(request.get(attribute)?);
        }
        Some(values)
    }

    /// Whether a request meets its conditions.
    #[inline]
    fn is_met_by(&self, request: &Request<'_>) -> bool {
        if request.is_own() { !self.key.is_empty() } else { all_match(&self.matches, request) }
    }
}
