//! The layer: a limiter, and the settings that apply it to requests.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Extensions, HeaderMap, Response, StatusCode};
use tollgate::{Decision, Error, Limiter, MAX_COUNT, MemoryStore, Request, RequestBuf, Store};
use tower_layer::Layer;
use tracing::warn;

use crate::connection_slot::SlotSettings;
use crate::denied::denied;
use crate::waiting::{WAITERS_MAX, WaiterCounts, Waiting};
use crate::{Head, Headers, Identity, RateLimit, UNIDENTIFIED};

/// The warning about the first request without an identity.
const NO_IDENTITY: &str = "a request has no identity, and all such requests share one budget; in axum, \
                           serve `into_make_service_with_connect_info::<SocketAddr>()`; elsewhere, insert \
                           a `PeerAddr` into each request, or choose another `Identity`";

/// How long a slot is held without a renewal.
const SLOT_TTL: Duration = Duration::from_secs(30);

/// Puts a limiter in front of a service.
///
/// Clones share all state. A request that meets clones of one limiter several times (in a layer on
/// its route and in one on the router) is decided and charged by the first. A rule that counts by
/// an attribute does not cover a request without that attribute: count by `client`, which every
/// request has, or by an attribute that an earlier layer guarantees.
pub struct RateLimitLayer<S = MemoryStore>(pub(crate) Arc<Gate<S>>);

/// The state that all clones share.
pub(crate) struct Gate<S> {
    pub(crate) limiter: Limiter<S>,
    pub(crate) headers: Headers,
    pub(crate) by_response: Option<ByResponse>,
    pub(crate) slots: SlotSettings,
    pub(crate) waiting: Option<Waiting>,
    identity: Identity,
    attributes: Vec<(String, Arc<Extract>)>,
    cost: Option<Arc<Cost>>,
    on_denied: Option<Arc<OnDenied>>,
    unidentified: Arc<AtomicU64>,
}

