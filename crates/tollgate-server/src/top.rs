//! The heaviest and the most-denied clients, in bounded memory however many clients there are.
//!
//! Each table keeps at most 224 counts. A full table subtracts the median from all counts and drops
//! those that reach zero (Anderson et al., 2017). So a count is never too high, and too low by at
//! most the sum subtracted, which is reported with it. A client with more than a 112th of its
//! shard's traffic is never missing.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::mem;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;
use tollgate::{CLIENT, Decision, HOUR, MAX_VALUE_BYTES, Request, Timestamp};

/// The most counts of a table: few enough that a position and "none" fit a byte.
const COUNTS_MAX: usize = 224;

/// Entries of a table's index.
const INDEX_ENTRIES: usize = 512;

const _: () = assert!(COUNTS_MAX < 256 && COUNTS_MAX < INDEX_ENTRIES, "every position has an entry");

/// The number of tables, so that threads seldom contend.
const SHARDS: usize = 8;

/// The most recent denials whose times are kept, of each client and rule.
const RECENT: usize = 4;

/// How long a table counts before it is rotated. The previous one is kept, so there is always at
/// least this much history.
const SPAN: Duration = HOUR;

/// The clients with the most admitted units and the most denials, over the last one to two hours.
#[derive(Debug)]
pub(crate) struct Top {
    hasher: RandomState,
    admitted: [Mutex<Recent>; SHARDS],
    denied: [Mutex<Recent>; SHARDS],
}

/// A client and the bounds of its count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopClient {
    pub(crate) client: String,
    /// The rule that denied it.
    pub(crate) rule: Option<&'static str>,
    pub(crate) at_least: u64,
    pub(crate) at_most: u64,
    /// When it was last denied, newest first. Empty where units are counted.
    pub(crate) recent: SmallVec<[Timestamp; RECENT]>,
}

#[derive(Debug, Default)]
struct Recent {
    began: Timestamp,
    current: Table,
    previous: Table,
}

#[derive(Debug, Default)]
struct Table {
    counts: Vec<Count>,
    /// Finds a count by its hash, with linear probing: its position from 1 on, or 0 for an empty
    /// entry. A map would be built anew when half of the counts are dropped.
    index: Vec<u8>,
    /// The sum subtracted from every count.
    subtracted: u64,
}

/// A client's name, and the rule that denied it.
type Counted<'a> = (&'a [u8], Option<&'static str>);

#[derive(Debug)]
struct Count {
    /// The secret-keyed hash of the name and the rule. Two of them with the same hash are not
    /// expected.
    hash: u64,
    /// Inline if short: a flood of names must not load the allocator.
    name: SmallVec<[u8; 40]>,
    rule: Option<&'static str>,
    units: u64,
    /// The times of the last denials, newest first.
    recent: SmallVec<[Timestamp; RECENT]>,
}

impl Count {
    /// Notes a denial.
    fn denied(&mut self, at: Timestamp) {
        self.recent.truncate(RECENT - 1);
        self.recent.insert(0, at);
    }
}

impl Top {
    pub(crate) fn new() -> Self {
        Self { hasher: RandomState::new(), admitted: Default::default(), denied: Default::default() }
    }

    /// Counts a decision: the units of an admission, or one denial.
    pub(crate) fn count(&self, request: &Request<'_>, decision: &Decision) {
        if let Some(client) = request.get(CLIENT) {
            let units = decision.allowed().then_some(request.units());
            let rule = if units.is_none() { decision.rule().map(|rule| rule.as_str()) } else { None };
            self.count_as(client, units, rule, decision.now());
        }
    }

    /// Counts any other name: its admitted units, or one denial by `rule` if `admitted` is `None`.
    pub(crate) fn count_as(
        &self,
        name: &str,
        admitted: Option<u64>,
        rule: Option<&'static str>,
        now: Timestamp,
    ) {
        // `floor_char_boundary` is a boundary within the text.
        let name = &name[..name.floor_char_boundary(MAX_VALUE_BYTES)];
        let (shards, units) = admitted.map_or((&self.denied, 1), |units| (&self.admitted, units));
        let hash = match rule {
            None => self.hasher.hash_one(name),
            Some(rule) => self.hasher.hash_one((name, rule)),
        };
        // The highest bits: the table's index uses the lowest.
        let shard = usize::try_from(hash >> (u64::BITS - SHARDS.ilog2())).unwrap_or(0);
        if let (Some(recent), 1..) = (shards.get(shard), units) {
            let mut recent = recent.lock().unwrap_or_else(PoisonError::into_inner);
            let count = recent.add(hash, (name, rule), units, now);
            if admitted.is_none() {
                count.denied(now);
            }
        }
    }

