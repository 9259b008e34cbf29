//! Inline limits: those that come with requests, and the rules that they are counted under.

use tollgate::{CLIENT, Error, FailurePolicy, Request, Rule};

use crate::config::{Addresses, OFF};

/// The rule that calls of `CL.THROTTLE` are counted under.
pub(crate) const THROTTLE: &str = "cl.throttle";

/// The rule that limits in Envoy's descriptors are counted under.
pub(crate) const OVERRIDE: &str = "envoy.override";

/// The attribute that it counts by.
pub(crate) const DESCRIPTOR: &str = "descriptor";

/// The names that no other rule can have.
pub(crate) const RULES: [&str; 2] = [THROTTLE, OVERRIDE];

/// The rules for the protocols that are listened for: what they do when the store fails, and how
/// many keys requests may name under each.
pub(crate) fn rules(
    addresses: &Addresses,
    policy: FailurePolicy,
    max_keys: u64,
) -> impl Iterator<Item = Rule> {
    let throttle = (&addresses.resp, THROTTLE, CLIENT);
    let descriptors = (&addresses.grpc, OVERRIDE, DESCRIPTOR);
    let rule = move |(address, name, key): (&String, &str, &str)| {
        (address != OFF).then(|| Rule::inline(name).key([key]).max_keys(max_keys).on_store_error(policy))
    };
    [throttle, descriptors].into_iter().filter_map(rule)
}

/// The budgets that are a client's own: by rules, and by inline limits.
pub(crate) fn client_budgets(client: &str) -> [Request<'_>; 2] {
    let own = Request::client(client).own();
    [own, own.only(THROTTLE)]
}

/// What came of doing something under one of these rules, which is there only if its protocol is
/// listened for.
pub(crate) fn ignore_unknown_rule(done: Result<(), Error>) -> Result<(), Error> {
    match done {
        Err(Error::UnknownRule { .. }) => Ok(()),
        done => done,
    }
}
