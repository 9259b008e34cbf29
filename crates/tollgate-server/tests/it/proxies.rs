//! The examples: real proxies in front of an application, which ask tollgate. Each obeys the same
//! laws.

use std::process::Command;

use crate::common::{Answer, Server};
use crate::proxy::{Application, Proxy, envoy, example, free_port};

/// The headers that a client can forge to change its identity or its request.
const FORGED: [(&str, &str); 9] = [
    ("x-forwarded-for", "198.51.100.7"),
    ("x-real-ip", "198.51.100.7"),
    ("forwarded", "for=198.51.100.7"),
    ("x-forwarded-method", "OPTIONS"),
    ("x-forwarded-uri", "/other"),
    ("x-forwarded-host", "other.example"),
    ("x-original-method", "OPTIONS"),
    ("x-original-uri", "/other"),
    ("x-envoy-original-path", "/other"),
];

/// The application, the proxy before it, and tollgate.
struct World {
    application: Application,
    tollgate: Server,
    proxy: Proxy,
}

impl World {
    /// `start` starts the proxy with a configuration, at a port.
    fn new(config: &str, rules: &str, start: impl FnOnce(&std::path::Path, u16) -> Proxy) -> Self {
        let application = Application::start();
        let tollgate = Server::with_config(&example(rules, &[]));
        let port = free_port();
        let (_, http) = tollgate.address.rsplit_once(':').unwrap();
        let config =
            example(config, &[(8000, port), (8080, http.parse().unwrap()), (9000, application.port)]);
        Self { proxy: start(&config, port), application, tollgate }
    }

    fn nginx() -> Self {
        Self::new("nginx/nginx.conf", "nginx/tollgate.toml", |config, port| {
            let mut nginx = Command::new("nginx");
            Proxy::start(nginx.arg("-p").arg(config.parent().unwrap()).arg("-c").arg(config), port)
        })
    }

    fn caddy() -> Self {
        Self::new("caddy/Caddyfile", "caddy/tollgate.toml", |config, port| {
            let home = config.parent().unwrap();
            let mut caddy = Command::new("caddy");
            caddy.args(["run", "--adapter", "caddyfile", "--config"]).arg(config);
            Proxy::start(caddy.env("XDG_DATA_HOME", home).env("XDG_CONFIG_HOME", home), port)
        })
    }

    fn envoy() -> Self {
        Self::new("envoy/ext_authz.yaml", "envoy/ext_authz.toml", envoy)
    }
}

