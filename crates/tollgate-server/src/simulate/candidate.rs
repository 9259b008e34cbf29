//! A candidate: the limiter of a server, on the log's own time.

use std::path::Path;

use tollgate::{CLIENT, Decision, Limit, Limiter, ManualClock, MemoryStore, Rule, RuleSet};

use super::steps::{NamedRequest, NumberedRequest, Step, Steps};
use super::traffic::NO_CLIENT;
use crate::config::{Flags, Origin};

/// A limit, or a configuration, that is tried on the log.
#[derive(Debug)]
pub(super) struct Candidate {
    /// The limit in our notation, or the name of the file.
    pub(super) label: String,
    limiter: Limiter,
    clock: ManualClock,
    /// The attributes of the steps, if its rules read them. Without, a rule counts by client alone.
    attributes: Option<Vec<String>>,
}

impl Candidate {
    /// A limit for each client.
    ///
    /// # Errors
    /// A sentence that says why the store cannot keep the limit.
    pub(super) fn of_limit(limit: Limit) -> Result<Self, String> {
        // Every client of the log has room, as the memory is bounded by their number.
        let store = MemoryStore::new().max_keys(u64::MAX);
        Self::new(limit.to_string(), RuleSet::per_client(limit), store, None)
    }

    fn new(
        label: String,
        rules: RuleSet,
        store: MemoryStore,
        attributes: Option<Vec<String>>,
    ) -> Result<Self, String> {
        let has_slots = |rule: &&Rule| rule.limits().iter().any(Limit::is_concurrent);
        if let Some(rule) = rules.rules().iter().find(has_slots) {
            return Err(format!(
                "{label}: a log does not say how long requests are under way; leave out the limit on \
                 concurrency of rule \"{}\"",
                rule.name()
            ));
        }
        let clock = ManualClock::default();
        let limiter = Limiter::builder(rules).store(store).clock(clock.clone()).build();
        let limiter = limiter.map_err(|error| format!("--limit \"{label}\": {error}"))?;
        Ok(Self { label, limiter, clock, attributes })
    }

    /// Denials of each rule, for a configuration with several.
    pub(super) fn denied_by_rule(&self) -> Vec<(String, u64)> {
        let stats = self.limiter.stats();
        stats.rules.iter().map(|(rule, counts)| (rule.as_str().to_owned(), counts.denied)).collect()
    }

    pub(super) const fn is_configuration(&self) -> bool {
        self.attributes.is_some()
    }

    /// Decides the steps that `is_wanted` selects, in order, and calls `each` with the index of
    /// each and its decision; `None` for a step that no rule covers.
    pub(super) fn decide(
        &self,
        steps: &Steps,
        is_wanted: impl Fn(&Step) -> bool,
        mut each: impl FnMut(usize, Option<&Decision>),
    ) {
        let mut start = 0;
        // Steps of one time are decided together: the memory of each is fetched while another is
        // decided.
        for run in steps.steps.chunk_by(|one, other| one.time == other.time) {
            let Some(first) = run.first() else { continue };
            self.clock.set(first.time);
            let wanted = || (start..).zip(run).filter(|(_, step)| is_wanted(step));
            match &self.attributes {
                None => {
                    for (index, _) in wanted().filter(|(_, step)| step.client == NO_CLIENT) {
                        each(index, None);
                    }
                    let covered = || wanted().filter(|(_, step)| step.client != NO_CLIENT);
                    let requests: Vec<_> = covered().map(|(_, step)| NumberedRequest(*step)).collect();
                    let mut indices = covered().map(|(index, _)| index);
                    self.limiter.check_many(&requests, |decision| {
                        if let Some(index) = indices.next() {
                            each(index, decision.as_ref().ok());
                        }
                    });
                }
                Some(attributes) => {
                    let paths = self.limiter.with_rules(RuleSet::paths);
                    let requests: Vec<_> =
                        wanted().map(|(index, _)| NamedRequest { steps, index, attributes, paths }).collect();
                    let mut indices = wanted().map(|(index, _)| index);
                    self.limiter.check_many(&requests, |decision| {
                        if let Some(index) = indices.next() {
                            each(index, decision.as_ref().ok());
                        }
                    });
                }
            }
            start += run.len();
        }
    }
}

/// A configuration file that is a candidate, read before the log is.
#[derive(Debug)]
pub(super) struct Configured {
    label: String,
    rules: RuleSet,
    store: MemoryStore,
}

impl Configured {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// Its errors, as `tollgate validate` shows them.
    pub(super) fn read(file: &Path, colour: bool) -> Result<Self, String> {
        let origin = Origin::of_process(Some(file.into()), Flags::default());
        let config = origin.load().map_err(|errors| errors.render(colour))?;
        let deny = config.settings.deny_uncovered;
        let rules = if deny { config.rules.deny_uncovered() } else { config.rules };
        Ok(Self { label: file.display().to_string(), rules, store: config.fixed.store.memory() })
    }

    /// The attributes that its rules read, beside the client.
    pub(super) fn attributes(&self) -> impl Iterator<Item = &String> {
        self.rules.attributes().iter().filter(|name| *name != CLIENT)
    }

    /// The candidate, whose steps have these attributes.
    ///
    /// # Errors
    /// A sentence that says why the store cannot keep a limit.
    pub(super) fn candidate(self, attributes: &[String]) -> Result<Candidate, String> {
        Candidate::new(self.label, self.rules, self.store, Some(attributes.to_vec()))
    }
}
