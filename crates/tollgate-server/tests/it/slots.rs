//! C8: slots over HTTP and the Redis protocol, and the verbs that refuse them.

use std::fs;
use std::net::SocketAddr;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

use crate::common::{Answer, Server, directory, eventually};
use crate::wire::Wire;
use serde_json::json;

const CONFIG: &str = r#"
[[rule]]
name = "streams"
key = ["client"]
limit = ["2 concurrent", "100/hour fixed"]

[[rule]]
name = "pages"
match = { kind = "page" }
limit = "10/hour fixed"
"#;

fn acquire(server: &Server, client: &str, ttl: &str) -> Answer {
    server.post("/v1/acquire", &json!({"attributes": {"client": client}, "cost": 5, "ttl": ttl}))
}

fn id(acquired: &Answer) -> String {
    acquired.json()["id"].as_str().unwrap_or_else(|| panic!("{acquired:?}")).to_owned()
}

fn renew_for(server: &Server, id: &str, ttl: &str) -> u16 {
    server.post(&format!("/v1/acquire/{id}/renew"), &json!({"ttl": ttl})).status
}

fn renew(server: &Server, id: &str) -> u16 {
    renew_for(server, id, "1h")
}

fn release(server: &Server, id: &str) -> u16 {
    server.send("DELETE", &format!("/v1/acquire/{id}"), &[], "").status
}

/// Slots and units left.
fn left(server: &Server, client: &str) -> (u64, u64) {
    let check = json!({"attributes": {"client": client}, "peek": true});
    let limits = server.post("/v1/check", &check).json()["limits"].clone();
    (limits[0]["remaining"].as_u64().unwrap(), limits[1]["remaining"].as_u64().unwrap())
}

#[test]
fn c8_a_slot_is_acquired_renewed_and_released() {
    let file = directory("slots").join("tollgate.toml");
    fs::write(&file, CONFIG).unwrap();
    let server = Server::with_config(&file);
    let (first, second) = (acquire(&server, "a", "1h"), acquire(&server, "a", "1h"));
    assert_eq!((first.status, second.status), (200, 200), "{first:?}");
    assert_eq!(
        first.header("ratelimit-policy"),
        Some("\"streams\";q=2;qu=\"concurrent-requests\", \"streams.2\";q=100;w=3600")
    );
    let denied = acquire(&server, "a", "1h");
    assert_eq!((denied.status, denied.json()["rule"].as_str()), (429, Some("streams")), "{denied:?}");
    let retry: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((3_500..=3_600).contains(&retry), "the earliest expiry: {retry}");
    assert_eq!(left(&server, "a"), (0, 90), "the denial took nothing");
    assert_eq!(acquire(&server, "b", "1h").status, 200, "another client");
    assert_eq!(renew_for(&server, &id(&first), "10m"), 204);
    let retry: u64 = acquire(&server, "a", "1h").header("retry-after").unwrap().parse().unwrap();
    assert!((500..=600).contains(&retry), "renewed for ten minutes from now: {retry}");
    assert_eq!(release(&server, &id(&first)), 204);
    assert_eq!(left(&server, "a"), (1, 90), "the cost stays charged");
    assert_eq!((release(&server, &id(&first)), renew(&server, &id(&first))), (404, 404));
    assert_eq!(release(&server, "nonsense"), 404);
    let dead = acquire(&server, "a", "1ms");
    eventually("the slot of a dead holder comes back", || left(&server, "a").0 == 1);
    assert_eq!(renew(&server, &id(&dead)), 404, "another request may have it");
    for ttl in ["0s", "2h", "soon"] {
        assert_eq!(acquire(&server, "a", ttl).status, 400, "{ttl}");
    }
    let free = server.post("/v1/acquire", &json!({"attributes": {"kind": "page"}}));
    assert_eq!((free.status, renew(&server, &id(&free)), release(&server, &id(&free))), (200, 204, 204));
}