/// Asserts a denial by `rule`, as the client sees it.
fn assert_denied(answer: &Answer, rule: &str) {
    assert_eq!(answer.status, 429, "{answer:?}");
    let retry_after: u64 = answer.header("retry-after").expect("retry-after").parse().unwrap();
    assert!((1..=60).contains(&retry_after), "{answer:?}");
    let left = format!("\"{rule}\";r=0;t={retry_after}");
    assert!(answer.header("ratelimit").unwrap().contains(&left), "{answer:?}");
    assert!(answer.header("ratelimit-policy").unwrap().contains(&format!("\"{rule}\";q=")), "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    assert!(answer.json()["type"].as_str().unwrap().ends_with("#quota-exceeded"));
}

fn all_laws_hold(world: &World) {
    each_client_has_its_own_limit(world);
    a_path_has_its_own_limit(world);
    forged_headers_have_no_effect(world);
    the_query_belongs_to_the_application(world);
    unusual_paths_are_counted(world);
    without_tollgate_no_request_is_forwarded(world);
}

fn each_client_has_its_own_limit(World { application, proxy, .. }: &World) {
    for left in (0..10).rev() {
        let answer = proxy.get("127.0.0.1", "/some/path?and=query");
        assert_eq!((answer.status, answer.body.contains("hello")), (200, true), "{answer:?}");
        let reported = format!("\"per-client\";r={left};t=");
        assert!(answer.header("ratelimit").unwrap().starts_with(&reported), "{answer:?}");
        assert_eq!(answer.header("ratelimit-policy"), Some("\"per-client\";q=10;w=60"));
    }
    assert_eq!(application.seen(), ["GET /some/path?and=query"; 10]);
    assert_denied(&proxy.get("127.0.0.1", "/some/path"), "per-client");
    assert_denied(&proxy.send("127.0.0.1", "POST", "/", &[]), "per-client");
    assert_eq!(application.seen(), [""; 0], "a denied request gets no further than the proxy");
    assert_eq!(proxy.get("127.0.0.2", "/some/path").status, 200);
    assert_eq!(application.seen(), ["GET /some/path"]);
}

fn a_path_has_its_own_limit(World { application, proxy, .. }: &World) {
    for _ in 0..3 {
        assert_eq!(proxy.send("127.0.0.3", "POST", "/login?next=/", &[]).status, 200);
    }
    assert_eq!(application.seen(), ["POST /login?next=/"; 3]);
    assert_denied(&proxy.send("127.0.0.3", "POST", "/login", &[]), "login");
    assert_denied(&proxy.send("127.0.0.3", "POST", "/login", &FORGED), "login");
    assert_eq!(application.seen(), [""; 0]);
    assert_eq!(proxy.get("127.0.0.3", "/logins").status, 200);
    assert_eq!(application.seen(), ["GET /logins"]);
}

fn no_spelling_evades_the_rule_of_a_path(World { application, proxy, .. }: &World) {
    for _ in 0..3 {
        assert_eq!(proxy.get("127.0.0.8", "/login").status, 200);
    }
    for spelled in ["/%6Cogin", "/./login", "/a/../login", "/login/", "/login;x=1", "/lo%67in?y"] {
        assert_denied(&proxy.get("127.0.0.8", spelled), "login");
    }
    assert_eq!(application.seen(), ["GET /login"; 3]);
}

fn forged_headers_have_no_effect(World { application, proxy, .. }: &World) {
    // Single, together, and duplicated.
    for forged in FORGED {
        assert_denied(&proxy.send("127.0.0.1", "GET", "/", &[forged]), "per-client");
        assert_denied(&proxy.send("127.0.0.1", "GET", "/", &[forged, forged]), "per-client");
    }
    assert_denied(&proxy.send("127.0.0.1", "GET", "/", &FORGED), "per-client");
    assert_eq!(application.seen(), [""; 0]);
    // Forged headers harm neither the sender nor the client they name.
    let answer = proxy.send("127.0.0.4", "GET", "/", &FORGED);
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(answer.header("ratelimit").unwrap().starts_with("\"per-client\";r=9;"), "{answer:?}");
    let named = proxy.send("127.0.0.4", "GET", "/", &[("x-forwarded-for", "127.0.0.1")]);
    assert!(named.header("ratelimit").unwrap().starts_with("\"per-client\";r=8;"), "{named:?}");
    assert_eq!(application.seen(), ["GET /"; 2]);
}

fn the_query_belongs_to_the_application(World { application, proxy, .. }: &World) {
    assert_denied(&proxy.get("127.0.0.1", "/?deny_status=418"), "per-client");
    assert_eq!(proxy.get("127.0.0.5", "/?deny_status=nonsense").status, 200);
    assert_eq!(application.seen(), ["GET /?deny_status=nonsense"]);
}

fn unusual_paths_are_counted(World { proxy, tollgate, .. }: &World) {
    let long = format!("/{}", "x".repeat(3_000));
    for odd in [&long, "/%00", "/a|b", "//auth//", "/auth?x#y", "http://example.org/"] {
        let before = tollgate.metric("tollgate_decisions_total{outcome=\"denied\"}");
        let answer = proxy.get("127.0.0.1", odd);
        // A request that the proxy rejects does not reach tollgate.
        let refused = answer.status == 400 && answer.header("ratelimit").is_none();
        let denied = tollgate.metric("tollgate_decisions_total{outcome=\"denied\"}") - before;
        assert!(refused && denied == 0.0 || answer.status == 429 && denied == 1.0, "{odd}: {answer:?}");
    }
}

fn without_tollgate_no_request_is_forwarded(World { application, proxy, tollgate }: &World) {
    application.seen();
    tollgate.signal("KILL");
    crate::common::eventually("tollgate is gone", || {
        std::net::TcpStream::connect(&tollgate.address).is_err()
    });
    let status = proxy.get("127.0.0.6", "/").status;
    assert!((500..=503).contains(&status), "{status}");
    assert_eq!(application.seen(), [""; 0]);
}

#[test]
fn f2_nginx_enforces_the_decision() {
    let world = World::nginx();
    no_spelling_evades_the_rule_of_a_path(&world);
    all_laws_hold(&world);
}

#[test]
fn f2_caddy_enforces_the_decision() {
    let world = World::caddy();
    no_spelling_evades_the_rule_of_a_path(&world);
    all_laws_hold(&world);
}

#[test]
fn f2_envoy_enforces_the_decision() {
    let world = World::envoy();
    for spelled in ["/login", "//login", "/%6Cogin", "/x/../login"] {
        let answer = world.proxy.get("127.0.0.7", spelled);
        let denied = spelled == "/x/../login";
        assert_eq!(answer.status, if denied { 429 } else { 200 }, "{spelled} is /login to Envoy: {answer:?}");
    }
    assert_eq!(world.application.seen(), ["GET /login"; 3], "and to the application");
    all_laws_hold(&world);
}
