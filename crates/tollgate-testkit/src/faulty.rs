//! A store that fails, hangs and lies on command.

use std::future::pending;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use tollgate::{Applied, Charge, Error, Limit, Op, Store, StoreError, Timestamp};

/// What a [`FaultyStore`] does instead of its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// Nothing: it works.
    None,
    /// It returns an error.
    Fail,
    /// It never answers.
    Hang,
    /// It works, and then never answers.
    HangAfterwards,
    /// It answers fewer charges than it was asked.
    Lie,
}

/// Wraps a store; counts calls; misbehaves when told to.
#[derive(Debug)]
pub struct FaultyStore<S> {
    inner: S,
    fault: AtomicU8,
    calls: AtomicU64,
}

impl<S> FaultyStore<S> {
    /// A store that works, for now.
    pub const fn new(inner: S) -> Self {
        Self { inner, fault: AtomicU8::new(Fault::None as u8), calls: AtomicU64::new(0) }
    }

    /// From now on, this.
    pub fn set(&self, fault: Fault) {
        self.fault.store(fault as u8, Ordering::SeqCst);
    }

    /// How often it was asked to apply anything.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// The store that works.
    pub const fn inner(&self) -> &S {
        &self.inner
    }
}

impl<S: Store> Store for FaultyStore<S> {
    async fn apply(&self, op: Op, charges: &[Charge<'_>], now: Timestamp) -> Result<Applied, StoreError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let is = |fault: Fault| self.fault.load(Ordering::SeqCst) == fault as u8;
        if is(Fault::Fail) {
            return Err(StoreError::Unavailable { reason: "told to fail: secret-host:6379".into() });
        }
        if is(Fault::Hang) {
            pending::<()>().await;
        }
        let mut applied = self.inner.apply(op, charges, now).await?;
        if is(Fault::HangAfterwards) {
            pending::<()>().await;
        }
        if is(Fault::Lie) {
            applied.answers.pop();
        }
        Ok(applied)
    }

    fn accepts(&self, limit: &Limit) -> Result<(), Error> {
        self.inner.accepts(limit)
    }

    fn live_keys(&self) -> Option<u64> {
        self.inner.live_keys()
    }
}