#[test]
fn c8_an_id_releases_and_renews_only_the_slot_of_its_client() {
    let file = directory("slots-forged").join("tollgate.toml");
    fs::write(&file, CONFIG).unwrap();
    let server = Server::with_config(&file);
    let (own, other) = (id(&acquire(&server, "a", "1h")), id(&acquire(&server, "b", "1h")));
    // The hold of one client and the attributes of the other.
    let bytes = |id: &str| BASE64_URL_SAFE_NO_PAD.decode(id).unwrap();
    let (hold, attributes) = (&bytes(&own)[..16], &bytes(&other)[16..]);
    let forged = BASE64_URL_SAFE_NO_PAD.encode([hold, attributes].concat());
    assert_eq!((renew(&server, &forged), release(&server, &forged)), (404, 404));
    assert_eq!((left(&server, "a").0, left(&server, "b").0), (1, 1), "both are still under way");
    assert_eq!((release(&server, &own), release(&server, &other)), (204, 204));
}

#[test]
fn c8_a_check_that_cannot_return_a_slot_is_refused() {
    let file = directory("slots-refused").join("tollgate.toml");
    fs::write(&file, CONFIG).unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["validate", file.to_str().unwrap()]);
    let output = command.output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(said.contains("rule \"streams\" limits how many requests are under way"), "{said}");
    let server = Server::with_config(&file);
    let check = json!({"attributes": {"client": "a"}});
    for refused in [server.get("/check/a"), server.post("/v1/check", &check), server.get("/auth")] {
        assert_eq!((refused.status, &refused.json()["code"]), (400, &json!("slot_needed")), "{refused:?}");
        assert!(refused.json()["detail"].as_str().unwrap().contains("POST /v1/acquire"), "{refused:?}");
    }
    let batch = server.post("/v1/check/batch", &json!({"checks": [check, {"attributes": {"kind": "page"}}]}));
    assert_eq!(batch.json()["results"][1]["remaining"], 9, "{batch:?}");
    assert_eq!(batch.json()["results"][0]["error"]["code"], "slot_needed", "{batch:?}");
    let record = json!({"attributes": {"client": "a"}, "cost": 1});
    assert_eq!(server.post("/v1/record", &record).status, 200);
    let reserved = server.post("/v1/reserve", &json!({"attributes": {"client": "a"}, "cost": 9}));
    assert_eq!(left(&server, "a"), (1, 90), "a reservation takes a slot");
    let settle = format!("/v1/reserve/{}/settle", id(&reserved));
    assert_eq!(server.post(&settle, &json!({"cost": 4})).status, 200);
    assert_eq!(left(&server, "a"), (2, 95));
}

#[test]
fn c8_slots_survive_a_restart_on_disk() {
    let directory = directory("slots-disk");
    let (file, data) = (directory.join("tollgate.toml"), directory.join("data"));
    fs::write(&file, CONFIG).unwrap();
    let start = || Server::start(&["--config", file.to_str().unwrap(), "--data", data.to_str().unwrap()]);
    let mut server = start();
    let held = id(&acquire(&server, "a", "1h"));
    server.signal("TERM");
    assert_eq!(server.exit_code(), Some(0));
    let server = start();
    assert_eq!(left(&server, "a"), (1, 95));
    assert_eq!((renew(&server, &held), release(&server, &held)), (204, 204));
    assert_eq!(left(&server, "a"), (2, 95));
}

/// The values of a flat array, by their names.
fn field(reply: &[String], name: &str) -> String {
    let at = reply.iter().position(|value| value == name).unwrap_or_else(|| panic!("{name}: {reply:?}"));
    reply[at + 1].clone()
}

