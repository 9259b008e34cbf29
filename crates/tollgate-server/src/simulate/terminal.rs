//! The report for people, on a terminal.

use super::report::{CandidateReport, Report, count, grouped, ratio};
use super::suggest::{Suggestion, Suggestions};
use std::fmt::Write as _;

/// Columns of a chart over time.
const COLUMNS: usize = 72;

/// Rows of a chart over time.
const ROWS: u64 = 8;

/// Columns of a bar.
const BAR: u64 = 40;

/// Renders the report.
pub(super) fn render(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write_report(&mut out, report);
    out
}

fn write_report(out: &mut String, report: &Report) -> std::fmt::Result {
    let traffic = &report.traffic;
    let span = whole_seconds(traffic.span_ms);
    writeln!(out, "requests   {}", grouped(traffic.requests))?;
    writeln!(out, "clients    {}", grouped(traffic.clients))?;
    writeln!(out, "span       {span}, from {} to {}", traffic.from, traffic.to)?;
    writeln!(out, "format     {}", report.log.formats.join(", "))?;
    if report.log.unreadable > 0 {
        writeln!(
            out,
            "unreadable {} of {} lines:",
            grouped(report.log.unreadable),
            grouped(report.log.lines)
        )?;
        for example in &report.log.examples {
            writeln!(out, "  {} line {}: {}\n    {}", example.log, example.line, example.why, example.text)?;
        }
    }
    for warning in &report.warnings {
        writeln!(out, "warning: {warning}")?;
    }
    if let Some(suggestions) = &report.suggestions {
        write_suggestions(out, suggestions)?;
    }
    for candidate in &report.candidates {
        write_candidate(out, candidate, report)?;
    }
    if report.candidates.is_empty() && report.suggestions.is_none() {
        writeln!(out, "\nnext: try a limit with --limit \"10/s burst 20\", or ask for one with --suggest")?;
    }
    Ok(())
}

fn write_candidate(out: &mut String, candidate: &CandidateReport, report: &Report) -> std::fmt::Result {
    writeln!(out, "\n── {} {}", candidate.limit, "─".repeat(68_usize.saturating_sub(candidate.limit.len())))?;
    writeln!(out, "admitted   {}", grouped(candidate.admitted))?;
    writeln!(out, "denied     {} ({} %)", grouped(candidate.denied), candidate.denied_percent)?;
    writeln!(
        out,
        "touched    {} clients ({} %) are ever denied",
        grouped(candidate.clients_touched),
        candidate.clients_touched_percent
    )?;
    if candidate.denied > 0 {
        writeln!(out, "waits      up to {}", wait(candidate.longest_wait_ms))?;
    }
    if candidate.never_admitted > 0 {
        writeln!(
            out,
            "never      {} requests cost more than the whole limit",
            grouped(candidate.never_admitted)
        )?;
    }
    for rule in &candidate.denied_by_rule {
        writeln!(out, "rule       {}: {} denied", rule.rule, grouped(rule.denied))?;
    }
    if candidate.denied == 0 {
        return Ok(());
    }
    write_chart(out, candidate, report)?;
    writeln!(out, "\nclients by share of their requests denied")?;
    write_classes(out, candidate)?;
    writeln!(out, "\n{:>12} {:>12} {:>10}  client", "requests", "denied", "waits up to")?;
    for worst in &candidate.worst {
        let (requests, denied) = (grouped(worst.requests), grouped(worst.denied));
        writeln!(out, "{requests:>12} {denied:>12} {:>11}  {}", wait(worst.longest_wait_ms), worst.client)?;
    }
    Ok(())
}

/// Admitted and denied requests over time, one above the other.
fn write_chart(out: &mut String, candidate: &CandidateReport, report: &Report) -> std::fmt::Result {
    let traffic = &report.traffic;
    let buckets = traffic.requests_over_time.len();
    let per_column = buckets.div_ceil(COLUMNS).max(1);
    let sums =
        |counts: &[u64]| counts.chunks(per_column).map(|chunk| chunk.iter().sum()).collect::<Vec<u64>>();
    let (all, denied) = (sums(&traffic.requests_over_time), sums(&candidate.denied_over_time));
    let highest = all.iter().copied().max().unwrap_or(0).max(1);
    let column = traffic.bucket_ms.saturating_mul(count(per_column));
    writeln!(
        out,
        "\nrequests per {}, up to {}   █ admitted  ░ denied",
        whole_seconds(column),
        grouped(highest)
    )?;
    for row in (0..ROWS).rev() {
        let above = |count: u64| count.saturating_mul(ROWS).div_ceil(highest) > row;
        let cell = |(all, denied): (&u64, &u64)| match (above(*all), above(all.saturating_sub(*denied))) {
            (_, true) => '█',
            (true, false) => '░',
            (false, false) => ' ',
        };
        let line: String = all.iter().zip(&denied).map(cell).collect();
        writeln!(out, "  {}", line.trim_end())?;
    }
    let width = all.len().max(20);
    let (from, to) = (clock(&traffic.from), clock(&traffic.to));
    writeln!(out, "  {from}{to:>width$}", width = width.saturating_sub(from.len()))
}

