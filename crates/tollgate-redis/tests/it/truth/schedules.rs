//! Random limits, rules and steps.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::{CalendarUnit, Limit, OnExpiry, Rule, Zone};
use tollgate_testkit::any_limit;

/// Limits with the small numbers of the laws, and some with the largest numbers allowed.
pub(super) fn wide_limit() -> impl Strategy<Value = Limit> {
    let large = [
        "1234567/d",
        "999999999999999/d sliding",
        "1000003/d sliding",
        "123456789/36500d fixed aligned",
        "700000000/s",
        "1/365d",
        "5000/36500d sliding",
        "99991 refill 7/d",
        "40 refill 13 every 7us",
        "1000000 refill 999983 every 86399s reserve 12345 refill 17/s",
        "7 refill 7/min reserve 3 refill 1/h",
        "500/7s log",
        "99991 refill 7/d debt 200000",
        "1000003/d sliding debt 5",
        "700000000/s debt 0",
        "1000/month",
        "5/week at Europe/Berlin debt 2",
        "3/year at Asia/Tokyo counting denied",
        "999999999999999/month at Pacific/Apia",
        "7 refill 7/min reserve 3 refill 1/h debt 1",
    ];
    let large: Vec<Limit> = large.iter().map(|notation| notation.parse().unwrap()).collect();
    prop_oneof![3 => any_limit(Duration::from_micros(1)), 1 => prop::sample::select(large)]
}

#[derive(Clone, Debug)]
pub(super) enum Step {
    Check(u64),
    /// Checks a request that something else denied.
    Refuse(u64),
    Peek(u64),
    Refund(u64),
    Penalise(u64),
    Record(u64),
    Block(Duration),
    Reset,
    Reserve(u64, Duration, OnExpiry),
    /// Acquires a slot of every limit on concurrency.
    Acquire(u64, Duration),
    /// Renews the oldest open reservation and the oldest slot.
    Renew(Duration),
    /// Releases the oldest slot.
    Release,
    /// Settles the oldest open reservation at this cost.
    Settle(u64),
    /// Reserves nothing.
    ReserveNothing(Duration),
    /// Settles one of the reservations of nothing so far at this cost, perhaps again or too late.
    SettleNothing(u64, usize),
    /// Renews one of the reservations of nothing so far.
    RenewNothing(Duration, usize),
    /// Switches to the other list of rules.
    Change,
    /// Sets the clock back, by more than a reading may be late.
    Back(Duration),
    /// Checks a path that an override gives a budget.
    Overridden(u64),
    /// Checks under the inline limit of this index.
    Inline(u64, usize),
    /// Checks the credits by themselves.
    Credits(u64),
    /// Blocks the credits.
    BlockCredits(Duration),
}

pub(super) fn any_cost() -> impl Strategy<Value = u64> {
    prop_oneof![6 => Just(1), 1 => Just(0), 4 => 1..12_u64, 1 => 1..1_000_000_000_u64, 1 => Just(tollgate::MAX_COUNT)]
}

pub(super) fn any_span() -> impl Strategy<Value = Duration> {
    prop_oneof![Just(0), 0..10_u64, 0..2_000_000_u64, 0..100_000_000_u64, 0..200_000_000_000_u64]
        .prop_map(Duration::from_micros)
}

pub(super) fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => any_cost().prop_map(Step::Check),
        1 => any_cost().prop_map(Step::Refuse),
        1 => any_cost().prop_map(Step::Peek),
        2 => any_cost().prop_map(Step::Refund),
        2 => any_cost().prop_map(Step::Penalise),
        1 => any_span().prop_map(Step::Block),
        1 => Just(Step::Reset),
        3 => any_cost().prop_map(Step::Record),
        3 => (any_cost(), any_span(), any::<bool>()).prop_map(|(cost, ttl, keep)| {
            Step::Reserve(cost, ttl, if keep { OnExpiry::Keep } else { OnExpiry::GiveBack })
        }),
        6 => (any_cost(), any_span()).prop_map(|(cost, ttl)| Step::Acquire(cost, ttl)),
        1 => any_span().prop_map(Step::Renew),
        2 => Just(Step::Release),
        2 => any_cost().prop_map(Step::Settle),
        3 => any_span().prop_map(Step::ReserveNothing),
        5 => (any_cost(), 0..4_usize).prop_map(|(cost, index)| Step::SettleNothing(cost, index)),
        2 => (any_span(), 0..4_usize).prop_map(|(ttl, index)| Step::RenewNothing(ttl, index)),
        1 => Just(Step::Change),
        1 => (1_000_001..200_000_000_u64).prop_map(|micros| Step::Back(Duration::from_micros(micros))),
        2 => any_cost().prop_map(Step::Overridden),
        4 => (any_cost(), 0..6_usize).prop_map(|(cost, limit)| Step::Inline(cost, limit)),
        1 => any_cost().prop_map(Step::Credits),
        1 => any_span().prop_map(Step::BlockCredits),
    ]
}