#[test]
fn c8_slots_over_the_redis_protocol_and_across_protocols() {
    let file = directory("slots-resp").join("tollgate.toml");
    fs::write(&file, CONFIG).unwrap();
    let server = Server::everywhere(&["--config", file.to_str().unwrap()]);
    let address: SocketAddr = server.listens("resp").parse().unwrap();
    let client = redis::Client::open(format!("redis://{address}")).unwrap();
    let mut connection = client.get_connection().unwrap();
    let mut ask = |line: &str| -> Result<Vec<String>, String> {
        let mut words = line.split(' ');
        let mut command = redis::cmd(words.next().unwrap());
        let reply: redis::Value = command
            .arg(words.collect::<Vec<_>>())
            .query(&mut connection)
            .map_err(|error| error.to_string())?;
        Ok(match reply {
            redis::Value::Array(values) => values.iter().map(text).collect(),
            other => vec![text(&other)],
        })
    };
    // The number of slots comes with the call.
    let first = ask("TOLL.ACQUIRE jobs 2 30").unwrap();
    assert_eq!((field(&first, "allowed"), field(&first, "remaining")), ("1".into(), "1".into()));
    let second = ask("TOLL.ACQUIRE jobs 2 500s").unwrap();
    let denied = ask("TOLL.ACQUIRE jobs 2 30").unwrap();
    assert_eq!((field(&denied, "allowed"), field(&denied, "id")), ("0".into(), String::new()));
    let retry: u64 = field(&denied, "retry_after_ms").parse().unwrap();
    assert!((20_000..=30_000).contains(&retry), "the earliest expiry: {retry}");
    let third = ask("TOLL.ACQUIRE jobs 3 500s").unwrap();
    assert_eq!(field(&third, "allowed"), "1", "against whatever number comes");
    assert_eq!(ask("CL.THROTTLE jobs 0 1 60").unwrap()[0], "0", "another budget");
    let (first, second) = (field(&first, "id"), field(&second, "id"));
    assert_eq!(ask(&format!("TOLL.RENEW {first} 60")).unwrap(), ["OK"]);
    let retry_of = |denied: &[String]| field(denied, "retry_after_ms").parse::<u64>().unwrap();
    let retry = retry_of(&ask("TOLL.ACQUIRE jobs 3 30").unwrap());
    assert!((50_000..=60_000).contains(&retry), "renewed for a minute from now: {retry}");
    let retry = retry_of(&ask("TOLL.ACQUIRE jobs 2 30").unwrap());
    assert!((490_000..=500_000).contains(&retry), "until fewer than two of three are live: {retry}");
    assert_eq!(ask(&format!("TOLL.RELEASE {first}")).unwrap(), ["OK"]);
    assert!(ask(&format!("TOLL.RELEASE {first}")).unwrap_err().contains("does not exist"));
    assert!(ask(&format!("TOLL.RENEW {first} 60")).unwrap_err().contains("does not exist"));
    assert_eq!(release(&server, &second), 204, "through another protocol");
    assert_eq!(field(&ask("TOLL.ACQUIRE jobs 1 30").unwrap(), "allowed"), "0", "the third is live");
    assert_eq!(ask(&format!("TOLL.RELEASE {}", field(&third, "id"))).unwrap(), ["OK"]);
    assert_eq!(field(&ask("TOLL.ACQUIRE jobs 1 30").unwrap(), "allowed"), "1");
    let dead = field(&ask("TOLL.ACQUIRE brief 1 1ms").unwrap(), "id");
    eventually("the slot of a dead holder comes back", || {
        field(&ask("TOLL.ACQUIRE brief 1 1h").unwrap(), "allowed") == "1"
    });
    for late in [format!("TOLL.RENEW {dead} 60"), format!("TOLL.RELEASE {dead}")] {
        assert!(ask(&late).unwrap_err().contains("does not exist"), "another holder has it: {late}");
    }
    assert_eq!(field(&ask("TOLL.ACQUIRE brief 1 1h").unwrap(), "allowed"), "0", "and keeps it");
    // Under the rules.
    let slot = ask("TOLL.ACQUIRE client a COST 5 TTL 1h").unwrap();
    assert_eq!((field(&slot, "allowed"), left(&server, "a")), ("1".into(), (1, 95)));
    let over_http = id(&acquire(&server, "a", "1h"));
    let denied = ask("TOLL.ACQUIRE client a TTL 1h").unwrap();
    let retry: u64 = field(&denied, "retry_after_ms").parse().unwrap();
    assert!((3_500_000..=3_600_000).contains(&retry), "the earliest expiry: {retry}");
    assert_eq!(ask(&format!("TOLL.RELEASE {over_http}")).unwrap(), ["OK"]);
    assert_eq!(ask(&format!("TOLL.RELEASE {}", field(&slot, "id"))).unwrap(), ["OK"]);
    assert_eq!(left(&server, "a").0, 2);
    assert!(ask("TOLL.CHECK client a").unwrap_err().contains("rule \"streams\""));
    assert!(ask("TOLL.ACQUIRE client a").unwrap_err().contains("send key n ttl"));
}

