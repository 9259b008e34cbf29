//! Answers that nobody reads are bounded: of a connection, of a peer, and in all.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};

use crate::common::{Server, directory};
use crate::wire::command;

/// Rules whose answers are a hundred times as large as a check.
const RULES: usize = 40;

/// Checks in the largest batch.
const CHECKS_MAX: usize = 10_000;

/// Checks in a batch whose answer has 30 MB.
const CHECKS: usize = 2_000;

const MIB: u64 = 1 << 20;

/// A server whose answers are large. It has answered every kind of request that the tests send, so
/// that its code is in memory.
fn server(name: &str) -> Server {
    let server = start(name, RULES);
    let check = json!({"attributes": {"client": "warm"}});
    assert_eq!(server.post("/v1/check", &check).status, 200);
    assert_eq!(server.get("/check/warm").status, 200);
    let batch = json!({ "checks": vec![check; 100] });
    assert_eq!(server.post("/v1/check/batch", &batch).status, 200);
    server
}

fn start(name: &str, rules: usize) -> Server {
    let rule = |number| {
        format!(
            "[[rule]]\nname = \"rule-{number}\"\nkey = [\"client\"]\nlimit = [\"1000000/h\", \"1000000/d fixed\"]\n"
        )
    };
    let file = directory(&format!("unread-{name}")).join("tollgate.toml");
    fs::write(&file, (0..rules).map(rule).collect::<String>()).unwrap();
    Server::everywhere(&["--config", file.to_str().unwrap()])
}

/// A connection whose kernel buffers are small.
fn connect(address: &str) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4 << 10).unwrap();
    socket.connect(&address.parse::<SocketAddr>().unwrap().into()).unwrap();
    TcpStream::from(socket)
}

fn post(path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

fn batch(checks: usize) -> String {
    let checks = vec![json!({"attributes": {"client": "a"}}); checks];
    post("/v1/check/batch", &json!({ "checks": checks }).to_string())
}

/// The status of a response, whose body is not read.
fn status(stream: &mut TcpStream) -> u16 {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap().split(' ').nth(1).unwrap().parse().unwrap()
}

/// The chunks of a body, joined.
fn chunked(stream: TcpStream) -> Vec<u8> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        stream.read_line(&mut line).unwrap();
    }
    let mut body = Vec::new();
    loop {
        line.clear();
        stream.read_line(&mut line).unwrap();
        let length = usize::from_str_radix(line.trim_end(), 16).unwrap();
        let begin = body.len();
        body.resize(begin + length + 2, 0);
        stream.read_exact(&mut body[begin..]).unwrap();
        body.truncate(begin + length);
        if length == 0 {
            return body;
        }
    }
}

#[test]
fn a_batch_answer_costs_a_part_of_its_size_and_is_whole_once_it_is_read() {
    let server = server("batch");
    let before = server.peak_bytes();
    let mut unread: Vec<TcpStream> = (0..4)
        .map(|_| {
            let mut stream = connect(&server.address);
            stream.write_all(batch(CHECKS).as_bytes()).unwrap();
            assert_eq!(status(&mut stream), 200);
            stream
        })
        .collect();
    let answer = chunked(unread.remove(0));
    let grown = server.peak_bytes().saturating_sub(before);
    assert!(answer.len() as u64 > 16 * MIB, "one answer has {} bytes", answer.len());
    assert!(grown < 8 * MIB, "four answers cost {grown} bytes");
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    let results = answer["results"].as_array().unwrap();
    assert_eq!(results.len(), CHECKS);
    let remaining = |result: &Value| result["limits"][1]["remaining"].as_u64().unwrap();
    assert!(results.windows(2).all(|pair| remaining(&pair[1]) < remaining(&pair[0])), "in order");
}

