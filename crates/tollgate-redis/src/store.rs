//! The store: a whole request, in one round trip.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tollgate::{Applied, Charge, Error, Limit, Op, Store, StoreError, Timestamp};

use redis::Value;

use crate::connection::in_words;
use crate::denials::Denials;
use crate::key::read_name;
use crate::link::{Change, Failure, Link, Tell};
use crate::script::{Line, Reply, Time, Verb, command, reply};
use crate::target::{Target, masked};
use crate::{limit, slots};

/// Keeps what has been drawn in Redis, Valkey, a Sentinel's master or a Cluster, for as many processes as share it.
///
/// Making one does no I/O: it connects when it is first used, inside a tokio runtime. Clones share the connection.
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
    link: Arc<Link>,
    prefix: String,
    time: Time,
    log_ceiling: u64,
    denials: Option<Denials>,
    cluster: bool,
    address: String,
}

/// How the store is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Why requests are not tried at the moment, if they are not. In a Cluster, some of them.
    pub down: Option<String>,
    /// How often it has come to that.
    pub trips: u64,
    /// How many requests were denied without asking Redis.
    pub remembered_denials: u64,
}

/// Puts a [`RedisStore`] together.
pub struct RedisStoreBuilder {
    target: Target,
    address: String,
    deadline: Duration,
    prefix: String,
    time: Time,
    log_ceiling: u64,
    remember_denials: Duration,
    tell: Option<Tell>,
}

impl std::fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisStoreBuilder").field("target", &self.target).finish_non_exhaustive()
    }
}

/// How long keys outlive their idling where time is the caller's: longer than any two callers' clocks should differ.
const CALLER_GRACE: Duration = Duration::from_secs(3600);

impl RedisStore {
    /// A store at this URL, with the usual settings.
    ///
    /// ```text
    /// redis://[user[:password]@]host[:port][/database]
    /// redis+sentinel://[user[:password]@]host[:port],…/service[/database]
    /// redis+cluster://[user[:password]@]host[:port],…
    /// unix:///path/to/socket
    /// ```
    ///
    /// `rediss` instead of `redis` is TLS, with the machine's certificates or `?ca=FILE`, and `&cert=FILE&key=FILE` if
    /// Redis asks who the client is.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if the URL means nothing, without the password that may be in it.
    pub fn open(url: &str) -> Result<Self, Error> {
        Self::builder(url)?.build()
    }

    /// A store at this URL, put together piece by piece.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn builder(url: &str) -> Result<RedisStoreBuilder, Error> {
        Ok(RedisStoreBuilder {
            target: Target::parse(url)?,
            address: masked(url),
            deadline: Duration::from_millis(50),
            prefix: "tollgate".into(),
            time: Time::Server,
            log_ceiling: 10_000,
            remember_denials: Duration::from_secs(1),
            tell: None,
        })
    }

    /// Its URL, without the password: for people to read.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.shared.address
    }

    /// How it is, without asking it.
    #[must_use]
    pub fn status(&self) -> Status {
        let Shared { link, denials, .. } = &*self.shared;
        Status {
            down: link.why_shut(),
            trips: link.trips(),
            remembered_denials: denials.as_ref().map_or(0, Denials::served),
        }
    }

    pub(crate) fn link_and_prefix(&self) -> (&Arc<Link>, &str) {
        (&self.shared.link, &self.shared.prefix)
    }

    /// Asks Redis whether it would decide.
    ///
    /// # Errors
    /// Why it would not.
    pub async fn ping(&self) -> Result<(), StoreError> {
        self.shared.link.ping().await
    }
}

impl RedisStoreBuilder {
    /// How long a Redis that is well may take: 50 milliseconds unless said otherwise. It is the limiter that waits no
    /// longer ([`deadline`](tollgate::LimiterBuilder::deadline)); here it tells a slow Redis from one that is away.
    #[must_use]
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// What all keys begin with: `tollgate` unless said otherwise. Stores with different prefixes know nothing of each
    /// other.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Decides by the caller's clock instead of the server's. Then all processes must agree on the time: this is for
    /// tests and simulations.
    #[must_use]
    pub const fn callers_clock(mut self) -> Self {
        self.time = Time::Caller(CALLER_GRACE);
        self
    }

    /// The largest limit that a sliding log may have: 10 000 unless said otherwise.
    #[must_use]
    pub const fn log_ceiling(mut self, ceiling: u64) -> Self {
        self.log_ceiling = ceiling;
        self
    }

    /// For how long at most a denial is remembered here, without asking Redis again: a second unless said otherwise.
    /// Within that, what another process gives back or resets may go unnoticed here. Zero always asks.
    #[must_use]
    pub const fn remember_denials(mut self, longest: Duration) -> Self {
        self.remember_denials = longest;
        self
    }

