//! Plain rules: rules that apply to every client alike, so that a request needs no search.

use crate::algorithm::token_bucket::Word;
use crate::key::checked_value;
use crate::limit::Kind;
use crate::memory::{Lookup, Subject, Target};
use crate::request::{CLIENT, Client};
use crate::{Limit, MemoryStore, Request, RuleName};

/// The rules of a set in which every rule applies to every client's requests alike: no search is
/// needed.
#[derive(Debug)]
pub(super) struct PlainRules {
    /// The limit, if there is one rule with one limit, a token bucket with a one-word state.
    pub(super) bucket: Option<Word>,
    /// Words of the state of each rule's budget; 0 if they differ.
    pub(super) width: usize,
    pub(super) first: PlainRule,
    pub(super) others: Box<[PlainRule]>,
    /// The inline rules that count by client, which requests name.
    pub(super) inline: Box<[PlainInline]>,
}

/// An inline rule that counts by client.
#[derive(Debug, PartialEq)]
pub(super) struct PlainInline {
    pub(super) name: RuleName,
    /// The lookup of token buckets, and that of windows.
    pub(super) lookups: [Lookup; 2],
}

impl PlainRules {
    pub(super) fn same(&self, other: &Self) -> bool {
        self.first == other.first && self.others == other.others && self.inline == other.inline
    }

    /// The lookup of requests that name an inline rule and have this limit.
    #[inline]
    pub(super) fn inline(&self, rule: &str, limit: &Limit) -> Option<&Lookup> {
        let [bucket, window] = &self.inline.iter().find(|inline| *inline.name == *rule)?.lookups;
        match limit.0 {
            Kind::InlineBucket(_) => Some(bucket),
            Kind::InlineWindow(_) => Some(window),
            _ => None,
        }
    }
}

#[derive(Debug, PartialEq)]
pub(super) struct PlainRule {
    /// Whether the rule counts by client; otherwise its budget is global.
    pub(super) by_client: bool,
    pub(super) lookup: Lookup,
}

impl PlainRules {
    /// Locates the budgets of a request under these `N` rules, whose states have `width` words.
    /// `None` if the request needs the general path.
    #[inline(always)]
    pub(super) fn locate<'a, const N: usize>(
        &'a self,
        memory: &'a MemoryStore,
        width: usize,
        request: &Request<'_>,
    ) -> Option<[Target<'a>; N]> {
        let cost = plain_cost(request)?;
        let mut targets = [self.first.locate(memory, width, cost, request)?; N];
        for (target, rule) in targets.iter_mut().skip(1).zip(&self.others) {
            *target = rule.locate(memory, width, cost, request)?;
        }
        Some(targets)
    }
}

impl PlainRule {
    /// Whether the budget of a request can be located: see [`locate`](Self::locate).
    pub(super) fn covers(&self, request: &Request<'_>) -> bool {
        let has_client = || request.only_client().is_some_and(|client| is_valid(&client));
        plain_cost(request).is_some() && (!self.by_client || has_client())
    }

    /// Locates the budget of a request, whose state has `width` words. `None` if the request needs
    /// the general path.
    #[inline(always)]
    pub(super) fn locate<'a>(
        &'a self,
        memory: &'a MemoryStore,
        width: usize,
        cost: u64,
        request: &Request<'_>,
    ) -> Option<Target<'a>> {
        if !self.by_client {
            return Some(memory.target_packed(&self.lookup, None, width, cost));
        }
        let client = request.only_client().filter(is_valid)?;
        Some(memory.target_packed(&self.lookup, Some(client), width, cost))
    }
}

/// Locates the budget of a request with an inline limit, under a rule that counts by client. `None`
/// if the request needs the general path.
#[inline]
pub(super) fn locate_inline<'a>(
    memory: &'a MemoryStore,
    lookup: &'a Lookup,
    limit: &Limit,
    request: &Request<'_>,
) -> Option<Target<'a>> {
    let client = request.only_client().filter(is_valid)?;
    memory.target(lookup, Subject::Client(client), Some(limit), request.valid_cost()?)
}

/// The cost of a request, if it is valid and plain rules apply to the request.
#[inline(always)]
pub(super) fn plain_cost(request: &Request<'_>) -> Option<u64> {
    request.valid_cost().filter(|_| request.is_unscoped())
}

#[inline]
pub(super) fn is_valid(client: &Client<'_>) -> bool {
    match client {
        Client::Named(name) => checked_value(CLIENT, name).is_ok(),
        Client::Numbered(_) => true,
    }
}
