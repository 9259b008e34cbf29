//! A limiter on a store under test, on a manual clock.

use std::future::Future;
use std::sync::OnceLock;
use std::time::Duration;

use tollgate::{AsRequest, Clock, Decision, Limiter, ManualClock, Rule, RuleSet, Store, Timestamp};

/// Runs a future to completion on the test kit's tokio runtime, which stores under test may also
/// spawn on.
pub fn run<F: Future>(future: F) -> F::Output {
    runtime().block_on(future)
}

pub(crate) fn runtime() -> &'static tokio::runtime::Runtime {
    static RUNTIME: OnceLock<tokio::runtime::Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(2).enable_all().build().expect("a runtime for the tests")
    })
}

/// A limiter, its clock, and plain functions to drive both.
#[derive(Debug)]
pub struct World<S> {
    /// The limiter under test.
    pub limiter: Limiter<S>,
    /// Its manual clock.
    pub clock: ManualClock,
}

/// The start time of worlds: in 2027, not a round number.
pub(crate) const START: Timestamp = Timestamp::from_millis(1_800_000_123_456);

/// The clients of a schedule. The first two are similar on purpose.
pub(crate) const CLIENTS: [&str; 3] = ["a", "a\0", "b"];

impl<S: Store> World<S> {
    /// A limiter with these rules on `store`.
    pub fn new(store: S, rules: impl IntoIterator<Item = Rule>) -> Self {
        Self::with_clock(ManualClock::at(START), store, rules)
    }

    /// A limiter with these rules on `store`, with the given clock.
    pub fn with_clock(clock: ManualClock, store: S, rules: impl IntoIterator<Item = Rule>) -> Self {
        let rules = RuleSet::new(rules).expect("valid rules");
        let builder =
            Limiter::builder(rules).store(store).clock(clock.clone()).deadline(Duration::from_secs(3600));
        Self { limiter: builder.build().expect("the store accepts the limits"), clock }
    }

    /// Checks a request.
    pub fn check(&self, request: impl AsRequest) -> Decision {
        run(self.limiter.check_async(request)).expect("a valid request")
    }

    /// Peeks at a request.
    pub fn peek(&self, request: impl AsRequest) -> Decision {
        run(self.limiter.peek(request)).expect("a valid request")
    }

    /// The current time.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }
}
