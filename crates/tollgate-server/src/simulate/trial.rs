//! A candidate tried on all requests: what it admits and denies, and whom.

use std::time::Duration;

use super::candidate::Candidate;
use super::replay::Consumer;
use super::steps::Steps;
use super::timeline::Timeline;
use super::traffic::index;

/// A candidate and its counts.
#[derive(Debug)]
pub(super) struct Trial {
    pub(super) candidate: Candidate,
    pub(super) denied: u64,
    /// Denied requests that cost more than the whole limit.
    pub(super) never_admitted: u64,
    pub(super) longest_wait: Duration,
    pub(super) timeline: Timeline,
    /// The denials of each client.
    pub(super) by_client: Vec<ClientDenials>,
}

/// The denials of a client.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ClientDenials {
    pub(super) denied: u64,
    pub(super) longest_wait: Duration,
}

impl Trial {
    pub(super) const fn new(candidate: Candidate) -> Self {
        Self {
            candidate,
            denied: 0,
            never_admitted: 0,
            longest_wait: Duration::ZERO,
            timeline: Timeline::new(),
            by_client: Vec::new(),
        }
    }

    pub(super) fn clients_touched(&self) -> u64 {
        let touched = self.by_client.iter().filter(|client| client.denied > 0).count();
        u64::try_from(touched).unwrap_or(u64::MAX)
    }
}

impl Consumer for Trial {
    fn take(&mut self, steps: &Steps) {
        let Self { candidate, denied, never_admitted, longest_wait, timeline, by_client } = self;
        // A bucket for every time, so that all timelines have the same ones.
        let mut last = None;
        for step in &steps.steps {
            if last.replace(step.time) != Some(step.time) {
                timeline.add(step.time, 0);
            }
        }
        candidate.decide(
            steps,
            |_| true,
            |at, decision| {
                let Some((step, decision)) = steps.steps.get(at).zip(decision.filter(|it| !it.allowed()))
                else {
                    return;
                };
                *denied += 1;
                let wait = decision.retry_after();
                *never_admitted += u64::from(wait.is_none());
                let wait = wait.unwrap_or_default();
                *longest_wait = wait.max(*longest_wait);
                timeline.add(step.time, 1);
                let client = index(step.client);
                if client >= by_client.len() && step.client != super::traffic::NO_CLIENT {
                    by_client.resize(client + 1, ClientDenials::default());
                }
                if let Some(client) = by_client.get_mut(client) {
                    client.denied += 1;
                    client.longest_wait = wait.max(client.longest_wait);
                }
            },
        );
    }
}
