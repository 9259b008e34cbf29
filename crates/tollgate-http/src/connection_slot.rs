//! The slot of a request whose connection outlives its response: a websocket, or another upgrade.
//!
//! The body of a response holds the slot as long as the response is under way. The response of an
//! upgrade is over at once, and the connection lives on in the handler. So the layer offers the
//! slot to the handler, as a request extension. If nobody takes it, it stays until its time to live
//! has passed: to release it at the handshake would limit nothing.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use http::{Extensions, Method, Response, StatusCode};
use tollgate::{Slot, Store};
use tracing::warn;

/// The slot that a request holds of [concurrent](tollgate::Limit::concurrent) limits, taken by its
/// handler. It is renewed, and held until this is dropped and the response has ended.
///
/// For handlers whose connection outlives the response. In axum it is an extractor (feature
/// `axum`):
///
/// ```
/// use axum::extract::ws::{WebSocket, WebSocketUpgrade};
/// use axum::response::Response;
/// use tollgate_http::ConnectionSlot;
///
/// async fn chat(upgrade: WebSocketUpgrade, slot: ConnectionSlot) -> Response {
///     upgrade.on_upgrade(|mut socket: WebSocket| async move {
///         while let Some(Ok(message)) = socket.recv().await {
///             // …
/// #           drop(message);
///         }
///         drop(slot);
///     })
/// }
/// ```
#[must_use = "dropping it lets go of the slot"]
#[derive(Debug, Default)]
pub struct ConnectionSlot(Vec<Arc<Held>>);

impl ConnectionSlot {
    /// Takes the slot of the request with these extensions. Empty if it holds none: no
    /// [`RateLimitLayer`](crate::RateLimitLayer) with a concurrent limit is in front.
    pub fn take(extensions: &Extensions) -> Self {
        let Some(Offers(offers)) = extensions.get() else { return Self::default() };
        Self(offers.iter().filter_map(|offer| offer.take()).collect())
    }

    /// Whether there is a slot.
    #[must_use]
    pub const fn is_held(&self) -> bool {
        !self.0.is_empty()
    }
}

#[cfg(feature = "axum")]
impl<S: Sync> axum::extract::FromRequestParts<S> for ConnectionSlot {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(
        parts: &mut http::request::Parts,
        _: &S,
    ) -> Result<Self, std::convert::Infallible> {
        Ok(Self::take(&parts.extensions))
    }
}

/// A slot that is released when it is dropped.
#[doc(hidden)]
pub struct Held(Box<dyn Detach>);

/// A slot of a limiter with any store.
trait Detach: Send + Sync {
    /// Leaves the slot in the store until it expires.
    fn detach(self: Box<Self>);
}

impl<S: Store> Detach for Slot<S> {
    fn detach(self: Box<Self>) {
        let _ = (*self).detach();
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Held")
    }
}

/// The slots that the layers in front of a handler offer it, as a request extension.
#[derive(Clone, Debug, Default)]
struct Offers(Vec<Arc<Offer>>);

/// A slot that a handler may take.
#[derive(Debug)]
struct Offer {
    state: Mutex<State>,
    settings: SlotSettings,
}

#[derive(Debug)]
struct State {
    /// Held by the response, until that has ended.
    slot: Weak<Held>,
    /// The slot of an upgrade that nobody has taken yet.
    upgraded: Option<Arc<Held>>,
    is_taken: bool,
}

/// How slots are held.
#[derive(Clone, Debug)]
pub(crate) struct SlotSettings {
    /// How long a slot is held without a renewal.
    pub(crate) ttl: Duration,
    /// Whether an upgrade without a taker was warned of.
    has_warned: Arc<AtomicBool>,
}

/// A slot that a request holds, and the offer of it to the handler.
#[derive(Debug)]
pub(crate) struct OfferedSlot {
    slot: Arc<Held>,
    offer: Arc<Offer>,
    is_connect: bool,
}

impl SlotSettings {
    pub(crate) fn new(ttl: Duration) -> Self {
        Self { ttl, has_warned: Arc::default() }
    }
}

impl OfferedSlot {
    /// Offers a slot to the handler of a request.
    pub(crate) fn new<S: Store, B>(
        slot: Slot<S>,
        settings: &SlotSettings,
        request: &mut http::Request<B>,
    ) -> Self {
        let slot = Arc::new(Held(Box::new(slot)));
        let state = State { slot: Arc::downgrade(&slot), upgraded: None, is_taken: false };
        let offer = Arc::new(Offer { state: Mutex::new(state), settings: settings.clone() });
        let is_connect = request.method() == Method::CONNECT;
        request.extensions_mut().get_or_insert_default::<Offers>().0.push(Arc::clone(&offer));
        Self { slot, offer, is_connect }
    }

    /// The slot for the body of a response; `None` if the connection lives on after it.
    pub(crate) fn for_body<R>(self, response: &Response<R>) -> Option<Arc<Held>> {
        let status = response.status();
        let is_upgrade = status == StatusCode::SWITCHING_PROTOCOLS || self.is_connect && status.is_success();
        if !is_upgrade {
            return Some(self.slot);
        }
        let mut state = self.offer.state();
        state.upgraded = (!state.is_taken).then_some(self.slot);
        None
    }
}

impl Offer {
    fn take(&self) -> Option<Arc<Held>> {
        let mut state = self.state();
        state.is_taken = true;
        state.upgraded.take().or_else(|| state.slot.upgrade())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        let upgraded = self.state().upgraded.take();
        let Some(Held(slot)) = upgraded.and_then(Arc::into_inner) else { return };
        slot.detach();
        if !self.settings.has_warned.swap(true, Ordering::Relaxed) {
            warn!(
                ttl = ?self.settings.ttl,
                "a connection was upgraded, and its handler did not take its slot, which is held for its time \
                 to live and no longer; take a `tollgate_http::ConnectionSlot` (in axum, as an argument of the \
                 handler), and keep it as long as the connection lives"
            );
        }
    }
}
