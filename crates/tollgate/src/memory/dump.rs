//! Handing over: the whole state of a store as text, and a store out of it.
//!
//! One line says the version and the seed that identities are made with, one line each what is kept
//! of a key, and the last line how many there were, so that a part of a dump is not taken for the
//! whole. Times are epoch nanoseconds and limits are written in their notation: what one process
//! dumps, another, newer one can restore. Keys themselves are not in it, but with the seed anyone
//! can look for one: a dump is as secret as the keys.

use std::io::{self, BufRead, Write};

use super::hash::{Id, Secrets};
use super::shard::{Cells, Found};
use super::{MemoryStore, shard_of};
use crate::cell::Cell;
use crate::sync::atomic::Ordering;
use crate::{Error, Limits};

const HEADER: &str = "tollgate memory 1";

impl MemoryStore {
    /// Writes everything that is kept, a shard at a time while requests go on.
    ///
    /// ```
    /// use tollgate::{Limit, Limiter, MemoryStore, Rule, RuleSet};
    ///
    /// let rules = RuleSet::new([Rule::new("per-client", Limit::per_hour(10)).key(["client"])])?;
    /// let old = Limiter::builder(rules.clone()).build()?;
    /// old.check("alice")?;
    /// let mut dump = Vec::new();
    /// old.store().dump(&mut dump).expect("memory does not fail");
    ///
    /// let store = MemoryStore::restore(&*dump)?;
    /// let new = Limiter::builder(rules).store(store).build()?;
    /// assert_eq!(new.check("alice")?.remaining(), 8);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    ///
    /// # Errors
    /// What `out` fails with.
    pub fn dump(&self, mut out: impl Write) -> io::Result<()> {
        let [one, other] = self.secrets.seed();
        writeln!(out, "{HEADER} {one:016x} {other:016x}")?;
        let mut count: u64 = 0;
        for (index, shard) in self.shards.iter().enumerate() {
            let mut lines = String::new();
            let mut shard = shard.0.lock();
            self.take_all_home(index, &mut shard);
            shard.each(|Id { high, low }, cells| {
                count = count.saturating_add(1);
                lines.push_str(&format!("{high:016x}{low:08x}"));
                cells.iter().for_each(|cell| lines.push_str(&format!("\t{}", cell.to_text())));
                lines.push('\n');
            });
            drop(shard);
            out.write_all(lines.as_bytes())?;
        }
        writeln!(out, "end {count}")
    }

    /// The store that was dumped, with the usual settings.
    ///
    /// # Errors
    /// [`Error::InvalidDump`] names the line that is not what a dump has there.
    pub fn restore(input: impl BufRead) -> Result<Self, Error> {
        let mut lines = (1..).zip(input.lines());
        let invalid = |line: u64, reason: &'static str| Error::InvalidDump { line, reason };
        let Some(seed) = lines.next().and_then(|(_, line)| seed_of(&line.ok()?)) else {
            return Err(invalid(1, "not a dump of this version; it begins with \"tollgate memory 1\""));
        };
        let store = Self::with_secrets(Secrets::from_seed(seed));
        let mut count: u64 = 0;
        for (number, line) in lines {
            let line = line.map_err(|_| invalid(number, "unreadable"))?;
            if let Some(end) = line.strip_prefix("end ") {
                if end.parse() != Ok(count) {
                    return Err(invalid(number, "another number of keys than there were before it"));
                }
                store.live.store(count, Ordering::Relaxed);
                return Ok(store);
            }
            let (id, cells) = key_of(&line).ok_or_else(|| invalid(number, "not a key and its state"))?;
            let home = store.secrets.home(id);
            let limits: Limits = cells.iter().map(Cell::limit).collect::<Vec<_>>().into();
            let mut shard = store.shards[shard_of(home)].0.lock();
            if shard.find(id, home, limits.words()) != Found::Nowhere {
                return Err(invalid(number, "a key that was there before"));
            }
            // As of the beginning of time nothing has lapsed; what has since is found out when it is next
            // touched.
            shard.restore(id, cells, limits, &store.secrets);
            count = count.saturating_add(1);
        }
        Err(invalid(count.saturating_add(2), "cut short; the last line of a dump begins with \"end\""))
    }
}

fn seed_of(line: &str) -> Option<[u64; 2]> {
    let (one, other) = line.strip_prefix(HEADER)?.trim_start().split_once(' ')?;
    Some([u64::from_str_radix(one, 16).ok()?, u64::from_str_radix(other, 16).ok()?])
}

