//! The service that the layer makes: it decides, then calls the inner service or denies.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Extensions, Request, Response, StatusCode};
use smallvec::SmallVec;
use tollgate::{Decision, Error, MAX_COUNT, MemoryStore, OnExpiry, Slot, Store};
use tower_service::Service;

use crate::connection_slot::OfferedSlot;
use crate::future::{Boxed, ResponseFuture, pass};
use crate::layer::{Answered, ByResponse, Gate};
use crate::{Head, Problem, ResponseBody, overloaded};

/// A service behind a limiter.
#[derive(Debug)]
pub struct RateLimit<T, S = MemoryStore> {
    pub(crate) inner: T,
    pub(crate) gate: Arc<Gate<S>>,
}

impl<T: Clone, S> Clone for RateLimit<T, S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), gate: Arc::clone(&self.gate) }
    }
}

impl<T, S, B, R> Service<Request<B>> for RateLimit<T, S>
where
    T: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    T::Future: Send,
    T::Error: Send,
    S: Store + 'static,
    B: Send + 'static,
    R: Send + 'static,
{
    type Response = Response<ResponseBody<R>>;
    type Error = T::Error;
    type Future = ResponseFuture<T::Future, R, T::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), T::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let gate = &self.gate;
        if !meet(request.extensions_mut(), gate.limiter.id()) {
            return ResponseFuture::passing(self.inner.call(request), None);
        }
        if gate.by_response.is_none() && gate.waiting.is_none() {
            let head = Head::from(&request);
            match gate.check_in_memory(&head) {
                // A decision is large: it is moved once, or not at all.
                Some(Ok(decision)) if decision.allowed() => {
                    let fields = (!gate.headers.is_off()).then(|| (gate.headers.clone(), decision));
                    return ResponseFuture::passing(self.inner.call(request), fields);
                }
                // A check takes no slot, and has taken nothing.
                None | Some(Err(Error::SlotNeeded { .. })) => {}
                Some(decided) => {
                    let response = gate.refuse(head, decided);
                    // The service is ready, which may hold a permit of others: its clone is not.
                    self.inner = self.inner.clone();
                    return ResponseFuture::denied(response);
                }
            }
        }
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        if gate.by_response.is_none() && gate.waiting.is_some() {
            // What the ready service holds is not for a request that waits.
            inner = self.inner.clone();
        }
        // Otherwise the ready service goes into the future; its clone stays.
        ResponseFuture::boxed(wait(Arc::clone(gate), inner, request))
    }
}

/// The limiters that a request has met, as an extension.
#[derive(Clone, Debug, Default)]
struct Met(SmallVec<[u64; 2]>);

/// Records that a request meets a limiter; false if it has met it before.
fn meet(extensions: &mut Extensions, limiter: u64) -> bool {
    let Met(met) = extensions.get_or_insert_default();
    let is_first = !met.contains(&limiter);
    if is_first {
        met.push(limiter);
    }
    is_first
}

impl<S: Store> Gate<S> {
    /// The response to a request that is not admitted.
    fn refuse(&self, head: Head<'_>, decided: Result<Decision, Error>) -> Response<Bytes> {
        match decided {
            Ok(decision) => self.deny(head, &decision),
            Err(error) => failed(head, &error),
        }
    }
}

/// The future of a request that awaits the store, or is charged by its response.
fn wait<T, S, B, R>(gate: Arc<Gate<S>>, inner: T, request: Request<B>) -> Boxed<R, T::Error>
where
    T: Service<Request<B>, Response = Response<R>> + Send + 'static,
    T::Future: Send,
    T::Error: Send,
    S: Store + 'static,
    B: Send + 'static,
    R: Send + 'static,
{
    match gate.by_response.clone() {
        Some(by_response) => Box::pin(charge_by_response(gate, inner, request, by_response)),
        None => Box::pin(check(gate, inner, request)),
    }
}

async fn check<T, S, B, R>(
    gate: Arc<Gate<S>>,
    mut inner: T,
    mut request: Request<B>,
) -> Result<Response<ResponseBody<R>>, T::Error>
where
    T: Service<Request<B>, Response = Response<R>>,
    S: Store,
{
    let asked = gate.request(Head::from(&request)).into_owned();
    match gate.admit(&asked).await {
        Ok((decision, slot)) if decision.allowed() => {
            let offer = |slot: Slot<S>| OfferedSlot::new(slot.renewing(), &gate.slots, &mut request);
            let slot = slot.map(offer);
            if gate.waiting.is_some() {
                poll_fn(|context| inner.poll_ready(context)).await?;
            }
            let response = inner.call(request).await?;
            let slot = slot.and_then(|slot| slot.for_body(&response));
            Ok(pass(response, &gate.headers, &decision, slot))
        }
        decided => {
            let decided = decided.map(|(decision, _)| decision);
            Ok(gate.refuse(Head::from(&request), decided).map(ResponseBody::denied))
        }
    }
}

async fn charge_by_response<T, S, B, R>(
    gate: Arc<Gate<S>>,
    mut inner: T,
    mut request: Request<B>,
    ByResponse { ttl, cost }: ByResponse,
) -> Result<Response<ResponseBody<R>>, T::Error>
where
    T: Service<Request<B>, Response = Response<R>>,
    S: Store,
{
    let asked = gate.request(Head::from(&request)).into_owned();
    let mut reservation = match gate.limiter.reserve(&asked, ttl, OnExpiry::Keep).await {
        Ok(reservation) => reservation,
        Err(error) => {
            return Ok(failed(Head::from(&request), &error).map(ResponseBody::denied));
        }
    };
    let decision = reservation.decision().clone();
    if !decision.allowed() {
        return Ok(gate.deny(Head::from(&request), &decision).map(ResponseBody::denied));
    }
    // The response is under way until its body has ended, and its cost is known before that.
    let slot = reservation.take_slot(ttl);
    let slot = slot.map(|slot| OfferedSlot::new(slot.renewing(), &gate.slots, &mut request));
    let response = inner.call(request).await?;
    let slot = slot.and_then(|slot| slot.for_body(&response));
    let (parts, body) = response.into_parts();
    let answered = Answered { status: parts.status, headers: &parts.headers, extensions: &parts.extensions };
    let actual = cost(answered).min(MAX_COUNT);
    if let (Err(Error::NotReserved), more @ 1..) =
        (reservation.settle(actual).await, actual.saturating_sub(asked.units()))
    {
        // The reservation expired long ago, so the estimate is charged already. Any other error of
        // the store has been logged and counted, and does not concern the client.
        let _ = gate.limiter.record(&asked.cost(more)).await;
    }
    Ok(pass(Response::from_parts(parts, body), &gate.headers, &decision, slot))
}

/// The response to a request that was not decided.
fn failed(head: Head<'_>, error: &Error) -> Response<Bytes> {
    let Error::Overloaded { retry_after } = *error else {
        // The store does not support the operation: deny.
        return broken(error);
    };
    #[cfg(feature = "grpc")]
    if crate::grpc::is_grpc(head) {
        return crate::grpc::overloaded(retry_after);
    }
    let _ = head;
    overloaded(retry_after)
}

/// The response if the limiter does not support this layer: a mistake of the program, for which no
/// request is admitted.
fn broken(error: &Error) -> Response<Bytes> {
    #[derive(serde::Serialize)]
    struct Code {
        code: &'static str,
    }
    let detail = "the rate limiter is not set up for this".to_owned();
    let members = Code { code: error.code() };
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "about:blank", detail, members).into_response()
}
