//! The store: one round trip per request.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tollgate::{Applied, Charge, Error, Limit, Op, Rule, Store, StoreError, Timestamp};

use crate::calendar::Windows;
use crate::denials::{Denials, Fingerprint, Invalidation};
use crate::key::blocks_key;
use crate::link::{Change, Link, OnChange, SendError};
use crate::script::{COST_MAX, Call, Reply, ScriptCharge, TimeSource, Verb, command, parse_reply};
use crate::target::{Target, masked};
use crate::{limit, slots};

/// A [`Store`] on Redis or Valkey: one server, a Sentinel's master or a Cluster. All processes that
/// use it share one budget.
///
/// Building a store does no I/O. It connects on first use, inside a tokio runtime. Clones share the
/// connection.
///
/// ```no_run
/// use tollgate::{Limit, Limiter, RuleSet, TokioClock};
/// use tollgate_redis::RedisStore;
///
/// # async fn example() -> Result<(), tollgate::Error> {
/// let limiter = Limiter::builder(RuleSet::per_client(Limit::per_second(10)))
///     .store(RedisStore::open("redis://127.0.0.1:6379")?)
///     .clock(TokioClock)
///     .build()?;
/// let decision = limiter.check_async("alice").await?;
/// # let _ = decision;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RedisStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) link: Arc<Link>,
    pub(crate) prefix: String,
    pub(crate) time: TimeSource,
    log_ceiling: u64,
    denials: Option<Denials>,
    pub(crate) cluster: bool,
    address: String,
}

/// The health of a store, and its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Why the circuit breaker is open, if it is. In a Cluster, why the first open breaker is:
    /// others may be closed.
    pub down: Option<String>,
    /// Times the circuit breaker opened.
    pub trips: u64,
    /// Requests denied from the cache of denials, without asking Redis.
    pub remembered_denials: u64,
    /// Times the connection moved to another master that Sentinels named.
    pub master_switches: u64,
    /// The time that the last probe took; `None` before the first one was answered.
    pub round_trip: Option<Duration>,
}

/// Builds a [`RedisStore`].
pub struct RedisStoreBuilder {
    target: Target,
    address: String,
    deadline: Duration,
    connect_timeout: Duration,
    probe_interval: Duration,
    prefix: String,
    time: TimeSource,
    log_ceiling: u64,
    remember_denials: Duration,
    on_change: Option<OnChange>,
}

impl std::fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisStoreBuilder").field("target", &self.target).finish_non_exhaustive()
    }
}

/// Expiry grace of keys under the callers' clocks: more than any two of them should differ.
const CALLER_GRACE: Duration = Duration::from_secs(3600);

/// The most round trips of a connection: TCP, TLS 1.2, and the login.
const CONNECT_ROUND_TRIPS: u32 = 4;

/// The most charges of one write: half of what may be in flight, so that a batch leaves room for
/// others.
const BATCH_MAX: usize = 32;

impl RedisStore {
    /// A store at this URL, with the default settings.
    ///
    /// ```text
    /// redis://[user[:password]@]host[:port][/database]
    /// redis+sentinel://[user[:password]@]host[:port],…/service[/database]
    /// redis+cluster://[user[:password]@]host[:port],…
    /// unix:///path/to/socket
    /// ```
    ///
    /// `rediss` instead of `redis` is TLS, verified by the system's CA certificates or `?ca=FILE`.
    /// `&cert=FILE&key=FILE` is the client certificate, if Redis asks for one.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if the URL is not valid. The error does not contain the password.
    pub fn open(url: &str) -> Result<Self, Error> {
        Self::builder(url)?.build()
    }

    /// A builder for a store at this URL.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn builder(url: &str) -> Result<RedisStoreBuilder, Error> {
        Ok(RedisStoreBuilder {
            target: Target::parse(url)?,
            address: masked(url),
            deadline: Duration::from_millis(50),
            connect_timeout: Duration::from_secs(1),
            probe_interval: Duration::from_secs(1),
            prefix: "tollgate".into(),
            time: TimeSource::Server,
            log_ceiling: 20_000,
            remember_denials: Duration::from_secs(1),
            on_change: None,
        })
    }

    /// The URL without its password, for logs.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.shared.address
    }

    /// The health of the store. Does no I/O.
    #[must_use]
    pub fn status(&self) -> Status {
        let Shared { link, denials, .. } = &*self.shared;
        Status {
            down: link.open_reason(),
            trips: link.trips(),
            remembered_denials: denials.as_ref().map_or(0, Denials::hits),
            master_switches: link.moves(),
            round_trip: link.round_trip(),
        }
    }

    pub(crate) fn denials(&self) -> Option<&Denials> {
        self.shared.denials.as_ref()
    }

    pub(crate) fn link_and_prefix(&self) -> (&Arc<Link>, &str) {
        (&self.shared.link, &self.shared.prefix)
    }

    pub(crate) fn time_source(&self) -> TimeSource {
        self.shared.time
    }

    /// Checks that Redis can run the script.
    ///
    /// # Errors
    /// Why it cannot.
    pub async fn ping(&self) -> Result<(), StoreError> {
        self.shared.link.ping().await
    }
}

