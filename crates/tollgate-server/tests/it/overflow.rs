//! A plan that falls back on bought credits, over every interface of the server.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::common::{Server, TOKEN, TOLLGATE, directory, tollgate};

const RULES: &str = r#"
    [[rule]]
    name = "plan"
    key = ["client"]
    limit = ["1000/hour fixed", "8000/day fixed"]
    overflow = "credits"
    [[rule]]
    name = "credits"
    key = ["client"]
    limit = "5000/365d fixed"
"#;

fn server(name: &str) -> Server {
    let file = directory(&format!("overflow-{name}")).join("tollgate.toml");
    fs::write(&file, RULES).unwrap();
    Server::everywhere(&["--config", file.to_str().unwrap()])
}

fn check(server: &Server, cost: u64) -> Value {
    server.post("/v1/check", &json!({"attributes": {"client": "alice"}, "cost": cost})).json()
}

/// The units that remain of each limit, and those that were drawn on it.
fn parts(answer: &Value) -> Vec<[Option<u64>; 2]> {
    let limits = answer["limits"].as_array().unwrap_or_else(|| panic!("{answer}"));
    limits.iter().map(|limit| ["remaining", "drawn"].map(|field| limit[field].as_u64())).collect()
}

#[test]
fn c10_an_answer_says_how_much_came_from_the_plan_and_how_much_from_the_credits() {
    let server = server("check");
    assert_eq!(parts(&check(&server, 700)), [[300, 700], [7300, 700], [5000, 0]].map(|it| it.map(Some)));
    let answer = check(&server, 800);
    assert_eq!(parts(&answer), [[0, 300], [7000, 300], [4500, 500]].map(|it| it.map(Some)));
    assert_eq!((&answer["remaining"], &answer["rule"]), (&json!(4500), &json!("plan")));
    let denied = check(&server, 4501);
    assert_eq!(
        (&denied["rule"], &denied["violated-policies"]),
        (&json!("plan"), &json!(["plan"])),
        "{denied}"
    );
    assert_eq!(parts(&denied), [[0, 0], [7000, 0], [4500, 0]].map(|it| it.map(Some)), "drawn on neither");
    let never = check(&server, 6001);
    assert_eq!((&never["allowed"], &never["retryAfterMs"]), (&json!(false), &Value::Null), "{never}");
    // The deciding limit's header counts both.
    let peek = json!({"attributes": {"client": "alice"}, "cost": 1, "peek": true});
    let limits = server.post("/v1/check", &peek);
    assert!(limits.header("ratelimit").unwrap().contains(r#""credits";r=4500"#), "{limits:?}");
}

#[test]
fn c10_a_reservation_settles_credits_first_and_a_record_owes_to_the_plan() {
    let server = server("reserve");
    let body = json!({"attributes": {"client": "alice"}, "cost": 1400});
    let reserved = server.post("/v1/reserve", &body).json();
    assert_eq!(reserved["allowed"], true, "{reserved}");
    let id =
        reserved["reservation"].as_str().or(reserved["id"].as_str()).unwrap_or_else(|| panic!("{reserved}"));
    let settled = server.post(&format!("/v1/reserve/{id}/settle"), &json!({"cost": 1100}));
    assert_eq!(settled.status, 200, "{settled:?}");
    let left = |answer: &Value| parts(answer).iter().map(|part| part[0].unwrap()).collect::<Vec<_>>();
    assert_eq!(left(&check(&server, 0)), [0, 7000, 4900]);
    let record = json!({"attributes": {"client": "alice"}, "cost": 5000});
    let recorded = server.post("/v1/record", &record).json();
    assert_eq!(left(&check(&server, 0)), [0, 6900, 0], "{recorded}");
    let denied = check(&server, 0);
    assert_eq!((&denied["allowed"], &denied["owed"]), (&json!(false), &json!(100)), "{denied}");
}

#[test]
fn c10_credits_are_bought_shown_and_reset_for_one_client() {
    let server = server("bought");
    assert_eq!(check(&server, 6000)["allowed"], true);
    assert_eq!(check(&server, 10)["allowed"], false);
    let bought = json!({"rule": "credits", "limit": "7000/365d fixed"});
    assert_eq!(server.admin("PUT", "/v1/clients/alice/limits", Some(&bought)).status, 200);
    let answer = check(&server, 10);
    assert_eq!((&answer["allowed"], &answer["remaining"]), (&json!(true), &json!(1990)), "{answer}");
    let shown = server.admin("GET", "/v1/clients/alice", None).json();
    let rules: Vec<&str> =
        shown["limits"].as_array().unwrap().iter().map(|it| it["rule"].as_str().unwrap()).collect();
    assert_eq!(rules, ["plan", "plan", "credits"], "{shown}");
    assert_eq!(shown["limits"][2]["remaining"], 1990);
    assert!(server.admin("DELETE", "/v1/clients/alice", None).status < 300);
    let left = |answer: &Value| parts(answer).iter().map(|part| part[0].unwrap()).collect::<Vec<_>>();
    assert_eq!(left(&check(&server, 0)), [1000, 8000, 1990], "credits are reset only by name");
    let counted = server.admin("GET", "/v1/rules", None).json();
    assert_eq!(counted["rules"][0]["overflow"], "credits", "{counted}");
}

#[test]
fn c10_an_explanation_names_both_rules() {
    let server = server("explain");
    check(&server, 700);
    let mut command = Command::new(TOLLGATE);
    command.args([
        "explain",
        "client=alice",
        "--cost",
        "800",
        "--server",
        &format!("http://{}", server.address),
    ]);
    let output = command.env("TOLLGATE_ADMIN_TOKEN", TOKEN).env("HOME", "/nonexistent").output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    for line in [
        "admitted; plan has the least left: 5300\n",
        "plan: charges 800, with credits\n  admits  1000/hour fixed: 300 of 1000 left, 300 drawn",
        "credits: covers what other rules overflow into it\n  admits  5000/365d fixed: 5000 of 5000 left, 500 drawn",
    ] {
        assert!(said.contains(line), "{line:?} is missing in\n{said}");
    }
}

#[test]
fn c10_the_redis_protocol_has_what_was_drawn_on_each_rule() {
    let server = server("resp");
    check(&server, 700);
    let mut connection = TcpStream::connect(server.listens("resp")).unwrap();
    connection.write_all(b"TOLL.CHECK client alice COST 800\r\n").unwrap();
    connection.shutdown(Shutdown::Write).unwrap();
    let mut reply = String::new();
    connection.read_to_string(&mut reply).unwrap();
    let drawn = "$5\r\ndrawn\r\n*4\r\n$7\r\ncredits\r\n:500\r\n$4\r\nplan\r\n:300\r\n";
    assert!(reply.starts_with("*16\r\n") && reply.ends_with(drawn), "{reply:?}");
}

#[test]
fn c10_validate_describes_an_overflow_and_refuses_one_that_cannot_be() {
    let file = directory("overflow-validate").join("tollgate.toml");
    fs::write(&file, RULES).unwrap();
    let output = tollgate(&["validate", file.to_str().unwrap()]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("What it does not have of a cost is drawn on the rule \"credits\".\n"), "{said}");
    assert!(said.contains("Rule \"credits\" covers what other rules overflow into it.\n"), "{said}");
    for (wrong, reason) in [
        (RULES.replace("overflow = \"credits\"", "overflow = \"credit\""), "did you mean \"credits\"?"),
        (
            RULES.replace("overflow = \"credits\"", "overflow = \"plan\""),
            "a rule cannot overflow into itself",
        ),
        (RULES.replace("limit = \"5000", "overflow = \"plan\"\nlimit = \"5000"), "has an overflow itself"),
        (RULES.replace("limit = \"5000", "shadow = true\nlimit = \"5000"), "never denies"),
        (RULES.replace("limit = \"5000", "cost = 2\nlimit = \"5000"), "has the cost 2"),
    ] {
        fs::write(&file, &wrong).unwrap();
        let mut command = Command::new(TOLLGATE);
        let output =
            command.args(["validate", file.to_str().unwrap()]).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(reason), "{reason:?} is missing in\n{said}");
    }
}
