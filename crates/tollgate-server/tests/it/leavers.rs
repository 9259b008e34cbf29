//! Callers who leave before they are answered do no harm to others, with a Redis 6 ms away.
//!
//! Their requests run to their end: what they charge stays charged, and it is no evidence against
//! Redis. The same over gRPC is in `tests/grpc/leavers.rs`.

use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use crate::common::{Server, directory, eventually};
use crate::network::{ATTACKER, Network, connect_from};
use crate::redis_server::Redis;
use crate::wire::{Wire, command};
use socket2::SockRef;

const ROUNDS: usize = 30;

/// Callers who leave in each round.
const LEAVERS: usize = 8;

/// A server under `10/60s` for each client.
fn server(name: &str, network: &Network) -> Server {
    let file = directory(&format!("leavers-{name}")).join("tollgate.toml");
    let text = format!(
        "[store]\nkind = \"redis\"\nurl = \"redis://127.0.0.1:{}\"\nremember_denials = \"0s\"\n\
         # A busy machine may exceed the default.\ndeadline = \"5s\"\n\
         [[rule]]\nname = \"per-client\"\nkey = [\"client\"]\nlimit = \"10/60s fixed\"\n\
         on_store_error = \"open\"\n",
        network.port
    );
    fs::write(&file, text).unwrap();
    Server::everywhere(&["--config", file.to_str().unwrap()])
}

/// In each round, callers leave once an answer is on its way to the server, and a bystander asks.
/// Returns how often the bystander was admitted.
fn rounds(
    network: &Network,
    mut begin: impl FnMut(usize) -> TcpStream,
    leave: impl Fn(TcpStream),
    mut bystander_is_admitted: impl FnMut() -> bool,
) -> usize {
    let round = |_: &usize| {
        let answered = network.answered();
        let leavers: Vec<TcpStream> = (0..LEAVERS).map(&mut begin).collect();
        eventually("an answer is on its way", || network.answered() > answered);
        leavers.into_iter().for_each(&leave);
        bystander_is_admitted()
    };
    (0..ROUNDS).filter(round).count()
}

/// What is left of the limits of those who left.
fn left(server: &Server) -> u64 {
    let left = |leaver| server.get(&format!("/check/leaver-{leaver}?cost=0")).json()["remaining"].as_u64();
    (0..LEAVERS).filter_map(left).sum()
}

#[test]
fn e4_http_clients_that_disconnect_switch_off_nobodys_limit() {
    let redis = Redis::start(&[]);
    let network = Network::to(redis.port, Duration::from_millis(6));
    let server = server("http", &network);
    let begin = |leaver| {
        let mut stream = connect_from(ATTACKER, &server.address).unwrap();
        stream
            .write_all(format!("GET /check/leaver-{leaver} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes())
            .unwrap();
        stream
    };
    let admitted = rounds(&network, begin, drop, || {
        let answer = server.get("/check/bystander");
        assert_eq!(answer.json()["degraded"], false, "{answer:?}");
        answer.status == 200
    });
    assert_eq!(admitted, 10);
    assert_eq!(server.metric("tollgate_degraded_total"), 0.0);
    eventually("what they charged stays charged", || left(&server) == 0);
}

#[test]
fn e4_connections_of_the_redis_protocol_that_reset_switch_off_nobodys_limit() {
    let redis = Redis::start(&[]);
    let network = Network::to(redis.port, Duration::from_millis(6));
    let server = server("resp", &network);
    let begin = |leaver| {
        let mut stream = connect_from(ATTACKER, server.listens("resp")).unwrap();
        let client = format!("leaver-{leaver}");
        stream.write_all(&command(["TOLL.CHECK", "client", &client]).repeat(4)).unwrap();
        stream
    };
    let reset = |stream: TcpStream| SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    let mut bystander = Wire::connect(&server);
    let admitted = rounds(&network, begin, reset, || {
        bystander.send("TOLL.CHECK client bystander\r\nPING\r\n");
        let mut reply = Vec::new();
        while reply.last().is_none_or(|line| line != "+PONG") {
            reply.push(bystander.line());
        }
        let value = |name: &str| reply.iter().position(|line| line == name).map(|at| reply[at + 1].as_str());
        assert_eq!(value("degraded"), Some(":0"), "{reply:?}");
        value("allowed") == Some(":1")
    });
    assert_eq!(admitted, 10);
    assert_eq!(server.metric("tollgate_degraded_total"), 0.0);
    eventually("what they charged stays charged", || left(&server) == 0);
}
