//! Envoy's rate limit filter over gRPC: the example as shipped, except for its ports and the test's
//! edits.

use std::fs;
use std::path::Path;

use crate::common::{Answer, Server, eventually};
use crate::proxy::{Application, Proxy, envoy, example, free_port};

/// The application, the proxy before it, and tollgate.
struct World {
    application: Application,
    tollgate: Server,
    proxy: Proxy,
}

impl World {
    /// Replaces a text in each of the two files.
    fn new(rules: (&str, &str), config: (&str, &str)) -> Self {
        let application = Application::start();
        let port = free_port();
        let file = example("envoy/ratelimit.toml", &[]);
        edit(&file, rules);
        let tollgate = Server::everywhere(&["--config", file.to_str().unwrap()]);
        let grpc = tollgate.listens("grpc").rsplit_once(':').unwrap().1.parse().unwrap();
        let file = example("envoy/ratelimit.yaml", &[(8000, port), (8081, grpc), (9000, application.port)]);
        edit(&file, config);
        Self { proxy: envoy(&file, port), application, tollgate }
    }
}

fn edit(file: &Path, (what, instead): (&str, &str)) {
    let text = fs::read_to_string(file).unwrap();
    assert!(text.contains(what), "{what} is not in {text}");
    fs::write(file, text.replace(what, instead)).unwrap();
}

fn assert_denied(answer: &Answer, rule: &str) {
    assert_eq!(answer.status, 429, "{answer:?}");
    let retry_after: u64 = answer.header("retry-after").expect("retry-after").parse().unwrap();
    assert!((1..=60).contains(&retry_after), "{answer:?}");
    let left = format!("\"{rule}\";r=0;t={retry_after}");
    assert!(answer.header("ratelimit").unwrap().contains(&left), "{answer:?}");
    assert!(answer.header("ratelimit-policy").unwrap().contains(&format!("\"{rule}\";q=")), "{answer:?}");
}

#[test]
fn f2_envoy_enforces_the_decision_over_grpc() {
    let World { application, proxy, tollgate: _tollgate } = &World::new(("", ""), ("", ""));
    for left in (0..10).rev() {
        let answer = proxy.get("127.0.0.1", "/some/path?and=query");
        assert_eq!((answer.status, answer.body.contains("hello")), (200, true), "{answer:?}");
        let reported = format!("\"per-client\";r={left};t=");
        assert!(answer.header("ratelimit").unwrap().starts_with(&reported), "{answer:?}");
        assert_eq!(answer.header("ratelimit-policy"), Some("\"per-client\";q=10;w=60"));
    }
    assert_eq!(application.seen(), ["GET /some/path?and=query"; 10]);
    let forged = [
        ("x-forwarded-for", "198.51.100.7"),
        ("x-real-ip", "198.51.100.7"),
        ("x-envoy-external-address", "198.51.100.7"),
        ("x-envoy-original-path", "/other"),
    ];
    assert_denied(&proxy.get("127.0.0.1", "/some/path"), "per-client");
    for header in forged {
        assert_denied(&proxy.send("127.0.0.1", "GET", "/", &[header]), "per-client");
    }
    assert_eq!(application.seen(), [""; 0], "a denied request gets no further than the proxy");
    assert_eq!(proxy.get("127.0.0.2", "/some/path").status, 200);
    for _ in 0..3 {
        assert_eq!(proxy.send("127.0.0.3", "POST", "/login?next=/", &[]).status, 200);
    }
    application.seen();
    for spelled in ["/login", "/login?again", "//login", "/./login", "/x/../login"] {
        assert_denied(&proxy.send("127.0.0.3", "POST", spelled, &forged), "login");
    }
    assert_eq!(application.seen(), [""; 0]);
    let answer = proxy.get("127.0.0.3", "/logins");
    assert_eq!(answer.status, 200);
    assert!(
        answer.header("ratelimit").unwrap().starts_with("\"per-client\";r=6;"),
        "a login is counted once by each rule: {answer:?}"
    );
}

#[test]
fn b1_a_client_is_admitted_again_in_the_next_window() {
    let world = World::new(("10/60s fixed", "2/1s fixed"), ("", ""));
    let get = || world.proxy.get("127.0.0.1", "/");
    // A window may end in between; the denial still comes.
    assert_eq!(get().status, 200);
    eventually("a denial", || get().status == 429);
    eventually("the next window", || get().status == 200);
    world.application.seen();
}

#[test]
fn e4_without_tollgate_envoy_follows_its_failure_mode() {
    for (mode, expected) in [("failure_mode_deny: false", 200), ("failure_mode_deny: true", 500)] {
        let World { application, proxy, tollgate } =
            &World::new(("", ""), ("failure_mode_deny: false", mode));
        assert_eq!(proxy.get("127.0.0.1", "/").status, 200);
        application.seen();
        tollgate.signal("KILL");
        eventually("tollgate is gone", || std::net::TcpStream::connect(&tollgate.address).is_err());
        for _ in 0..20 {
            assert_eq!(proxy.get("127.0.0.1", "/").status, expected, "{mode}");
        }
        assert_eq!(application.seen().len(), if expected == 200 { 20 } else { 0 });
    }
}
