//! The memory of a body depends on its size, not on how it arrives.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::thread;

use crate::common::{Server, TOLLGATE, parse};

/// The number of concurrent bodies.
const BODIES: usize = 4;

/// Nearly the largest body.
const BODY_BYTES: usize = 1_000_000;

#[test]
fn a_body_in_chunks_of_one_byte_costs_no_extra_memory() {
    // Four million chunks take a while on a busy machine.
    let server = Server::logging(Command::new(TOLLGATE).arg("serve").env("TOLLGATE_SERVER_TIMEOUT", "10m"));
    assert_eq!(server.get("/healthz").status, 200);
    let before = server.peak_bytes();
    let json = r#"{"attributes": {"client": "a"}}"#;
    let body = format!("{}{json}", " ".repeat(BODY_BYTES - json.len()));
    let chunks: String = body.chars().map(|byte| format!("1\r\n{byte}\r\n")).collect();
    let request = format!(
        "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n{chunks}"
    );
    thread::scope(|scope| {
        for _ in 0..BODIES {
            scope.spawn(|| {
                let mut stream = TcpStream::connect(&server.address).unwrap();
                stream.write_all(request.as_bytes()).unwrap();
                stream.write_all(b"0\r\n\r\n").unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).unwrap();
                assert_eq!(parse(&answer).status, 200, "{answer}");
            });
        }
    });
    let grown = server.peak_bytes().saturating_sub(before);
    assert!(grown < 32 << 20, "by {grown} bytes");
}
