//! A page of another site cannot make its visitor's browser change state.

use crate::common::{Server, TOKEN};
use serde_json::json;

/// A form can send any text as `text/plain` without a CORS preflight.
#[test]
fn a_body_must_be_declared_as_json() {
    let server = Server::start(&[]);
    let body = json!({"attributes": {"client": "a"}}).to_string();
    let send = |kind: &str| server.send("POST", "/v1/check", &[("content-type", kind)], &body);
    for kind in ["", "text/plain", "application/x-www-form-urlencoded", "application/problem+json", "json"] {
        let answer = send(kind);
        assert_eq!(answer.status, 415, "{kind:?}");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
        assert_eq!(answer.json()["field"], "content-type");
    }
    let length = body.len();
    let without =
        format!("POST /v1/check HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}");
    assert_eq!(server.raw(&format!("{without}\r\n\r\n{body}")).status, 415);
    for (kind, left) in
        [("application/json", 9), ("Application/JSON; charset=utf-8", 8), ("application/json;x=y", 7)]
    {
        assert_eq!(send(kind).json()["remaining"], left, "{kind}, and nothing before it was counted");
    }
}

#[test]
fn a_cross_site_request_is_rejected_and_costs_nothing() {
    let server = Server::start(&[]);
    let (token, body) = (format!("Bearer {TOKEN}"), json!({"attributes": {"client": "a"}}).to_string());
    let ways = [
        ("GET", "/check/a", ""),
        ("HEAD", "/check/a", ""),
        ("GET", "/check/", ""),
        ("POST", "/v1/check", &body),
        ("POST", "/v1/check/batch", r#"{"checks":[]}"#),
        ("POST", "/v1/reserve", &body),
        ("DELETE", "/v1/reserve/x", ""),
        ("PUT", "/v1/clients/a/block", r#"{"for":"10m"}"#),
        ("DELETE", "/v1/clients/a", ""),
    ];
    for (method, path, body) in ways {
        for mark in [
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
            ("origin", "http://evil.example"),
            ("origin", "null"),
        ] {
            let answer = server.send(method, path, &[mark, ("authorization", &token)], body);
            assert_eq!(answer.status, 403, "{method} {path} {mark:?}");
            if method != "HEAD" {
                assert_eq!(
                    (answer.json()["code"].as_str(), answer.json()["field"].as_str()),
                    (Some("cross_site"), Some(mark.0))
                );
            }
        }
    }
    for mark in [("sec-fetch-site", "same-origin"), ("sec-fetch-site", "none"), ("origin", "http://tollgate")]
    {
        assert_eq!(server.send("GET", "/check/b", &[mark], "").status, 200, "{mark:?}");
    }
    assert_eq!(server.get("/check/a").json()["remaining"], 9, "nothing before was counted");
    let cross = [("sec-fetch-site", "cross-site"), ("origin", "http://evil.example")];
    assert_eq!(server.send("GET", "/healthz", &cross, "").status, 200, "which changes nothing");
    assert_eq!(server.send("GET", "/auth", &cross, "").status, 200, "proxies forward their clients' fields");
}