    /// Tells when Redis goes away and when it comes back.
    #[must_use]
    pub fn on_change(mut self, tell: impl Fn(&Change) + Send + Sync + 'static) -> Self {
        self.tell = Some(Box::new(tell));
        self
    }

    /// The store. It does not connect yet.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for a setting that cannot be.
    pub fn build(self) -> Result<RedisStore, Error> {
        let Self { target, address, deadline, prefix, time, log_ceiling, remember_denials, tell } = self;
        if prefix.is_empty()
            || prefix.contains(['{', '}'])
            || !prefix.bytes().all(|byte| byte.is_ascii_graphic())
        {
            let reason = "printable, without spaces and braces, and not empty";
            return Err(Error::InvalidConfig { field: "prefix", value: format!("{prefix:?}"), reason });
        }
        let cluster = target.is_cluster();
        let link = Arc::new(Link::new(target.dialer()?, prefix.clone(), deadline, tell));
        let denials = (!remember_denials.is_zero()).then(|| Denials::new(remember_denials));
        Ok(RedisStore {
            shared: Arc::new(Shared { link, prefix, time, log_ceiling, denials, cluster, address }),
        })
    }
}

impl Store for RedisStore {
    async fn apply(&self, op: Op, charges: &[Charge<'_>], now: Timestamp) -> Result<Applied, StoreError> {
        let shared = &*self.shared;
        let Some(denials) = &shared.denials else { return Box::pin(shared.decide(op, charges, now)).await };
        let asked = (op == Op::Take).then(|| denials.identify(charges));
        if let Some(denied) = asked.as_ref().and_then(|asked| denials.find(asked, now)) {
            return Ok(denied);
        }
        // Whatever becomes of it, given up on the way included: Redis may have done it.
        let mut changed = denials.forget_when_dropped(charges);
        // On the heap: what waits for Redis is large, and who need not ask should not carry it about.
        let applied = Box::pin(shared.decide(op, charges, now)).await;
        let remembered = match (&applied, asked) {
            (Ok(applied), Some(asked)) => denials.keep(asked, charges, applied, now),
            _ => false,
        };
        if remembered || op == Op::Peek {
            changed.nothing();
        }
        applied
    }

    async fn clear(&self, rule: &str) -> Result<u64, StoreError> {
        let Shared { link, prefix, denials, .. } = &*self.shared;
        let mut keys = 0_u64;
        let is_wanted = |name: &str| read_name(prefix, name).is_some_and(|(other, _)| other == rule);
        let unlink = |name: &str| redis::cmd("UNLINK").arg(name).take();
        let unlinked = link.spare().await?.ask_every(prefix, is_wanted, unlink, |_, answer| {
            keys = keys.saturating_add(u64::from(matches!(answer, Value::Int(1..))));
            true
        });
        let unlinked = unlinked.await.map_err(|error| StoreError::Unavailable { reason: in_words(&error) });
        // However far it got.
        denials.iter().for_each(Denials::forget_all);
        unlinked.map(|()| keys)
    }

    fn accepts(&self, limit: &Limit) -> Result<(), Error> {
        limit::check(limit, self.shared.log_ceiling)
    }
}

impl Shared {
    /// Decides by asking Redis.
    async fn decide(&self, op: Op, charges: &[Charge<'_>], now: Timestamp) -> Result<Applied, StoreError> {
        let rule_of =
            |charge: &Charge<'_>| charges.iter().position(|other| other.key.rule() == charge.key.rule());
        let line = |charge: &Charge<'_>| Line::new(&self.prefix, charge, rule_of(charge).unwrap_or(0) + 1);
        let lines: SmallVec<[Line; 4]> = charges.iter().map(line).collect();
        let one_slot = lines.iter().all(|line| line.slot == lines.first().map_or(0, |first| first.slot));
        let Reply { now, answers, converted, changed, .. } = if self.cluster && !one_slot {
            slots::decide(self, op, &lines, now).await?
        } else {
            self.run(Verb::Op(op), &lines, &[], now).await?
        };
        Ok(Applied { now, answers, changed, converted })
    }

    /// Runs the script over keys of one slot. A server that does not have it is sent it whole.
    pub(crate) async fn run(
        &self,
        verb: Verb,
        lines: &[Line],
        tickets: &[String],
        now: Timestamp,
    ) -> Result<Reply, StoreError> {
        let slot = lines.first().map_or(0, |line| line.slot);
        let send = async |in_full: bool| match command(verb, lines, tickets, now, self.time, in_full) {
            Ok(command) => self.link.send(slot, &command).await,
            Err(error) => Err(Failure::Store(error)),
        };
        let answer = match send(false).await {
            Err(Failure::NoScript) => send(true).await,
            answer => answer,
        };
        reply(&answer?, verb, lines)
    }
}
