//! B11: replacing a limit keeps history, whatever is asked afterwards.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tollgate::{HOUR, Limit, MINUTE, Request, Rule, RuleSet, Store, Timestamp};

use super::{Laws, counts_denied, full_refill, nanos, per_client};
use crate::oracle::{Naive, first_time, naive};
use crate::world::{World, run};
use crate::{replacements, steps};

/// Longer than any schedule.
const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// An operation on the client `a`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    Peek,
    Check,
    /// A check that another limit denies.
    Guarded,
    Refund,
    Penalise,
    Record,
    Block(Duration),
    Unblock,
    Reset,
}

/// The numbers of a limit after an operation, and the units that it moved or left unrecorded.
#[derive(Debug, PartialEq, Eq)]
struct Numbers {
    allowed: bool,
    remaining: u64,
    owed: u64,
    reset_at: u64,
    units: u64,
}

/// The client: its history, and the limit that wrote it.
struct Client {
    limit: Limit,
    history: Box<dyn Naive>,
    blocked_until: u64,
    tick: u64,
}

impl Client {
    fn new(limit: Limit, tick: u64) -> Self {
        Self { limit, history: naive(&limit), blocked_until: 0, tick }
    }

    /// Acts under `limit`. The history is converted if the operation writes, or if the limit itself
    /// or a block denies a check.
    fn ask(&mut self, ask: Ask, limit: &Limit, cost: u64, now: u64) -> Numbers {
        let mut converted =
            if self.limit == *limit { None } else { Some(self.history.replaced_by(limit, now)) };
        let history = converted.as_mut().unwrap_or(&mut self.history);
        let is_blocked = self.blocked_until > now;
        let fits = history.fits(now, cost) && !is_blocked;
        let (writes, units) = match ask {
            Ask::Peek => (false, 0),
            Ask::Check if fits && cost > 0 => {
                history.take(now, cost);
                (true, 0)
            }
            Ask::Check | Ask::Guarded => (!fits && cost > 0, 0),
            Ask::Refund => {
                let before = history.in_use(now);
                let lacking = history.lacking(now);
                history.give(now, cost);
                // Less than a whole unit of an estimate may come back.
                (history.lacking(now) != lacking, before - history.in_use(now))
            }
            Ask::Penalise => {
                let drawn = history.available(now).min(cost);
                take(&mut **history, now, drawn);
                (drawn > 0, drawn)
            }
            Ask::Record => {
                let recorded = history.recordable(now).min(cost);
                take(&mut **history, now, recorded);
                (recorded > 0, cost - recorded)
            }
            Ask::Block(span) => {
                self.blocked_until = now + nanos(span);
                (true, 0)
            }
            Ask::Unblock => {
                self.blocked_until = 0;
                (true, 0)
            }
            Ask::Reset => {
                *history = naive(limit);
                self.blocked_until = 0;
                (true, 0)
            }
        };
        let is_blocked = self.blocked_until > now;
        let whole_at = first_time(&**history, now, self.tick, limit.capacity());
        let numbers = Numbers {
            allowed: if ask == Ask::Check { fits } else { history.fits(now, cost) && !is_blocked },
            remaining: if is_blocked { 0 } else { history.available(now) },
            owed: history.owed(now),
            reset_at: whole_at.max(self.blocked_until),
            units,
        };
        if let Some(converted) = converted.filter(|_| writes) {
            self.limit = *limit;
            self.history = converted;
        }
        numbers
    }
}

/// A window that nothing is taken from does not open.
fn take(history: &mut dyn Naive, now: u64, units: u64) {
    if units > 0 {
        history.take(now, units);
    }
}

fn any_ask() -> impl Strategy<Value = Ask> {
    prop_oneof![
        4 => Just(Ask::Check),
        1 => Just(Ask::Peek),
        2 => Just(Ask::Guarded),
        2 => Just(Ask::Refund),
        2 => Just(Ask::Penalise),
        3 => Just(Ask::Record),
        1 => (1..100_u64).prop_map(|secs| Ask::Block(Duration::from_secs(secs))),
        1 => Just(Ask::Unblock),
        1 => Just(Ask::Reset),
    ]
}

impl<S: Store, F: Fn() -> S + Sync> Laws<F> {
    /// B11. Units in use stay in use when a limit is replaced: every answer of every verb, through
    /// any number of replacements, is that of the naive oracle under the limit in force. A peek, a
    /// verb that moves no unit and a check that another limit denies convert no state.
    pub fn b11_replacing_a_limit_keeps_history(&self) {
        let tick = self.tick;
        let script = replacements(tick).prop_flat_map(move |limits| {
            let period = limits.iter().map(full_refill).max().unwrap_or(MINUTE);
            let asks = prop::collection::vec((0..limits.len(), any_ask()), 30);
            (Just(limits), steps(tick, period, 30), asks)
        });
        self.property(script, |(limits, steps, asks)| {
            prop_assume!(!limits.iter().any(counts_denied));
            let world = self.world(guarded(&limits[0]));
            assert!(world.check(&[("guard", "x")]).allowed());
            let mut client = Client::new(limits[0], nanos(tick));
            for (step, (limit, ask)) in steps.iter().zip(asks) {
                world.clock.advance(step.wait);
                let limit = &limits[limit];
                let rules = RuleSet::new(guarded(limit)).expect("valid rules");
                world.limiter.set_rules(rules).expect("accepted");
                // A denial by another server may have converted a state.
                let ask = if ask == Ask::Guarded && self.sharded { Ask::Peek } else { ask };
                let written_under = client.limit;
                let expected = client.ask(ask, limit, step.cost, world.now().as_nanos());
                let got = acted(&world, ask, step.cost)?;
                prop_assert_eq!(
                    got,
                    expected,
                    "{:?} of {} under {}, written under {}",
                    ask,
                    step.cost,
                    limit,
                    written_under
                );
            }
            Ok(())
        });
    }

