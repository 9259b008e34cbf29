//! Reservations over HTTP: clients of a shared budget do not starve each other.

use std::fs;

use common::{Answer, Server, directory};
use serde_json::{Value, json};

mod common;

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

/// A shared budget has a bounded number of reservations, and those of nothing do not count.
#[test]
fn c5_reservations_of_nothing_are_not_bounded() {
    let server = server("nothing");
    for _ in 0..9_000 {
        assert_eq!(reserve(&server, "one", 0).status, 200);
    }
    for client in ["one", "another"] {
        let reserved = reserve(&server, client, 10);
        assert_eq!(reserved.status, 200, "{reserved:?}");
        assert_eq!(settle(&server, &reserved.json(), 10).status, 200);
    }
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
    assert_eq!(settle(&server, &much, 100_000).json(), json!({"shortfall": 7}), "as far as it goes");
}

#[test]
fn c5_no_client_takes_all_reservations_of_a_shared_budget() {
    let server = server("shared");
    let held = (0..5_000).filter(|_| reserve(&server, "one", 1).status == 200).count();
    assert!(held < 5_000, "its share of the reservations is bounded");
    assert_eq!(reserve(&server, "another", 1).status, 200);
}
