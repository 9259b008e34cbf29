//! `/auth`: the requests of each proxy, and the headers a client could add.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{Answer, Server, TOLLGATE, directory};

/// A server that trusts every peer, with a rule by each attribute.
fn server(name: &str, rules: &str) -> Server {
    let file = directory(&format!("auth-{name}")).join("tollgate.toml");
    fs::write(&file, format!("[server]\ntrusted_proxies = [\"127.0.0.1\"]\n{rules}")).unwrap();
    Server::with_config(&file)
}

const BY_EACH: &str = r#"
    [[rule]]
    name = "read"
    match = { method = "GET" }
    key = ["client", "host", "path", "header:x-key"]
    limit = "1/hour fixed"
    [[rule]]
    name = "write"
    match = { method = "POST" }
    key = ["client", "host", "path"]
    limit = "1/hour fixed"
"#;

const BY_PATH: &str = r#"
    [[rule]]
    name = "by-path"
    key = ["client", "path"]
    limit = "1/hour fixed"
"#;

/// The header fields that Traefik's ForwardAuth sends, including the client's.
fn traefik<'a>(method: &'a str, uri: &'a str, client: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![
        ("user-agent", "curl/8"),
        ("accept", "*/*"),
        ("x-key", "k"),
        ("x-forwarded-for", client),
        ("x-forwarded-host", "api.example.org"),
        ("x-forwarded-method", method),
        ("x-forwarded-port", "443"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-server", "traefik-1"),
        ("x-forwarded-uri", uri),
        ("x-real-ip", client),
    ]
}

/// The header fields that nginx sends, as documented.
fn nginx<'a>(method: &'a str, uri: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![("x-key", "k"), ("x-original-method", method), ("x-original-uri", uri)]
}