    /// B11. What is recorded after a limit was replaced is recorded under the new limit.
    pub fn b11_a_record_counts_under_the_limit_in_force(&self) {
        let world = self.world([per_client(Limit::fixed_window(10, MINUTE))]);
        assert!(world.check("a").allowed());
        let smaller = RuleSet::new([per_client(Limit::fixed_window(4, MINUTE).debt(0))]);
        world.limiter.set_rules(smaller.expect("valid rules")).expect("accepted");
        let recorded = run(world.limiter.record(Request::client("a").cost(5))).expect("the store records");
        assert_eq!((recorded.decision().remaining(), recorded.shortfall()), (0, 2));
        assert_eq!(world.limiter.stats().converted, 1, "a record that converts is counted");
    }

    /// C5. Units of a sustained bucket that are drawn and given back do not refill its reserve.
    pub fn c5_refunds_do_not_refill_a_reserve(&self) {
        // One unit more than is drawn, and the reserve refills in a year.
        let limit = (2..20_u64, 1..20_u64, any::<bool>()).prop_map(|(sustained, reserve, stepped)| {
            let limit = Limit::token_bucket(sustained, 1, Duration::from_secs(1));
            let limit = if stepped { limit.stepped() } else { limit };
            limit.reserve(reserve, 1, YEAR)
        });
        let rounds = prop::collection::vec((1..5_u64, 2..30_u64), 1..20);
        self.property((limit, rounds), |(limit, rounds)| {
            let tollgate::Algorithm::Reserve { sustained, .. } = limit.algorithm() else {
                unreachable!("a limit with a reserve")
            };
            let world = self.world([per_client(limit)]);
            assert!(world.check(Request::client("a").cost(limit.capacity())).allowed());
            for (cost, wait) in rounds {
                world.clock.advance(Duration::from_secs(wait));
                let left = world.peek("a").remaining();
                let request = Request::client("a").cost(cost.min(left - 1));
                prop_assert!(world.check(request).allowed());
                prop_assert_eq!(run(world.limiter.refund(request)), Ok(cost.min(left - 1)));
                prop_assert_eq!(world.peek("a").remaining(), left);
            }
            world.clock.advance(HOUR);
            prop_assert_eq!(world.peek("a").remaining(), sustained.capacity, "the reserve stays empty");
            Ok(())
        });
    }
}

/// A client's limit, and one that denies every request with a `guard` attribute.
fn guarded(limit: &Limit) -> [Rule; 2] {
    [per_client(*limit), Rule::new("guard", Limit::fixed_window(1, YEAR)).key(["guard"])]
}

/// Acts on the client `a` of a world.
fn acted<S: Store>(world: &World<S>, ask: Ask, cost: u64) -> Result<Numbers, TestCaseError> {
    let both = [("client", "a"), ("guard", "x")];
    let request = Request::client("a").cost(cost);
    let before = world.limiter.stats().shortfall;
    let (decision, units) = match ask {
        Ask::Peek => (world.peek(request), 0),
        Ask::Check => (world.check(request), 0),
        Ask::Guarded => {
            let decision = world.check(Request::new(&both).cost(cost));
            prop_assert!(cost == 0 || !decision.allowed());
            (decision, 0)
        }
        Ask::Refund => {
            let units = run(world.limiter.refund(request)).expect("the store refunds");
            (world.peek(request), units)
        }
        Ask::Penalise => {
            let units = run(world.limiter.penalise(request)).expect("the store penalises");
            (world.peek(request), units)
        }
        Ask::Record => {
            let recorded = run(world.limiter.record(request)).expect("the store records");
            let peeked = world.peek(Request::client("a").cost(0));
            prop_assert_eq!(recorded.decision().limits(), peeked.limits(), "the numbers of the next peek");
            prop_assert_eq!(recorded.shortfall(), world.limiter.stats().shortfall - before);
            (world.peek(request), recorded.shortfall())
        }
        Ask::Block(span) => {
            run(world.limiter.block("a", span)).expect("the store blocks");
            (world.peek(request), 0)
        }
        Ask::Unblock => {
            run(world.limiter.block("a", Timestamp::EPOCH)).expect("the store unblocks");
            (world.peek(request), 0)
        }
        Ask::Reset => {
            run(world.limiter.reset("a")).expect("the store resets");
            (world.peek(request), 0)
        }
    };
    let outcome = decision.limits()[0].outcome;
    Ok(Numbers {
        allowed: outcome.allowed(),
        remaining: outcome.remaining,
        owed: outcome.owed,
        reset_at: outcome.reset_at.as_nanos(),
        units,
    })
}
