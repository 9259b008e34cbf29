//! Inline limits, which requests carry, and the rules that count them.

use tollgate::{CLIENT, Error, FailurePolicy, Request, Rule};

use crate::config::{Addresses, OFF};

/// The rule that counts calls of `CL.THROTTLE`.
pub(crate) const THROTTLE: &str = "cl.throttle";

/// The rule that counts limits in Envoy's descriptors.
pub(crate) const OVERRIDE: &str = "envoy.override";

/// The key attribute of [`OVERRIDE`].
pub(crate) const DESCRIPTOR: &str = "descriptor";

/// The reserved rule names.
pub(crate) const RULES: [&str; 2] = [THROTTLE, OVERRIDE];

/// The rules of the protocols that are served, with a failure policy and the most keys of each.
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

/// A client's budgets: those of rules keyed by client alone, and that of `CL.THROTTLE`.
pub(crate) fn client_budgets(client: &str) -> [Request<'_>; 2] {
    let own = Request::client(client).own();
    [own, own.only(THROTTLE)]
}

/// Ignores an unknown rule: a rule of inline limits exists only if its protocol is served.
pub(crate) fn ignore_unknown_rule<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Err(Error::UnknownRule { .. }) => Ok(None),
        result => result.map(Some),
    }
}