fn assert_bad_request(answer: &Answer, code: &str, field: &str) {
    assert_eq!(answer.status, 400, "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    assert_eq!(answer.json()["code"], code, "{answer:?}");
    assert_eq!(answer.json()["field"], field, "{answer:?}");
}

#[test]
fn f2_traefiks_original_request_is_decided() {
    let server = server("traefik", BY_EACH);
    let ask = |method, uri, client| server.send("GET", "/auth", &traefik(method, uri, client), "");
    let allowed = ask("GET", "/orders?page=1", "198.51.100.1");
    assert_eq!((allowed.status, allowed.json()["rule"].as_str()), (200, Some("read")), "{allowed:?}");
    assert_eq!(allowed.header("ratelimit-policy"), Some("\"read\";q=1;w=3600"));
    assert_eq!(allowed.header("ratelimit"), Some("\"read\";r=0;t=3600"));
    let denied = ask("GET", "/orders?page=2", "198.51.100.1");
    assert_eq!(denied.status, 429, "the same path: {denied:?}");
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert!(denied.header("retry-after").is_some() && denied.header("ratelimit").is_some());
    assert_eq!(denied.json()["violated-policies"][0], "read");
    assert_eq!(ask("GET", "/orders", "198.51.100.2").status, 200, "another client");
    assert_eq!(ask("GET", "/others", "198.51.100.1").status, 200, "another path");
    assert_eq!(ask("POST", "/orders", "198.51.100.1").json()["rule"], "write", "another method");
    assert_eq!(ask("DELETE", "/orders", "198.51.100.1").json()["rule"], serde_json::Value::Null);
    let mut elsewhere = traefik("GET", "/orders", "198.51.100.1");
    elsewhere[4].1 = "WWW.example.org:443";
    assert_eq!(server.send("GET", "/auth", &elsewhere, "").status, 200, "another host");
    elsewhere[4].1 = "www.example.org.";
    assert_eq!(server.send("HEAD", "/auth", &elsewhere, "").status, 429, "the same host, spelled otherwise");
    elsewhere[2].1 = "l";
    assert_eq!(server.send("POST", "/auth", &elsewhere, "ignored").status, 200, "another key");
    assert_eq!(server.send("PUT", "/auth", &elsewhere, "").status, 405);
    assert_eq!(server.metric("tollgate_http_request_duration_seconds_count{route=\"auth\"}"), 10.0);
}

#[test]
fn f2_nginx_chooses_the_status_of_denials() {
    let server = server("nginx", BY_EACH);
    let ask = |query: &str| server.send("GET", &format!("/auth{query}"), &nginx("GET", "/a?b"), "");
    assert_eq!(ask("?deny_status=403").status, 200);
    for status in [403, 400, 599, 429] {
        let denied = ask(&format!("?deny_status={status}"));
        assert_eq!((denied.status, &denied.json()["status"]), (status, &status.into()), "{denied:?}");
        assert_eq!(denied.json()["title"], "Too Many Requests");
        assert!(denied.header("retry-after").is_some() && denied.header("ratelimit").is_some());
    }
    assert_eq!(ask("").status, 429);
    for wrong in ["200", "204", "399", "600", "0", "", "+403", "403.0", "４０３", "abc", "99999999999"] {
        assert_bad_request(&ask(&format!("?deny_status={wrong}")), "invalid_status", "deny_status");
    }
    let host = |host: &str| {
        let request = format!(
            "GET /auth HTTP/1.1\r\nhost: {host}\r\nx-original-uri: /h\r\nx-key: k\r\nconnection: close\r\n\r\n"
        );
        server.raw(&request).status
    };
    assert_eq!([host("one"), host("two"), host("one")], [200, 200, 429], "the host is Host");
    assert_eq!(server.metric("tollgate_http_responses_total{status=\"403\"}"), 1.0);
}

#[test]
fn f3_an_ambiguous_original_request_is_rejected() {
    let server = server("two-ways", BY_PATH);
    assert_eq!(server.send("GET", "/auth", &nginx("GET", "/login"), "").status, 200);
    assert_eq!(server.send("GET", "/auth", &nginx("GET", "/login"), "").status, 429);
    for added in [("x-forwarded-uri", "/other"), ("x-forwarded-method", "GET"), ("x-forwarded-uri", "")] {
        let headers = [nginx("GET", "/login"), vec![added]].concat();
        assert_bad_request(&server.send("GET", "/auth", &headers, ""), "ambiguous", added.0);
    }
    for (name, value) in [("x-original-uri", "/other"), ("x-original-method", "GET")] {
        let headers = [nginx("GET", "/login"), vec![(name, value)]].concat();
        assert_bad_request(&server.send("GET", "/auth", &headers, ""), "ambiguous", name);
        let headers = [traefik("GET", "/login", "127.0.0.1"), vec![(name, value)]].concat();
        assert_eq!(server.send("GET", "/auth", &headers, "").status, 400);
    }
    for name in ["x-forwarded-uri", "x-forwarded-method", "x-forwarded-host"] {
        let headers = [traefik("GET", "/login", "127.0.0.1"), vec![(name, "/x")]].concat();
        assert_bad_request(&server.send("GET", "/auth", &headers, ""), "ambiguous", name);
    }
    for (name, value) in [("x-original-uri", ""), ("x-original-method", "G T"), ("x-original-method", "")] {
        assert_bad_request(&server.send("GET", "/auth", &[(name, value)], ""), "invalid_header", name);
    }
    // X-Forwarded-Host belongs to no kind: every proxy sends it, and beside nginx's headers it is
    // ignored.
    let headers = [nginx("GET", "/login"), vec![("x-forwarded-host", "other")]].concat();
    assert_eq!(server.send("GET", "/auth", &headers, "").status, 429);
    assert_eq!(server.metric("tollgate_decisions_total{outcome=\"allowed\"}"), 1.0);
}

#[test]
fn f2_envoys_path_after_the_prefix_is_decided() {
    let server = server("envoy", BY_PATH);
    let ask =
        |method: &str, path: &str| server.send(method, path, &[("x-real-ip", "198.51.100.1")], "").status;
    for path in ["/auth/", "/auth/login", "/auth//logout", "/auth/a/b/", "/auth/%2Flogin", "/auth/auth"] {
        assert_eq!(ask("GET", path), 200, "{path}");
        for method in ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "HEAD"] {
            assert_eq!(ask(method, &format!("{path}?deny_status=418&x")), 429, "{method} {path}");
        }
    }
    let forged = [traefik("GET", "/other", "127.0.0.1"), nginx("GET", "/other")].concat();
    assert_eq!(server.send("GET", "/auth/login", &forged, "").status, 429);
    assert_eq!(ask("GET", "/authentic"), 404);
    assert_eq!(server.metric("tollgate_http_request_duration_seconds_count{route=\"auth\"}"), 61.0);
}

