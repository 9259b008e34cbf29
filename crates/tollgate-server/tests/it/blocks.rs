//! `GET /v1/blocks`.

use std::fs;

use crate::common::{Server, directory};
use crate::redis_server::Redis;
use serde_json::json;

#[test]
fn c5_exactly_the_blocked_clients_are_listed() {
    let rules = "[[rule]]\nname = \"r\"\nkey = [\"client\"]\nlimit = [\"9/hour fixed\", \"9/hour log\"]\n\
                 [[rule]]\nname = \"log\"\nkey = [\"client\"]\nlimit = \"9/hour log\"\n";
    let redis = Redis::start(&[]);
    let store = format!("[store]\nkind = \"redis\"\nurl = \"{}\"\ndeadline = \"5s\"\n", redis.url());
    for (kind, store) in [("memory", ""), ("redis", &store)] {
        let file = directory(&format!("blocks-{kind}")).join("tollgate.toml");
        fs::write(&file, format!("{store}{rules}")).unwrap();
        let server = Server::start(&["--config", file.to_str().unwrap()]);
        let listed = |query: &str| {
            let body = server.admin("GET", &format!("/v1/blocks{query}"), None).json();
            let blocks = body["blocks"].as_array().unwrap_or_else(|| panic!("{body}")).clone();
            let name = |block: &serde_json::Value| {
                assert!(block["until"].as_u64().is_some(), "{block}");
                format!("{} {}", block["client"].as_str().unwrap(), block["rule"].as_str().unwrap())
            };
            let mut names: Vec<String> = blocks.iter().map(name).collect();
            names.sort();
            (names, body["more"] == true)
        };
        assert_eq!(listed(""), (Vec::new(), false));
        server.get("/check/quiet");
        for client in ["a", "z%2C%7B", "gone", "let-in"] {
            let path = format!("/v1/clients/{client}/block");
            assert_eq!(server.admin("PUT", &path, Some(&json!({"for": "1h"}))).status, 200);
        }
        assert_eq!(server.admin("DELETE", "/v1/clients/gone", None).status, 204);
        assert_eq!(server.admin("DELETE", "/v1/clients/let-in/block", None).status, 204);
        let all = ["a log", "a r", "z,{ log", "z,{ r"].map(str::to_owned).to_vec();
        assert_eq!(listed(""), (all, false), "{kind}");
        let (some, more) = listed("?count=1");
        assert_eq!((some.len(), more), (1, true), "{kind}");
        assert_eq!(server.admin("GET", "/v1/blocks?count=0", None).status, 400);
    }
}
