//! Global limits: the states that every request goes for lie by themselves, beside their lock on
//! one cache line, found without hashing or probing.
//!
//! Only the short way uses them. Whatever else happens to a global budget happens to it in its
//! shard: the long way takes the state home into the shard's table first, and the next request on
//! the short way fetches it out again. Where both locks are held, the shard's was taken first.

use super::changes::Before;
use super::hash::Id;
use super::shard::{Found, Shard, WIDEST, packed_idle_at};
use super::{MemoryStore, in_order, shard_of};
use crate::sync::Spin;
use crate::sync::atomic::Ordering;
use crate::{Limits, RuleName, Timestamp};

/// Rules beyond this many may find their place taken, and then stay in their tables.
pub(super) const LONES: usize = if cfg!(shuttle) { 1 } else { 16 };

/// A place for the state of one global rule.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Lone(Spin<Kept>);

#[derive(Debug, Default)]
#[repr(C)]
struct Kept {
    /// The newest reading of the clock.
    latest: Timestamp,
    /// Whose state it is, and which limits wrote it. Nobody's: the place is free.
    whose: Option<(RuleName, Limits)>,
    words: [u64; WIDEST],
    /// Whether anyone asks for what changes.
    followed: bool,
    /// Whether the words have changed since they were taken home last.
    changed: bool,
}

impl Kept {
    fn is_idle(&self, now: Timestamp) -> bool {
        let idle_at = self.whose.map_or(0, |(_, limits)| {
            packed_idle_at(limits, self.words.get(..limits.words().unwrap_or(0)).unwrap_or_default())
        });
        idle_at <= now.as_nanos() && now >= self.latest
    }
}

impl Lone {
    pub(super) fn new() -> Self {
        Self(Spin::new(Kept::default()))
    }

    /// From now on takes note of what changes, or no longer does.
    pub(super) fn follow(&self, followed: bool) {
        let mut kept = self.0.lock();
        (kept.followed, kept.changed) = (followed, false);
    }
}

impl MemoryStore {
    fn lone(&self, rule: RuleName) -> &Spin<Kept> {
        let [byte, ..] = rule.digest().to_le_bytes();
        &self.lones[usize::from(byte) % LONES].0
    }

    fn global_id(&self, rule: RuleName) -> Id {
        self.secrets.identify(rule.digest(), &[])
    }

    /// Does `decide` to a global state. `None` is for the long way: nothing has been done.
    #[inline]
    pub(super) fn with_lone(
        &self,
        rule: RuleName,
        limits: Limits,
        width: usize,
        now: Timestamp,
        decide: impl FnOnce(Limits, &mut [u64], Timestamp) -> Option<u64>,
    ) -> Option<Timestamp> {
        let mut kept = self.lone(rule).lock();
        if kept.whose != Some((rule, limits)) {
            drop(kept);
            return self.fetch_out(rule, limits, width, now, decide);
        }
        let now = in_order(kept.latest, now);
        kept.latest = now;
        let asked = kept.followed && !kept.changed;
        let words = kept.words.get_mut(..width)?;
        let before = asked.then(|| Before::new(words));
        decide(limits, words, now)?;
        if before.is_some_and(|before| before.is_not(words)) {
            kept.changed = true;
            self.views.flags.raise(shard_of(self.secrets.home(self.global_id(rule))));
        }
        Some(now)
    }

    /// The same for a state that is not there: fetches it out of its table if these limits wrote
    /// it, or makes a new one.
    #[cold]
    fn fetch_out(
        &self,
        rule: RuleName,
        limits: Limits,
        width: usize,
        now: Timestamp,
        decide: impl FnOnce(Limits, &mut [u64], Timestamp) -> Option<u64>,
    ) -> Option<Timestamp> {
        let id = self.global_id(rule);
        let home = self.secrets.home(id);
        let mut shard = self.shards[shard_of(home)].0.lock();
        let mut kept = self.lone(rule).lock();
        if kept.whose.is_some_and(|(whose, _)| whose != rule) && kept.is_idle(now) {
            // Of a rule that nobody asks for any more, perhaps.
            kept.whose = None;
            self.forgot(1);
        }
        if kept.whose.is_some() {
            // Another rule's, or this one's under other limits, or someone else was faster.
            return None;
        }
        let now = shard.arrive(now);
        let found = shard.find(id, home, Some(width));
        let mut words = [0; WIDEST];
        match found {
            Found::Nowhere if self.promise(1, 0) => {}
            Found::Nowhere | Found::Whole => return None,
            Found::Packed { .. } => {
                words[..width].copy_from_slice(shard.packed(width, id, home, limits)?);
            }
        }
        let before = words;
        decide(limits, &mut words[..width], now)?;
        if found == Found::Nowhere && words.iter().all(|word| *word == 0) {
            self.live.fetch_sub(1, Ordering::Relaxed);
            return Some(now);
        }
        let changed = before != words;
        if changed {
            shard.note(home);
        }
        // Whoever asks for what changed takes it home first.
        shard.forget_unnoted(found, id, &self.secrets);
        *kept = Kept { latest: now, whose: Some((rule, limits)), words, changed, ..*kept };
        Some(now)
    }

    /// Takes a global state, if it is out, back into its shard.
    pub(super) fn take_home(&self, rule: RuleName, shard: &mut Shard) {
        let mut kept = self.lone(rule).lock();
        if kept.whose.is_some_and(|(whose, _)| whose == rule) {
            self.put_back(&mut kept, shard);
        }
    }

    /// Takes all global states of a shard home.
    pub(super) fn take_all_home(&self, index: usize, shard: &mut Shard) {
        for lone in &self.lones {
            let mut kept = lone.0.lock();
            let here = |(rule, _)| shard_of(self.secrets.home(self.global_id(rule))) == index;
            if kept.whose.is_some_and(here) {
                self.put_back(&mut kept, shard);
            }
        }
    }

    fn put_back(&self, kept: &mut Kept, shard: &mut Shard) {
        let Some((rule, limits)) = kept.whose.take() else { return };
        shard.come_back(kept.latest);
        let (id, width) = (self.global_id(rule), limits.words().unwrap_or(0));
        if std::mem::take(&mut kept.changed) {
            shard.note(self.secrets.home(id));
        }
        let state = shard.insert_unnoted(width, id, limits, &self.secrets);
        state.iter_mut().zip(kept.words).for_each(|(state, word)| *state = word);
    }
}
