//! Dump and restore: the whole state of a store as JSON lines.
//!
//! ```json
//! {"tollgate":"state","version":3,"seed":["…","…"]}
//! {"shard":7,"key":"00c0ffee…","rule":"per-client","budget":"","unitCost":1,"limits":["10/60s fixed"],
//!  "state":[["0","0","0","1800000000000000000","3"]]}
//! {"end":1}
//! ```
//!
//! (The second and third lines above are one.) The first line has the format version and the seed
//! of key identities. Then comes one line per key. The last line has the number of keys, so that a
//! truncated dump is detected. Times are epoch nanoseconds and limits are in their notation.
//! Numbers of a state are strings, so that no JSON tool rounds them. A dump contains no keys, but
//! the seed lets anyone test whether a key is in it: it is as secret as the keys.

use std::io::{self, BufRead, Write};

use serde_json::{Value, json};

use super::hash::Id;
use super::lookup::shard_of;
use super::pages::written_limits;
use super::shard::{Cells, Unpacked};
use super::table::WIDEST;
use super::{ALL_SHARDS, MemoryStore, SHARDS};
use crate::cell::Cell;
use crate::{Error, Limit, Timestamp};

const VERSION: u64 = 3;

impl MemoryStore {
    /// Writes the state of every key as JSON lines, a shard at a time while requests go on, and
    /// returns the number of keys.
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
    /// The errors of `out`.
    pub fn dump(&self, mut out: impl Write) -> io::Result<u64> {
        let seed = self.seed().map(|half| format!("{half:016x}"));
        writeln!(out, "{}", json!({ "tollgate": "state", "version": VERSION, "seed": seed }))?;
        let mut count: u64 = 0;
        for (index, shard) in self.shards.iter().enumerate() {
            let mut lines = String::new();
            let shard = shard.0.lock();
            shard.each(|Id { high, low }, Unpacked { tag, cells }| {
                count = count.saturating_add(1);
                let digits = |cell: &Cell| cell.to_numbers().iter().map(u64::to_string).collect::<Vec<_>>();
                let line = json!({
                    "shard": index,
                    "key": format!("{high:016x}{low:08x}"),
                    "rule": tag.rule.as_str(),
                    "budget": tag.budget.to_string(),
                    "unitCost": tag.unit_cost,
                    "limits": written_limits(*tag),
                    "state": cells.iter().map(digits).collect::<Vec<_>>(),
                });
                lines.push_str(&format!("{line}\n"));
            });
            drop(shard);
            out.write_all(lines.as_bytes())?;
        }
        writeln!(out, "{}", json!({ "end": count }))?;
        out.flush()?;
        Ok(count)
    }

    /// The dumped store, with default settings.
    ///
    /// # Errors
    /// [`Error::InvalidDump`] names the invalid line.
    pub fn restore(input: impl BufRead) -> Result<Self, Error> {
        Self::new().restored(input)
    }

    /// Restores a dump into this store. Call it before the first request.
    ///
    /// # Errors
    /// As [`restore`](Self::restore).
    pub fn restored(mut self, input: impl BufRead) -> Result<Self, Error> {
        let invalid = |line: u64, reason: &'static str| Error::InvalidDump { line, reason };
        let mut lines = (1..).zip(input.lines()).map(|(number, line)| {
            let line = line.map_err(|_| invalid(number, "unreadable"))?;
            let value: Value = serde_json::from_str(&line).map_err(|_| invalid(number, "not JSON"))?;
            Ok::<_, Error>((number, value))
        });
        let first = lines.next().transpose()?.map(|(_, line)| line).unwrap_or_default();
        if first["tollgate"] != "state" {
            return Err(invalid(
                1,
                "not the first line of a dump, which begins with {\"tollgate\":\"state\",…",
            ));
        }
        if first["version"] != VERSION {
            return Err(invalid(1, "of another version; restore it with the tollgate that dumped it"));
        }
        self = self.seeded(seed_of(&first["seed"]).ok_or(invalid(1, "without its seed"))?);
        let mut count: u64 = 0;
        for line in lines {
            let (number, line) = line?;
            if let Some(end) = line["end"].as_u64() {
                return (end == count)
                    .then_some(self)
                    .ok_or(invalid(number, "wrong: its number of keys differs from the lines before"));
            }
            let key = self.key_of(&line);
            let (shard, id, unpacked) = key.ok_or(invalid(number, "not a key and its state"))?;
            if shard < SHARDS && shard != shard_of(self.secrets.home(id)) {
                return Err(invalid(number, "a key that belongs to another shard"));
            }
            let plain = unpacked.cells.iter().all(|cell| cell.is_plain(Timestamp::EPOCH));
            let packed = plain && unpacked.tag.words().is_some_and(|width| width <= WIDEST);
            self.put(shard, id, unpacked, packed).map_err(|reason| invalid(number, reason))?;
            count = count.saturating_add(1);
        }
        Err(invalid(count.saturating_add(2), "missing: the dump is cut short; its last line is {\"end\":…}"))
    }

    /// The shard, the identity and the state of a line's key.
    fn key_of(&self, line: &Value) -> Option<(usize, Id, Unpacked)> {
        let (high, low) = line["key"].as_str().filter(|key| key.len() == 24)?.split_at_checked(16)?;
        let id = Id { high: u64::from_str_radix(high, 16).ok()?, low: u32::from_str_radix(low, 16).ok()? };
        let limits: Vec<&str> =
            line["limits"].as_array()?.iter().map(Value::as_str).collect::<Option<_>>()?;
        let shard = usize::try_from(line["shard"].as_u64()?).ok().filter(|shard| *shard < ALL_SHARDS)?;
        let (rule, budget) = (line["rule"].as_str()?, line["budget"].as_str()?);
        let tag = self.tag_of(rule, budget, &limits, line["unitCost"].as_u64()?)?;
        let states = line["state"].as_array().filter(|states| states.len() == tag.limits.len())?;
        let cell = |(limit, state): (&Limit, &Value)| {
            let numbers: Option<Vec<u64>> =
                state.as_array()?.iter().map(|number| number.as_str()?.parse().ok()).collect();
            Cell::from_numbers(*limit, &numbers?)
        };
        let cells: Option<Cells> = tag.limits.iter().zip(states).map(cell).collect();
        Some((shard, id, Unpacked { tag, cells: cells? }))
    }
}

