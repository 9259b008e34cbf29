//! Reservations over HTTP: clients of a shared budget do not starve each other.

use std::fs;
use std::io::{Read as _, Write as _};

use crate::common::{Answer, Server, directory, parse};
use crate::network::connect_from;
use crate::wire::Wire;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::{Value, json};

fn reserve(server: &Server, client: &str, cost: u64) -> Answer {
    server.post("/v1/reserve", &json!({"attributes": {"client": client}, "cost": cost, "ttl": "1h"}))
}

fn settle(server: &Server, reserved: &Value, cost: u64) -> Answer {
    let id = reserved["id"].as_str().unwrap();
    server.post(&format!("/v1/reserve/{id}/settle"), &json!({"cost": cost}))
}

fn server(name: &str) -> Server {
    let file = directory(&format!("reserve-{name}")).join("tollgate.toml");
    fs::write(&file, "[[rule]]\nname = \"all\"\nlimit = \"100000/hour fixed\"").unwrap();
    Server::with_config(&file)
}

#[test]
fn c5_the_settlement_of_a_reservation_of_nothing_charges_the_cost() {
    let server = server("settle");
    let reserved = reserve(&server, "a", 0).json();
    assert_eq!((&reserved["allowed"], &reserved["remaining"]), (&json!(true), &json!(100_000)));
    assert_eq!(settle(&server, &reserved, 7).json(), json!({"shortfall": 0}));
    assert_eq!(server.get("/check/a?cost=0").json()["remaining"], 99_993);
    let cancelled = reserve(&server, "a", 0).json();
    let path = format!("/v1/reserve/{}", cancelled["id"].as_str().unwrap());
    assert_eq!(server.send("DELETE", &path, &[], "").status, 204);
    assert_eq!(server.get("/check/a?cost=0").json()["remaining"], 99_993);
    let much = reserve(&server, "a", 0).json();
    assert_eq!(settle(&server, &much, 200_000).json(), json!({"shortfall": 7}), "one whole limit is owed");
    let denied = server.get("/check/a?cost=0");
    assert_eq!((denied.status, &denied.json()["owed"]), (429, &json!(100_000)));
}

/// The client did not receive the answer, and sends the settlement again.
#[test]
fn c7_a_settlement_counts_once_however_often_it_is_sent() {
    let server = server("once");
    let left = || server.get("/check/a?cost=0").json()["remaining"].as_u64().unwrap();
    for (estimate, left_after) in [(10, 99_500), (0, 99_000)] {
        let reserved = reserve(&server, "a", estimate).json();
        assert_eq!(settle(&server, &reserved, 500).status, 200);
        for _ in 0..3 {
            let again = settle(&server, &reserved, 500);
            assert_eq!((again.status, &again.json()["code"]), (404, &json!("not_reserved")), "{again:?}");
        }
        assert_eq!(left(), left_after, "an estimate of {estimate}");
    }
    let stream = reserve(&server, "a", 0).json();
    let renew = format!("/v1/reserve/{}/renew", stream["id"].as_str().unwrap());
    assert_eq!(server.post(&renew, &json!({"ttl": "30s"})).status, 204);
    assert_eq!(settle(&server, &stream, 1_000).status, 200);
    assert_eq!(server.post(&renew, &json!({"ttl": "30s"})).status, 404, "it was settled");
    assert_eq!(left(), 98_000);
}

/// An id names a hold in the store, and says nothing by itself.
#[test]
fn c7_a_forged_id_settles_nothing() {
    let server = server("forged");
    for estimate in [0, 10] {
        let reserved = reserve(&server, "a", estimate).json();
        let id = BASE64_URL_SAFE_NO_PAD.decode(reserved["id"].as_str().unwrap()).unwrap();
        for changed in [0..4, 4..12, 12..16, 0..16] {
            let mut forged = id.clone();
            forged[changed].fill(0xff);
            let forged = json!({"id": BASE64_URL_SAFE_NO_PAD.encode(&forged)});
            assert_eq!(settle(&server, &forged, 1).status, 404);
        }
        assert_eq!(settle(&server, &reserved, 1).status, 200);
    }
}

#[test]
fn c7_a_reservation_is_kept_renewed_and_settled_for_more_than_it_held() {
    let server = server("renewed");
    let ask = |ttl: &str, on_expiry: Option<&str>| {
        let mut body = json!({"attributes": {"client": "a"}, "cost": 10, "ttl": ttl});
        if let Some(on_expiry) = on_expiry {
            body["on_expiry"] = on_expiry.into();
        }
        server.post("/v1/reserve", &body)
    };
    let left = || server.get("/check/a?cost=0").json()["remaining"].as_u64().unwrap();
    let post = |id: &Value, verb: &str, body: Value| {
        server.post(&format!("/v1/reserve/{}/{verb}", id["id"].as_str().unwrap()), &body)
    };
    let held = ask("1ms", None).json();
    assert_eq!(ask("1ms", Some("give_back")).status, 200);
    crate::common::eventually("the second expires, the first stays charged", || left() == 99_990);
    assert_eq!(post(&held, "renew", json!({"ttl": "1h"})).status, 404, "it has expired");
    let stream = ask("30s", None).json();
    assert_eq!(post(&stream, "renew", json!({})).status, 204);
    assert_eq!(post(&stream, "settle", json!({"cost": 25})).json(), json!({"shortfall": 0}));
    assert_eq!(post(&stream, "settle", json!({"cost": 25})).status, 404, "settled once");
    assert_eq!(left(), 99_965);
    assert_eq!(ask("1s", Some("never")).status, 400);
}

