//! `GET /v1/blocks`.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::thread;

use crate::common::{Server, TOKEN, TOLLGATE, directory, send};
use crate::redis_server::Redis;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tollgate::{Clock as _, HOUR, ManualClock, SystemClock, Timestamp};
use tollgate_server::config::Origin;
use tollgate_server::{App, Listeners, serve};

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
            assert_eq!(body["complete"], true, "{body}");
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

/// A node whose clock is an hour ahead, which a process cannot have, so it runs inside of the test.
/// Returns what `ask` does with its address.
fn on_a_node_an_hour_ahead<T: Send>(redis: &Redis, ask: impl FnOnce(&str) -> T + Send) -> T {
    let settings = [
        ("TOLLGATE_STORE_KIND", "redis"),
        ("TOLLGATE_STORE_URL", &redis.url()),
        ("TOLLGATE_STORE_DEADLINE", "5s"),
        ("TOLLGATE_SERVER_RESP", "off"),
        ("TOLLGATE_ADMIN_TOKEN", TOKEN),
    ];
    let environment = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let origin = Origin { environment, ..Origin::default() };
    let config = origin.load().unwrap();
    let clock = ManualClock::at(SystemClock.now().saturating_add(HOUR));
    let app = Arc::new(App::new(origin, config, Arc::new(clock)).unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let listeners = Listeners { http: Some(listener), ..Listeners::default() };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = runtime.spawn(serve(listeners, app, async {
        let _ = stopped.await;
    }));
    let answer = ask(&address);
    drop(stop);
    runtime.block_on(serving).unwrap();
    answer
}

#[test]
fn c5_a_node_whose_clock_is_ahead_lists_the_blocks_and_ends_them_by_the_clock_of_redis() {
    let redis = Redis::start(&[]);
    let other = server_with_a_key(&redis);
    let token = format!("Bearer {TOKEN}");
    on_a_node_an_hour_ahead(&redis, |address| {
        let ask = |method: &str, path: &str, body: &str| {
            let answer = send(address, method, path, &[("authorization", &token)], body);
            assert_eq!(answer.status, 200, "{answer:?}");
            answer.json()
        };
        let now = || Timestamp::as_millis_ceil(SystemClock.now());
        let is_in_ten_minutes = |block: &Value, asked: u64| {
            let until = block["until"].as_u64().unwrap();
            (asked + 600_000..=now() + 600_001).contains(&until)
                && block["end"]["inSeconds"].as_u64() <= Some(600)
        };
        let asked = now();
        let block = ask("PUT", "/v1/clients/ahead/block", r#"{"for":"10m"}"#);
        assert!(is_in_ten_minutes(&block, asked), "{block}");
        other.admin("PUT", "/v1/clients/other/block", Some(&json!({"for": "10m"})));
        let of_other = other.admin("GET", "/v1/blocks", None).json();
        for listed in [ask("GET", "/v1/blocks", ""), of_other] {
            let blocks = listed["blocks"].as_array().unwrap();
            assert_eq!(blocks.len(), 2, "{listed}");
            assert!(blocks.iter().all(|block| is_in_ten_minutes(block, asked)), "{listed}");
        }
    });
}

/// A server on Redis, which has checked the client `a`. A busy machine may exceed the default
/// deadline.
fn server_with_a_key(redis: &Redis) -> Server {
    let mut command = Command::new(TOLLGATE);
    command.args(["serve", "--redis", &redis.url()]).env("TOLLGATE_STORE_DEADLINE", "5s");
    let server = Server::logging(&mut command);
    assert_eq!(server.get("/check/a").json()["degraded"], false);
    server
}

/// Redis is paused, so that the first reset takes as long as the test wants.
#[test]
fn one_rule_is_reset_at_a_time_and_the_second_is_told_so_at_once() {
    let redis = Redis::start(&[]);
    let server = server_with_a_key(&redis);
    redis.signal("-STOP");
    let (sender, answers) = mpsc::channel();
    thread::scope(|scope| {
        for sender in [sender.clone(), sender] {
            let server = &server;
            scope.spawn(move || {
                sender.send(server.admin("DELETE", "/v1/rules/per-client/state", None)).unwrap()
            });
        }
        let refused = answers.recv().unwrap();
        assert_eq!((refused.status, &refused.json()["code"]), (409, &json!("reset_running")));
        let detail = refused.json()["detail"].to_string();
        assert!(detail.contains("per-client") && detail.contains("one rule is reset at a time"), "{detail}");
        redis.signal("-CONT");
        let reset = answers.recv().unwrap();
        assert_eq!((reset.status, reset.json()), (200, json!({"keys": 1})));
    });
    assert_eq!(server.admin("DELETE", "/v1/rules/per-client/state", None).json(), json!({"keys": 0}));
}

/// The timeout is for connections without progress.
#[test]
fn a_reset_may_take_longer_than_the_timeout() {
    let redis = Redis::start(&[]);
    let config = directory("blocks-long-reset").join("tollgate.toml");
    let store = format!("kind = \"redis\"\nurl = \"{}\"\ndeadline = \"5s\"\n", redis.url());
    fs::write(&config, format!("[server]\ntimeout = \"1s\"\n[store]\n{store}")).unwrap();
    let server = Server::with_config(&config);
    let fill =
        "for i = 1, 15000 do redis.call('SET', 'tollgate:{' .. ARGV[1] + i .. '}:per-client:0', 'x') end";
    (0..10_u32).for_each(|page| drop(redis.cli(&["eval", fill, "0", &(page * 15_000).to_string()])));
    let reset = server.admin("DELETE", "/v1/rules/per-client/state", None);
    assert_eq!((reset.status, reset.json()), (200, json!({"keys": 150_000})));
}

#[test]
fn a_reset_ends_with_its_connection_and_the_log_says_that_it_is_unfinished() {
    let redis = Redis::start(&[]);
    let mut server = server_with_a_key(&redis);
    redis.signal("-STOP");
    let head = format!("host: tollgate\r\nauthorization: Bearer {TOKEN}");
    let (sender, answers) = mpsc::channel();
    let connections = [(); 2].map(|()| TcpStream::connect(&server.address).unwrap());
    for (index, mut connection) in connections.iter().map(|one| one.try_clone().unwrap()).enumerate() {
        write!(connection, "DELETE /v1/rules/per-client/state HTTP/1.1\r\n{head}\r\n\r\n").unwrap();
        let sender = sender.clone();
        thread::spawn(move || {
            let _ = connection.read(&mut [0; 1]);
            let _ = sender.send(index);
        });
    }
    // The one that is answered is refused. The other one runs, and is closed.
    let refused = answers.recv().unwrap();
    connections[1 - refused].shutdown(Shutdown::Both).unwrap();
    assert!(server.log_line("unfinished").contains("per-client"));
    redis.signal("-CONT");
    assert_eq!(server.admin("DELETE", "/v1/rules/per-client/state", None).json(), json!({"keys": 1}));
}
