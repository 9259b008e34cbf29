//! Decisions and rules into replies.

use std::collections::BTreeMap;

use tollgate::{Decision, Error, Recorded, Rule};
use tollgate_http::Numbers;

use super::reply::Replies;
use super::request::CheckRequest;
use super::throttle;
use crate::config::policy_name;

/// Writes a decision in the form of its command.
pub(super) fn decision(
    replies: &mut Replies,
    request: &CheckRequest<'_>,
    decision: &Result<Decision, Error>,
) {
    match (request, decision) {
        (CheckRequest::Throttle(..), Ok(decision)) => throttle::reply(replies, decision),
        (CheckRequest::Check(_), Ok(decision)) => check(replies, decision),
        (_, Err(failed)) => error(replies, failed),
    }
}

/// Writes an error. An overload has a code of its own, as Redis has for a server that is busy.
pub(super) fn error(replies: &mut Replies, error: &Error) {
    let code = if is_overload(error) { "BUSY" } else { "ERR" };
    replies.error(code, error);
}

/// Whether a request was refused as overloaded.
pub(super) const fn is_overload(error: &Error) -> bool {
    matches!(error, Error::Overloaded { .. })
}

/// The reply of `TOLL.CHECK`.
fn check(replies: &mut Replies, decision: &Decision) {
    let (numbers, drawn) = (Numbers::from(decision), drawn(decision));
    replies.map(fields(&numbers) + usize::from(!drawn.is_empty()));
    write(replies, &numbers);
    write_drawn(replies, &drawn);
}

/// The units drawn on each rule, if one of them overflows into another.
fn drawn(decision: &Decision) -> BTreeMap<&'static str, u64> {
    if !decision.overflows() {
        return BTreeMap::new();
    }
    let limits = decision.limits();
    limits.iter().filter_map(|limit| Some((limit.rule.as_str(), limit.overflow.drawn()?))).collect()
}

fn write_drawn(replies: &mut Replies, drawn: &BTreeMap<&str, u64>) {
    if drawn.is_empty() {
        return;
    }
    replies.bulk(b"drawn");
    replies.map(drawn.len());
    for (rule, units) in drawn {
        replies.bulk(rule.as_bytes());
        replies.count(*units);
    }
}

/// The reply of `TOLL.RECORD`: that of a check of cost 0, and the shortfall.
pub(super) fn record(replies: &mut Replies, recorded: &Recorded) {
    let (numbers, drawn) = (Numbers::from(recorded.decision()), drawn(recorded.decision()));
    replies.map(fields(&numbers) + 1 + usize::from(!drawn.is_empty()));
    replies.bulk(b"shortfall");
    replies.count(recorded.shortfall());
    write(replies, &numbers);
    write_drawn(replies, &drawn);
}

/// The reply of `TOLL.ACQUIRE`: that of a check, after the id of a granted slot.
pub(super) fn acquired(replies: &mut Replies, decision: &Decision, id: Option<&str>) {
    let numbers = Numbers::from(decision);
    replies.map(fields(&numbers) + 1);
    replies.bulk(b"id");
    match id {
        Some(id) => replies.bulk(id.as_bytes()),
        None => replies.null(),
    }
    write(replies, &numbers);
}

fn fields(numbers: &Numbers) -> usize {
    let Numbers { owed, warning, until, holds_full, .. } = numbers;
    let optional = [*owed > 0, warning.is_some(), until.is_some(), holds_full.is_some()];
    7 + optional.into_iter().filter(|present| *present).count()
}

fn write(replies: &mut Replies, numbers: &Numbers) {
    let Numbers { allowed, remaining, reset_at, limit, retry_after_ms, rule, degraded, .. } = *numbers;
    let Numbers { owed, warning, until, holds_full, .. } = *numbers;
    replies.bulk(b"allowed");
    replies.boolean(allowed);
    replies.bulk(b"limit");
    replies.count_or_null(limit);
    replies.bulk(b"remaining");
    replies.count_or_null(remaining);
    replies.bulk(b"reset_at_ms");
    replies.count(reset_at);
    replies.bulk(b"retry_after_ms");
    replies.count_or_null(retry_after_ms);
    replies.bulk(b"rule");
    match rule {
        Some(rule) => replies.bulk(rule.as_bytes()),
        None => replies.null(),
    }
    replies.bulk(b"degraded");
    replies.boolean(degraded);
    if owed > 0 {
        replies.bulk(b"owed");
        replies.count(owed);
    }
    if let Some(warning) = warning {
        replies.bulk(b"warning");
        replies.count(warning);
    }
    if let Some(until) = until {
        replies.bulk(b"blocked_until_ms");
        replies.count(until);
    }
    if let Some(bound) = holds_full {
        replies.bulk(b"holds_full");
        replies.bulk(bound.as_bytes());
    }
}

pub(super) fn rule(replies: &mut Replies, rule: &Rule) {
    let overflow = rule.overflow_rule();
    replies.map(9 + usize::from(rule.warns_at().is_some()) + usize::from(overflow.is_some()));
    replies.bulk(b"name");
    replies.bulk(rule.name().as_bytes());
    let matches: Vec<(&str, Vec<String>)> = rule.matches().collect();
    replies.bulk(b"match");
    replies.map(matches.len());
    for (name, values) in matches {
        replies.bulk(name.as_bytes());
        match values.as_slice() {
            [only] => replies.bulk(only.as_bytes()),
            several => {
                replies.array(several.len());
                several.iter().for_each(|value| replies.bulk(value.as_bytes()));
            }
        }
    }
    replies.bulk(b"key");
    replies.array(rule.key_attributes().len());
    rule.key_attributes().iter().for_each(|name| replies.bulk(name.as_bytes()));
    replies.bulk(b"limits");
    let limits = rule.limits();
    replies.array(limits.len());
    limits.iter().for_each(|limit| replies.bulk(limit.to_string().as_bytes()));
    replies.bulk(b"cost");
    replies.count(rule.unit_cost());
    replies.bulk(b"shadow");
    replies.boolean(rule.is_shadow());
    replies.bulk(b"record_denied");
    replies.boolean(rule.records_denied());
    if let Some(percent) = rule.warns_at() {
        replies.bulk(b"warn");
        replies.count(percent.into());
    }
    replies.bulk(b"on_demand");
    replies.boolean(rule.is_on_demand());
    replies.bulk(b"on_store_error");
    replies.bulk(policy_name(rule.failure_policy()).as_bytes());
    if let Some(overflow) = overflow {
        replies.bulk(b"overflow");
        replies.bulk(overflow.as_bytes());
    }
}
