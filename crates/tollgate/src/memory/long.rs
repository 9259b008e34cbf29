//! The long way, which can do everything: any operation, on any number of keys, all or nothing.

use std::time::Duration;

use smallvec::SmallVec;

use super::hash::Id;
use super::shard::{Cells, Found, Shard, lapse_at};
use super::{MemoryStore, SWEPT_BY_EACH, in_order, shard_of};
use crate::cell::{Cell, transact};
use crate::store::{Answer, Applied, Charge, Op};
use crate::sync::Guard;
use crate::sync::atomic::Ordering;
use crate::{Limits, Outcome, RuleName, Timestamp, Verdict};

/// How long a new key is told to wait when every slot is busy.
const FULL_RETRY: Duration = Duration::from_secs(1);

/// What a subject's encoding never is: the one budget of all new keys of a rule when the table is
/// full.
const POOLED: &[u8] = &[0xff, 0xff];

/// One rule and subject of a request.
pub(super) struct Group {
    id: Id,
    home: u64,
    shard: usize,
    limits: Limits,
    /// The rule, if it counts everything together.
    global: Option<RuleName>,
}

/// A charge on one place of a group, which stands for all of the request's charges there.
type Merged<'a> = (usize, Charge<'a>);

/// A request's keys in the order in which they are locked, its charges merged, and which of them
/// each charge became.
pub(super) struct Groups<'a> {
    groups: SmallVec<[Group; 4]>,
    merged: SmallVec<[Merged<'a>; 4]>,
    merged_of: SmallVec<[usize; 4]>,
}

/// Whether a request may bring new keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// As many as `max_keys` allows.
    Bounded,
    /// The pools of its rules, of which there are few.
    Unbounded,
    /// None: it is only looked at.
    None,
}

impl MemoryStore {
    fn group(&self, charge: &Charge<'_>, subject: &[u8]) -> Group {
        let id = self.secrets.identify(charge.key.rule().digest(), subject);
        let home = self.secrets.home(id);
        let global = subject.is_empty().then(|| charge.key.rule());
        Group { id, home, shard: shard_of(home), limits: charge.limits, global }
    }

    pub(super) fn is_unknown(&self, group: &Group) -> bool {
        let mut shard = self.shards[group.shard].0.lock();
        if let Some(rule) = group.global {
            self.take_home(rule, &mut shard);
        }
        shard.find(group.id, group.home, group.limits.words()) == Found::Nowhere
    }