#[test]
fn f3_long_and_unusual_values_do_not_evade_a_rule() {
    let server = server(
        "odd",
        &format!(
            "{BY_PATH}\n[[rule]]\nname = \"by-key\"\nkey = [\"header:x-key\"]\nlimit = \"20/hour fixed\""
        ),
    );
    let long = format!("/{}", "x".repeat(5_000));
    let longer = format!("{long}y");
    for (first, second) in [
        (long.as_str(), longer.as_str()),
        ("/odd<path>`", "/odd<path>`?query"),
        ("/\u{e9}", "/\u{e9}"),
        ("http://example.org/absolute", "/absolute"),
        ("/fragment#one", "/fragment#two"),
        ("*", "*"),
    ] {
        assert_eq!(server.send("GET", "/auth", &nginx("GET", first), "").status, 200, "{first}");
        assert_eq!(server.send("GET", "/auth", &nginx("GET", second), "").status, 429, "{second}");
    }
    let method = "M".repeat(2_000);
    assert_eq!(server.send("GET", "/auth", &nginx(&method, "/method"), "").status, 200);
    assert_eq!(server.send("GET", "/auth", &nginx(&method, "/method"), "").status, 429);
    // A request without original headers has the path `/`.
    assert_eq!([server.get("/auth").status, server.get("/auth").status], [200, 429]);
    assert_eq!(server.send("GET", "/auth", &nginx("GET", "/"), "").status, 429);
    let key = "k".repeat(3_000);
    for left in (0..20).rev() {
        let path = format!("/key/{left}");
        let answer = server.send("GET", "/auth", &[("x-key", &key), ("x-original-uri", &path)], "");
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    assert_eq!(server.send("GET", "/auth", &[("x-key", &key), ("x-original-uri", "/key")], "").status, 429);
}

#[test]
fn f3_only_trusted_proxies_forward_a_client() {
    let rules = "[[rule]]\nname = \"per-client\"\nkey = [\"client\"]\nlimit = \"1/hour fixed\"";
    let ask = |server: &Server, client| server.send("GET", "/auth", &traefik("GET", "/", client), "").status;
    let trusting = server("trusting", rules);
    assert_eq!([ask(&trusting, "198.51.100.1"), ask(&trusting, "198.51.100.2")], [200, 200]);
    assert_eq!(ask(&trusting, "203.0.113.9, 198.51.100.1"), 429, "what the client wrote is not read");
    let file = directory("auth-wary").join("tollgate.toml");
    fs::write(&file, rules).unwrap();
    let wary = Server::with_config(&file);
    assert_eq!([ask(&wary, "198.51.100.1"), ask(&wary, "198.51.100.2")], [200, 429]);
    assert_eq!(wary.metric("tollgate_unidentified_total"), 0.0);
}

#[test]
fn e4_a_failed_store_is_a_503_under_a_closed_rule_whatever_deny_status_is() {
    let file = directory("auth-closed").join("tollgate.toml");
    let closed = r#"
        [store]
        kind = "redis"
        url = "redis://127.0.0.1:1"
        [[rule]]
        name = "closed"
        key = ["client"]
        limit = "10/min"
        on_store_error = "closed"
    "#;
    fs::write(&file, closed).unwrap();
    let server = Server::with_config(Path::new(&file));
    let answer = server.get("/auth");
    assert_eq!((answer.status, &answer.json()["degraded"]), (503, &true.into()), "{answer:?}");
    let answer = server.get("/auth?deny_status=403");
    assert_eq!((answer.status, &answer.json()["degraded"]), (503, &true.into()), "{answer:?}");
}

/// Without `trusted_proxies` all clients of a proxy share its address: the log says which setting
/// is missing, once, and only if a proxy asks.
#[test]
fn f3_an_untrusted_proxy_is_a_warning() {
    let mut command = Command::new(TOLLGATE);
    let mut server = Server::logging(command.arg("serve"));
    server.get("/auth");
    server.send("GET", "/auth", &traefik("GET", "/one", "203.0.113.1"), "");
    server.send("GET", "/auth", &nginx("GET", "/two"), "");
    server.signal("TERM");
    let log = server.rest_of_log();
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains("trusted_proxies")).collect();
    assert_eq!(warnings.len(), 1, "{log}");
    assert!(warnings[0].contains("WARN") && warnings[0].contains("127.0.0.1"), "{log}");
}
