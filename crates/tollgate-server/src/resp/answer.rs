//! Decisions and rules into replies.

use tollgate::{Decision, Error, Rule};
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
        (_, Err(error)) => replies.error("ERR", error),
    }
}

/// The reply of `TOLL.CHECK`.
fn check(replies: &mut Replies, decision: &Decision) {
    let Numbers { allowed, remaining, reset_at, limit, retry_after_ms, rule, degraded, blocked: _, until, owed: _ } =
        decision.into();
    replies.map(if until.is_some() { 8 } else { 7 });
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
    if let Some(until) = until {
        replies.bulk(b"blocked_until_ms");
        replies.count(until);
    }
}

pub(super) fn rule(replies: &mut Replies, rule: &Rule) {
    replies.map(8);
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
    replies.bulk(b"on_demand");
    replies.boolean(rule.is_on_demand());
    replies.bulk(b"on_store_error");
    replies.bulk(policy_name(rule.failure_policy()).as_bytes());
}
