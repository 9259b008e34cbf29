//! `tollgate client` and `tollgate blocks`: administration of clients.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate::{Clock as _, SystemClock, Timestamp};

use super::{Remote, Reply, encoded};
use crate::moment::{Moment, duration};
use crate::printable::printable;

/// What to do with a client.
#[derive(Debug)]
pub(crate) enum Action {
    Show,
    Block { span: String },
    Unblock,
    Reset,
    SetLimit { rule: String, limits: Vec<String> },
    ClearLimits { rule: Option<String> },
}

/// What was done or found.
pub(crate) struct Outcome {
    /// Whether the client's next request would be admitted, if it was asked.
    pub(crate) admits: bool,
    /// For people, or the server's JSON.
    pub(crate) text: String,
}

/// Administers a client.
///
/// # Errors
/// A sentence that says what to do.
pub(crate) fn administer(
    remote: &Remote,
    client: &str,
    action: &Action,
    as_json: bool,
) -> Result<Outcome, String> {
    let path = format!("/v1/clients/{}", encoded(client));
    let (method, path, body) = match action {
        Action::Show => ("GET", path, None),
        Action::Block { span } => ("PUT", path + "/block", Some(json!({ "for": span }))),
        Action::Unblock => ("DELETE", path + "/block", None),
        Action::Reset => ("DELETE", path, None),
        Action::SetLimit { rule, limits } => {
            ("PUT", path + "/limits", Some(json!({ "rule": rule, "limit": limits })))
        }
        Action::ClearLimits { rule } => {
            let rule = rule.as_ref().map(|rule| format!("?rule={}", encoded(rule))).unwrap_or_default();
            ("DELETE", format!("{path}/limits{rule}"), None)
        }
    };
    let mut reply = remote.send(method, &path, body.as_ref())?;
    if reply.status == 204 {
        reply = Reply { status: 200, body: "{}".into() };
    }
    let answer: Value = remote.expect(&reply, &[200])?;
    let admits =
        !items(&answer["limits"]).iter().any(|limit| limit["allowed"] == false && limit["shadow"] == false);
    let text = if as_json { reply.body + "\n" } else { render(client, action, &answer) };
    Ok(Outcome { admits, text })
}

/// Lists the blocked clients.
///
/// # Errors
/// A sentence that says what to do.
pub(crate) fn blocks(remote: &Remote, as_json: bool) -> Result<String, String> {
    let reply = remote.send_long("GET", "/v1/blocks?count=1000", None)?;
    let answer: Value = remote.expect(&reply, &[200])?;
    if as_json {
        return Ok(reply.body + "\n");
    }
    let block = |block: &Value| {
        let end = &block["end"];
        format!(
            "{}  by {} until {}, in {} s\n",
            text(&block["client"]),
            text(&block["rule"]),
            text(&end["time"]),
            end["inSeconds"]
        )
    };
    let mut lines: String = items(&answer["blocks"]).iter().map(block).collect();
    if lines.is_empty() {
        lines.push_str("no client is blocked\n");
    }
    if answer["more"] == true {
        lines.push_str("there may be more\n");
    }
    if answer["complete"] == false {
        lines.push_str("too many were blocked to list them all; `tollgate client show NAME` says who is\n");
    }
    Ok(lines)
}

fn render(client: &str, action: &Action, answer: &Value) -> String {
    let name = printable(client);
    match action {
        Action::Show => show(&name, answer),
        Action::Block { .. } => format!("{name} is blocked until {}\n", text(&answer["end"]["time"])),
        Action::Unblock => format!("{name} is not blocked\n"),
        Action::Reset => format!("{name} is reset\n"),
        Action::SetLimit { rule, limits } => {
            let reach = text(&answer["reach"]);
            format!("{name} has {} under {}: on {reach}\n", limits.join(", "), printable(rule))
        }
        Action::ClearLimits { .. } => format!("{name} has the limits of the rules\n"),
    }
}

fn show(name: &str, answer: &Value) -> String {
    let mut out = format!("{name}\n");
    let (limits, set) = (items(&answer["limits"]), items(&answer["set"]));
    let width = limits.iter().map(|limit| text(&limit["rule"]).len()).max().unwrap_or(0);
    for limit in limits {
        let _ = writeln!(out, "  {:width$}  {}", text(&limit["rule"]), limit_line(limit));
    }
    for own in set {
        let own_limits: Vec<String> = items(&own["limits"]).iter().map(text).collect();
        let _ = writeln!(out, "  an administrator set {} for {}", own_limits.join(", "), text(&own["rule"]));
    }
    for denials in items(&answer["denials"]) {
        let rule =
            denials["rule"].as_str().map_or_else(String::new, |rule| format!(" by {}", printable(rule)));
        let last = denials["last"][0].as_u64().unwrap_or(0);
        let (now, last) = (SystemClock.now(), Timestamp::from_millis(last));
        let ago = Duration::from_secs(now.since(last).as_secs());
        let ago = if ago.is_zero() { "now".into() } else { format!("{} ago", duration(ago)) };
        let _ = writeln!(out, "  denied {} times{rule} within two hours, last {ago}", denials["atLeast"]);
    }
    out
}

/// A limit and its numbers.
pub(super) fn limit_line(limit: &Value) -> String {
    let verdict = match (limit["allowed"] == true, limit["blocked"] == true) {
        (true, _) => "admits",
        (false, true) => "blocks",
        (false, false) => "denies",
    };
    let budget =
        limit["budget"].as_str().map_or_else(String::new, |budget| format!(" ({})", printable(budget)));
    let (notation, left, capacity) = (text(&limit["notation"]), &limit["remaining"], &limit["limit"]);
    let mut line = format!("{verdict}  {notation}{budget}: {left} of {capacity} left");
    if let Some(drawn) = limit["drawn"].as_u64() {
        let _ = write!(line, ", {drawn} drawn");
    }
    if verdict != "admits" {
        let _ = match limit["retryAfterMs"].as_u64() {
            Some(_) => write!(line, ", admits in {}", wait(&limit["retryAfterMs"])),
            None => write!(line, ", never admits this cost"),
        };
    }
    let (reset, now) = (Timestamp::from_millis(limit["resetAt"].as_u64().unwrap_or(0)), SystemClock.now());
    if reset > now {
        let _ = write!(line, "; whole again at {}", Moment::new(reset, now));
    }
    line
}

/// Milliseconds for people.
pub(super) fn wait(millis: &Value) -> String {
    let millis = millis.as_u64().unwrap_or(0);
    duration(if millis < 10_000 {
        Duration::from_millis(millis)
    } else {
        Duration::from_secs(millis.div_ceil(1_000))
    })
}

/// A text that the server sent.
pub(super) fn text(value: &Value) -> String {
    printable(value.as_str().unwrap_or_default())
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}
