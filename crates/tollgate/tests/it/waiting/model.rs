//! C6: random schedules of waiters, cancellations, rules and verbs, beside a limiter that has no
//! queues: everything that is admitted fits there, in order of arrival, and nobody waits in vain.

use std::collections::HashMap;

use proptest::prelude::*;
use tollgate::{
    Decision, Error, HOUR, Limit, Limiter, ManualClock, Request, Rule, RuleSet, SECOND, Timestamp, block_on,
};
use tollgate_testkit::Random;

use super::START;
use super::crowd::Crowd;

const CLIENTS: [&str; 3] = ["a", "b", "c"];

#[derive(Clone, Copy, Debug)]
enum Step {
    Wait { client: usize, cost: u64, timeout_ms: u64 },
    Leave { which: usize },
    Busy { which: usize },
    Check { client: usize },
    Advance { ms: u64 },
    Rules { rules: usize },
    Reset { client: usize },
    Refund { client: usize },
    Record { client: usize, cost: u64 },
    Penalise { client: usize },
    Block { client: usize, ms: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let client = || 0..CLIENTS.len();
    prop_oneof![
        8 => (client(), 0..4_u64, 0..20_000_u64)
            .prop_map(|(client, cost, timeout_ms)| Step::Wait { client, cost, timeout_ms }),
        2 => (0..64_usize).prop_map(|which| Step::Leave { which }),
        1 => (0..64_usize).prop_map(|which| Step::Busy { which }),
        2 => client().prop_map(|client| Step::Check { client }),
        8 => (0..3_000_u64).prop_map(|ms| Step::Advance { ms }),
        1 => (0..RULES).prop_map(|rules| Step::Rules { rules }),
        1 => client().prop_map(|client| Step::Reset { client }),
        1 => client().prop_map(|client| Step::Refund { client }),
        1 => (client(), 1..6_u64).prop_map(|(client, cost)| Step::Record { client, cost }),
        1 => client().prop_map(|client| Step::Penalise { client }),
        1 => (client(), 0..9_000_u64).prop_map(|(client, ms)| Step::Block { client, ms }),
    ]
}

const RULES: usize = 6;

/// No rule changes its limit: when a state is converted depends on who asks first.
fn rules(index: usize) -> RuleSet {
    let per_client = |limit: Limit| Rule::new(&format!("per-client-{index}"), limit).key(["client"]);
    let rules = match index {
        0 => vec![per_client(Limit::per_second(1).burst(3))],
        1 => vec![per_client(Limit::token_bucket(2, 1, 2 * SECOND))],
        2 => vec![per_client(Limit::fixed_window(4, 5 * SECOND))],
        3 => vec![per_client(Limit::per_second(2).burst(3)), Rule::new("all", Limit::per_second(3).burst(3))],
        4 => vec![Rule::new("global", Limit::sliding_log(4, 3 * SECOND))],
        _ => vec![Rule::new("other", Limit::per_second(1)).key(["tenant"])],
    };
    RuleSet::new(rules).unwrap()
}

/// A waiter, as the model knows it.
struct Known {
    client: usize,
    cost: u64,
    deadline: Timestamp,
    has_left: bool,
    is_busy: bool,
    was_busy: bool,
    /// How often the rules had changed when it came.
    changes: usize,
    /// Whether it was admitted under the rules under which it came.
    is_served: bool,
}

struct Model {
    clock: ManualClock,
    limiter: Limiter,
    /// The same history without queues.
    mirror: Limiter,
    crowd: Crowd<Result<Decision, Error>>,
    waiters: Vec<Known>,
    judged: usize,
    rules: usize,
    changes: usize,
}

impl Model {
    fn new(seed: u64) -> Self {
        let clock = ManualClock::at(START);
        let limiter = || Limiter::builder(rules(0)).clock(clock.clone()).build().unwrap();
        let mut crowd = Crowd::new(&clock);
        crowd.order = Some(Random(seed));
        let (limiter, mirror) = (limiter(), limiter());
        Self { clock, limiter, mirror, crowd, waiters: Vec::new(), judged: 0, rules: 0, changes: 0 }
    }

    fn request(client: usize, cost: u64) -> Request<'static> {
        Request::client(CLIENTS[client]).cost(cost)
    }

