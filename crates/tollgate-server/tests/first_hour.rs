//! The first hour: what a new user writes, and what the server makes of it.

use std::fs;

use common::{Server, directory};
use serde_json::json;

mod common;

/// A server with these rules.
fn server(name: &str, rules: &str) -> Server {
    let file = directory(&format!("first-hour-{name}")).join("tollgate.toml");
    fs::write(&file, rules).unwrap();
    Server::with_config(&file)
}

#[test]
fn c2_a_match_may_list_values() {
    let rules = r#"
        [[rule]]
        name = "write"
        match = { method = ["POST", "PUT"], path = "/api/*" }
        limit = "2/hour fixed"
    "#;
    let server = server("lists", rules);
    let check = |method: &str| {
        server.post("/v1/check", &json!({"attributes": {"method": method, "path": "/api/x"}})).status
    };
    assert_eq!(["POST", "PUT", "POST", "GET"].map(check), [200, 200, 429, 200]);
    let rules = server.admin("GET", "/v1/rules", None).json();
    assert_eq!(rules["rules"][0]["match"], json!({"method": ["POST", "PUT"], "path": "/api/*"}));
}
