//! Requests whose keys are in several slots of a Cluster: one script cannot reach them all.
//!
//! The slots are taken in ascending order, those that enforce before those that only shadow, each
//! atomically. If a slot denies, the slots before it are undone exactly: a ticket names the units
//! that were drawn, and only those still in use are given back, so that no client gets more than
//! its limits. Until then another process may see a denial that does not last. A process that dies,
//! or whose request times out, before it has undone its takes leaves those units drawn; they come
//! back as any others do.

use futures_util::future::{join_all, try_join_all};
use smallvec::SmallVec;
use tollgate::{Answer, Op, Part, StoreError, Timestamp};

use crate::script::{Reply, ScriptCharge, Verb, overflows};
use crate::store::Shared;

/// The charges of one slot, and their indices in the request.
struct Group {
    charges: Vec<ScriptCharge>,
    indices: Vec<usize>,
}

impl Group {
    fn enforces(&self) -> bool {
        self.charges.iter().any(|charge| !charge.shadow)
    }

    /// Whether a denial may write: an attempt is counted, or a cost recorded.
    fn counts_denied(&self) -> bool {
        self.charges.iter().any(|charge| charge.limit.counts_denied() || charge.recorded.is_some())
    }

    fn denies(&self, reply: &Reply) -> bool {
        let denies = |(charge, answer): (&ScriptCharge, &Answer)| !charge.shadow && !answer.outcome.allowed();
        self.charges.iter().zip(&reply.answers).any(denies)
    }
}

pub(crate) async fn decide(
    shared: &Shared,
    op: Op,
    charges: &[ScriptCharge],
    now: Timestamp,
) -> Result<Reply, StoreError> {
    let groups = group_by_slot(charges);
    // A take of nothing needs no undo.
    let op = if op == Op::Take && charges.iter().all(|charge| charge.cost == 0) { Op::Peek } else { op };
    let replies = match op {
        Op::Take | Op::Reserve { .. } | Op::Acquire { .. } => {
            all_or_nothing(shared, op, &groups, now).await?
        }
        _ => {
            try_join_all(groups.iter().map(|group| shared.run(Verb::Op(op), &group.charges, &[], now)))
                .await?
        }
    };
    Ok(merge(&groups, &replies, charges.len()))
}

/// Groups charges by slot. Every process takes slots in the same order, so that of two concurrent
/// requests for the same slots one is admitted.
fn group_by_slot(charges: &[ScriptCharge]) -> Vec<Group> {
    let mut sorted: Vec<(usize, &ScriptCharge)> = charges.iter().enumerate().collect();
    sorted.sort_by_key(|(_, charge)| charge.slot);
    let group = |slot: &[(usize, &ScriptCharge)]| Group {
        charges: slot.iter().map(|(_, charge)| (*charge).clone()).collect(),
        indices: slot.iter().map(|(index, _)| *index).collect(),
    };
    let mut groups: Vec<Group> =
        sorted.chunk_by(|(_, one), (_, other)| one.slot == other.slot).map(group).collect();
    groups.sort_by_key(|group| !group.enforces());
    groups
}

async fn all_or_nothing(
    shared: &Shared,
    op: Op,
    groups: &[Group],
    now: Timestamp,
) -> Result<Vec<Reply>, StoreError> {
    let verb = if op == Op::Take { Verb::Try } else { Verb::Op(op) };
    let mut replies: Vec<Reply> = Vec::with_capacity(groups.len());
    for (group, index) in groups.iter().zip(0..) {
        let reply = shared.run(verb, &group.charges, &[], now).await;
        let denied = match &reply {
            Ok(reply) => group.denies(reply),
            Err(_) => true,
        };
        if !denied {
            replies.extend(reply);
            continue;
        }
        let (before, rest) = groups.split_at(index);
        let undone = before.iter().zip(&replies).map(|(group, reply)| undo(shared, op, group, reply, now));
        // Every undo is awaited, even if one fails.
        let undone: Result<Vec<Reply>, StoreError> = join_all(undone).await.into_iter().collect();
        let reply = reply?;
        let after = rest.iter().skip(1).map(|group| skip(shared, op, group, now));
        let after = try_join_all(after).await?;
        return Ok(undone?.into_iter().chain([reply]).chain(after).collect());
    }
    Ok(replies)
}

/// Gives back the units that a group drew. Replies as a peek would next.
async fn undo(
    shared: &Shared,
    op: Op,
    group: &Group,
    reply: &Reply,
    now: Timestamp,
) -> Result<Reply, StoreError> {
    // Of an overflow, each part is undone by itself.
    let drawn = |(charge, answer): (&ScriptCharge, &Answer)| ScriptCharge {
        cost: answer.overflow.drawn().unwrap_or(charge.cost),
        part: Part::Whole,
        ..charge.clone()
    };
    let mut drawn: Vec<ScriptCharge> = group.charges.iter().zip(&reply.answers).map(drawn).collect();
    if let Op::Reserve { hold, .. } = op {
        // A limit that counts denied attempts keeps the cost of this one.
        drawn.iter_mut().filter(|charge| !charge.limit.counts_denied()).for_each(|charge| charge.cost = 0);
        shared.run(Verb::Op(Op::Settle { hold }), &drawn, &[], now).await?;
    } else {
        let undone = shared.run(Verb::Undo, &drawn, &reply.tickets, now).await?;
        if !overflows(&group.charges) {
            return Ok(undone);
        }
    }
    shared.run(Verb::Op(Op::Peek), &group.charges, &[], now).await
}

/// The reply of a group that was not taken from, because an earlier one denied. A denied
/// reservation or slot is an attempt, too, but its cost is not recorded.
async fn skip(shared: &Shared, op: Op, group: &Group, now: Timestamp) -> Result<Reply, StoreError> {
    let mut charges = group.charges.clone();
    if op != Op::Take {
        charges.iter_mut().for_each(|charge| charge.recorded = None);
    }
    let op = if group.counts_denied() { Op::Refuse } else { Op::Peek };
    shared.run(Verb::Op(op), &charges, &[], now).await
}

/// Merges the replies in the request's order. The nodes' clocks may differ, so all times are
/// shifted to the clock of the first.
fn merge(groups: &[Group], replies: &[Reply], charges: usize) -> Reply {
    let first = replies.first().map_or(Timestamp::EPOCH, |reply| reply.now);
    let mut answers: SmallVec<[Option<Answer>; 4]> = SmallVec::from_elem(None, charges);
    for (group, reply) in groups.iter().zip(replies) {
        let shifted = |at: Timestamp| match reply.now <= at {
            true => first.saturating_add(at.since(reply.now)),
            false => first.saturating_sub(reply.now.since(at)),
        };
        for (index, answer) in group.indices.iter().zip(&reply.answers) {
            let mut answer = *answer;
            answer.outcome.now = first;
            answer.outcome.reset_at = shifted(answer.outcome.reset_at);
            answer.outcome.grows_at = shifted(answer.outcome.grows_at);
            // In range: `group_by_slot` numbers the charges of the request.
            if let Some(merged) = answers.get_mut(*index) {
                *merged = Some(answer);
            }
        }
    }
    Reply {
        now: first,
        converted: replies.iter().map(|reply| reply.converted).sum(),
        changed: replies.iter().any(|reply| reply.changed),
        answers: answers.into_iter().flatten().collect(),
        tickets: Vec::new(),
    }
}
