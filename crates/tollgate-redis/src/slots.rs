//! Requests whose keys are in several slots of a Cluster, which no one script reaches.
//!
//! The slots are asked in order, those that enforce first, each atomically. If one denies, what the others before it
//! drew is given back, exactly: by a ticket that says what was drawn on, and only what is still in use of it, so that
//! nobody gets more through than the limits say. In between, another process may see a denial that does not last; and a
//! process that dies in between, or whose request runs out of time, leaves what it drew so far to come back as any
//! other.

use futures_util::future::{join_all, try_join_all};
use smallvec::SmallVec;
use tollgate::{Answer, Op, StoreError, Timestamp};

use crate::script::{Line, Reply, Verb};
use crate::store::Shared;

/// The lines of one slot, and where they are in the request.
struct Group {
    lines: Vec<Line>,
    places: Vec<usize>,
}

impl Group {
    fn enforces(&self) -> bool {
        self.lines.iter().any(|line| !line.shadow)
    }

    /// Whether an attempt counts even if it is denied.
    fn counts(&self) -> bool {
        self.lines.iter().any(|line| line.limit.counts_denied())
    }

    fn denies(&self, reply: &Reply) -> bool {
        self.lines.iter().zip(&reply.answers).any(|(line, answer)| !line.shadow && !answer.outcome.allowed())
    }
}

pub(crate) async fn decide(
    shared: &Shared,
    op: Op,
    lines: &[Line],
    now: Timestamp,
) -> Result<Reply, StoreError> {
    let groups = groups(lines);
    // Who only asks needs nothing undone.
    let op = if op == Op::Take && lines.iter().all(|line| line.cost == 0) { Op::Peek } else { op };
    let replies = match op {
        Op::Take | Op::Reserve { .. } => all_or_nothing(shared, op, &groups, now).await?,
        _ => {
            try_join_all(groups.iter().map(|group| shared.run(Verb::Op(op), &group.lines, &[], now))).await?
        }
    };
    Ok(together(&groups, &replies, lines.len()))
}

/// By slot, in the same order whoever asks: two that want the same do not each deny the other.
fn groups(lines: &[Line]) -> Vec<Group> {
    let mut sorted: Vec<(usize, &Line)> = lines.iter().enumerate().collect();
    sorted.sort_by_key(|(_, line)| line.slot);
    let of_slot = |slot: &[(usize, &Line)]| Group {
        lines: slot.iter().map(|(_, line)| (*line).clone()).collect(),
        places: slot.iter().map(|(place, _)| *place).collect(),
    };
    let mut groups: Vec<Group> =
        sorted.chunk_by(|(_, one), (_, other)| one.slot == other.slot).map(of_slot).collect();
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
        let reply = shared.run(verb, &group.lines, &[], now).await;
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
        // All of them, even if one fails.
        let undone: Result<Vec<Reply>, StoreError> = join_all(undone).await.into_iter().collect();
        let reply = reply?;
        let after = rest.iter().skip(1).map(|group| pass_over(shared, group, now));
        let after = try_join_all(after).await?;
        return Ok(undone?.into_iter().chain([reply]).chain(after).collect());
    }
    Ok(replies)
}

/// Gives back what a group drew, and says what a peek would say next.
async fn undo(
    shared: &Shared,
    op: Op,
    group: &Group,
    reply: &Reply,
    now: Timestamp,
) -> Result<Reply, StoreError> {
    let Op::Reserve { hold, .. } = op else {
        return shared.run(Verb::Undo, &group.lines, &reply.tickets, now).await;
    };
    // What counts denied attempts keeps this one.
    let cost = |line: &Line| if line.limit.counts_denied() { line.cost } else { 0 };
    let free: Vec<Line> = group.lines.iter().map(|line| Line { cost: cost(line), ..line.clone() }).collect();
    shared.run(Verb::Op(Op::Settle { hold }), &free, &[], now).await?;
    shared.run(Verb::Op(Op::Peek), &group.lines, &[], now).await
}

/// What a group says that was not asked because another had denied already.
async fn pass_over(shared: &Shared, group: &Group, now: Timestamp) -> Result<Reply, StoreError> {
    let verb = if group.counts() { Verb::Refuse } else { Verb::Op(Op::Peek) };
    shared.run(verb, &group.lines, &[], now).await
}

/// One reply of several, in the request's order and at the first one's time: the nodes' clocks may differ.
fn together(groups: &[Group], replies: &[Reply], charges: usize) -> Reply {
    let first = replies.first().map_or(Timestamp::EPOCH, |reply| reply.now);
    let mut answers: SmallVec<[Option<Answer>; 4]> = SmallVec::from_elem(None, charges);
    for (group, reply) in groups.iter().zip(replies) {
        let moved = |at: Timestamp| match reply.now <= at {
            true => first.saturating_add(at.since(reply.now)),
            false => first.saturating_sub(reply.now.since(at)),
        };
        for (place, answer) in group.places.iter().zip(&reply.answers) {
            let mut answer = *answer;
            answer.outcome.now = first;
            answer.outcome.reset_at = moved(answer.outcome.reset_at);
            answer.outcome.grows_at = moved(answer.outcome.grows_at);
            // Always there: `groups` numbers the charges of the request.
            if let Some(of_charge) = answers.get_mut(*place) {
                *of_charge = Some(answer);
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