/// The hour and minute of an RFC 3339 time.
fn clock(time: &str) -> &str {
    time.get(..16).unwrap_or(time)
}

fn write_classes(out: &mut String, candidate: &CandidateReport) -> std::fmt::Result {
    let touched = candidate.clients_by_share_denied.iter().skip(1).map(|class| class.clients);
    let most = touched.max().unwrap_or(0).max(1);
    let mut from = 0;
    for class in &candidate.clients_by_share_denied {
        let label = match class.up_to_percent {
            0 => "none".into(),
            up_to => format!("{from} to {up_to} %"),
        };
        // Clients that are not touched are many, and would hide the others.
        let bar = if class.up_to_percent == 0 { 0 } else { (class.clients * BAR).div_ceil(most) };
        let bar = "█".repeat(usize::try_from(bar).unwrap_or(0));
        writeln!(out, "  {label:>11} {:>12} {bar}", grouped(class.clients))?;
        from = class.up_to_percent;
    }
    Ok(())
}

fn write_suggestions(out: &mut String, suggestions: &Suggestions) -> std::fmt::Result {
    let Suggestions { at_most_percent, of, period, passes, algorithms, caveats } = suggestions;
    writeln!(
        out,
        "\n── suggestions: the tightest limits per {period} that touch at most {at_most_percent} % of {of}"
    )?;
    let limits = algorithms.iter().map(|one| one.limit.as_deref().unwrap_or("none").chars().count());
    let width = limits.max().unwrap_or(0).max(5);
    writeln!(
        out,
        "{:28} {:width$} {:>16} {:>16}",
        "algorithm", "limit", "clients touched", "requests denied"
    )?;
    for Suggestion { algorithm, limit, none_because, clients_touched, denied, .. } in algorithms {
        match limit {
            Some(limit) => {
                let (touched, denied) = (grouped(*clients_touched), grouped(*denied));
                writeln!(out, "{algorithm:28} {limit:width$} {touched:>16} {denied:>16}")?;
            }
            None => writeln!(out, "{algorithm:28} none: {}", none_because.as_deref().unwrap_or_default())?,
        }
    }
    for suggestion in algorithms.iter().filter(|suggestion| suggestion.paste.len() > 1) {
        write_curve(out, suggestion)?;
        for piece in &suggestion.paste {
            let indented = piece.text.lines().map(|line| format!("  {line}\n")).collect::<String>();
            write!(out, "\n{} for {}:\n{indented}", suggestion.algorithm, piece.program)?;
        }
    }
    writeln!(out, "\nWhat the log cannot tell ({passes} passes over it were made):")?;
    caveats.iter().try_for_each(|caveat| writeln!(out, "  * {caveat}"))
}

/// The trade-off between the limit and the clients touched.
fn write_curve(out: &mut String, suggestion: &Suggestion) -> std::fmt::Result {
    writeln!(out, "\n{}: clients touched by other sizes", suggestion.algorithm)?;
    // On a linear scale the interesting end would be invisible.
    let bits = |clients: u64| u64::BITS - clients.leading_zeros();
    let most = suggestion.curve.iter().map(|point| bits(point.clients_touched)).max().unwrap_or(0).max(1);
    for point in &suggestion.curve {
        let bar = u64::from(bits(point.clients_touched)) * BAR / u64::from(most);
        let bar = "█".repeat(usize::try_from(bar).unwrap_or(0));
        writeln!(out, "  {:32} {:>12} {bar}", point.limit, grouped(point.clients_touched))?;
    }
    Ok(())
}

/// A wait for people: in the unit that suits it.
fn wait(millis: u64) -> String {
    match millis {
        ..1_000 => format!("{millis}ms"),
        1_000..60_000 => format!("{:.1}s", ratio(millis, 1_000)),
        _ => whole_seconds(millis),
    }
}

/// A duration in words, to the second below an hour and to the minute above.
fn whole_seconds(millis: u64) -> String {
    let seconds = millis.div_ceil(1_000);
    match seconds {
        ..60 => format!("{seconds}s"),
        60..3_600 if seconds.is_multiple_of(60) => format!("{}m", seconds / 60),
        60..3_600 => format!("{}m{}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3_600 % 24),
    }
}