fn seed_of(value: &Value) -> Option<[u64; 2]> {
    let [one, other] = value.as_array()?.as_slice() else { return None };
    let half = |value: &Value| u64::from_str_radix(value.as_str()?, 16).ok();
    Some([half(one)?, half(other)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        HOUR, Limit, Limiter, MINUTE, ManualClock, OnExpiry, Request, Rule, RuleSet, Timestamp, block_on,
    };

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

    fn dump(limiter: &Limiter) -> Vec<u8> {
        let mut dump = Vec::new();
        limiter.store().dump(&mut dump).unwrap();
        dump
    }

    fn limiter(store: MemoryStore, clock: &ManualClock) -> Limiter {
        Limiter::builder(rules()).store(store).clock(clock.clone()).build().unwrap()
    }

    #[test]
    fn a_restored_store_decides_like_the_dumped_store() {
        let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
        let old = limiter(MemoryStore::new(), &clock);
        for client in 0..20 {
            assert!(old.check(Request::client(&client.to_string()).cost(1)).unwrap().allowed());
            clock.advance(MINUTE / 7);
        }
        let reservation =
            block_on(old.reserve(Request::client("3").cost(5), HOUR, OnExpiry::GiveBack)).unwrap();
        block_on(old.block("4", Timestamp::from_secs(1_800_003_000))).unwrap();
        let new = limiter(MemoryStore::restore(&*dump(&old)).unwrap(), &clock);
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
    fn a_global_budget_is_dumped_and_restored() {
        let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
        let limiter = |store| {
            let rules = RuleSet::new([Rule::new("global", Limit::per_hour(100))]).unwrap();
            Limiter::builder(rules).store(store).clock(clock.clone()).build().unwrap()
        };
        let old = limiter(MemoryStore::new());
        assert!((0..40).all(|_| old.check("alice").unwrap().allowed()));
        let new = limiter(MemoryStore::restore(&*dump(&old)).unwrap());
        assert_eq!([&new, &old].map(|limiter| limiter.check("alice").unwrap().remaining()), [59, 59]);
        old.store().reclaim(Timestamp::from_secs(1_800_000_000));
        assert_eq!((old.stats().live_keys, old.check("alice").unwrap().remaining()), (Some(1), 58));
    }

    #[test]
    fn b11_a_removed_limit_is_kept_only_while_it_has_units_in_use() {
        let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
        let (minute, hour) = (Limit::fixed_window(10, MINUTE), Limit::fixed_window(20, HOUR));
        let rules =
            |limits: &[Limit]| RuleSet::new([Rule::new("r", limits.to_vec()).key(["client"])]).unwrap();
        let limiter = Limiter::builder(rules(&[minute, hour])).clock(clock.clone()).build().unwrap();
        assert!(limiter.check("a").unwrap().allowed());
        limiter.set_rules(rules(&[minute])).unwrap();
        for (limits, passes) in [(2, HOUR), (1, MINUTE)] {
            assert!(limiter.check("a").unwrap().allowed());
            let key: Value =
                serde_json::from_slice(dump(&limiter).split(|byte| *byte == b'\n').nth(1).unwrap()).unwrap();
            assert_eq!(key["limits"].as_array().unwrap().len(), limits, "{key}");
            clock.advance(passes);
        }
    }

    #[test]
    fn b11_a_peek_under_a_longer_list_of_limits_leaves_a_key_that_can_be_restored() {
        let log = Limit::sliding_log(10, HOUR);
        let rules =
            |limits: &[Limit]| RuleSet::new([Rule::new("r", limits.to_vec()).key(["client"])]).unwrap();
        let limiter = Limiter::builder(rules(&[log])).build().unwrap();
        assert!(limiter.check("a").unwrap().allowed());
        limiter.set_rules(rules(&[log, Limit::per_hour(100)])).unwrap();
        assert!(block_on(limiter.peek("a")).unwrap().allowed());
        assert_eq!(MemoryStore::restore(&*dump(&limiter)).unwrap().memory_stats().live, 1);
    }

    #[test]
    fn an_invalid_or_truncated_dump_is_refused_with_its_line_number() {
        let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
        let old = limiter(MemoryStore::new(), &clock);
        assert!(old.check("a").unwrap().allowed());
        let dump = String::from_utf8(dump(&old)).unwrap();
        let complaint = |text: &str| MemoryStore::restore(text.as_bytes()).unwrap_err().to_string();
        assert!(complaint("").contains("line 1"));
        assert!(complaint("{}").contains("line 1"));
        assert!(complaint("tollgate memory 1").contains("not JSON"));
        assert!(complaint(&dump.replace("\"version\":3", "\"version\":4")).contains("another version"));
        let cut: String = dump.lines().take(3).map(|line| format!("{line}\n")).collect();
        assert!(complaint(&cut).contains("cut short"), "{}", complaint(&cut));
        assert!(complaint(&dump.replacen("/hour", "/hur", 1)).contains("not a key"));
        assert!(complaint(&dump.replace("\"end\":4", "\"end\":5")).contains("number of keys differs"));
    }
}