fn key_of(line: &str) -> Option<(Id, Cells)> {
    let (id, cells) = line.split_once('\t')?;
    let (high, low) = id.split_at_checked(16)?;
    let id = Id { high: u64::from_str_radix(high, 16).ok()?, low: u32::from_str_radix(low, 16).ok()? };
    Some((id, cells.split('\t').map(Cell::from_text).collect::<Option<Cells>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HOUR, Limit, Limiter, MINUTE, ManualClock, Request, Rule, RuleSet, Timestamp, block_on};

    fn rules() -> RuleSet {
        let limits = [Limit::per_hour(100), Limit::sliding_window(90, HOUR), Limit::fixed_window(80, HOUR)];
        RuleSet::new([
            Rule::new("three", limits).key(["client"]),
            Rule::new("log", Limit::sliding_log(70, HOUR)).key(["client"]),
            Rule::new("thirds", Limit::per_hour(7).burst(60)).key(["client"]),
            Rule::new("reserve", Limit::per_hour(7).reserve(50, 1, MINUTE)),
        ])
        .unwrap()
    }

    fn limiter(store: MemoryStore, clock: &ManualClock) -> Limiter {
        Limiter::builder(rules()).store(store).clock(clock.clone()).build().unwrap()
    }

    #[test]
    fn a_restored_store_decides_as_the_dumped_one_would_have() {
        let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
        let old = limiter(MemoryStore::new(), &clock);
        for client in 0..20 {
            assert!(old.check(Request::client(&client.to_string()).cost(1)).unwrap().allowed());
            clock.advance(MINUTE / 7);
        }
        let reservation = block_on(old.reserve(Request::client("3").cost(5), HOUR)).unwrap();
        block_on(old.block("4", Timestamp::from_secs(1_800_003_000))).unwrap();
        let mut dump = Vec::new();
        old.store().dump(&mut dump).unwrap();
        let new = limiter(MemoryStore::restore(&*dump).unwrap(), &clock);
        assert_eq!(new.stats().live_keys, old.stats().live_keys);
        for minutes in [0, 1, 30, 90] {
            clock.advance(minutes * MINUTE);
            for client in 0..22 {
                assert_eq!(
                    block_on(new.peek(client)).unwrap(),
                    block_on(old.peek(client)).unwrap(),
                    "client {client}"
                );
            }
        }
        drop(reservation);
    }

    #[test]
    fn a_global_budget_is_dumped_wherever_its_state_is() {
        let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
        let limiter = |store| {
            let rules = RuleSet::new([Rule::new("global", Limit::per_hour(100))]).unwrap();
            Limiter::builder(rules).store(store).clock(clock.clone()).build().unwrap()
        };
        let old = limiter(MemoryStore::new());
        assert!((0..40).all(|_| old.check("anyone").unwrap().allowed()));
        let mut dump = Vec::new();
        old.store().dump(&mut dump).unwrap();
        let new = limiter(MemoryStore::restore(&*dump).unwrap());
        assert_eq!([&new, &old].map(|limiter| limiter.check("anyone").unwrap().remaining()), [59, 59]);
        old.store().reclaim(Timestamp::from_secs(1_800_000_000));
        assert_eq!((old.stats().live_keys, old.check("anyone").unwrap().remaining()), (Some(1), 58));
    }

    #[test]
    fn what_is_not_a_whole_dump_is_refused_with_its_line() {
        let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
        let old = limiter(MemoryStore::new(), &clock);
        assert!(old.check("a").unwrap().allowed());
        let mut dump = Vec::new();
        old.store().dump(&mut dump).unwrap();
        let dump = String::from_utf8(dump).unwrap();
        let complaint = |text: &str| MemoryStore::restore(text.as_bytes()).unwrap_err().to_string();
        assert!(complaint("").contains("line 1"));
        assert!(complaint(&dump.replace("memory 1", "memory 2")).contains("line 1"));
        let cut: String = dump.lines().take(3).map(|line| format!("{line}\n")).collect();
        assert!(complaint(&cut).contains("cut short"), "{}", complaint(&cut));
        assert!(complaint(&dump.replacen("/hour", "/hur", 1)).contains("not a key"));
        assert!(complaint(&dump.replace("end 4", "end 5")).contains("another number"));
    }
}
