//! E4: more is asked than Redis can do, and the caller who asks for most is told so.
//!
//! The answers of Redis are held back, so that what is asked waits in the server's own queue.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::common::{Answer, Server, TOLLGATE, directory, eventually, parse};
use crate::network::{ATTACKER, Network, connect_from};
use crate::redis_server::Redis;
use crate::rls::{Envoy, descriptor, request};
use crate::wire::{Wire, command};
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use futures_util::future::{join_all, select_all};
use serde_json::{Value, json};
use tonic::transport::Endpoint;
use tonic::{Code, Status};

const METRIC: &str = "tollgate_overloaded_total{reason=\"store\"}";

/// Connections that flood the queue, and the checks of each, of which it sends some at once.
const FLOODERS: usize = 100;
const PIPELINED: usize = 128;

/// A server whose store does not answer while the network is paused, and has not failed either.
struct Scene {
    server: Server,
    network: Network,
    _redis: Redis,
}

fn config(name: &str, network: &Network, more: &str) -> PathBuf {
    let file = directory(&format!("overload-{name}")).join("tollgate.toml");
    let text = format!(
        "[server]\n{more}\n\
         [store]\nkind = \"redis\"\nurl = \"redis://127.0.0.1:{}\"\ndeadline = \"30s\"\n\
         [[rule]]\nname = \"per-client\"\nkey = [\"client\"]\nlimit = \"100000/h fixed\"\n\
         on_store_error = \"open\"\n",
        network.port
    );
    fs::write(&file, text).unwrap();
    file
}

impl Scene {
    fn new(name: &str, more: &str) -> Self {
        let redis = Redis::start(&[]);
        let network = Network::to(redis.port, Duration::ZERO);
        let mut command = Command::new(TOLLGATE);
        command.args(["serve", "--config"]).arg(config(name, &network, more));
        command.args(["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--resp", "127.0.0.1:0"]);
        let server = Server::with_log(&mut command);
        assert_eq!(server.get("/check/bystander").json()["degraded"], false);
        network.pause();
        Self { server, network, _redis: redis }
    }

    /// Fills the queue by pipelines of the Redis protocol, which wait for their replies.
    fn flood(&self) -> Vec<TcpStream> {
        let checks = command(["TOLL.CHECK", "client", "flood"]).repeat(PIPELINED);
        let connect = |_| {
            let mut stream = connect_from(ATTACKER, self.server.listens("resp")).unwrap();
            stream.write_all(&checks).unwrap();
            stream
        };
        let flood = (0..FLOODERS).map(connect).collect();
        eventually("more waits than may", || self.server.metric(METRIC) > 0.0);
        flood
    }

    /// Sends a request from the address of the flood.
    fn send(&self, method: &str, path: &str, body: &Value) -> Answer {
        let mut stream = connect_from(ATTACKER, &self.server.address).unwrap();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        parse(&answer)
    }
}

#[test]
fn e4_an_overload_is_told_over_http_and_nobody_is_admitted_because_of_it() {
    let mut scene = Scene::new("http", "");
    let flood = scene.flood();
    let attributes = json!({ "client": "other" });
    let requests = [
        ("GET", "/check/other", Value::Null),
        ("GET", "/auth", Value::Null),
        ("POST", "/v1/check", json!({ "attributes": attributes })),
        ("POST", "/v1/check", json!({ "attributes": attributes, "peek": true })),
        ("POST", "/v1/record", json!({ "attributes": attributes, "cost": 3 })),
        ("POST", "/v1/reserve", json!({ "attributes": attributes, "cost": 3, "ttl": "1h" })),
    ];
    for (method, path, body) in requests {
        let refused = scene.send(method, path, &body);
        assert_eq!(refused.status, 503, "{path}: {refused:?}");
        assert_eq!(refused.header("retry-after"), Some("300"), "ten deadlines: {refused:?}");
        let problem = refused.json();
        assert!(problem["type"].as_str().unwrap().ends_with("#temporary-reduced-capacity"), "{problem}");
        assert_eq!((&problem["code"], &problem["degraded"]), (&json!("overloaded"), &Value::Null));
    }
    let document = scene.server.get("/openapi.json").json();
    let refusal = &document["paths"]["/v1/check"]["post"]["responses"]["503"]["content"];
    let either = &refusal["application/problem+json"]["schema"]["anyOf"];
    assert_eq!(either[1]["$ref"], "#/components/schemas/Problem", "{either}");
    let check = json!({ "attributes": attributes });
    let batch = scene.send("POST", "/v1/check/batch", &json!({ "checks": [check, check] }));
    assert_eq!(batch.status, 200, "each check has its own result");
    for result in batch.json()["results"].as_array().unwrap() {
        let error = &result["error"];
        assert_eq!((&error["status"], &error["code"]), (&json!(503), &json!("overloaded")), "{result}");
    }
    let address = scene.server.address.clone();
    let bystander = thread::spawn(move || crate::common::send(&address, "GET", "/check/bystander", &[], ""));
    let said = scene.server.log_line("refused as overloaded");
    assert!(said.contains("WARN") && said.contains("127.0.0.2"), "{said}");
    scene.network.resume();
    let answer = bystander.join().unwrap();
    assert_eq!((answer.status, &answer.json()["degraded"]), (200, &json!(false)));
    drop(flood);
    assert_eq!(scene.server.get("/check/other?cost=0").json()["remaining"], 100_000, "nothing was taken");
    assert_eq!(scene.server.metric("tollgate_degraded_total"), 0.0);
    assert_eq!(scene.server.metric("tollgate_store_errors_total"), 0.0);
}

