//! Where the state of a budget is: its identity, its shard, and its slot, prefetched.

use std::sync::Arc;

use super::hash::{Id, POOLED, Prefix};
use super::room::KeyCount;
use super::shard::WIDEST;
use super::table::prefetch;
use super::{GLOBALS, MemoryStore, SHARDS};
use crate::Limit;
use crate::algorithm::token_bucket::Word;
use crate::decision::words_of;
use crate::key::{Key, digest};
use crate::limit::Kind;
use crate::request::Client;
use crate::rule::Tag;
use crate::stats::Tally;

/// What the store precomputes to find a budget's states: made when rules are set.
#[derive(Clone, Debug)]
pub(crate) struct Lookup {
    pub(super) tag: Tag,
    prefix: Prefix,
    pub(super) limits: &'static [Limit],
    /// Words of the packed state; 0 if it does not pack.
    pub(super) width: usize,
    unit_cost: u64,
    /// The limit, if it is one token bucket with a one-word state.
    pub(super) word: Option<Word>,
    pub(super) key_count: Arc<KeyCount>,
    /// The rule's decision counts.
    tally: Arc<Tally>,
    /// The slot of the global budget.
    global: Slot,
}

/// Where a state is kept: its identity, its home and its shard.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) id: Id,
    pub(super) home: u64,
    pub(super) shard: usize,
}

/// A budget that a request draws on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    pub(super) lookup: &'a Lookup,
    pub(super) slot: Slot,
    pub(super) cost: u64,
    pub(super) charge: u64,
}

/// The subject of a budget.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Subject<'a> {
    Client(Client<'a>),
    /// Encoded attribute values; empty for a global budget.
    Values(&'a [u8]),
}

impl MemoryStore {
    /// Precomputes the lookup of a tag's budgets.
    pub(crate) fn lookup(&self, tag: Tag, tally: Arc<Tally>) -> Lookup {
        let digest = tag.budget.digest(tag.rule);
        let prefix = self.secrets.prefix(digest);
        let global = self.global_slot(self.secrets.identify(&prefix, &[]), digest);
        let width = tag.words().filter(|width| *width <= WIDEST).unwrap_or(0);
        let (limits, key_count) = (tag.limits.as_slice(), self.room.of(tag.rule));
        let word = match limits {
            [Limit(Kind::TokenBucket(bucket))] => bucket.word(),
            _ => None,
        };
        Lookup { tag, prefix, limits, width, unit_cost: tag.unit_cost, word, key_count, tally, global }
    }

    /// Locates a budget's state and prefetches it. `None` if it does not pack.
    #[inline(always)]
    pub(crate) fn target<'a>(
        &self,
        lookup: &'a Lookup,
        subject: Subject<'_>,
        inline: Option<&Limit>,
        cost: u64,
    ) -> Option<Target<'a>> {
        if lookup.width == 0 {
            return None;
        }
        let mut prefix = &lookup.prefix;
        let with_period;
        if let Some(Limit(Kind::InlineWindow(window))) = inline {
            with_period = self.secrets.with_period(prefix, window.period);
            prefix = &with_period;
        }
        let slot = match subject {
            Subject::Values([]) => lookup.global,
            Subject::Client(client) => self.slot(self.secrets.identify_client(prefix, client)),
            Subject::Values(values) => self.slot(self.secrets.identify(prefix, values)),
        };
        prefetch(std::ptr::from_ref(&self.shards[slot.shard]).addr());
        match lookup.word {
            Some(_) => self.views.prefetch(1, slot.shard, slot.home),
            None => self.views.prefetch(lookup.width, slot.shard, slot.home),
        }
        Some(Target { lookup, slot, cost, charge: cost.saturating_mul(lookup.unit_cost) })
    }

    #[inline]
    fn slot(&self, id: Id) -> Slot {
        let home = self.secrets.home(id);
        Slot { id, home, shard: shard_of(home) }
    }

    fn global_slot(&self, id: Id, digest: u64) -> Slot {
        let [byte, ..] = digest.to_le_bytes();
        Slot { id, home: self.secrets.home(id), shard: SHARDS.saturating_add(usize::from(byte) % GLOBALS) }
    }

    /// The slot of the pool that new keys of a budget share when the store is full; one pool per
    /// list of limits.
    pub(super) fn pool_slot(&self, tag: Tag) -> Slot {
        let limits = tag.limits.iter().flat_map(|limit| limit.to_string().into_bytes());
        let digest = digest([tag.budget.digest(tag.rule).to_le_bytes().to_vec(), limits.collect()].concat());
        self.slot(self.secrets.identify(&self.secrets.prefix(digest), POOLED))
    }

    /// The slot of a key.
    pub(super) fn slot_of(&self, key: &Key<'_>) -> Slot {
        let id = self.secrets.identify_key(key);
        match key.subject().is_empty() {
            true => self.global_slot(id, key.budget().digest(key.rule())),
            false => self.slot(id),
        }
    }
}

impl Target<'_> {
    /// Counts the verdict of the target's rule.
    #[inline(always)]
    pub(crate) fn count(&self, stripe: usize, allowed: bool) {
        self.lookup.tally.count_at(stripe, allowed);
    }

    #[inline]
    pub(super) fn limits<'a>(&self, inline: Option<&'a Limit>) -> &'a [Limit] {
        match inline {
            None => self.lookup.limits,
            Some(limit) => std::slice::from_ref(limit),
        }
    }
}

impl PartialEq for Lookup {
    /// Whether both are for the same tag and the same counts.
    fn eq(&self, other: &Self) -> bool {
        self.tag == other.tag && Arc::ptr_eq(&self.tally, &other.tally)
    }
}

impl Lookup {
    /// Words that a decision needs for this budget.
    pub(crate) fn words(&self) -> usize {
        words_of(self.tag.budget, self.width)
    }

    /// The number of the tag.
    #[inline]
    pub(super) const fn number(&self) -> u32 {
        self.tag.number()
    }
}

/// The shard of a home: its top bits, since the tables use the lower half.
#[inline]
pub(super) fn shard_of(home: u64) -> usize {
    usize::try_from(home >> 56).unwrap_or(0) % SHARDS
}