    /// The denials of one client, by rule, most first.
    pub(crate) fn denials_of(&self, client: &str, now: Timestamp) -> Vec<TopClient> {
        let mut denials = top(&self.denied, usize::MAX, now);
        denials.retain(|denied| denied.client == client);
        denials
    }

    /// The clients with the most admitted units, most first.
    pub(crate) fn heaviest(&self, most: usize, now: Timestamp) -> Vec<TopClient> {
        top(&self.admitted, most, now)
    }

    /// The clients with the most denials, most first.
    pub(crate) fn most_denied(&self, most: usize, now: Timestamp) -> Vec<TopClient> {
        top(&self.denied, most, now)
    }
}

fn top(shards: &[Mutex<Recent>], most: usize, now: Timestamp) -> Vec<TopClient> {
    let heavy = |shard: &Mutex<Recent>| shard.lock().unwrap_or_else(PoisonError::into_inner).all(now);
    let mut all: Vec<TopClient> = shards.iter().flat_map(heavy).collect();
    all.sort_by(|one, other| other.at_least.cmp(&one.at_least).then_with(|| one.client.cmp(&other.client)));
    all.truncate(most);
    all
}

impl Recent {
    fn add(&mut self, hash: u64, of: (&str, Option<&'static str>), units: u64, now: Timestamp) -> &mut Count {
        self.rotate(now);
        self.current.add(hash, of, units)
    }

    fn rotate(&mut self, now: Timestamp) {
        let age = now.since(self.began);
        if age >= SPAN {
            self.previous = if age < SPAN * 2 { mem::take(&mut self.current) } else { Table::default() };
            self.current = Table::default();
            self.began = now;
        }
    }

    fn all(&mut self, now: Timestamp) -> Vec<TopClient> {
        self.rotate(now);
        let uncertainty = self.current.subtracted.saturating_add(self.previous.subtracted);
        let mut counts: HashMap<Counted<'_>, (u64, SmallVec<_>)> = HashMap::new();
        // The current table first: its denials are newer.
        for count in self.current.counts.iter().chain(&self.previous.counts) {
            let (sum, recent) = counts.entry((&count.name, count.rule)).or_default();
            *sum = sum.saturating_add(count.units);
            recent.extend(count.recent.iter().copied().take(RECENT.saturating_sub(recent.len())));
        }
        let heavy = |((name, rule), (count, recent)): (Counted<'_>, (u64, _))| TopClient {
            client: String::from_utf8_lossy(name).into_owned(),
            rule,
            at_least: count,
            at_most: count.saturating_add(uncertainty),
            recent,
        };
        counts.into_iter().map(heavy).collect()
    }
}

impl Table {
    fn add(&mut self, hash: u64, (name, rule): (&str, Option<&'static str>), units: u64) -> &mut Count {
        let position = match self.find(hash) {
            Some(position) => position,
            None => {
                if self.counts.len() >= COUNTS_MAX {
                    self.halve();
                }
                let name = name.as_bytes().into();
                self.counts.push(Count { hash, name, rule, units: 0, recent: SmallVec::new() });
                let position = self.counts.len() - 1;
                self.enter(hash, position);
                position
            }
        };
        let count = &mut self.counts[position];
        count.units = count.units.saturating_add(units);
        count
    }

    fn find(&self, hash: u64) -> Option<usize> {
        let mut entry = first_entry(hash);
        loop {
            let position = usize::from(*self.index.get(entry)?).checked_sub(1)?;
            if self.counts.get(position)?.hash == hash {
                return Some(position);
            }
            entry = (entry + 1) % INDEX_ENTRIES;
        }
    }

    /// Enters the position of a count into the index.
    fn enter(&mut self, hash: u64, position: usize) {
        self.index.resize(INDEX_ENTRIES, 0);
        let mut entry = first_entry(hash);
        while self.index[entry] != 0 {
            entry = (entry + 1) % INDEX_ENTRIES;
        }
        self.index[entry] = u8::try_from(position + 1).unwrap_or(0);
    }

    /// Subtracts the median from all counts, and drops those that reach zero.
    fn halve(&mut self) {
        let mut units: SmallVec<[u64; COUNTS_MAX]> = self.counts.iter().map(|count| count.units).collect();
        let middle = units.len() / 2;
        let (_, median, _) = units.select_nth_unstable(middle);
        let median = *median;
        self.subtracted = self.subtracted.saturating_add(median);
        self.counts.retain_mut(|count| {
            count.units = count.units.saturating_sub(median);
            count.units > 0
        });
        self.index.clear();
        for position in 0..self.counts.len() {
            self.enter(self.counts[position].hash, position);
        }
    }
}

/// The first entry of an index in which the position of a count may be: the lowest bits.
fn first_entry(hash: u64) -> usize {
    let [low, high, ..] = hash.to_le_bytes();
    usize::from(u16::from_le_bytes([low, high])) % INDEX_ENTRIES
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tollgate::{DAY, Limit, Limiter, MINUTE, ManualClock, Observer, Rule, RuleSet, SECOND};

    struct Counting(Arc<Top>);

    impl Observer for Counting {
        fn decided(&self, request: &Request<'_>, decision: &Decision) {
            self.0.count(request, decision);
        }
    }

    fn watched(limit: Limit) -> (Limiter, Arc<Top>, ManualClock) {
        let (top, clock) = (Arc::new(Top::new()), ManualClock::at(Timestamp::from_secs(1_000_000)));
        let rules = RuleSet::new([Rule::new("per-client", limit).key([CLIENT])]).unwrap();
        let limiter = Limiter::builder(rules).clock(clock.clone()).observer(Counting(Arc::clone(&top)));
        (limiter.build().unwrap(), top, clock)
    }

    fn names(heavy: &[TopClient]) -> Vec<(&str, u64)> {
        heavy.iter().map(|heavy| (heavy.client.as_str(), heavy.at_least)).collect()
    }

    #[test]
    fn g2_admissions_count_their_units_and_denials_one_each() {
        let (limiter, top, _) = watched(Limit::fixed_window(10, MINUTE));
        let check = |client, cost| limiter.check(Request::client(client).cost(cost)).unwrap().allowed();
        assert!(check("a", 7) && check("b", 9) && check("a", 0));
        assert!(!check("a", 5) && !check("a", 6) && !check("b", 2));
        let now = Timestamp::from_secs(1_000_000);
        assert_eq!(names(&top.heaviest(10, now)), [("b", 9), ("a", 7)]);
        assert_eq!(names(&top.most_denied(1, now)), [("a", 2)]);
    }

    #[test]
    fn g2_a_heavy_client_is_found_in_a_flood_of_others_and_memory_stays_bounded() {
        let (limiter, top, clock) = watched(Limit::per_second(1_000_000));
        for i in 0..100_000_u64 {
            assert!(limiter.check(i).unwrap().allowed());
            if i % 20 == 0 {
                assert!(limiter.check("heavy").unwrap().allowed());
            }
        }
        let now = tollgate::Clock::now(&clock);
        let heaviest = top.heaviest(1, now);
        assert_eq!(heaviest[0].client, "heavy");
        assert!(heaviest[0].at_least <= 5_000 && heaviest[0].at_most >= 5_000, "{heaviest:?}");
        assert!(top.heaviest(usize::MAX, now).len() <= SHARDS * COUNTS_MAX);
        for shard in &top.admitted {
            let table = &shard.lock().unwrap().current;
            assert!(table.counts.capacity() <= COUNTS_MAX.next_power_of_two(), "bounded");
            let entries = table.index.iter().filter(|entry| **entry > 0).count();
            assert_eq!(entries, table.counts.len(), "the index has no stale entries, so probes are short");
            for (position, count) in table.counts.iter().enumerate() {
                assert_eq!(table.find(count.hash), Some(position), "every count is found");
            }
        }
    }

    #[test]
    fn g2_the_last_denials_of_a_client_are_kept_with_their_times_and_rules() {
        let (limiter, top, clock) = watched(Limit::fixed_window(1, DAY));
        for client in ["a", "b", "a", "a"] {
            let _ = limiter.check(client).unwrap();
            clock.advance(SECOND);
        }
        // The table is rotated meanwhile.
        clock.advance(SPAN);
        for _ in 0..3 {
            clock.advance(SECOND);
            let _ = limiter.check("a").unwrap();
        }
        let now = tollgate::Clock::now(&clock);
        let [denials] = top.denials_of("a", now).try_into().unwrap();
        assert_eq!((denials.rule, denials.at_least), (Some("per-client"), 5));
        let ago: Vec<u64> = denials.recent.iter().map(|at| now.since(*at).as_secs()).collect();
        assert_eq!(ago, [0, 1, 2, SPAN.as_secs() + 4], "the newest first, and no more than these");
        assert_eq!(top.denials_of("b", now), []);
    }

    #[test]
    fn g2_counts_are_forgotten_after_two_hours() {
        let (limiter, top, clock) = watched(Limit::per_second(1_000_000));
        assert!(limiter.check("old").unwrap().allowed());
        clock.advance(SPAN);
        assert!(limiter.check("new").unwrap().allowed());
        let now = tollgate::Clock::now(&clock);
        assert_eq!(top.heaviest(9, now).len(), 2, "the last hour is kept");
        clock.advance(SPAN);
        assert_eq!(names(&top.heaviest(9, tollgate::Clock::now(&clock))), [("new", 1)]);
        clock.advance(SPAN * 2);
        assert_eq!(top.heaviest(9, tollgate::Clock::now(&clock)), []);
    }
}