impl RedisStoreBuilder {
    /// The longest response time of a healthy Redis: 50 milliseconds by default. The limiter
    /// enforces it ([`deadline`](tollgate::LimiterBuilder::deadline)); the store uses it as the
    /// timeout of probes.
    #[must_use]
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// How long a host may take to accept a connection, with its handshakes, and to load the
    /// script: one second by default, and at least four deadlines, because a connection with TLS
    /// takes up to four round trips. The checks of a process that has not connected yet wait for
    /// it.
    #[must_use]
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long the store may be idle before it is probed, so that [`RedisStore::status`] is true
    /// also without traffic: one second by default.
    #[must_use]
    pub const fn probe_interval(mut self, interval: Duration) -> Self {
        self.probe_interval = interval;
        self
    }

    /// The prefix of all keys: `tollgate` by default. Stores with different prefixes are
    /// independent.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Decides by the caller's clock instead of the server's. For tests and simulations: all
    /// processes must agree on the time.
    #[must_use]
    pub const fn callers_clock(mut self) -> Self {
        self.time = TimeSource::Caller(CALLER_GRACE);
        self
    }

    /// The most units of a sliding log, its limit and its debt together: 20 000 by default.
    #[must_use]
    pub const fn log_ceiling(mut self, ceiling: u64) -> Self {
        self.log_ceiling = ceiling;
        self
    }

    /// The longest time that a denial is cached in this process: one second by default, zero for no
    /// cache. Within that time this process may miss a refund or reset by another.
    #[must_use]
    pub const fn remember_denials(mut self, max_age: Duration) -> Self {
        self.remember_denials = max_age;
        self
    }

    /// Calls `callback` with each [`Change`] of the store's health.
    #[must_use]
    pub fn on_change(mut self, callback: impl Fn(&Change) + Send + Sync + 'static) -> Self {
        self.on_change = Some(Box::new(callback));
        self
    }

    /// Builds the store. Does not connect.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if a setting is not valid.
    pub fn build(self) -> Result<RedisStore, Error> {
        let Self {
            target,
            address,
            deadline,
            probe_interval,
            prefix,
            time,
            log_ceiling,
            remember_denials,
            on_change,
            ..
        } = self;
        let connect_timeout = self.connect_timeout.max(deadline.saturating_mul(CONNECT_ROUND_TRIPS));
        if prefix.is_empty()
            || prefix.contains(['{', '}'])
            || !prefix.bytes().all(|byte| byte.is_ascii_graphic())
        {
            let reason = "printable ASCII without spaces and braces, and not empty";
            return Err(Error::InvalidConfig { field: "prefix", value: format!("{prefix:?}"), reason });
        }
        let cluster = target.is_cluster();
        let dialer = target.dialer(connect_timeout, deadline)?;
        let link = Link::new(dialer, prefix.clone(), deadline, connect_timeout, probe_interval, on_change);
        let link = Arc::new(link);
        let denials = (!remember_denials.is_zero()).then(|| Denials::new(remember_denials));
        Ok(RedisStore {
            shared: Arc::new(Shared { link, prefix, time, log_ceiling, denials, cluster, address }),
        })
    }
}