#[test]
fn batches_whose_answers_nobody_reads_leave_room_for_other_requests() {
    let server = server("many");
    let before = server.peak_bytes();
    let mut refused = 0;
    let unread: Vec<TcpStream> = (0..120)
        .map(|_| {
            let mut stream = connect(&server.address);
            stream.write_all(batch(CHECKS_MAX).as_bytes()).unwrap();
            match status(&mut stream) {
                200 => {}
                503 => refused += 1,
                other => panic!("{other}"),
            }
            stream
        })
        .collect();
    assert!(refused > 0, "a peer is bounded");
    let grown = server.peak_bytes().saturating_sub(before);
    assert!(grown < 96 * MIB, "by {grown} bytes");
    let small = json!({"checks": [{"attributes": {"client": "b"}}]});
    assert_eq!(server.post("/v1/check/batch", &small).status, 200, "a small one needs no room");
    let many =
        server.send("POST", "/v1/check/batch", &[], batch(CHECKS_MAX).split_once("\r\n\r\n").unwrap().1);
    assert_eq!((many.status, &many.json()["code"]), (503, &json!("overloaded")), "{many:?}");
    assert_eq!(many.header("retry-after"), Some("1"));
    assert!(many.json()["type"].as_str().unwrap().ends_with("#temporary-reduced-capacity"));
    assert_eq!(server.metric("tollgate_overloaded_total{reason=\"buffers\"}"), f64::from(refused + 1));
    drop(unread);
    crate::common::eventually("room is given back", || server.metric("tollgate_held_bytes") == 0.0);
}

/// Sends `request` over and over, until the server has not read for a while. False if it reads them
/// all.
fn stops_reading(server: &Server, stream: &TcpStream, request: &[u8], bytes_max: usize) -> bool {
    stream.set_nonblocking(true).unwrap();
    let many = request.repeat(1 + (64 << 10) / request.len());
    let (mut sent, mut refused) = (0, 0);
    while refused < 100 && sent < bytes_max {
        match (&mut &*stream).write(&many[sent % request.len()..]) {
            Ok(bytes) => {
                sent += bytes;
                refused = 0;
            }
            Err(_) => refused += 1,
        }
        assert_eq!(server.get("/healthz").status, 200);
    }
    refused == 100
}

#[test]
fn pipelined_requests_wait_until_their_answers_are_read() {
    let server = server("pipelined");
    let before = server.peak_bytes();
    let check = post("/v1/check", &json!({"attributes": {"client": "a"}}).to_string());
    let stream = connect(&server.address);
    assert!(stops_reading(&server, &stream, check.as_bytes(), 16 << 20), "it reads on and on");
    let grown = server.peak_bytes().saturating_sub(before);
    assert!(grown < 8 * MIB, "by {grown} bytes");
}

#[test]
fn requests_by_path_wait_until_their_answers_are_read_and_go_on() {
    let server = server("by-path");
    let stream = connect(&server.address);
    let request = b"GET /check/a HTTP/1.1\r\nhost: x\r\n\r\n";
    let before = server.peak_bytes();
    assert!(stops_reading(&server, &stream, request, 64 << 20), "it reads on and on");
    let grown = server.peak_bytes().saturating_sub(before);
    assert!(grown < 8 * MIB, "by {grown} bytes");
    stream.set_nonblocking(false).unwrap();
    let mut answers = BufReader::new(stream);
    let mut line = String::new();
    for _ in 0..1_000 {
        // A body has no line end.
        while !line.contains("HTTP/1.1 200") {
            line.clear();
            assert_ne!(answers.read_line(&mut line).unwrap(), 0, "the answers end");
        }
        line.clear();
    }
}

#[test]
fn replies_to_transactions_that_nobody_reads_are_bounded() {
    let server = start("transactions", 1);
    let check = command(["TOLL.CHECK", "client", "a"]);
    let transaction = [command(["MULTI"]), check.repeat(1_000), command(["EXEC"])].concat();
    let before = server.peak_bytes();
    let unread: Vec<TcpStream> = (0..400)
        .map(|_| {
            let mut stream = connect(server.listens("resp"));
            let _ = stream.write_all(&transaction);
            stream
        })
        .collect();
    crate::common::eventually("some are refused", || {
        server.metric("tollgate_overloaded_total{reason=\"buffers\"}") > 0.0
    });
    let grown = server.peak_bytes().saturating_sub(before);
    assert!(grown < 96 * MIB, "by {grown} bytes");
    let mut fresh = crate::wire::Wire::connect(&server);
    assert_eq!(fresh.ask("PING"), "+PONG");
    drop(unread);
    crate::common::eventually("room is given back", || server.metric("tollgate_held_bytes") == 0.0);
}
