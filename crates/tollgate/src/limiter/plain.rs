//! Plain rules: rules that apply to every client alike, so that a request needs no search.

use crate::algorithm::token_bucket::Word;
use crate::key::checked_value;
use crate::memory::{Lookup, Target};
use crate::request::{CLIENT, Client};
use crate::{MemoryStore, Request};

/// The rules of a set in which every rule applies to every client's requests alike: no search is
/// needed.
#[derive(Debug)]
pub(super) struct PlainRules {
    /// The limit, if there is one rule with one limit, a token bucket with a one-word state.
    pub(super) bucket: Option<Word>,
    /// Whether a rule counts by client.
    pub(super) by_client: bool,
    /// Words of the state of each rule's budget; 0 if they differ.
    pub(super) width: usize,
    pub(super) first: PlainRule,
    pub(super) others: Box<[PlainRule]>,
}

impl PlainRules {
    pub(super) fn same(&self, other: &Self) -> bool {
        self.first == other.first && self.others == other.others
    }
}

#[derive(Debug, PartialEq)]
pub(super) struct PlainRule {
    /// Whether the rule counts by client; otherwise its budget is global.
    pub(super) by_client: bool,
    pub(super) lookup: Lookup,
}

impl PlainRules {
    /// Locates the budget of a request under the first rule, whose state has one word. `None` if
    /// the request needs the general path.
    #[inline(always)]
    pub(super) fn locate_first<'a>(
        &'a self,
        memory: &'a MemoryStore,
        request: &Request<'_>,
    ) -> Option<Target<'a>> {
        let (cost, client) = self.cost_and_client(request)?;
        Some(self.first.locate(memory, 1, cost, client))
    }

    /// Locates the budgets of a request under these `N` rules, whose states have `width` words.
    #[inline(always)]
    pub(super) fn locate<'a, const N: usize>(
        &'a self,
        memory: &'a MemoryStore,
        width: usize,
        cost: u64,
        client: Option<Client<'_>>,
    ) -> [Target<'a>; N] {
        let mut targets = [self.first.locate(memory, width, cost, client); N];
        for (target, rule) in targets.iter_mut().skip(1).zip(&self.others) {
            *target = rule.locate(memory, width, cost, client);
        }
        targets
    }

    /// The cost of a request, and its client if a rule counts by it. `None` if the request needs
    /// the general path.
    #[inline(always)]
    pub(super) fn cost_and_client<'a>(&self, request: &Request<'a>) -> Option<(u64, Option<Client<'a>>)> {
        let (cost, true) = (request.valid_cost()?, request.is_unscoped()) else { return None };
        if !self.by_client {
            return Some((cost, None));
        }
        match request.only_client() {
            Some(client) if is_valid(&client) => Some((cost, Some(client))),
            _ => None,
        }
    }
}

impl PlainRule {
    /// Locates the budget of a client, whose state has `width` words.
    #[inline(always)]
    pub(super) fn locate<'a>(
        &'a self,
        memory: &'a MemoryStore,
        width: usize,
        cost: u64,
        client: Option<Client<'_>>,
    ) -> Target<'a> {
        let client = if self.by_client { client } else { None };
        memory.target_packed(&self.lookup, client, width, cost)
    }
}

#[inline]
pub(super) fn is_valid(client: &Client<'_>) -> bool {
    match client {
        Client::Named(name) => checked_value(CLIENT, name).is_ok(),
        Client::Numbered(_) => true,
    }
}
