//! Where the state of a budget is: its identity, its shard, and its slot, prefetched.

use std::sync::Arc;

use super::hash::{Id, Prefix};
use super::room::KeyCount;
use super::table::{WIDEST, prefetch};
use super::{GLOBALS, MemoryStore, Padded, SHARDS};
use crate::algorithm::token_bucket::Word;
use crate::decision::words_of;
use crate::key::{Key, digest, is_valid};
use crate::limit::Kind;
use crate::meter::packed::{self, Step};
use crate::request::Client;
use crate::rule::Tag;
use crate::stats::Tally;
use crate::{Limit, Report, Request, Rule};

/// What the store precomputes to find a budget's states: made when rules are set.
#[derive(Clone, Debug)]
pub(crate) struct Lookup {
    pub(crate) tag: Tag,
    /// The tag's number.
    pub(super) number: u32,
    prefix: Prefix,
    /// The limits, prepared.
    pub(super) steps: Box<[Step]>,
    /// Words of the packed state.
    pub(crate) width: usize,
    /// Words that a decision needs for this budget.
    pub(crate) words: usize,
    unit_cost: u64,
    /// Whether the rule is a shadow, which never denies.
    pub(super) shadow: bool,
    warn_at: Option<u8>,
    pub(super) key_count: Arc<KeyCount>,
    /// The rule's decision counts.
    pub(crate) tally: Arc<Tally>,
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
    pub(crate) lookup: &'a Lookup,
    pub(super) shard: &'a Padded,
    pub(super) id: Id,
    pub(super) home: u64,
    /// The cost of the request.
    pub(crate) cost: u64,
    /// Units that the request draws.
    pub(super) charge: u64,
}

/// The limits that decide on located budgets.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Decider<'a> {
    /// The only limit of the only rule: a token bucket with a one-word state.
    Bucket(&'a Word),
    /// The limits of each budget's rule.
    Steps,
    /// The limit that came with the request.
    Inline(&'a Limit),
}

impl<'a> Decider<'a> {
    /// The limits that decide on a request.
    pub(crate) fn of(request: &Request<'a>) -> Self {
        request.inline_limit().map_or(Self::Steps, Self::Inline)
    }
}

/// The subject of a budget.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Subject<'a> {
    /// All requests.
    Global,
    Client(Client<'a>),
    /// The values of the key's attributes.
    Values(&'a [&'a str]),
}

impl Subject<'_> {
    /// Whether every value can be part of a key.
    #[inline(always)]
    pub(crate) fn is_valid(&self) -> bool {
        match self {
            Subject::Global | Subject::Client(Client::Numbered(_)) => true,
            Subject::Client(Client::Named(name)) => is_valid(name),
            Subject::Values(values) => values.iter().all(|value| is_valid(value)),
        }
    }
}

impl MemoryStore {
    /// Precomputes the lookup of a tag's budgets under a rule.
    pub(crate) fn lookup(&self, tag: Tag, rule: &Rule, tally: Arc<Tally>) -> Option<Lookup> {
        let width = tag.words().filter(|width| *width <= WIDEST)?;
        let digest = tag.budget.digest(tag.rule);
        let prefix = self.secrets.prefix(digest);
        let global = self.global_slot(self.secrets.identify(&prefix, []), digest);
        let (steps, key_count) = (tag.limits.iter().map(Step::new).collect(), self.room.of(tag.rule));
        Some(Lookup {
            number: tag.number(),
            prefix,
            steps,
            width,
            words: words_of(tag.budget, width),
            unit_cost: tag.unit_cost,
            shadow: rule.is_shadow(),
            warn_at: rule.warns_at(),
            key_count,
            tally,
            global,
            tag,
        })
    }

    /// Locates a budget's packed state, of `W` words, and prefetches it. `inline` is the limit that
    /// came with the request.
    #[inline(always)]
    pub(crate) fn target<'a, const W: usize>(
        &'a self,
        lookup: &'a Lookup,
        subject: Subject<'_>,
        inline: Option<&Limit>,
        cost: u64,
    ) -> Target<'a> {
        let mut prefix = &lookup.prefix;
        let with_period;
        if let Some(Limit(Kind::InlineWindow(window))) = inline {
            with_period = self.secrets.with_period(prefix, window.period);
            prefix = &with_period;
        }
        let Slot { id, home, shard: index } = match subject {
            Subject::Global => lookup.global,
            Subject::Client(client) => self.slot(self.secrets.identify_client(prefix, client)),
            Subject::Values(values) => {
                self.slot(self.secrets.identify(prefix, values.iter().map(|value| value.as_bytes())))
            }
        };
        let shard = &self.shards[index];
        let target = Target { lookup, shard, id, home, cost, charge: cost.saturating_mul(lookup.unit_cost) };
        // Every request draws on a global budget, so its state is cached anyway.
        if !matches!(subject, Subject::Global) {
            prefetch(std::ptr::from_ref(shard).addr());
            self.views.prefetch(target.width::<W>(), index, home);
        }
        target
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
        self.slot(self.secrets.identify_pool(digest))
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
    /// Takes from a copy of the budget's state: see [`packed::take`].
    #[inline(always)]
    pub(super) fn step(&self, decider: Decider<'_>, words: &mut [u64], now: u64) -> Option<bool> {
        match decider {
            Decider::Bucket(bucket) => packed::take_bucket(bucket, words.first_mut()?, now, self.charge),
            Decider::Steps => packed::take(&self.lookup.steps, words, now, self.charge),
            Decider::Inline(Limit(Kind::InlineBucket(bucket))) => {
                packed::take_first(bucket, words, now, self.charge)
            }
            Decider::Inline(limit) => {
                packed::take_other(limit, words, now, self.charge).map(|(fits, _)| fits)
            }
        }
    }

    /// The width of the state: `W`, unless that is [`WIDEST`], which stands for any.
    #[inline(always)]
    pub(crate) const fn width<const W: usize>(&self) -> usize {
        if W < WIDEST { W } else { self.lookup.width }
    }

    /// Whether a decision on the budget has reports: see [`Rule::needs_reports`].
    pub(crate) const fn needs_reports(&self) -> bool {
        self.lookup.shadow || self.lookup.warn_at.is_some()
    }

    /// The report of a limit, with what packed states do not say.
    pub(crate) fn complete(&self, report: Report) -> Report {
        Report { shadow: self.lookup.shadow, warn_at: self.lookup.warn_at, ..report }
    }

    /// Whether only the general path can deny the request: a key without a slot may get one, or a
    /// shadow rule may count an attempt that its report does not show.
    pub(super) fn is_rare(&self, has_new: bool) -> bool {
        match (self.counts_denied(), self.lookup.shadow) {
            (true, true) => true,
            (false, false) => false,
            _ => has_new,
        }
    }

    /// Whether the request changes the budget's state if it is denied.
    pub(super) fn counts_denied(&self) -> bool {
        self.charge > 0 && self.lookup.tag.counts_denied
    }

    /// Whether the budget is global. A global budget needs no room.
    pub(super) fn is_global(&self) -> bool {
        self.id == self.lookup.global.id
    }
}

impl Lookup {
    /// The limit, if it is one token bucket with a one-word state.
    pub(crate) fn bucket(&self) -> Option<Word> {
        match &*self.steps {
            [Step::Bucket(bucket)] => Some(*bucket),
            _ => None,
        }
    }
}

/// The shard of a home: its top bits, since the tables use the lower half.
#[inline]
pub(super) fn shard_of(home: u64) -> usize {
    usize::try_from(home >> 56).unwrap_or(0) % SHARDS
}
