//! A store that fails, hangs and lies on command.

use std::future::pending;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use tollgate::{Applied, Charge, Error, Limit, Op, Store, StoreError, Timestamp};

/// How a [`FaultyStore`] misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// It works.
    None,
    /// It returns an error.
    Fail,
    /// It never answers.
    Hang,
    /// It applies the operation, but never answers.
    HangAfterwards,
    /// It answers too few charges.
    Lie,
}

/// A wrapper that counts the calls of a store and misbehaves on command.
#[derive(Debug)]
pub struct FaultyStore<S> {
    inner: S,
    fault: AtomicU8,
    calls: AtomicU64,
}

impl<S> FaultyStore<S> {
    /// A wrapper with no fault.
    pub const fn new(inner: S) -> Self {
        Self { inner, fault: AtomicU8::new(Fault::None as u8), calls: AtomicU64::new(0) }
    }

    /// Sets the fault.
    pub fn set(&self, fault: Fault) {
        self.fault.store(fault as u8, Ordering::SeqCst);
    }

    /// The number of calls of `apply`.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// The wrapped store.
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
