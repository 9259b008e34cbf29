//! The log of denials: which client was denied, by which rule, over which protocol.
//!
//! A client's first denial by a rule within a minute is a line, and then every thousandth. A line
//! has the number of denials since the last one. Memory is bounded: two clients that share a slot
//! take turns, and a line more is logged. Lines are bounded too: a flood of names is counted.

use std::borrow::Cow;
use std::hash::{BuildHasher as _, RandomState};
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tollgate::{CLIENT, Cause, Decision, Limit, Limiter, MINUTE, Request, Timestamp};
use tracing::{Level, enabled, info};

use super::log_names::LogNames;

tokio::task_local! {
    /// The protocol of the connection that a task serves.
    pub(crate) static PROTOCOL: &'static str;
}

/// A line stands for at most this many denials of a client by a rule.
const DENIALS_PER_LINE: u64 = 1_000;

/// The most lines a second, however many clients are denied.
const LINES_PER_SECOND: u64 = 100;

/// The number of tables, so that threads seldom contend.
const SHARDS: usize = 8;

/// The slots of a table.
const SLOTS: usize = 512;

#[derive(Debug)]
pub(crate) struct Denials {
    hasher: RandomState,
    shards: [Mutex<Vec<Slot>>; SHARDS],
    lines: Limiter,
    /// Lines that were due and exceeded [`LINES_PER_SECOND`], since the last line.
    dropped: AtomicU64,
}

/// The denials of a client by a rule over a protocol, by their hash.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    hash: u64,
    /// When the first line of this minute was logged.
    began: Timestamp,
    /// Denials since the last line.
    unlogged: u64,
}

impl Denials {
    pub(super) fn new() -> Self {
        Self {
            hasher: RandomState::new(),
            shards: std::array::from_fn(|_| Mutex::new(vec![Slot::default(); SLOTS])),
            lines: Limiter::new(Limit::per_second(LINES_PER_SECOND)),
            dropped: AtomicU64::new(0),
        }
    }

    /// Counts a denial, and logs it if a line is due.
    pub(super) fn count(&self, request: &Request<'_>, decision: &Decision, names: &LogNames) {
        if is_logged() {
            let rule = decision.rule().map(|rule| rule.as_str());
            self.log(&denied_client(request), rule, cause(decision), decision.now(), names);
        }
    }

    /// Counts a denial by a limit of 0, which takes no decision of the limiter.
    pub(super) fn count_zero<'a>(
        &self,
        attributes: impl Iterator<Item = (&'a str, &'a str)>,
        rule: &str,
        now: Timestamp,
        names: &LogNames,
    ) {
        if is_logged() {
            self.log(&listed(attributes), Some(rule), "limit", now, names);
        }
    }

    fn log(&self, client: &str, rule: Option<&str>, cause: &str, now: Timestamp, names: &LogNames) {
        let protocol = PROTOCOL.try_with(|protocol| *protocol).unwrap_or_default();
        let Some(denials) = self.due(self.hasher.hash_one((client, rule, protocol)), now) else { return };
        if !self.lines.check("lines").is_ok_and(|line| line.allowed()) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        info!(
            target: "tollgate::denied",
            client = names.logged(client),
            rule,
            protocol,
            cause,
            denials,
            dropped_lines = (dropped > 0).then_some(dropped),
            "denied"
        );
    }

    /// Counts a denial. Returns the number since the last line if a line is due.
    fn due(&self, hash: u64, now: Timestamp) -> Option<u64> {
        // Different bits choose the table and the slot.
        let index = |bits: u64, count: usize| usize::try_from(bits).map_or(0, |bits| bits % count);
        let shard = self.shards.get(index(hash >> 32, SHARDS))?;
        let mut slots = shard.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = slots.get_mut(index(hash & u64::from(u32::MAX), SLOTS))?;
        let is_same = slot.hash == hash;
        let is_first = !is_same || now.since(slot.began) >= MINUTE;
        if is_first {
            *slot = Slot { hash, began: now, unlogged: if is_same { slot.unlogged } else { 0 } };
        }
        slot.unlogged = slot.unlogged.saturating_add(1);
        (is_first || slot.unlogged >= DENIALS_PER_LINE).then(|| mem::take(&mut slot.unlogged))
    }
}

/// The client of a request or, if it has none, all its attributes.
fn denied_client<'a>(request: &Request<'a>) -> Cow<'a, str> {
    if let Some(client) = request.get(CLIENT) {
        return Cow::Borrowed(client);
    }
    Cow::Owned(listed(request.names().map(|name| (name, request.get(name).unwrap_or_default()))))
}

/// Attributes as one text.
fn listed<'a>(attributes: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    attributes.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")
}

fn is_logged() -> bool {
    enabled!(target: "tollgate::denied", Level::INFO)
}

/// Why a request was denied, in a word.
fn cause(decision: &Decision) -> &'static str {
    match decision.cause() {
        Cause::Block { .. } => "block",
        Cause::StoreFull => "full",
        Cause::Uncovered => "uncovered",
        Cause::HoldsFull { .. } => "holds",
        _ if decision.degraded() => "store",
        _ => "limit",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn g2_a_client_is_logged_first_and_then_every_thousandth_time() {
        let denials = Denials::new();
        let at = |millis| Timestamp::from_secs(1_000).saturating_add(Duration::from_millis(millis));
        assert_eq!(denials.due(7, at(0)), Some(1));
        let lines: Vec<u64> = (0..2_500).filter_map(|_| denials.due(7, at(1))).collect();
        assert_eq!(lines, [1_000, 1_000]);
        assert_eq!(denials.due(8, at(2)), Some(1), "another client");
        assert_eq!(denials.due(7, at(59_999)), None);
        assert_eq!(denials.due(7, at(60_000)), Some(502), "a minute later");
    }

    #[test]
    fn g2_memory_is_bounded_whatever_the_number_of_clients() {
        let denials = Denials::new();
        (0..100_000_u64).for_each(|client| {
            denials.due(denials.hasher.hash_one(client), Timestamp::from_secs(1));
        });
        let slots = denials.shards.iter().map(|shard| shard.lock().unwrap().len()).sum::<usize>();
        assert_eq!(slots, SHARDS * SLOTS);
    }
}
