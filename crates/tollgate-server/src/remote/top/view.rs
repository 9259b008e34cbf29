//! The screen of `tollgate top`. It fits 80 columns and 24 lines, and uses more if there are.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Sparkline, Table};

use super::state::{State, denied};
use crate::live::{LiveRule, Snapshot, TopRow};
use crate::moment::duration;
use crate::printable::printable;

/// The lines above the tables.
const HEAD: u16 = 5;

pub(super) fn draw(frame: &mut Frame<'_>, state: &State) {
    let areas = [Constraint::Length(HEAD), Constraint::Fill(3), Constraint::Fill(2), Constraint::Length(1)];
    let [head, rules, clients, foot] = Layout::vertical(areas).areas(frame.area());
    match &state.snapshot {
        Some(snapshot) => {
            draw_head(frame, head, state, snapshot);
            draw_rules(frame, rules, state);
            draw_clients(frame, clients, state, snapshot);
        }
        None => frame.render_widget("waiting for the first snapshot", head),
    }
    let keys = if state.is_filtering {
        format!(" filter: {}▏ enter keeps it, esc clears it", printable(&state.filter))
    } else {
        format!(" q quit  s sort: {}  / filter: {}  ↑↓ scroll", state.order.name(), printable(&state.filter))
    };
    frame.render_widget(Paragraph::new(keys).reversed(), foot);
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, state: &State, snapshot: &Snapshot) {
    let [text, graph] = Layout::horizontal([Constraint::Fill(1), Constraint::Length(20)]).areas(area);
    let total = &snapshot.total;
    let each = |value: fn(&crate::live::Frequency) -> f64| rate(total.per_second.as_ref().map(value));
    let stream = match &state.lost {
        None => "live".green(),
        Some(reason) => Span::from(printable(reason)).red(),
    };
    let up = duration(Duration::from_secs(snapshot.uptime_ms.div_ceil(1_000)));
    let latency = snapshot.latency.map_or_else(
        || "no requests".to_owned(),
        |latency| format!("p50 {} p99 {}", micros(latency.p50), micros(latency.p99)),
    );
    let protocols: Vec<String> = snapshot
        .protocols
        .iter()
        .map(|protocol| format!("{} {}", protocol.protocol, rate(protocol.per_second)))
        .collect();
    let keys = snapshot.keys.map_or_else(String::new, |keys| format!("keys {} of {}  ", keys.live, keys.max));
    let memory = snapshot.memory.map_or_else(String::new, |memory| {
        format!("memory {} of {} MB", memory.resident >> 20, memory.max >> 20)
    });
    let store = &snapshot.store;
    let health = match &store.down {
        None => "answers".green(),
        Some(reason) => Span::from(format!("failing: {}", printable(reason))).red(),
    };
    let degraded = format!("  degraded {} s", store.degraded_ms.div_ceil(1_000));
    let lines = vec![
        Line::from(vec![
            format!("tollgate {}  {}  up {up}  ", snapshot.version, printable(&state.server)).bold(),
            stream,
        ]),
        Line::from(vec![
            "admitted/s ".into(),
            each(|each| each.allowed).green(),
            "  denied/s ".into(),
            each(|each| each.denied).red(),
            format!("  rejected {:.1} %  degraded/s ", total.rejection_rate).into(),
            each(|each| each.degraded).into(),
        ]),
        Line::from(format!("requests/s {}  {latency}", protocols.join("  "))),
        Line::from(vec![format!("store {} ", store.kind).into(), health, degraded.into()]),
        Line::from(keys + &memory),
    ];
    frame.render_widget(Paragraph::new(lines), text);
    let newest = state.denied.iter().rev().take(graph.width.into()).copied().collect::<Vec<u64>>();
    let points: Vec<u64> = newest.into_iter().rev().collect();
    frame.render_widget(Sparkline::default().data(&points).style(Style::new().fg(Color::Red)), graph);
}

fn draw_rules(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let heading = Row::new(["RULE", "ADMITTED/S", "DENIED/S", "REJECTED", "DENIED", "LIMITS"]).bold();
    let row = |rule: &&LiveRule| {
        let counts = &rule.counts;
        let shadow = if rule.shadow { " (shadow)" } else { "" };
        let all = if rule.shadow { counts.shadow_denied } else { counts.denied };
        let denied = rate(counts.per_second.map(|_| denied(rule)));
        let is_denying = denied != "0" && denied != "-";
        Row::new([
            Cell::from(printable(&rule.rule) + shadow),
            Cell::from(rate(counts.per_second.map(|each| each.allowed))),
            if is_denying { Cell::from(denied.red()) } else { Cell::from(denied) },
            Cell::from(format!("{:.1} %", counts.rejection_rate)),
            Cell::from(all.to_string()),
            Cell::from(rule.limits.join(", ")),
        ])
    };
    let rules = state.rules();
    let rows: Vec<Row<'_>> = rules.iter().skip(state.scroll).map(row).collect();
    let widths = [
        Constraint::Fill(2),
        Constraint::Length(10),
        Constraint::Length(9),
        Constraint::Length(8),
        Constraint::Length(9),
        Constraint::Fill(2),
    ];
    frame.render_widget(Table::new(rows, widths).header(heading), area);
}

fn draw_clients(frame: &mut Frame<'_>, area: Rect, state: &State, snapshot: &Snapshot) {
    let [left, right] = Layout::horizontal([Constraint::Fill(3), Constraint::Fill(2)]).spacing(2).areas(area);
    let denied = state.clients(&snapshot.most_denied).map(|row| {
        let rule = printable(row.rule.as_deref().unwrap_or("-"));
        Row::new([printable(&row.client), rule, row.at_least.to_string()])
    });
    let widths = [Constraint::Fill(2), Constraint::Fill(1), Constraint::Length(9)];
    let heading = Row::new(["MOST DENIED", "BY RULE", "DENIALS"]).bold();
    frame.render_widget(Table::new(denied, widths).header(heading), left);
    let heavy = |row: &TopRow| Row::new([printable(&row.client), row.at_least.to_string()]);
    let heading = Row::new(["HEAVIEST", "UNITS"]).bold();
    let heaviest = state.clients(&snapshot.heaviest).map(heavy);
    frame.render_widget(
        Table::new(heaviest, [Constraint::Fill(1), Constraint::Length(9)]).header(heading),
        right,
    );
}

/// A rate for people.
fn rate(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(value) if value == 0.0 || value >= 100.0 => format!("{value:.0}"),
        Some(value) => format!("{value:.1}"),
    }
}

fn micros(value: f64) -> String {
    if value >= 1_000.0 { format!("{:.1} ms", value / 1_000.0) } else { format!("{value:.0} µs") }
}
