//! Blocked clients.
//!
//! The in-memory store keeps no names, so the server remembers the clients it blocked and asks the
//! store which blocks still hold. After a restart with a data directory, earlier blocks hold and
//! are reported to the blocked clients, but are not listed. Redis lists the blocks of all servers
//! that share it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tollgate::{Cause, Error, Timestamp, Until};

use super::App;
use crate::inline;

/// The most names to remember.
const NAMES_MAX: usize = 10_000;

/// The names that are looked at before checks on the same thread have their turn.
const NAMES_AT_ONCE: usize = 64;

/// The clients that were blocked, and until when.
#[derive(Debug, Default)]
pub(super) struct Names(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    until: BTreeMap<String, Timestamp>,
    /// Until when there are blocks for whose names there was no room.
    missing_until: Timestamp,
}

/// A blocked client.
#[derive(Debug)]
pub(crate) struct Blocked {
    pub(crate) client: String,
    pub(crate) rule: String,
    pub(crate) until: Timestamp,
}

/// Blocked clients, and when they were listed by the clock that decides.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) now: Timestamp,
    pub(crate) blocks: Vec<Blocked>,
    /// Whether there was room for every block.
    pub(crate) complete: bool,
}

impl Names {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, client: &str, until: Timestamp, now: Timestamp) {
        let mut known = self.lock();
        if known.until.len() >= NAMES_MAX {
            known.until.retain(|_, until| *until > now);
        }
        if until <= now {
            known.until.remove(client);
        } else if known.until.len() < NAMES_MAX || known.until.contains_key(client) {
            known.until.insert(client.to_owned(), until);
        } else {
            known.missing_until = known.missing_until.max(until);
        }
    }

    /// The names, and whether there was room for all of them.
    fn known(&self, now: Timestamp) -> (Vec<String>, bool) {
        let known = self.lock();
        (known.until.keys().cloned().collect(), known.missing_until <= now)
    }
}

impl App {
    /// Blocks a client under every rule keyed by client alone, and under `CL.THROTTLE`. Returns
    /// the end of the block by the store's clock.
    ///
    /// # Errors
    /// As [`reset`](Self::reset).
    pub(crate) async fn block(&self, client: &str, until: Until) -> Result<Timestamp, Error> {
        let now = self.clock.now();
        let ends_at = match until {
            Until::Date(date) => date,
            Until::After(span) => now.saturating_add(span),
        };
        let [by_rules, throttled] = inline::client_budgets(client);
        let by_rules = self.timed(self.limiter.block(by_rules, until)).await;
        let throttled = self.timed(self.limiter.block(throttled, until)).await;
        // Any stored block is listed. A name is forgotten only if no block can be left.
        let is_stored = by_rules.is_ok() || throttled.is_ok();
        let throttled = inline::ignore_unknown_rule(throttled);
        let has_failed = throttled.is_err() || !matches!(by_rules, Ok(_) | Err(Error::NotCovered));
        if is_stored && (ends_at > now || !has_failed) {
            self.blocked.note(client, ends_at, now);
        }
        let by_rules = by_rules?;
        Ok(throttled?.map_or(by_rules, |throttled| throttled.max(by_rules)))
    }

    /// The blocked clients, at most `most`.
    ///
    /// # Errors
    /// If the store failed.
    pub(crate) async fn blocks(&self, most: usize) -> Result<Listed, Error> {
        let now = self.clock.now();
        if let Some(redis) = self.limiter.store().as_redis() {
            let listed = self.timed(redis.blocks(most, now)).await;
            let listed = listed.inspect_err(|error| self.limiter.store_failed(error))?;
            let each = listed.blocks.into_iter();
            let each =
                each.map(|block| Blocked { client: block.value, rule: block.rule, until: block.until });
            return Ok(Listed { now: listed.now, blocks: each.collect(), complete: listed.complete });
        }
        let (names, complete) = self.blocked.known(now);
        let mut blocks: Vec<Blocked> = Vec::new();
        for (client, number) in names.into_iter().zip(1_usize..) {
            if number.is_multiple_of(NAMES_AT_ONCE) {
                tokio::task::yield_now().await;
            }
            let before = blocks.len();
            for request in inline::client_budgets(&client) {
                let Ok(decision) = self.timed(self.limiter.peek(request)).await else { continue };
                for report in decision.limits() {
                    let Cause::Block { until } = report.cause else { continue };
                    let rule = report.rule.as_str();
                    if !blocks[before..].iter().any(|known| known.rule == rule) {
                        blocks.push(Blocked { client: client.clone(), rule: rule.to_owned(), until });
                    }
                }
            }
            if blocks.len() >= most {
                break;
            }
        }
        blocks.truncate(most);
        Ok(Listed { now, blocks, complete })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tollgate::{HOUR, ManualClock, block_on};

    use super::*;
    use crate::config::Origin;

    #[test]
    fn a_block_without_room_for_its_name_makes_the_list_incomplete_until_it_ends() {
        let names = Names::default();
        let at = Timestamp::from_secs;
        let count_and_missing = || {
            let known = names.lock();
            (known.until.len(), known.missing_until)
        };
        (0..NAMES_MAX).for_each(|client| names.note(&client.to_string(), at(10), at(1)));
        names.note("0", at(50), at(1));
        assert_eq!(count_and_missing(), (NAMES_MAX, Timestamp::EPOCH));
        names.note("new", at(40), at(1));
        names.note("newer", at(30), at(2));
        assert_eq!(count_and_missing(), (NAMES_MAX, at(40)));
        assert_eq!((names.known(at(39)).1, names.known(at(40)).1), (false, true));
        names.note("later", at(40), at(10));
        assert_eq!(names.lock().until.keys().collect::<Vec<_>>(), ["0", "later"]);
    }

    /// A table of one key has no room for a second block.
    #[test]
    fn c5_a_block_that_the_store_refused_is_not_noted() {
        let environment = [("TOLLGATE_STORE_MAX_KEYS", "1"), ("TOLLGATE_SERVER_RESP", "off")];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let origin = Origin { environment, ..Origin::default() };
        let config = origin.load().unwrap();
        let app = App::new(origin, config, Arc::new(ManualClock::default())).unwrap();
        let noted = || app.blocked.lock().until.keys().cloned().collect::<Vec<_>>();
        block_on(app.block("ann", HOUR.into())).unwrap();
        assert!(matches!(block_on(app.block("bob", HOUR.into())), Err(Error::StoreFull)));
        assert_eq!(noted(), ["ann"]);
        assert_eq!(block_on(app.blocks(9)).unwrap().blocks.len(), 1);
        block_on(app.block("ann", Until::Date(app.clock.now()))).unwrap();
        assert!(noted().is_empty());
    }
}
