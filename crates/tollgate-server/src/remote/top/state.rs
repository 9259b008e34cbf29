//! What `tollgate top` shows: the newest snapshot, an order and a filter.

use std::cmp::Ordering;
use std::collections::VecDeque;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::live::{LiveRule, Snapshot, TopRow};

/// The points of the graphs: two minutes.
const HISTORY_MAX: usize = 120;

/// The order of the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Configured,
    Denied,
    Admitted,
    Rejected,
    Name,
}

/// What the screen shows.
#[derive(Debug)]
pub(super) struct State {
    pub(super) server: String,
    pub(super) snapshot: Option<Snapshot>,
    /// Why there is no stream at the moment.
    pub(super) lost: Option<String>,
    pub(super) order: Order,
    pub(super) filter: String,
    /// Whether keys go to the filter.
    pub(super) is_filtering: bool,
    /// The first rule that is shown.
    pub(super) scroll: usize,
    /// Denials a second, newest last.
    pub(super) denied: VecDeque<u64>,
}

impl State {
    pub(super) fn new(server: &str) -> Self {
        Self {
            server: server.into(),
            snapshot: None,
            lost: None,
            order: Order::Configured,
            filter: String::new(),
            is_filtering: false,
            scroll: 0,
            denied: VecDeque::new(),
        }
    }

    pub(super) fn update(&mut self, snapshot: Snapshot) {
        if self.denied.len() >= HISTORY_MAX {
            self.denied.pop_front();
        }
        let denied = snapshot.total.per_second.map_or(0.0, |each| each.denied);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a graph for people")]
        self.denied.push_back(denied.round() as u64);
        self.snapshot = Some(snapshot);
        self.lost = None;
    }

    pub(super) fn lost(&mut self, reason: String) {
        self.lost = Some(reason);
    }

    /// Takes a key. Returns whether it ends the program.
    pub(super) fn press(&mut self, key: KeyEvent) -> bool {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return matches!(key.code, KeyCode::Char('c' | 'd'));
        }
        if self.is_filtering {
            match key.code {
                KeyCode::Char(c) => self.filter.push(c),
                KeyCode::Backspace => drop(self.filter.pop()),
                KeyCode::Enter => self.is_filtering = false,
                KeyCode::Esc => (self.is_filtering, self.filter) = (false, String::new()),
                _ => {}
            }
            self.scroll = 0;
            return false;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('/') => self.is_filtering = true,
            KeyCode::Char('s') => self.order = self.order.next(),
            KeyCode::Down | KeyCode::Char('j') => {
                self.scroll = self.scroll.saturating_add(1).min(self.rules().len().saturating_sub(1));
            }
            KeyCode::Up | KeyCode::Char('k') => self.scroll = self.scroll.saturating_sub(1),
            _ => {}
        }
        false
    }

    /// The rules that the filter admits, in order.
    pub(super) fn rules(&self) -> Vec<&LiveRule> {
        let rules = self.snapshot.iter().flat_map(|snapshot| &snapshot.rules);
        let mut rules: Vec<&LiveRule> = rules.filter(|rule| self.admits(&rule.rule)).collect();
        rules.sort_by(|one, other| self.order.compare(one, other));
        rules
    }

    /// The clients that the filter admits.
    pub(super) fn clients<'a>(&self, rows: &'a [TopRow]) -> impl Iterator<Item = &'a TopRow> {
        rows.iter()
            .filter(|row| self.admits(&row.client) || row.rule.as_ref().is_some_and(|rule| self.admits(rule)))
    }

    fn admits(&self, name: &str) -> bool {
        name.to_lowercase().contains(&self.filter.to_lowercase())
    }
}

impl Order {
    const fn next(self) -> Self {
        match self {
            Self::Configured => Self::Denied,
            Self::Denied => Self::Admitted,
            Self::Admitted => Self::Rejected,
            Self::Rejected => Self::Name,
            Self::Name => Self::Configured,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Configured => "configured",
            Self::Denied => "denied",
            Self::Admitted => "admitted",
            Self::Rejected => "rejected",
            Self::Name => "name",
        }
    }

    fn compare(self, one: &LiveRule, other: &LiveRule) -> Ordering {
        let most = |value: fn(&LiveRule) -> f64| value(other).total_cmp(&value(one));
        match self {
            Self::Configured => Ordering::Equal,
            Self::Denied => most(denied),
            Self::Admitted => most(|rule| rule.counts.per_second.map_or(0.0, |each| each.allowed)),
            Self::Rejected => most(|rule| rule.counts.rejection_rate),
            Self::Name => one.rule.cmp(&other.rule),
        }
    }
}

/// What a rule denies a second, or would deny as a shadow.
pub(super) fn denied(rule: &LiveRule) -> f64 {
    let each = rule.counts.per_second;
    each.map_or(0.0, |each| if rule.shadow { each.shadow_denied } else { each.denied })
}
