//! Reservations over HTTP: clients of a shared budget do not starve each other.

use std::fs;

use crate::common::{Answer, Server, directory};
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
