//! The summary of a configuration that `tollgate validate` prints.

use std::fmt;

use tollgate::{Algorithm, Bucket, Limit, Paths, Rule, RuleSet, format_duration};

use super::{Addresses, Config, OFF};
use crate::envoy::Verdict;

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [http_scheme, grpc_scheme, resp_scheme] = match self.settings.tls {
            Some(_) => ["https", "grpcs", "rediss"],
            None => ["http", "grpc", "redis"],
        };
        let Addresses { http, grpc, resp } = &self.fixed.addresses;
        let listeners = [(http_scheme, http), (grpc_scheme, grpc), (resp_scheme, resp)];
        let listeners = listeners.iter().filter(|(_, address)| *address != OFF);
        let urls: Vec<String> = listeners.map(|(scheme, address)| format!("{scheme}://{address}")).collect();
        writeln!(
            f,
            "Listens on {}, at most {} connections each.",
            urls.join(", "),
            self.fixed.max_connections
        )?;
        writeln!(f, "{}", self.fixed.store)?;
        if let Some(telemetry) = &self.fixed.telemetry {
            writeln!(f, "{telemetry}")?;
        }
        match self.settings.admin_token {
            Some(_) => writeln!(f, "Administration needs the configured token.")?,
            None => writeln!(f, "Administration needs a token that is generated at the start.")?,
        }
        if self.settings.deny_uncovered {
            writeln!(f, "A request that no rule covers is denied.")?;
        } else if !self.rules.rules().iter().any(covers_everything) {
            writeln!(f, "A request that no rule covers is admitted; on_uncovered = \"deny\" denies it.")?;
        }
        match self.settings.paths {
            Paths::Raw => writeln!(f, "Rules see paths as clients spell them.")?,
            Paths::CaseInsensitive => writeln!(f, "Rules see paths normalised and in lower case.")?,
            _ => {}
        }
        describe_rules(f, &self.rules)?;
        self.settings.domains.without_rule().try_for_each(|(name, verdict)| {
            let meaning = if matches!(verdict, Verdict::DenyAll(_)) { "Always denied" } else { "No limit" };
            writeln!(f, "\nDescriptors {name:?}.\n  {meaning}.")
        })
    }
}

fn describe_rules(f: &mut fmt::Formatter<'_>, rules: &RuleSet) -> fmt::Result {
    for rule in rules.rules() {
        match rule.is_on_demand() {
            true if rule.is_overflow() => {
                writeln!(f, "\nRule {:?} covers what other rules overflow into it.", rule.name())?;
            }
            true => writeln!(f, "\nDescriptors {:?}.", rule.name())?,
            false => writeln!(f, "\nRule {:?} covers {}.", rule.name(), covered(rule))?,
        }
        match rule.key_attributes() {
            [] => writeln!(f, "  All of them share one budget:")?,
            key => writeln!(f, "  Each {} has a budget of its own:", key.join(" and "))?,
        }
        rule.limits().iter().try_for_each(|limit| writeln!(f, "    {}", limit_in_words(limit)))?;
        for other in rules.overrides().filter(|other| other.rule() == rule.name()) {
            let replaced = match rule.limits().len() {
                ..=1 => String::new(),
                several => format!(" of all {several} limits"),
            };
            writeln!(f, "  Where {}, instead{replaced}:", conditions(other.matches()))?;
            other.limits().iter().try_for_each(|limit| writeln!(f, "    {}", limit_in_words(limit)))?;
        }
        if let Some(into) = rule.overflow_rule() {
            writeln!(f, "  What it does not have of a cost is drawn on the rule {into:?}.")?;
        }
        if rule.unit_cost() > 1 {
            writeln!(f, "  A request costs {} times as much as it says.", rule.unit_cost())?;
        }
        if let Some(percent) = rule.warns_at() {
            writeln!(f, "  From {percent} % of a limit on, admitted requests are warned.")?;
        }
        if rule.records_denied() && !rule.is_shadow() {
            writeln!(f, "  A cost that it denies is recorded, up to the debt of its limits.")?;
        }
        if rule.is_shadow() {
            writeln!(f, "  Shadow rule: it is charged and counted, and never denies.")?;
        }
    }
    Ok(())
}

fn covers_everything(rule: &Rule) -> bool {
    rule.key_attributes().is_empty() && rule.matches().next().is_none() && !rule.is_on_demand()
}

fn covered(rule: &Rule) -> String {
    let conditions = conditions(rule.matches());
    let key = rule.key_attributes().join(" and ");
    match (conditions.is_empty(), key.is_empty()) {
        (true, true) => "every request".into(),
        (true, false) => format!("every request that has a {key}"),
        (false, true) => format!("requests whose {conditions}"),
        (false, false) => format!("requests that have a {key} and whose {conditions}"),
    }
}

pub(super) fn conditions<'a>(matches: impl Iterator<Item = (&'a str, Vec<String>)>) -> String {
    let value = |value: &String| match value.strip_suffix('*') {
        Some(stem) => format!("begins with {stem:?}"),
        None => format!("is {value:?}"),
    };
    let condition = |(attribute, values): (&str, Vec<String>)| {
        format!("{attribute} {}", values.iter().map(value).collect::<Vec<_>>().join(" or "))
    };
    matches.map(condition).collect::<Vec<_>>().join(" and whose ")
}

/// A limit in words.
fn limit_in_words(limit: &Limit) -> String {
    let per = |count: u64, period| format!("{count} per {}", format_duration(period));
    let counting =
        |count_denied| if count_denied { ", and attempts count even when they are denied" } else { "" };
    let words = match limit.algorithm() {
        Algorithm::FixedWindow { limit, period, aligned, count_denied } => {
            let start = if aligned { "on the clock" } else { "with the first request" };
            format!("{}, in windows that start {start}{}", per(limit, period), counting(count_denied))
        }
        Algorithm::CalendarWindow { limit, unit, zone, count_denied } => {
            format!("{limit} per {unit} of the calendar in {zone}{}", counting(count_denied))
        }
        Algorithm::SlidingWindow { limit, period, count_denied } => {
            format!(
                "{} at any time, estimated from two periods{}",
                per(limit, period),
                counting(count_denied)
            )
        }
        Algorithm::SlidingLog { limit, period } => format!("{} at any time, exactly", per(limit, period)),
        Algorithm::TokenBucket(bucket) => bucket_in_words(&bucket),
        Algorithm::Reserve { sustained, reserve } => {
            format!("{}; beyond that a reserve: {}", bucket_in_words(&sustained), bucket_in_words(&reserve))
        }
        Algorithm::Concurrent { limit } => format!("{limit} under way at once"),
        _ => return limit.to_string(),
    };
    format!("{words} ({limit})")
}

fn bucket_in_words(bucket: &Bucket) -> String {
    let interval = format_duration(bucket.interval);
    match bucket.stepped {
        true => format!("up to {} at once, {} more every {interval}", bucket.capacity, bucket.amount),
        false => format!("up to {} at once, {} more per {interval}", bucket.capacity, bucket.amount),
    }
}
