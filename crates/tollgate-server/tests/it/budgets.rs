//! Several budgets of one client, over HTTP.

use std::fs;
use std::process::Command;

use crate::common::{Server, TOLLGATE, directory};
use crate::redis_server::Redis;
use serde_json::{Value, json};

fn rules(limit: &str) -> String {
    format!(
        "[[rule]]\nname = \"per-client\"\nkey = [\"client\"]\nlimit = \"{limit}\"\n\
         [[override]]\nrule = \"per-client\"\nmatch = {{ path = \"/login\" }}\nlimit = \"5/hour fixed\"\n"
    )
}

#[test]
fn b12_an_override_by_path_and_its_rule_are_two_named_budgets() {
    let redis = Redis::start(&[]);
    let store = format!("[store]\nkind = \"redis\"\nurl = \"{}\"\ndeadline = \"5s\"\n", redis.url());
    for (kind, store) in [("memory", ""), ("redis", &store)] {
        let file = directory(&format!("budgets-{kind}")).join("tollgate.toml");
        fs::write(&file, format!("{store}{}", rules("100/hour fixed"))).unwrap();
        let mut command = Command::new(TOLLGATE);
        let mut server = Server::logging(command.args(["serve", "--config", file.to_str().unwrap()]));
        let ask = |server: &Server, path: &str| {
            server.post("/v1/check", &json!({"attributes": {"client": "c", "path": path}})).json()
        };
        let mut admitted = [0, 0];
        for _ in 0..300 {
            for (path, admitted) in ["/y", "/login"].into_iter().zip(&mut admitted) {
                *admitted += u32::from(ask(&server, path)["allowed"] == true);
            }
        }
        assert_eq!(admitted, [100, 5], "{kind}");
        assert_eq!(ask(&server, "/y")["limits"][0].get("budget"), None);
        assert_eq!(ask(&server, "/login")["limits"][0]["budget"], "path=/login");
        let shown = server.admin("GET", "/v1/clients/c", None).json();
        let budgets: Vec<(Option<&str>, &Value)> = shown["limits"]
            .as_array()
            .unwrap()
            .iter()
            .map(|limit| (limit["budget"].as_str(), &limit["limit"]))
            .collect();
        assert_eq!(budgets, [(None, &json!(100)), (Some("path=/login"), &json!(5))], "{kind} {shown}");

        assert_eq!(server.metric("tollgate_converted_states_total"), 0.0, "{kind}");
        fs::write(&file, format!("{store}{}", rules("200/hour fixed"))).unwrap();
        server.signal("HUP");
        server.log_line("is in effect");
        assert_eq!(ask(&server, "/y")["limits"][0]["remaining"], 99);
        assert_eq!(server.metric("tollgate_converted_states_total"), 1.0, "{kind}");
    }
}
