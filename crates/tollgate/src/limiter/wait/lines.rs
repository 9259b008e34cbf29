//! The queues that a request may have to stand in: one per budget that can deny it.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::LazyLock;
use std::time::Duration;

use smallvec::SmallVec;

use crate::limiter::plan::Plan;
use crate::store::Part;
use crate::{Budget, Decision, RuleName};

/// The queue of a budget: a digest of the budget under a secret of the process.
///
/// Two budgets with the same digest share a queue. Their requests then wait for each other; none is
/// admitted that would not be admitted otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct QueueId(pub(super) u64);

/// A budget that can deny a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    pub(super) queue: QueueId,
    pub(super) rule: RuleName,
    pub(super) budget: Budget,
    /// The number of such requests that the whole budget admits at once.
    pub(super) fits: u64,
    /// The period of the limit that admits the fewest.
    pub(super) period: Duration,
}

/// The budgets that can deny a request: those of one client first, then global ones.
#[derive(Clone, Debug)]
pub(super) struct Lines(SmallVec<[Line; 4]>);

impl Lines {
    /// The budgets that can deny `plan`. Requests of cost 0 have queues of their own: they are
    /// denied in debt and by a block, and wait for nobody's units.
    pub(super) fn new(plan: &Plan, cost: u64) -> Self {
        static SECRET: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let mut keyed: SmallVec<[Line; 4]> = SmallVec::new();
        let mut global: SmallVec<[Line; 4]> = SmallVec::new();
        for planned in plan.distinct().filter(|planned| !planned.shadow) {
            let charge = plan.charge(planned, cost);
            let (rule, budget) = (charge.key.rule(), charge.key.budget());
            let fits = charge.limit.capacity().checked_div(charge.cost).unwrap_or(u64::MAX);
            let lines = if charge.key.subject().is_empty() { &mut global } else { &mut keyed };
            // One budget may have several limits, one after the other.
            if let Some(line) = lines.last_mut().filter(|line| (line.rule, line.budget) == (rule, budget)) {
                if fits < line.fits {
                    line.fits = fits;
                    line.period = charge.limit.period();
                }
                continue;
            }
            let identity = (rule.as_str(), budget, charge.key.subject(), cost == 0);
            let queue = QueueId(SECRET.hash_one(identity));
            lines.push(Line { queue, rule, budget, fits, period: charge.limit.period() });
        }
        keyed.append(&mut global);
        Self(keyed)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The budget of a queue.
    pub(super) fn get(&self, queue: QueueId) -> Option<&Line> {
        self.iter().find(|line| line.queue == queue)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Line> {
        self.0.iter()
    }

    pub(super) fn queues(&self) -> impl Iterator<Item = QueueId> {
        self.0.iter().map(|line| line.queue)
    }

    pub(super) fn contains(&self, queue: QueueId) -> bool {
        self.0.iter().any(|line| line.queue == queue)
    }

    /// The queue of the budget that denies, by a decision on the same plan; the first if no budget
    /// of the request does. `None` if no budget can deny the request.
    pub(super) fn denied_by(&self, decision: &Decision) -> Option<QueueId> {
        let deciding = decision.deciding();
        let line = deciding.and_then(|report| {
            self.0.iter().find(|line| (line.rule, line.budget) == (report.rule, report.budget))
        });
        line.or_else(|| self.0.first()).map(|line| line.queue)
    }
}

/// Whether the cost is more than a whole limit, so that the request may never fit.
pub(super) fn exceeds_a_limit(plan: &Plan, cost: u64) -> bool {
    plan.distinct().filter(|planned| !planned.shadow).any(|planned| {
        let charge = plan.charge(planned, cost);
        !matches!(charge.part, Part::Rest(_)) && charge.cost > charge.limit.capacity()
    })
}

/// The hasher of a map whose keys are digests.
#[derive(Debug, Default)]
pub(super) struct Digested(u64);

impl Hasher for Digested {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, digest: u64) {
        self.0 = digest;
    }
}