#[test]
fn c7_a_record_is_never_denied_and_says_what_is_left_or_owed() {
    let server = server("record");
    let record = |cost: u64| server.post("/v1/record", &json!({"attributes": {"client": "a"}, "cost": cost}));
    let some = record(99_999).json();
    assert_eq!(
        (&some["allowed"], &some["remaining"], &some["shortfall"]),
        (&json!(true), &json!(1), &json!(0))
    );
    assert_eq!(some.get("owed"), None);
    let more = record(501).json();
    assert_eq!(
        (&more["allowed"], &more["remaining"], &more["owed"]),
        (&json!(false), &json!(0), &json!(500))
    );
    assert_eq!(more["limits"][0]["owed"], json!(500));
    assert_eq!(record(200_000).json()["shortfall"], json!(100_500));
    assert_eq!(server.metric("tollgate_shortfall_units_total"), 100_500.0);
    assert_eq!(server.get("/check/a").status, 429);
}

/// From an address in 127.0.0.0/8.
fn post_from(from: u8, server: &Server, path: &str, body: &Value) -> Answer {
    let mut stream = connect_from([127, 0, 0, from], &server.address).unwrap();
    let body = body.to_string();
    let length = body.len();
    let head = "host: x\r\nconnection: close\r\ncontent-type: application/json";
    write!(stream, "POST {path} HTTP/1.1\r\n{head}\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    parse(&answer)
}

#[test]
fn c5_no_caller_takes_all_holds_of_a_shared_budget_whatever_clients_it_names() {
    let file = directory("reserve-full").join("tollgate.toml");
    let config = "[store]\nmax_holds = 4\nholds_per_caller = 0.5\n\
                  [[rule]]\nname = \"all\"\nlimit = [\"1000/h fixed\", \"100 concurrent\"]\n";
    fs::write(&file, config).unwrap();
    let server = Server::everywhere(&["--config", file.to_str().unwrap()]);
    let hold = |from: u8, verb: &str, client: &str, ttl: &str| {
        let body = json!({"attributes": {"client": client}, "ttl": ttl});
        post_from(from, &server, &format!("/v1/{verb}"), &body)
    };
    assert_eq!(hold(1, "reserve", "a", "10m").status, 200);
    assert_eq!(hold(1, "acquire", "b", "1h").status, 200);
    let assert_full = |answer: &Answer, (whose, says): (&str, &str), secs: u64| {
        assert_eq!(answer.status, 429, "{answer:?}");
        let retry: u64 = answer.header("retry-after").unwrap().parse().unwrap();
        assert!((secs - 100..=secs).contains(&retry), "when the first one ends: {retry}");
        let problem = answer.json();
        assert_eq!(problem["holdsFull"], whose);
        assert!(problem["detail"].as_str().unwrap().starts_with(says), "{problem}");
        assert_eq!((&problem["limits"], &problem["violated-policies"]), (&json!([]), &json!([])));
    };
    let of_caller = ("caller", "this caller has too many reservations and slots");
    assert_full(&hold(1, "reserve", "c", "1m"), of_caller, 1_200);
    assert_full(&hold(1, "acquire", "d", "1m"), of_caller, 1_200);
    let mut wire = Wire::connect(&server);
    wire.send("TOLL.ACQUIRE client e TTL 60\r\nPING\r\n");
    let reply: Vec<String> =
        std::iter::from_fn(|| Some(wire.line()).filter(|line| line != "+PONG")).collect();
    let value = |name: &str| reply.iter().position(|line| line == name).map(|at| &*reply[at + 1]);
    assert_eq!((value("allowed"), value("holds_full")), (Some(":0"), Some("$6")), "{reply:?}");
    assert_eq!(reply.last().unwrap(), "caller");
    let retry: u64 = value("retry_after_ms").unwrap()[1..].parse().unwrap();
    assert!((1_100_000..=1_200_000).contains(&retry), "{retry}");

    // Another caller has its share, also on the shared budget.
    assert_eq!(hold(2, "reserve", "a", "1m").status, 200);
    assert_eq!(hold(2, "acquire", "a", "1h").status, 200);
    assert_full(&hold(3, "reserve", "a", "1m"), ("all", "the rate limiter has too many"), 120);
    assert_eq!(server.metric("tollgate_holds"), 4.0);
    assert_eq!(server.metric("tollgate_holds_refused_total"), 4.0);
}