impl Store for RedisStore {
    async fn apply(&self, op: Op, charges: &[Charge<'_>], now: Timestamp) -> Result<Applied, StoreError> {
        self.shared.apply(op, charges, now).await
    }

    async fn apply_each(
        &self,
        op: Op,
        requests: &[&[Charge<'_>]],
        now: Timestamp,
    ) -> Vec<Result<Applied, StoreError>> {
        Box::pin(self.shared.apply_each(op, requests, now)).await
    }

    fn recall(&self, op: Op, charges: &[Charge<'_>], now: Timestamp) -> Option<Applied> {
        self.shared.recall(op, charges, now)
    }

    fn batch_max(&self) -> usize {
        BATCH_MAX
    }

    async fn ready(&self) {
        self.shared.link.ready().await;
    }

    async fn clear(&self, rule: &str) -> Result<u64, StoreError> {
        self.clear_with(rule, |_| ()).await
    }

    fn accepts(&self, limit: &Limit) -> Result<(), Error> {
        limit::check(limit, self.shared.log_ceiling)
    }

    /// The script counts what a rule, its debt and its overflow have together. In a Cluster, it
    /// reaches both budgets only if they are in the same slot: only if both rules count by the same
    /// attributes.
    fn accepts_overflow(&self, rule: &Rule, into: &Rule) -> Result<(), Error> {
        let most = |rule: &Rule, units: fn(&Limit) -> u64| rule.limits().iter().map(units).max().unwrap_or(0);
        let own = most(rule, |limit| limit.capacity().saturating_add(limit.max_debt()));
        let reason = if own.saturating_add(most(into, Limit::capacity)) > COST_MAX {
            format!(
                "with its debt and the rule {:?} it has more than {COST_MAX} units, which Redis cannot \
                 count exactly; lower one of them",
                into.name().as_str()
            )
        } else if self.shared.cluster && rule.key_attributes() != into.key_attributes() {
            format!(
                "the rule {:?} has another key, and a Redis Cluster may keep the two on different servers; \
                 write the same key in both, or use one Redis server",
                into.name().as_str()
            )
        } else {
            return Ok(());
        };
        Err(Error::InvalidRule { rule: rule.name().to_string(), field: "overflow", reason })
    }
}

/// An operation that Redis is to decide, and what its answer means for the cache of denials.
/// Without a cache it is `None`.
pub(crate) type Pending<'a> = Option<PendingDenial<'a>>;

pub(crate) struct PendingDenial<'a> {
    request: Fingerprint,
    /// Dropped also if the call is cancelled: Redis may have executed the operation.
    invalidation: Invalidation<'a>,
}

impl Shared {
    pub(crate) async fn apply(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        let pending = match self.begin(op, charges, now) {
            Ok(pending) => pending,
            Err(denied) => return Ok(*denied),
        };
        // Boxed: this future is large, and a request answered from the cache should not carry it.
        let applied = Box::pin(self.decide(op, charges, now)).await;
        self.finish(pending, op, charges, applied.as_ref().ok(), now);
        applied
    }

    /// A denial that is remembered.
    fn recall(&self, op: Op, charges: &[Charge<'_>], now: Timestamp) -> Option<Applied> {
        let denials = self.denials.as_ref().filter(|_| is_cacheable(op, charges))?;
        denials.find(&denials.fingerprint(charges), now)
    }

    /// Begins an operation.
    ///
    /// # Errors
    /// The answer, if it is a denial that is remembered.
    pub(crate) fn begin(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> Result<Pending<'_>, Box<Applied>> {
        let Some(denials) = &self.denials else { return Ok(None) };
        let request = denials.fingerprint(charges);
        let denied = is_cacheable(op, charges).then(|| denials.find(&request, now)).flatten();
        match denied {
            Some(denied) => Err(Box::new(denied)),
            None => {
                let invalidation = denials.invalidate_on_drop(&request);
                Ok(Some(PendingDenial { request, invalidation }))
            }
        }
    }

    /// Remembers the answer of Redis if it is a denial, and forgets denials that it may have
    /// changed.
    pub(crate) fn finish(
        &self,
        pending: Pending<'_>,
        op: Op,
        charges: &[Charge<'_>],
        applied: Option<&Applied>,
        now: Timestamp,
    ) {
        let (Some(denials), Some(pending), Some(applied)) = (&self.denials, pending, applied) else { return };
        let PendingDenial { request, mut invalidation } = pending;
        let is_cached = is_cacheable(op, charges) && denials.insert(&request, charges, applied, now);
        if is_cached || op == Op::Peek {
            invalidation.cancel();
        }
        drop(invalidation);
        denials.note(&request, applied, now);
    }

    /// Decides in Redis.
    async fn decide(&self, op: Op, charges: &[Charge<'_>], now: Timestamp) -> Result<Applied, StoreError> {
        let charges: SmallVec<[ScriptCharge; 4]> =
            (0..charges.len()).map(|index| ScriptCharge::new(&self.prefix, charges, index)).collect();
        let first_slot = charges.first().map_or(0, |first| first.slot);
        let one_slot = charges.iter().all(|charge| charge.slot == first_slot);
        let Reply { now, answers, converted, changed, .. } = if self.cluster && !one_slot {
            slots::decide(self, op, &charges, now).await?
        } else {
            self.run(Verb::Op(op), &charges, &[], now).await?
        };
        Ok(Applied { now, answers, changed, converted })
    }

    /// The index of blocks that a verb on keys of this slot writes.
    pub(crate) fn index(&self, verb: Verb, slot: u16) -> Option<String> {
        verb.indexes().then(|| blocks_key(&self.prefix, self.cluster.then_some(slot)))
    }

    /// Runs the script on keys of one slot. Sends its source to a server that does not have it.
    pub(crate) async fn run(
        &self,
        verb: Verb,
        charges: &[ScriptCharge],
        tickets: &[String],
        now: Timestamp,
    ) -> Result<Reply, StoreError> {
        let slot = charges.first().map_or(0, |charge| charge.slot);
        let mut windows = Windows::of(charges, now);
        let index = self.index(verb, slot);
        let call = Call { verb, charges, tickets, index: index.as_deref(), now, time: self.time };
        loop {
            let send = async |with_source: bool| match command(call, &windows, with_source) {
                Ok(command) => self.link.send(slot, &command).await,
                Err(error) => Err(SendError::Store(error)),
            };
            let answer = match send(false).await {
                Err(SendError::NoScript) => send(true).await,
                answer => answer,
            }?;
            // Each round adds a window that was missing, and the moments of a request are few.
            if !windows.add_requested(&answer) {
                return parse_reply(&answer, verb, charges);
            }
        }
    }
}

fn is_cacheable(op: Op, charges: &[Charge<'_>]) -> bool {
    op == Op::Take && !charges.iter().any(|charge| charge.record_denied)
}
