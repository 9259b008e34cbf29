//! F4, F5: what the layer sees inside of routers and other layers.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::routing::get as route;
use http::{Request, Response};
use http_body_util::{Empty, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tollgate::{HOUR, Limit, Limiter, MemoryStore, Override, Paths, Rule, RuleSet, Store};
use tollgate_http::{Identity, RateLimitLayer};
use tollgate_testkit::FaultyStore;
use tower::limit::ConcurrencyLimitLayer;
use tower::{Service as _, ServiceBuilder, ServiceExt as _};

use crate::common::{get, read, send, serve};

fn login(pattern: &str) -> RuleSet {
    RuleSet::new([Rule::new("login", Limit::per_hour(1)).matching("path", pattern)]).unwrap()
}

fn layer(rules: RuleSet) -> RateLimitLayer {
    RateLimitLayer::new(Limiter::builder(rules).build().unwrap())
}

#[tokio::test]
async fn f5_a_layer_inside_of_a_nested_router_sees_the_path_that_was_asked_for() {
    let inner = Router::new().route("/login", route(async || "hello")).layer(layer(login("/api/login")));
    let server = serve(Router::new().nest("/v1", Router::new().nest("/api", inner))).await;
    assert_eq!(send(server, get("/v1/api/login", &[])).await.status, 200, "the rule is on /api/login");
    let whole = Router::new().route("/login", route(async || "hello")).layer(layer(login("/v1/api/login")));
    let server = serve(Router::new().nest("/v1", Router::new().nest("/api", whole))).await;
    let statuses = [(); 3].map(async |()| send(server, get("/v1/api/login", &[])).await.status.as_u16());
    let [first, second, third] = statuses;
    assert_eq!([first.await, second.await, third.await], [200, 429, 429]);
}

#[tokio::test]
async fn f5_no_spelling_of_a_path_evades_its_rule() {
    for (rules, spelled) in [
        (
            login("/login"),
            &["/%6Cogin", "//login", "/./login", "/a/../login", "/login/", "/login;x=1"] as &[_],
        ),
        (login("/login"), &["/lo%67in?y"]),
        (login("/login").with_paths(Paths::CaseInsensitive), &["/LOGIN", "/%4Cogin"]),
    ] {
        let server = serve(Router::new().fallback(async || "hello").layer(layer(rules))).await;
        assert_eq!(send(server, get("/login", &[])).await.status, 200);
        for path in spelled {
            assert_eq!(send(server, get(path, &[])).await.status, 429, "{path}");
        }
        assert_eq!(send(server, get("/logout", &[])).await.status, 200);
    }
}

#[tokio::test]
async fn f4_a_request_that_meets_a_limiter_twice_is_charged_once() {
    let limiter = Limiter::new(Limit::fixed_window(3, HOUR));
    let other = Limiter::new(Limit::fixed_window(100, HOUR));
    let on_route = RateLimitLayer::new(limiter.clone());
    let app = Router::new()
        .route("/", route(async || "hello").layer(on_route.clone().cost(|_| 2)))
        .layer(RateLimitLayer::new(other))
        .layer(on_route);
    let server = serve(app).await;
    for left in [2, 1, 0] {
        let answer = send(server, get("/", &[])).await;
        assert_eq!(answer.status, 200);
        let fields: Vec<_> = answer.headers.get_all("ratelimit").iter().collect();
        assert_eq!(fields.len(), 2, "of each limiter once: {fields:?}");
        assert!(fields.iter().any(|field| field.to_str().unwrap().contains(&format!(";r={left};"))));
    }
    assert_eq!(send(server, get("/", &[])).await.status, 429);
}

#[tokio::test]
async fn c8_a_request_that_meets_a_limiter_twice_takes_one_slot() {
    let limiter = Limiter::new(Limit::concurrent(1));
    let layer = RateLimitLayer::new(limiter);
    let app = Router::new().route("/", route(async || "hello").layer(layer.clone())).layer(layer);
    let server = serve(app).await;
    for _ in 0..3 {
        assert_eq!(send(server, get("/", &[])).await.status, 200);
    }
}

/// Serves connections whose service is asked for readiness, and called, one request at a time.
pub(super) async fn serve_one_by_one<S: Store + 'static>(layer: RateLimitLayer<S>) -> std::net::SocketAddr {
    let handler = tower::service_fn(async |_: Request<hyper::body::Incoming>| {
        Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
    });
    let service = ServiceBuilder::new().layer(layer).layer(ConcurrencyLimitLayer::new(1)).service(handler);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = Arc::new(tokio::sync::Mutex::new(service.clone()));
            let answer = hyper::service::service_fn(move |request| {
                let service = Arc::clone(&service);
                async move { service.lock().await.ready().await?.call(request).await }
            });
            let connection = hyper::server::conn::http1::Builder::new();
            tokio::spawn(connection.serve_connection(TokioIo::new(stream), answer));
        }
    });
    address
}

async fn denied_keeps_nobody_waiting<S: Store + 'static>(store: S) {
    let rules = RuleSet::new([Rule::new("r", Limit::per_hour(1)).key(["client"])]).unwrap();
    let rules = rules.with_overrides([Override::new("r", Limit::per_hour(9)).matching("client", "b")]);
    let limiter = Limiter::builder(rules.unwrap()).store(store).build().unwrap();
    let layer = RateLimitLayer::new(limiter).identity(Identity::header("x-client".parse().unwrap()));
    let server = serve_one_by_one(layer).await;
    let stream = TokioIo::new(tokio::net::TcpStream::connect(server).await.unwrap());
    let (mut kept, connection) =
        hyper::client::conn::http1::handshake::<_, Full<Bytes>>(stream).await.unwrap();
    tokio::spawn(connection);
    for status in [200, 429, 429] {
        kept.ready().await.unwrap();
        let answer = read(kept.send_request(get("/", &[("x-client", "a")])).await.unwrap()).await;
        assert_eq!(answer.status, status);
    }
    // The denied connection is open, and has left the only permit to this one.
    assert_eq!(send(server, get("/", &[("x-client", "b")])).await.status, 200);
    assert!(!kept.is_closed());
}

#[tokio::test]
async fn f4_a_denied_request_gives_back_the_readiness_of_the_service() {
    denied_keeps_nobody_waiting(MemoryStore::new()).await;
    denied_keeps_nobody_waiting(FaultyStore::new(MemoryStore::new())).await;
}
