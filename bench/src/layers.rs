//! What a layer adds to a service that does nothing: the requests do not leave the process.

use std::convert::Infallible;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use axum::body::Body;
use axum::extract::ConnectInfo;
use http::{Request, Response};
use tollgate_http::{HeaderStyle, Headers, PeerAddr, RateLimitLayer};
use tower::{Layer, Service, ServiceExt as _, service_fn};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

use crate::contenders::{Contender, per_client, random_keys};

async fn bare(_: Request<Body>) -> Result<Response<Body>, Infallible> {
    Ok(Response::new(Body::empty()))
}

/// A request from one of so many addresses, as a server would hand it on.
fn request(key: u64) -> Request<Body> {
    let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::from((key as u32).to_be_bytes())), 1234);
    let mut request = Request::new(Body::empty());
    request.extensions_mut().insert(PeerAddr(address));
    request.extensions_mut().insert(ConnectInfo(address));
    request
}

/// Nothing here has anything to wait for.
fn at_once<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it waits"),
    }
}

fn contender<T, R>(name: &'static str, service: T) -> Contender
where
    T: Service<Request<Body>, Response = Response<R>> + Clone + Send + 'static,
    T::Error: std::fmt::Debug,
{
    let service = Mutex::new(service);
    Contender::new(
        name,
        Box::new(move |seed, keys, checks| {
            let mut service = service.lock().expect("no panic").clone();
            let mut ok = |key| {
                let ready = at_once(service.ready()).expect("always ready");
                u64::from(at_once(ready.call(request(key))).expect("an answer").status() == 200)
            };
            random_keys(seed, keys, checks).map(&mut ok).sum()
        }),
    )
}

pub fn all(keys: u64) -> Vec<Contender> {
    let governor = GovernorConfigBuilder::default().per_millisecond(1).burst_size(1_000_000).finish();
    let governor = GovernorLayer::new(Arc::new(governor.expect("valid")));
    let with_headers =
        GovernorConfigBuilder::default().per_millisecond(1).burst_size(1_000_000).use_headers().finish();
    let with_headers = GovernorLayer::new(Arc::new(with_headers.expect("valid")));
    let tollgate = || RateLimitLayer::new(per_client(keys));
    let contenders = vec![
        contender(
            "tollgate-http, no headers",
            tollgate().headers(Headers::new(HeaderStyle::Off)).layer(service_fn(bare)),
        ),
        contender("tollgate-http, standard headers", tollgate().layer(service_fn(bare))),
        contender(
            "tollgate-http, X headers",
            tollgate().headers(Headers::new(HeaderStyle::X)).layer(service_fn(bare)),
        ),
        contender("governor: tower_governor, no headers", governor.layer(service_fn(bare))),
        contender("tower_governor, X headers", with_headers.layer(service_fn(bare))),
        contender("floor: the bare service", service_fn(bare)),
    ];
    for contender in &contenders {
        (contender.run)(0, keys, keys);
    }
    contenders
}
