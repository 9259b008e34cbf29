//! B12: limits are islands.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use tollgate::{Algorithm, HOUR, Limit, MINUTE, Override, Request, Rule, RuleSet, Store, Timestamp};

use super::{Laws, full_refill, nanos, per_client};
use crate::bound::{Admitted, check_history, max_admitted};
use crate::{any_limit, steps};

/// The limit of a request: the rule's, an override's, or an inline limit.
#[derive(Clone, Copy, Debug)]
enum Under {
    Rule,
    Override(usize),
    Inline(usize),
}

const PATHS: [&str; 2] = ["/one", "/two"];

impl<S: Store, F: Fn() -> S + Sync> Laws<F> {
    /// B12. Each limit keeps B1 on its own when a client alternates between several limits: a
    /// request under one neither gives back, speeds up nor hides units of another.
    pub fn b12_limits_are_islands(&self) {
        let tick = self.tick;
        let period = move |ticks: u64| Duration::from_nanos(ticks * nanos(tick));
        let inline = (1..20_u64, 1..15_u64, prop_oneof![Just(1_000_000_u64), 1..5_000_u64], any::<bool>())
            .prop_map(move |(count, amount, ticks, window)| match window {
                true => Limit::fixed_window(count, period(ticks)),
                false => Limit::token_bucket(count, amount, period(ticks)),
            });
        let under = prop_oneof![
            2 => Just(Under::Rule),
            3 => (0..PATHS.len()).prop_map(Under::Override),
            4 => (0..4_usize).prop_map(Under::Inline),
        ];
        let limits = prop::collection::vec(any_limit(tick), 3);
        let script = (limits, prop::collection::vec(inline, 4)).prop_flat_map(move |(limits, inline)| {
            let longest = limits.iter().map(full_refill).chain([period(2_000)]).max().expect("not none");
            let asks = prop::collection::vec((under.clone(), prop::bool::weighted(0.2)), 60);
            (Just(limits), Just(inline), steps(tick, longest.min(period(4_000_000)), 60), asks)
        });
        self.property(script, |(limits, inline, steps, asks)| {
            let world = self.world([per_client(limits[0])]);
            let rules = RuleSet::new([per_client(limits[0]), Rule::inline("inline").key(["client"])]);
            let overrides = PATHS
                .iter()
                .zip(&limits[1..])
                .map(|(path, limit)| Override::new("per-client", *limit).matching("path", *path));
            let rules = rules.expect("valid rules").with_overrides(overrides).expect("valid overrides");
            world.limiter.set_rules(rules).expect("accepted");
            let inline_limits: Vec<_> =
                inline.iter().map(|limit| world.limiter.inline(*limit).expect("accepted")).collect();
            let (mut listed, mut passed): ([Admitted; 3], [Admitted; 4]) = Default::default();
            for (step, (under, peek)) in steps.iter().zip(asks) {
                world.clock.advance(step.wait);
                let on_path = |path| [("client", "a"), ("path", path)];
                let attributes = match under {
                    Under::Override(path) => on_path(PATHS[path]),
                    _ => on_path("/"),
                };
                let request = match under {
                    Under::Inline(which) => Request::client("a").under("inline", &inline_limits[which]),
                    _ => Request::new(&attributes),
                };
                let request = request.cost(step.cost);
                if peek {
                    let _ = world.peek(request);
                    continue;
                }
                let decision = world.check(request);
                if decision.allowed() {
                    let history = match under {
                        Under::Rule => &mut listed[0],
                        Under::Override(path) => &mut listed[path + 1],
                        Under::Inline(which) => &mut passed[which],
                    };
                    history.push((decision.now(), step.cost));
                }
            }
            let checked =
                limits.iter().zip(&listed).try_for_each(|(limit, history)| check_history(limit, history));
            checked.and_then(|()| check_inline(&inline, &passed)).map_err(TestCaseError::fail)
        });
    }

    /// B12. Inline windows of different periods have counts of their own: a window that opens anew
    /// under the shorter period leaves the count of the longer one as it is.
    pub fn b12_inline_windows_of_different_periods_are_islands(&self) {
        let world = self.world([per_client(Limit::per_minute(1))]);
        let rules = RuleSet::new([Rule::inline("inline").key(["client"])]).expect("a valid rule");
        world.limiter.set_rules(rules).expect("accepted");
        let [short, long] = [Limit::fixed_window(2, MINUTE), Limit::fixed_window(3, HOUR)]
            .map(|limit| world.limiter.inline(limit).expect("the store keeps windows"));
        let admitted = |limit, times| {
            let request = Request::client("a").under("inline", limit);
            (0..times).filter(|_| world.check(request).allowed()).count()
        };
        assert_eq!((admitted(&long, 5), admitted(&short, 5)), (3, 2));
        world.clock.advance(2 * MINUTE);
        assert_eq!((admitted(&short, 5), admitted(&long, 5)), (2, 0));
    }
}

/// Checks the histories of inline limits. Windows of one period share their edges, which the first
/// request under any of them sets.
fn check_inline(limits: &[Limit], histories: &[Admitted]) -> Result<(), String> {
    let mut windows: BTreeMap<Duration, Vec<(Timestamp, u64, usize)>> = BTreeMap::new();
    for (index, (limit, history)) in limits.iter().zip(histories).enumerate() {
        let Algorithm::FixedWindow { period, .. } = limit.algorithm() else {
            check_history(limit, history)?;
            continue;
        };
        for (from, (start, _)) in history.iter().enumerate() {
            let mut sum = 0;
            for (at, cost) in &history[from..] {
                sum += u128::from(*cost);
                if sum > max_admitted(limit, at.since(*start)) {
                    return Err(format!("{limit}: {sum} from {start:?} to {at:?}"));
                }
            }
        }
        let of_limit = history.iter().filter(|(_, cost)| *cost > 0).map(|(at, cost)| (*at, *cost, index));
        windows.entry(period).or_default().extend(of_limit);
    }
    for (period, mut admitted) in windows {
        admitted.sort_unstable();
        let (mut opened, mut sums) = (Timestamp::EPOCH, vec![0; limits.len()]);
        for (at, cost, index) in admitted {
            if at.since(opened) >= period {
                (opened, sums) = (at, vec![0; limits.len()]);
            }
            sums[index] += cost;
            if sums[index] > limits[index].capacity() {
                return Err(format!("{}: {} in the window from {opened:?}", limits[index], sums[index]));
            }
        }
    }
    Ok(())
}