    /// The request's keys in the order in which they are locked, each once; those that `pools` says
    /// so are replaced by their rule's pool.
    pub(super) fn groups<'a>(&self, charges: &[Charge<'a>], pools: impl Fn(&Group) -> bool) -> Groups<'a> {
        let mut sorted: SmallVec<[(Group, Charge<'a>, usize); 4]> = SmallVec::new();
        for (charge, index) in charges.iter().zip(0..) {
            let group = self.group(charge, charge.key.subject());
            let pooled = group.global.is_none() && pools(&group);
            let group = if pooled { self.group(charge, POOLED) } else { group };
            sorted.push((group, *charge, index));
        }
        sorted.sort_by_key(|(group, charge, _)| (group.shard, group.id, charge.key.place()));
        let mut groups: SmallVec<[Group; 4]> = SmallVec::new();
        let mut merged: SmallVec<[Merged<'a>; 4]> = SmallVec::new();
        let mut merged_of: SmallVec<[usize; 4]> = SmallVec::from_elem(0, charges.len());
        for (group, charge, index) in sorted {
            let same = groups.last().is_some_and(|last| last.id == group.id);
            match groups.last_mut().filter(|_| same) {
                // A pool may be met under several lists of limits: there are cells for the longest.
                Some(last) if group.limits.len() > last.limits.len() => last.limits = group.limits,
                Some(_) => {}
                None => groups.push(group),
            }
            match merged.last_mut().filter(|(_, last)| same && last.key.place() == charge.key.place()) {
                Some((_, last)) => {
                    last.cost = last.cost.max(charge.cost);
                    last.shadow &= charge.shadow;
                }
                None => merged.push((groups.len().saturating_sub(1), charge)),
            }
            merged_of[index] = merged.len().saturating_sub(1);
        }
        Groups { groups, merged, merged_of }
    }

    /// Applies `op`, if there is room for the keys that are new.
    pub(super) fn apply_groups(
        &self,
        op: Op,
        request: &Groups<'_>,
        now: Timestamp,
        room: Room,
    ) -> Option<Applied> {
        let Groups { groups, merged, merged_of } = request;
        let mut locked = Locked::new(self, groups);
        let now = locked.in_order(now);
        for (_, shard) in locked.shards.iter_mut().filter(|(_, shard)| shard.sweep_is_due(now)) {
            self.go_on_sweeping(shard, SWEPT_BY_EACH, now);
        }
        let found: SmallVec<[Found; 4]> = groups.iter().map(|group| locked.find(group)).collect();
        let new = to_u64(found.iter().filter(|found| **found == Found::Nowhere).count());
        // The budgets of everyone are few, and never turned away: the table may be full of others.
        let is_new = |group: usize| found[group] == Found::Nowhere && groups[group].global.is_none();
        let bounded = to_u64((0..groups.len()).filter(|group| is_new(*group)).count());
        let keeps_new = match op {
            Op::Refund | Op::Reset | Op::Settle { .. } | Op::Peek => false,
            Op::Block { until } => until > now,
            _ => true,
        };
        // Without room a new key is denied, and nothing is taken from the others either. But one that is
        // only watched denies nobody.
        let denied =
            room == Room::None && merged.iter().any(|(group, charge)| is_new(*group) && !charge.shadow);
        let op = if denied { Op::Peek } else { op };
        let promised = match room {
            _ if !keeps_new || op == Op::Peek => 0,
            Room::None => new.saturating_sub(bounded),
            _ => new,
        };
        // A peek keeps nothing, but it says what a check would: that there is no room, if there is none.
        let has_room = op != Op::Peek || room != Room::Bounded || self.has_room_for(bounded);
        let bounded = if room == Room::Bounded { bounded } else { 0 };
        if !has_room || !self.promise(promised, bounded) {
            return None;
        }
        let mut cells: SmallVec<[Cells; 4]> =
            groups.iter().zip(&found).map(|(group, found)| locked.load(group, *found)).collect();
        let lapsed_at: SmallVec<[SmallVec<[u64; 4]>; 4]> = cells.iter().map(lapse_at).collect();
        let mut flat: SmallVec<[Cell; 4]> = SmallVec::new();
        for (group, charge) in merged {
            let place = usize::from(charge.key.place());
            flat.push(std::mem::replace(&mut cells[*group][place], Cell::new(*charge.limit())));
        }
        let charges: SmallVec<[Charge<'_>; 4]> = merged.iter().map(|(_, charge)| *charge).collect();
        let mut answers = transact(op, &charges, &mut flat, now);
        for ((group, charge), cell) in merged.iter().zip(flat) {
            cells[*group][usize::from(charge.key.place())] = cell;
        }
        let changed = op.changes(&charges, &answers);
        if room == Room::None {
            let refused = merged.iter().map(|(group, _)| is_new(*group));
            answers
                .iter_mut()
                .zip(refused)
                .filter(|(_, new)| *new)
                .for_each(|(answer, _)| answer.refuse(now));
        }
        let mut kept: u64 = 0;
        for (((group, found), mut cells), index) in groups.iter().zip(&found).zip(cells).zip(0..) {
            // A list may have become shorter, and longer again tomorrow: what is in use is not dropped.
            let mut is_over = |cell: &mut Cell| {
                cell.roll(now);
                op == Op::Reset || cell.is_idle(now)
            };
            while cells.len() > group.limits.len() && cells.last_mut().is_some_and(&mut is_over) {
                cells.pop();
            }
            if room == Room::None && is_new(index) {
                continue;
            }
            // Where the clock has gone back, even a denial may leave it exactly empty as of now.
            let changed = changed || lapse_at(&cells) != lapsed_at[index];
            // Storing one key may move others of the same shard.
            let found = if groups.len() > 1 { locked.find(group) } else { *found };
            kept = kept.saturating_add(u64::from(locked.store(group, found, cells, (now, changed))));
        }
        let had = to_u64(groups.len()).saturating_sub(new).saturating_add(promised);
        self.live.fetch_sub(had.saturating_sub(kept), Ordering::Relaxed);
        let answers = merged_of.iter().map(|index| answers[*index]).collect();
        Some(Applied { now, answers })
    }
}

/// The shards of one request, locked.
struct Locked<'a> {
    store: &'a MemoryStore,
    shards: SmallVec<[(usize, Guard<'a, Shard>); 4]>,
}

impl<'a> Locked<'a> {
    /// Locks in the order of the groups, which is ascending: this is what keeps opposite requests
    /// from deadlock.
    fn new(store: &'a MemoryStore, groups: &[Group]) -> Self {
        let mut shards: SmallVec<[(usize, Guard<'a, Shard>); 4]> = SmallVec::new();
        for group in groups {
            if shards.last().is_none_or(|(last, _)| *last != group.shard) {
                shards.push((group.shard, store.shards[group.shard].0.lock()));
            }
            if let (Some(rule), Some((_, shard))) = (group.global, shards.last_mut()) {
                store.take_home(rule, shard);
            }
        }
        Self { store, shards }
    }

    fn shard(&mut self, group: &Group) -> &mut Shard {
        let place = self.shards.iter().position(|(shard, _)| *shard == group.shard).unwrap_or(0);
        &mut self.shards[place].1
    }

    fn find(&mut self, group: &Group) -> Found {
        self.shard(group).find(group.id, group.home, group.limits.words())
    }

    /// The reading to decide by: the newest, if this one merely came late.
    fn in_order(&mut self, now: Timestamp) -> Timestamp {
        let newest = self.shards.iter().map(|(_, shard)| shard.latest).max().unwrap_or(now);
        let now = in_order(newest, now);
        self.shards.iter_mut().for_each(|(_, shard)| shard.set_time(now));
        now
    }

    /// The cells of a group, at least one for each of its limits.
    fn load(&mut self, group: &Group, found: Found) -> Cells {
        let mut cells = self.shard(group).load(found, group.id);
        for limit in group.limits.as_slice().iter().skip(cells.len()) {
            cells.push(Cell::new(*limit));
        }
        cells
    }

    fn store(&mut self, group: &Group, found: Found, cells: Cells, at: (Timestamp, bool)) -> bool {
        let secrets = &self.store.secrets;
        self.shard(group).store(found, group.id, cells, group.limits, at, secrets)
    }
}

impl Answer {
    /// A new key that finds every slot busy.
    fn refuse(&mut self, now: Timestamp) {
        let later = now.saturating_add(FULL_RETRY);
        let verdict = Verdict::Denied { retry_after: FULL_RETRY };
        self.outcome = Outcome { verdict, remaining: 0, reset_at: later, grows_at: later };
    }
}

fn to_u64(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