/// Inline limits: buckets with fast and slow refill, with whole and fractional nanoseconds per
/// token, and windows.
pub(super) fn inline_limits() -> [Limit; 6] {
    ["100/h", "1000/s", "7/min", "3/s burst 9", "10/60s fixed", "4/60s fixed"]
        .map(|limit| limit.parse().unwrap())
}

/// Limits that the script's fast path decides. It needs all limits of a request to be such.
fn ordinary_limit() -> impl Strategy<Value = Limit> {
    let period =
        prop_oneof![Just(60_000_000_u64), Just(1_000_000), 1..5_000_u64].prop_map(Duration::from_micros);
    (1..20_u64, 1..15_u64, period, 0..4_u8).prop_map(|(count, amount, period, kind)| match kind {
        0 => Limit::fixed_window(count, period),
        3 => Limit::per_calendar(count, CalendarUnit::Hour, Zone::UTC),
        1 => Limit::sliding_window(count, period),
        _ => Limit::token_bucket(count, amount, period),
    })
}

/// One to three rules of one to three limits, keyed or global, some of them shadow rules, some of
/// which record denied costs, with different costs; and the same rules with other limits. The
/// number of limits stays the same, because a store may or may not forget a limit that is absent
/// for a while.
pub(super) fn any_rules() -> impl Strategy<Value = (Vec<Rule>, Vec<Rule>)> {
    let ordinary = rules_of(ordinary_limit().boxed(), 0.0);
    let slots = (1..5_u64).prop_map(Limit::concurrent);
    let slots = rules_of(prop_oneof![2 => slots, 1 => wide_limit()].boxed(), 0.2);
    let rules = prop_oneof![2 => rules_of(wide_limit().boxed(), 0.2), 1 => ordinary, 1 => slots];
    let credits = prop::collection::vec((wide_limit(), wide_limit()), 0..=2);
    (rules, credits, any::<bool>()).prop_map(|((one, other), credits, is_keyed)| {
        let (mut limits, mut others): (Vec<Limit>, Vec<Limit>) = credits.into_iter().unzip();
        // Larger limits are refused together with an overflow.
        let is_large = |limit: &Limit| limit.capacity() + limit.max_debt() > 1 << 50;
        let mut all =
            one.iter().chain(&other).flat_map(|rule| rule.limits().iter().copied().collect::<Vec<_>>());
        if all.any(|limit| is_large(&limit)) || limits.iter().chain(&others).any(is_large) {
            (limits, others) = (Vec::new(), Vec::new());
        }
        (with_credits(one, limits, is_keyed), with_credits(other, others, is_keyed))
    })
}

/// The rules, and one rule that as many of them overflow into as can: those that enforce at the
/// cost of the first.
fn with_credits(mut rules: Vec<Rule>, limits: Vec<Limit>, is_keyed: bool) -> Vec<Rule> {
    let cost = rules[0].unit_cost();
    for rule in rules.iter_mut().filter(|_| !limits.is_empty()) {
        let has_key = !is_keyed || !rule.key_attributes().is_empty();
        if has_key && rule.unit_cost() == cost && !rule.is_shadow() {
            *rule = rule.clone().overflow("credits");
        }
    }
    let credits = Rule::new("credits", limits).key(is_keyed.then_some("client"));
    let has_credits = rules.iter().any(|rule| rule.overflow_rule().is_some());
    rules.into_iter().chain(has_credits.then_some(credits)).collect()
}

fn rules_of(limit: BoxedStrategy<Limit>, shadows: f64) -> impl Strategy<Value = (Vec<Rule>, Vec<Rule>)> {
    let limits = prop::collection::vec((limit.clone(), limit), 1..=3);
    let flags = (prop::bool::weighted(0.7), prop::bool::weighted(shadows), prop::bool::weighted(0.3));
    let rule = (limits, 1..4_u64, flags);
    prop::collection::vec(rule, 1..=3).prop_map(|rules| {
        let build = |index: usize, limits: Vec<Limit>, cost: u64, (keyed, shadow, records)| {
            let rule = Rule::new(&format!("rule-{index}"), limits).cost(cost);
            let rule = if keyed { rule.key(["client"]) } else { rule };
            let rule = if records { rule.record_denied() } else { rule };
            if shadow { rule.shadow() } else { rule }
        };
        let both = rules.into_iter().enumerate().map(|(index, (limits, cost, flags))| {
            let (one, other) = limits.into_iter().unzip();
            (build(index, one, cost, flags), build(index, other, cost, flags))
        });
        both.unzip()
    })
}