#[test]
fn e4_an_overload_is_busy_over_the_redis_protocol() {
    let scene = Scene::new("resp", "");
    let flood = scene.flood();
    let mut wire = Wire::new(connect_from(ATTACKER, scene.server.listens("resp")).unwrap());
    for refused in [
        "TOLL.CHECK client other",
        "TOLL.CHECK client other PEEK",
        "TOLL.RECORD client other COST 3",
        "CL.THROTTLE other 9 1 60",
        "TOLL.ACQUIRE jobs 2 30",
    ] {
        let reply = wire.ask(refused);
        assert!(reply.starts_with("-BUSY more is asked than the store can do"), "{refused}: {reply}");
    }
    assert_eq!(wire.ask("PING"), "+PONG", "the connection lives on");
    scene.network.resume();
    let (mut admitted, mut busy) = (0, 0);
    for stream in flood {
        let mut replies = Wire::new(stream);
        replies.send("PING\r\n");
        let lines = std::iter::from_fn(|| Some(replies.line()).filter(|line| line != "+PONG"));
        let mut lines = lines.peekable();
        while let Some(line) = lines.next() {
            busy += u64::from(line.starts_with("-BUSY"));
            admitted += u64::from(line == "allowed" && lines.peek().is_some_and(|next| next == ":1"));
        }
    }
    assert_eq!(admitted + busy, (FLOODERS * PIPELINED) as u64, "every command has its reply");
    let left = scene.server.get("/check/flood?cost=0").json()["remaining"].as_u64().unwrap();
    assert_eq!(left, 100_000 - admitted, "a refusal takes nothing");
    assert_eq!(scene.server.get("/check/other?cost=0").json()["remaining"], 100_000);
    assert_eq!(scene.server.metric("tollgate_degraded_total"), 0.0);
}

/// Calls of many descriptors, until the queue is full and one of them is refused.
async fn flood_of_calls(envoy: &Envoy) -> impl Future<Output = Vec<Result<RateLimitResponse, Status>>> {
    let descriptors: Vec<_> =
        (0..64).map(|number| descriptor(&[("client", &format!("flood-{number}"))])).collect();
    let call = |_| {
        let (mut client, request) =
            (RateLimitServiceClient::new(envoy.channel.clone()), request("edge", &descriptors));
        Box::pin(async move { client.should_rate_limit(request).await.map(tonic::Response::into_inner) })
    };
    let (refused, _, others) = select_all((0..80).map(call)).await;
    assert_eq!(refused.unwrap_err().code(), Code::ResourceExhausted);
    join_all(others)
}

fn envoy_from(from: [u8; 4], server: &Server) -> Envoy {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.listens("grpc"))).unwrap();
    Envoy::connect(endpoint.local_address(Some(from.into()))).unwrap()
}

#[test]
fn e4_an_overload_is_resource_exhausted_over_grpc() {
    let mut scene = Scene::new("grpc", "");
    let flooder = envoy_from(ATTACKER, &scene.server);
    let bystander = envoy_from([127, 0, 0, 1], &scene.server);
    flooder.wait(async {
        let others = flood_of_calls(&flooder).await;
        let mut client = RateLimitServiceClient::new(flooder.channel.clone());
        let refused = client.should_rate_limit(request("edge", &[descriptor(&[("client", "x")])])).await;
        assert_eq!(refused.unwrap_err().code(), Code::ResourceExhausted, "the newest of who asks for most");
        drop(others);
    });
    assert!(scene.server.log_line("refused as overloaded").contains("127.0.0.2"));
    scene.network.resume();
    assert!(bystander.allows("edge", &descriptor(&[("client", "bystander")])));
    assert_eq!(scene.server.metric("tollgate_degraded_total"), 0.0);
    assert!(scene.server.metric(METRIC) >= 1.0);
}

/// Sends checks over the Redis protocol while gRPC fills the queue. Returns how many are refused.
fn refused_beside_grpc(grpc_share: u32) -> usize {
    const CHECKS: usize = 100;
    let scene = Scene::new(&format!("share-{grpc_share}"), &format!("grpc_share = {grpc_share}"));
    let envoy = envoy_from(ATTACKER, &scene.server);
    envoy.wait(async {
        let _others = flood_of_calls(&envoy).await;
        let before = scene.server.metric(METRIC);
        let mut wire = Wire::connect(&scene.server);
        wire.send(command(["TOLL.CHECK", "client", "one"]).repeat(CHECKS));
        wire.send("PING\r\n");
        // The first one makes room for some.
        eventually("two are refused", || scene.server.metric(METRIC) > before + 1.0);
        scene.network.resume();
        let lines = std::iter::from_fn(|| Some(wire.line()).filter(|line| line != "+PONG"));
        lines.filter(|line| line.starts_with("-BUSY")).count()
    })
}

#[test]
fn e4_a_grpc_peer_has_the_share_that_is_configured() {
    assert_eq!(refused_beside_grpc(1), 0, "the peer asks for more, and has no larger share");
    assert!(refused_beside_grpc(1_000) > 0, "each share of the peer asks for less");
}
