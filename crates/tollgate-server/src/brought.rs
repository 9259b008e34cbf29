//! Limits that requests bring along, and the rules that they are counted under.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use tollgate::{CLIENT, Error, FailurePolicy, Limit, Limits, Request, Rule, Store as _};
use tracing::warn;

use crate::app::App;
use crate::config::{Addresses, OFF};

/// The rule that calls of `CL.THROTTLE` are counted under.
pub(crate) const THROTTLE: &str = "cl.throttle";

/// The rule that limits which Envoy's descriptors bring along are counted under.
pub(crate) const OVERRIDE: &str = "envoy.override";

/// What that rule counts by.
pub(crate) const DESCRIPTOR: &str = "descriptor";

/// The names that no other rule can have.
pub(crate) const RULES: [&str; 2] = [THROTTLE, OVERRIDE];

/// The rules for the protocols that are listened for, and what they do when the store fails.
pub(crate) fn rules(addresses: &Addresses, policy: FailurePolicy) -> impl Iterator<Item = Rule> {
    let throttle = (&addresses.resp, THROTTLE, CLIENT);
    let replacement = (&addresses.grpc, OVERRIDE, DESCRIPTOR);
    let rule = move |(address, name, key): (&String, &str, &str)| {
        // What it says itself never counts.
        (address != OFF)
            .then(|| Rule::new(name, Limit::per_second(1)).key([key]).on_demand().on_store_error(policy))
    };
    [throttle, replacement].into_iter().filter_map(rule)
}

/// The budgets that are a client's own: by rules, and by limits that came along.
pub(crate) fn own(client: &str) -> [Request<'_>; 2] {
    [Request::client(client).own(), Request::client(client).only(THROTTLE)]
}

/// What came of doing something under one of these rules, which is there only if its protocol is listened for.
pub(crate) fn if_known(done: Result<(), Error>) -> Result<(), Error> {
    match done {
        Err(Error::UnknownRule { .. }) => Ok(()),
        done => done,
    }
}

/// A rule's limits, if it has any of its own.
pub(crate) fn own_limits(rule: &Rule) -> &'static [Limit] {
    if RULES.contains(&rule.name().as_str()) { &[] } else { rule.limits().as_slice() }
}

/// How many different limits requests can bring along. They are kept for as long as the process
/// lives, so that state knows which of them wrote it; programs have a handful.
const LIMITS_MAX: usize = 10_000;

/// The limits that have been brought along so far, by one protocol: who fills one takes nothing from
/// the other.
#[derive(Debug, Default)]
pub(crate) struct Brought(RwLock<HashMap<Limit, Limits>>);

impl Brought {
    /// A limit that the store can keep.
    ///
    /// # Errors
    /// Why it cannot, in a sentence.
    pub(crate) fn limits(&self, app: &App, limit: Limit) -> Result<Limits, String> {
        if let Some(known) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(&limit) {
            return Ok(*known);
        }
        app.limiter.store().accepts(&limit).map_err(|error| error.to_string())?;
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= LIMITS_MAX && !known.contains_key(&limit) {
            return Err(format!(
                "requests have brought {LIMITS_MAX} different limits along already; use fewer of them"
            ));
        }
        if known.len() == LIMITS_MAX - 1 {
            warn!(
                "requests have brought {LIMITS_MAX} different limits along; any other is refused until a restart"
            );
        }
        Ok(*known.entry(limit).or_insert_with(|| limit.into()))
    }
}