type Extract = dyn Fn(Head<'_>) -> Option<String> + Send + Sync;
type Cost = dyn Fn(Head<'_>) -> u64 + Send + Sync;
type OnDenied = dyn Fn(&Decision) -> Response<Bytes> + Send + Sync;

/// Settles a request's reservation by its response.
#[derive(Clone)]
pub(crate) struct ByResponse {
    pub(crate) ttl: Duration,
    pub(crate) cost: Arc<dyn Fn(Answered<'_>) -> u64 + Send + Sync>,
}

/// The head of a response: all but its body.
#[derive(Clone, Copy, Debug)]
pub struct Answered<'a> {
    /// The status.
    pub status: StatusCode,
    /// The header fields.
    pub headers: &'a HeaderMap,
    /// The extensions, which may have the actual cost.
    pub extensions: &'a Extensions,
}

impl<S> RateLimitLayer<S> {
    /// A layer that identifies clients by their peer's address, and charges 1 per request.
    #[must_use]
    pub fn new(limiter: Limiter<S>) -> Self {
        Self(Arc::new(Gate {
            limiter,
            headers: Headers::default(),
            by_response: None,
            slots: SlotSettings::new(SLOT_TTL),
            waiting: None,
            identity: Identity::default(),
            attributes: Vec::new(),
            cost: None,
            on_denied: None,
            unidentified: Arc::default(),
        }))
    }

    /// Sets the identity of clients.
    #[must_use]
    pub fn identity(self, identity: Identity) -> Self {
        self.with(|gate| gate.identity = identity)
    }

    /// Adds a custom attribute that rules may count by and match on.
    #[must_use]
    pub fn attribute(
        self,
        name: impl Into<String>,
        value: impl Fn(Head<'_>) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.with(|gate| gate.attributes.push((name.into(), Arc::new(value))))
    }

    /// Sets the cost of a request, which is 1 by default. A request that costs more than a limit's
    /// capacity is always denied.
    #[must_use]
    pub fn cost(self, cost: impl Fn(Head<'_>) -> u64 + Send + Sync + 'static) -> Self {
        self.with(|gate| gate.cost = Some(Arc::new(cost)))
    }

    /// Charges by response. A request reserves its cost, an estimate, before the service is called.
    /// The response determines the actual cost: the difference is given back, or drawn.
    ///
    /// A request that is cancelled before its response is charged its estimate: a client cannot
    /// hang up to ask for free. So is a request whose response takes longer than `ttl`; if its
    /// actual cost is higher, the difference is [recorded](tollgate::Limiter::record). The header
    /// fields have the numbers while the estimate was held.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limit, Limiter};
    /// use tollgate_http::RateLimitLayer;
    ///
    /// // Five failed logins, and one more every ten seconds; those that succeed are free.
    /// let layer = RateLimitLayer::new(Limiter::new(Limit::LOGIN))
    ///     .charge_by_response(Duration::from_secs(30), |answered| {
    ///         u64::from(answered.status == 401)
    ///     });
    /// ```
    #[must_use]
    pub fn charge_by_response(
        self,
        ttl: Duration,
        cost: impl Fn(Answered<'_>) -> u64 + Send + Sync + 'static,
    ) -> Self {
        self.with(|gate| gate.by_response = Some(ByResponse { ttl, cost: Arc::new(cost) }))
    }

    /// Sets how long a slot of a [concurrent](tollgate::Limit::concurrent) limit outlives a process
    /// that dies: 30 seconds by default. A request holds its slot from its admission until the body
    /// of its response has ended or was dropped, and a task of the tokio runtime renews it. A
    /// handler that upgrades the connection (a websocket) takes the slot, and keeps it as long as
    /// the connection lives: see [`ConnectionSlot`](crate::ConnectionSlot).
    #[must_use]
    pub fn slot_ttl(self, ttl: Duration) -> Self {
        self.with(|gate| gate.slots.ttl = ttl)
    }

    /// Holds a request until it is admitted, for at most `timeout`, instead of denying it: under
    /// rates and under limits on concurrency, in order of arrival for each budget
    /// ([`Limiter::wait`]). A request that cannot be admitted in time is denied. A client that
    /// leaves leaves the queue, and has taken nothing. A request that waits holds no readiness of
    /// the inner service. A layer that [charges by response](Self::charge_by_response) does not
    /// wait.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limit, Limiter};
    /// use tollgate_http::RateLimitLayer;
    ///
    /// // Bursts are spread over up to five seconds.
    /// let limiter = Limiter::new(Limit::per_second(10));
    /// let layer = RateLimitLayer::new(limiter).waiting(Duration::from_secs(5)).max_waiters(500);
    /// ```
    #[must_use]
    pub fn waiting(self, timeout: Duration) -> Self {
        self.with(|gate| gate.waiting_settings().timeout = timeout)
    }

    /// Sets how many requests [wait](Self::waiting) at a time: 10000 by default. Each of them holds
    /// a connection. One more is decided at once.
    #[must_use]
    pub fn max_waiters(self, waiters: usize) -> Self {
        self.with(|gate| gate.waiting_settings().waiters_max = waiters)
    }

    /// Requests that the layer holds now, until they are admitted.
    #[must_use]
    pub fn waiters(&self) -> usize {
        self.waiter_counts(|counts| &counts.waiting)
    }

    /// Requests that were denied at once so far because [too many](Self::max_waiters) waited.
    #[must_use]
    pub fn waiters_refused(&self) -> usize {
        self.waiter_counts(|counts| &counts.refused)
    }

    fn waiter_counts(&self, count: impl Fn(&WaiterCounts) -> &AtomicUsize) -> usize {
        self.0.waiting.as_ref().map_or(0, |waiting| count(&waiting.counts).load(Ordering::Relaxed))
    }

    /// Sets the style of the header fields.
    #[must_use]
    pub fn headers(self, headers: Headers) -> Self {
        self.with(|gate| gate.headers = headers)
    }

    /// Sets the response to denied requests. The rate limit fields are added to it. (With the
    /// feature `grpc`, a gRPC call gets a gRPC status instead.)
    #[must_use]
    pub fn on_denied(self, respond: impl Fn(&Decision) -> Response<Bytes> + Send + Sync + 'static) -> Self {
        self.with(|gate| gate.on_denied = Some(Arc::new(respond)))
    }

    /// Requests without an identity so far. They share one budget. A growing number means that the
    /// identity is misconfigured; the first one is logged as a warning.
    #[must_use]
    pub fn unidentified(&self) -> u64 {
        self.0.unidentified.load(Ordering::Relaxed)
    }

    /// Changes a setting of this layer, not of its clones.
    fn with(mut self, change: impl FnOnce(&mut Gate<S>)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }
}

impl<S> Gate<S> {
    fn waiting_settings(&mut self) -> &mut Waiting {
        self.waiting.get_or_insert_with(|| Waiting {
            timeout: Duration::ZERO,
            waiters_max: WAITERS_MAX,
            counts: Arc::default(),
        })
    }
}

impl<S> Clone for Gate<S> {
    fn clone(&self) -> Self {
        Self {
            limiter: self.limiter.clone(),
            headers: self.headers.clone(),
            by_response: self.by_response.clone(),
            slots: self.slots.clone(),
            waiting: self.waiting.clone(),
            identity: self.identity.clone(),
            attributes: self.attributes.clone(),
            cost: self.cost.clone(),
            on_denied: self.on_denied.clone(),
            unidentified: Arc::clone(&self.unidentified),
        }
    }
}

impl<S> Clone for RateLimitLayer<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S> fmt::Debug for RateLimitLayer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RateLimitLayer").field(&self.0).finish()
    }
}

impl<S> fmt::Debug for Gate<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("limiter", &self.limiter).finish_non_exhaustive()
    }
}

impl<S, T> Layer<T> for RateLimitLayer<S> {
    type Service = RateLimit<T, S>;

    fn layer(&self, inner: T) -> RateLimit<T, S> {
        RateLimit { inner, gate: Arc::clone(&self.0) }
    }
}

impl<S: Store> Gate<S> {
    /// The decision on a request, if the store decides in memory.
    pub(crate) fn check_in_memory(&self, head: &Head<'_>) -> Option<Result<Decision, Error>> {
        let limiter = self.limiter.in_memory()?;
        if !limiter.counts_clients_alike() {
            return Some(limiter.check(&self.request(*head)));
        }
        let check = |client: &str| limiter.check(Request::client(client).cost(self.cost_of(*head)));
        // A decision is large: it is not moved through the results of others.
        let mut decided = None;
        self.identity.with_name(head, |client| decided = Some(check(client)));
        if decided.is_none() {
            decided = Some(check(self.unidentified_client()));
        }
        decided
    }

    /// The request to the limiter.
    pub(crate) fn request<'a>(&self, head: Head<'a>) -> RequestBuf<'a> {
        let client = self.identity.identify(head);
        let client = client.unwrap_or_else(|| Cow::Borrowed(self.unidentified_client()));
        let custom = |name: &str| {
            let (_, extract) = self.attributes.iter().find(|(custom, _)| custom == name)?;
            Some(extract(head).map(Cow::Owned))
        };
        self.limiter.with_rules(|rules| head.request_with(client, rules, custom)).cost(self.cost_of(head))
    }

    fn cost_of(&self, head: Head<'_>) -> u64 {
        self.cost.as_ref().map_or(1, |cost| cost(head).min(MAX_COUNT))
    }

    /// The client of a request without an identity, which is counted.
    fn unidentified_client(&self) -> &'static str {
        if self.unidentified.fetch_add(1, Ordering::Relaxed) == 0 {
            warn!("{NO_IDENTITY}");
        }
        UNIDENTIFIED
    }

    /// The response to a denied request.
    pub(crate) fn deny(&self, head: Head<'_>, decision: &Decision) -> Response<Bytes> {
        #[cfg(feature = "grpc")]
        if crate::grpc::is_grpc(head) {
            return crate::grpc::denied(decision, &self.headers);
        }
        let _ = head;
        match &self.on_denied {
            Some(respond) => {
                let mut response = respond(decision);
                self.headers.write(decision, response.headers_mut());
                response
            }
            None => denied(decision, &self.headers),
        }
    }
}
