//! Checks of many requests: locate them all, read the clock once, then decide one after the other.
//! Their cache misses overlap.

use smallvec::SmallVec;

use super::check::{InMemory, decision};
use super::prepared::{PlainRules, Prepared};
use crate::algorithm::token_bucket::Word;
use crate::memory::{Decider, Target};
use crate::stats::stripe_index;
use crate::store::Store;
use crate::{AsRequest, Decision, Error};

/// Requests of a batch that are located before the first is decided: enough to keep as many cache
/// misses in flight as a processor can, few enough that no prefetched line is evicted again.
const BATCH: usize = 64;

impl<S: Store> InMemory<'_, S> {
    /// Checks requests one after the other, as [`Limiter::check_many`](crate::Limiter::check_many)
    /// does.
    pub fn check_many<R: AsRequest>(&self, requests: &[R], mut each: impl FnMut(Result<Decision, Error>)) {
        for batch in requests.chunks(BATCH) {
            let rules = self.shared.rules.current();
            // Requests of a batch are usually alike: the first tells whether they are plain.
            let is_plain = |plain: &PlainRules| {
                let first = batch.first();
                first.is_some_and(|first| first.with_request(|first| plain.covers(&first)))
            };
            match &rules.plain {
                Some(plain @ PlainRules { bucket: Some(bucket), .. }) if is_plain(plain) => {
                    self.check_batch_of_words(bucket, plain, &rules, batch, &mut each);
                }
                _ => self.check_batch(&rules, batch, &mut each),
            }
        }
    }

    /// Checks a batch under the only rule, with one token bucket.
    fn check_batch_of_words<R: AsRequest>(
        self,
        bucket: &Word,
        plain: &PlainRules,
        rules: &Prepared,
        batch: &[R],
        each: &mut impl FnMut(Result<Decision, Error>),
    ) {
        let mut located = [None; BATCH];
        for (request, targets) in batch.iter().zip(&mut located) {
            *targets = request.with_request(|request| plain.locate::<1, 1>(self.memory, &request));
        }
        let (now, mut decided) = (self.shared.clock.now(), [0_u64; 2]);
        for (request, targets) in batch.iter().zip(&located) {
            let decider = Decider::Bucket(bucket);
            let taken = targets.as_ref().and_then(|targets| self.memory.take::<1, 1>(targets, decider, now));
            let (Some(targets), Some(taken)) = (targets, taken) else {
                each(request.with_request(|request| match targets {
                    Some(targets) => self.take_any(rules, targets, &request, now),
                    None => self.check_any(rules, &request),
                }));
                continue;
            };
            let counter = &mut decided[usize::from(taken.denied == 0)];
            *counter = counter.wrapping_add(1);
            match self.shared.observer {
                None => each(Ok(decision(targets, &taken, decider))),
                Some(_) => each(Ok(self.observed(request, targets, &{ taken }, decider))),
            }
        }
        let stripe = stripe_index();
        plain.first.lookup.tally.count_many_at(stripe, decided);
        self.shared.total.count_many_at(stripe, decided);
    }

    /// Checks a batch under any rules.
    fn check_batch<R: AsRequest>(
        self,
        rules: &Prepared,
        batch: &[R],
        each: &mut impl FnMut(Result<Decision, Error>),
    ) {
        let mut targets: SmallVec<[Target<'_>; BATCH]> = SmallVec::new();
        let mut ends: SmallVec<[usize; BATCH]> = SmallVec::new();
        for request in batch {
            request.with_request(|request| rules.locate(self.memory, &request, &mut targets));
            ends.push(targets.len());
        }
        let (now, mut start) = (self.shared.clock.now(), 0);
        for (request, end) in batch.iter().zip(ends) {
            let of_request = targets.get(start..end).unwrap_or_default();
            start = end;
            each(request.with_request(|request| self.take_any(rules, of_request, &request, now)));
        }
    }
}