fn text(value: &redis::Value) -> String {
    match value {
        redis::Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        redis::Value::Int(number) => number.to_string(),
        redis::Value::SimpleString(text) => text.clone(),
        redis::Value::Okay => "OK".into(),
        redis::Value::Nil => String::new(),
        other => panic!("{other:?}"),
    }
}

/// Does `verb` to what an id names, taken for a `noun`.
fn act(server: &Server, noun: &str, id: &str, verb: &str) -> Answer {
    let path = format!("/v1/{noun}/{id}");
    match verb {
        "renew" => server.post(&format!("{path}/renew"), &json!({"ttl": "1h"})),
        "settle" => server.post(&format!("{path}/settle"), &json!({"cost": 1})),
        _ => server.send("DELETE", &path, &[], ""),
    }
}

/// Every id is taken by the verbs of what it names, and by no other; once it has ended, by none.
#[test]
fn c8_the_verbs_of_slots_and_of_reservations_refuse_each_others_ids() {
    let file = directory("slots-mixed").join("tollgate.toml");
    fs::write(&file, CONFIG).unwrap();
    let server = Server::everywhere(&["--config", file.to_str().unwrap()]);
    let mut wire = Wire::connect(&server);
    wire.send("TOLL.ACQUIRE jobs 2 1h\r\nPING\r\n");
    let reply: Vec<String> =
        std::iter::from_fn(|| Some(wire.line()).filter(|line| line != "+PONG")).collect();
    let inline = reply[4].clone();
    // No limit on concurrency covers the second, and no rule the last.
    let uncovered = json!({"attributes": {"kind": "page"}});
    let slots = [id(&acquire(&server, "a", "1h")), id(&server.post("/v1/acquire", &uncovered)), inline];
    let reservations = [json!({"client": "b"}), json!({"kind": "page"}), json!({"kind": "other"})];
    let reserve = |of| json!({"attributes": of, "cost": 9, "ttl": "1h"});
    let reservations = reservations.map(|of| id(&server.post("/v1/reserve", &reserve(of))));
    let before = (left(&server, "a"), left(&server, "b"));
    for (ids, other, names) in
        [(&slots, "reserve", "names a slot"), (&reservations, "acquire", "names a reservation")]
    {
        for (id, verb) in ids.iter().flat_map(|id| ["renew", "settle", "end"].map(|verb| (id, verb))) {
            let refused = act(&server, other, id, verb);
            assert_eq!(refused.status, 404, "{other} {verb}: {refused:?}");
            let is_path = (other, verb) == ("acquire", "settle");
            assert!(is_path || refused.body.contains(names), "{other} {verb}: {refused:?}");
        }
    }
    for id in &reservations {
        for line in [format!("TOLL.RENEW {id} 60"), format!("TOLL.RELEASE {id}")] {
            let refused = wire.ask(&line);
            assert!(refused.starts_with("-ERR the id names a reservation"), "{refused}");
        }
    }
    assert_eq!((left(&server, "a"), left(&server, "b")), before, "nothing changed");
    let [slot, nothing, inline] = &slots;
    for id in [slot, nothing] {
        assert_eq!(["renew", "end"].map(|verb| act(&server, "acquire", id, verb).status), [204; 2]);
    }
    assert_eq!(
        [wire.ask(&format!("TOLL.RENEW {inline} 60")), wire.ask(&format!("TOLL.RELEASE {inline}"))],
        ["+OK"; 2]
    );
    for id in &reservations {
        assert_eq!(["renew", "settle"].map(|verb| act(&server, "reserve", id, verb).status), [204, 200]);
    }
    for (noun, id) in [("acquire", slot), ("acquire", inline)]
        .into_iter()
        .chain(reservations.iter().map(|id| ("reserve", id)))
    {
        assert_eq!(
            ["renew", "settle", "end"].map(|verb| act(&server, noun, id, verb).status),
            [404; 3],
            "{noun}"
        );
        assert!(wire.ask(&format!("TOLL.RELEASE {id}")).starts_with("-ERR "));
    }
}