    fn take(&mut self, step: Step) {
        let now = tollgate::Clock::now(&self.clock);
        let both = [self.limiter.clone(), self.mirror.clone()];
        match step {
            Step::Wait { client, cost, timeout_ms } => {
                let timeout = std::time::Duration::from_millis(timeout_ms);
                let deadline = now.saturating_add(timeout);
                let changes = self.changes;
                self.waiters.push(Known {
                    client,
                    cost,
                    deadline,
                    has_left: false,
                    is_busy: false,
                    was_busy: false,
                    changes,
                    is_served: false,
                });
                let limiter = self.limiter.clone();
                self.crowd.join(async move { limiter.wait(Self::request(client, cost), timeout).await });
            }
            Step::Leave { which } if which < self.waiters.len() => {
                self.waiters[which].has_left = true;
                self.crowd.leave(which);
            }
            Step::Busy { which } if which < self.waiters.len() => {
                let is_busy = !self.waiters[which].is_busy;
                self.waiters[which].is_busy = is_busy;
                self.waiters[which].was_busy = true;
                self.crowd.set_busy(which, is_busy);
            }
            Step::Leave { .. } | Step::Busy { .. } => {}
            Step::Check { client } => {
                let allowed =
                    both.each_ref().map(|limiter| limiter.check(CLIENTS[client]).unwrap().allowed());
                assert_eq!(allowed[0], allowed[1], "the same history");
            }
            Step::Advance { ms } => {
                let until = now.saturating_add(std::time::Duration::from_millis(ms));
                // The mirror follows each admission at its time.
                while let Some(next) = self.clock.next_wake().filter(|next| *next < until) {
                    self.clock.set(next);
                    self.crowd.settle();
                    self.judge();
                }
                self.clock.set(until);
            }
            Step::Rules { rules: index } => {
                self.rules = index;
                self.changes += 1;
                both.iter().for_each(|limiter| limiter.set_rules(rules(index)).unwrap());
            }
            Step::Reset { client } => drop(both.map(|limiter| block_on(limiter.reset(CLIENTS[client])))),
            Step::Refund { client } => drop(both.map(|limiter| block_on(limiter.refund(CLIENTS[client])))),
            Step::Record { client, cost } => {
                drop(both.map(|limiter| block_on(limiter.record(Self::request(client, cost)))));
            }
            Step::Penalise { client } => {
                drop(both.map(|limiter| block_on(limiter.penalise(CLIENTS[client]))))
            }
            Step::Block { client, ms } => {
                let span = std::time::Duration::from_millis(ms);
                drop(both.map(|limiter| block_on(limiter.block(CLIENTS[client], now.saturating_add(span)))));
            }
        }
        self.crowd.settle();
        self.judge();
    }

    /// Compares what has ended with the mirror, and looks for those that wait in vain.
    fn judge(&mut self) {
        let somebody_was_busy = self.waiters.iter().any(|known| known.was_busy);
        let ended = self.crowd.ended[self.judged..].to_vec();
        self.judged = self.crowd.ended.len();
        for index in ended {
            let (at, answer) = self.crowd.answer(index).unwrap();
            let known = &mut self.waiters[index];
            let answer = answer.as_ref().unwrap();
            known.is_served = answer.allowed() && known.changes == self.changes;
            if answer.allowed() {
                assert!(*at <= known.deadline, "{index} was admitted late");
                let fits = self.mirror.check(Self::request(known.client, known.cost)).unwrap();
                assert!(fits.allowed(), "{index} was admitted, and does not fit: {fits:?}");
            } else {
                assert!(*at <= known.deadline || somebody_was_busy, "{index} was answered late");
                assert_ne!(answer.retry_after(), Some(std::time::Duration::ZERO), "{index}");
            }
        }
        self.nobody_waits_in_vain();
    }

    fn nobody_waits_in_vain(&self) {
        let now = tollgate::Clock::now(&self.clock);
        let somebody_was_busy = self.waiters.iter().any(|known| known.was_busy);
        // The first of each client, and the first of all.
        let mut first: HashMap<Option<usize>, usize> = HashMap::new();
        for (index, known) in self.waiters.iter().enumerate() {
            if known.has_left || self.crowd.answer(index).is_some() {
                continue;
            }
            assert!(somebody_was_busy || now < known.deadline, "{index} is still waiting at its deadline");
            let queues: &[Option<usize>] = match (known.cost, self.rules) {
                // It stands in a queue of its own.
                (0, _) => &[],
                (_, 0 | 1 | 2 | 5) => &[Some(known.client)],
                _ => &[None],
            };
            queues.iter().for_each(|queue| {
                first.entry(*queue).or_insert(index);
            });
        }
        for index in first.into_values() {
            let known = &self.waiters[index];
            let peeked = block_on(self.limiter.peek(Self::request(known.client, known.cost))).unwrap();
            assert!(somebody_was_busy || !peeked.allowed(), "{index} could be admitted, and waits");
        }
    }

    /// Under the same rules nobody overtook a request of the same client.
    fn in_order(&self) {
        for client in 0..CLIENTS.len() {
            for changes in 0..=self.changes {
                let is_compared = |index: &&usize| {
                    let known = &self.waiters[**index];
                    known.client == client && known.cost > 0 && known.is_served && known.changes == changes
                };
                let served: Vec<_> = self.crowd.ended.iter().filter(is_compared).collect();
                assert!(served.is_sorted(), "{client}: {served:?}");
            }
        }
    }
}

proptest! {
    #[test]
    fn c6_waiters_are_admitted_as_if_there_were_no_queues_and_in_order(
        seed in any::<u64>(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut model = Model::new(seed);
        for step in steps {
            model.take(step);
        }
        model.in_order();
        for index in 0..model.waiters.len() {
            model.waiters[index].is_busy = false;
            model.crowd.set_busy(index, false);
        }
        model.judge();
        model.take(Step::Advance { ms: 30_000 });
        prop_assert_eq!(model.crowd.waiting(), 0);
        prop_assert_eq!(model.limiter.stats().waiters, 0);
        prop_assert_eq!(model.clock.sleepers(), 0);
        model.take(Step::Advance { ms: u64::try_from(HOUR.as_millis()).unwrap() });
    }
}
