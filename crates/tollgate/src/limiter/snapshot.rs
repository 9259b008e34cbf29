//! Snapshots of the rules, for a request that takes several operations.
//!
//! A snapshot is entered while a future is polled, as a tracing span is. Operations find it in a
//! thread-local variable, and only where they would otherwise read the shared pointer: outside of
//! snapshots nothing is slower.

use std::cell::RefCell;
use std::future::poll_fn;
use std::sync::Arc;

use super::Limiter;
use super::active::{CachedRules, swap_cached};
use super::prepared::Prepared;
use crate::store::Store;

thread_local!(static ENTERED: RefCell<Vec<RulesSnapshot>> = const { RefCell::new(Vec::new()) });

/// The rules of a limiter at one moment. Made by [`Limiter::snapshot`].
#[derive(Clone, Debug)]
pub struct RulesSnapshot {
    pub(super) limiter: u64,
    pub(super) version: u64,
    pub(super) prepared: Arc<Prepared>,
}

impl RulesSnapshot {
    /// Runs a future whose asynchronous operations on the limiter use these rules, whatever
    /// [`Limiter::set_rules`] does meanwhile. The synchronous ones, `check` and `check_many`, may
    /// use newer rules.
    ///
    /// ```
    /// use tollgate::{Limit, Limiter, RuleSet, block_on};
    ///
    /// let limiter = Limiter::new(Limit::per_minute(2));
    /// let before = limiter.snapshot();
    /// limiter.set_rules(RuleSet::per_client(Limit::per_minute(5)))?;
    /// assert_eq!(block_on(before.scope(limiter.check_async("alice")))?.remaining(), 1);
    /// assert_eq!(block_on(limiter.check_async("alice"))?.remaining(), 3);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        let (snapshot, mut future) = (self.clone(), Box::pin(future));
        poll_fn(move |context| {
            let _entered = Entered::new(snapshot.clone());
            future.as_mut().poll(context)
        })
    }
}

impl<S: Store> Limiter<S> {
    /// A snapshot of the rules in force.
    #[must_use]
    pub fn snapshot(&self) -> RulesSnapshot {
        self.shared.rules.snapshot()
    }
}

/// Calls `f` with the limiter's entered snapshot, if there is one.
pub(super) fn entered<R>(limiter: u64, f: impl FnOnce(&RulesSnapshot) -> R) -> Option<R> {
    let find = |entered: &RefCell<Vec<RulesSnapshot>>| {
        let entered = entered.borrow();
        entered.iter().rev().find(|snapshot| snapshot.limiter == limiter).map(f)
    };
    ENTERED.try_with(find).ok().flatten()
}

/// An entered snapshot, left when dropped. The thread's cached rules are set aside meanwhile, since
/// they would hide it.
struct Entered(Option<CachedRules>);

impl Entered {
    fn new(snapshot: RulesSnapshot) -> Self {
        let _ = ENTERED.try_with(|entered| entered.borrow_mut().push(snapshot));
        Self(swap_cached(None))
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let left = ENTERED.try_with(|entered| entered.borrow_mut().pop());
        drop((left, swap_cached(self.0.take())));
    }
}
