//! `tollgate explain`: why a request is admitted or denied.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::clients::{limit_line, text, wait};
use super::{Remote, Reply};
use crate::printable::printable;

/// An explanation.
pub(crate) struct Explanation {
    pub(crate) allowed: bool,
    /// For people, or the server's JSON.
    pub(crate) text: String,
}

/// Explains a request with these attributes.
///
/// # Errors
/// A sentence that says why there is no explanation and what to do.
pub(crate) fn explain(
    remote: &Remote,
    attributes: &BTreeMap<String, String>,
    cost: u64,
    as_json: bool,
) -> Result<Explanation, String> {
    let body = json!({ "attributes": attributes, "cost": cost });
    let reply: Reply = remote.send("POST", "/v1/explain", Some(&body))?;
    let answer: Value = remote.expect(&reply, &[200])?;
    let allowed = answer["allowed"].as_bool().unwrap_or_default();
    let text = if as_json { reply.body + "\n" } else { render(&answer, allowed) };
    Ok(Explanation { allowed, text })
}

/// Parses `name=value`.
///
/// # Errors
/// A sentence that says what to write.
pub(crate) fn attribute(written: &str) -> Result<(String, String), String> {
    match written.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => Ok((name.into(), value.into())),
        _ => Err("write an attribute and its value, such as client=alice".into()),
    }
}

fn render(answer: &Value, allowed: bool) -> String {
    let mut out = verdict(answer, allowed);
    let empty = Vec::new();
    for rule in answer["rules"].as_array().unwrap_or(&empty) {
        let shadow = if rule["shadow"] == true { ", a shadow: it never denies" } else { "" };
        let _ = write!(out, "\n{}{shadow}", text(&rule["rule"]));
        let limits = rule["limits"].as_array().unwrap_or(&empty);
        if rule["covers"] != true && limits.is_empty() {
            let _ = writeln!(out, ": does not cover the request");
            for obstacle in rule["obstacles"].as_array().unwrap_or(&empty) {
                let _ = writeln!(out, "  {}", obstacle_line(obstacle));
            }
            continue;
        }
        let _ = match (rule["covers"] == true, rule["overflow"].as_str()) {
            (false, _) => writeln!(out, ": covers what other rules overflow into it"),
            (true, Some(into)) => writeln!(out, ": charges {}, with {}", rule["cost"], printable(into)),
            (true, None) => writeln!(out, ": charges {}", rule["cost"]),
        };
        if rule["override"].is_object() {
            let _ = writeln!(out, "  override: {}", printable(&conditions(&rule["override"]["match"])));
        }
        for limit in limits {
            let _ = writeln!(out, "  {}", limit_line(limit));
        }
    }
    out
}

/// The first line: the decision, the rule that made it, and when it changes.
fn verdict(answer: &Value, allowed: bool) -> String {
    let rule = answer["rule"].as_str().map(printable);
    let left = answer["remaining"].as_u64();
    let mut out = match (allowed, rule) {
        (true, Some(rule)) => format!("admitted; {rule} has the least left: {}", left.unwrap_or(0)),
        (true, None) => "admitted: no rule covers the request".into(),
        (false, Some(rule)) if answer["blocked"] == true => format!("denied: {rule} blocks the client"),
        (false, Some(rule)) => format!("denied by {rule}"),
        (false, None) => "denied: no rule covers the request".into(),
    };
    if !allowed {
        let _ = match answer["retry"]["time"].as_str().map(printable) {
            Some(time) => write!(out, "; admitted in {} ({time})", wait(&answer["retryAfterMs"])),
            None => write!(out, "; it is never admitted at this cost"),
        };
    }
    if answer["degraded"] == true {
        out.push_str("; the store does not answer");
    }
    out.push('\n');
    out
}

fn obstacle_line(obstacle: &Value) -> String {
    let attribute = text(&obstacle["attribute"]);
    let required = obstacle["required"].as_array().map(|values| {
        let values = values.iter().map(|value| format!("{:?}", value.as_str().unwrap_or_default()));
        values.collect::<Vec<_>>().join(" or ")
    });
    match (obstacle["kind"].as_str(), obstacle["value"].as_str()) {
        (Some("on_demand"), _) => "only requests that select it are covered".into(),
        (Some("missing_key"), _) => format!("the request has no {attribute}, by which the rule counts"),
        (_, Some(value)) => format!("{attribute} is {value:?}, not {}", required.unwrap_or_default()),
        (_, None) => format!("the request has no {attribute}; it must be {}", required.unwrap_or_default()),
    }
}

/// The conditions of an override, as in the configuration.
fn conditions(matches: &Value) -> String {
    let empty = serde_json::Map::new();
    let condition = |(name, value): (&String, &Value)| format!("{name} = {value}");
    matches.as_object().unwrap_or(&empty).iter().map(condition).collect::<Vec<_>>().join(", ")
}
