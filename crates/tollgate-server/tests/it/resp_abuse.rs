//! Abuse of the Redis protocol's port does not affect other clients.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::thread;

use crate::common::{Server, TOKEN, directory};
use crate::wire::{Wire, command};

/// A server with these settings.
fn server(name: &str, settings: &str) -> Server {
    let file = directory(&format!("resp-{name}")).join("tollgate.toml");
    fs::write(&file, format!("[server]\n{settings}\n")).unwrap();
    Server::everywhere(&["--config", file.to_str().unwrap()])
}

#[test]
fn an_unfinished_command_times_out_and_blocks_no_other_client() {
    let server = server("half", "timeout = \"300ms\"");
    let mut neighbour = Wire::connect(&server);
    let halves: [&[u8]; 8] = [
        b"*",
        b"*2\r",
        b"*2\r\n",
        b"*2\r\n$4\r\nPI",
        b"*1\r\n$4\r\nPING\r",
        b"*1\r\n$60000\r\nxxx",
        b"PIN",
        b"\r\n\r\n*0\r\n",
    ];
    // None of these sends more. Each read below ends only when the server closes.
    let mut stuck = halves.map(|half| {
        let mut wire = Wire::connect(&server);
        wire.send(half);
        assert_eq!(neighbour.ask("PING"), "+PONG");
        wire
    });
    let mut after_others = Wire::connect(&server);
    assert_eq!(after_others.ask("PING"), "+PONG");
    after_others.send("PING\r\n*2\r\n$4\r\nECHO\r\n");
    for wire in &mut stuck {
        assert_eq!(wire.rest(), "");
        assert_eq!(neighbour.ask("PING"), "+PONG");
    }
    assert_eq!(after_others.rest(), "+PONG\r\n", "complete commands are answered");
    assert_eq!(neighbour.ask("PING"), "+PONG");
}

#[test]
fn a_connection_without_a_command_times_out_and_others_may_be_idle() {
    let server = server("silent", "timeout = \"300ms\"");
    let mut spoke_once = Wire::connect(&server);
    assert_eq!(spoke_once.ask("CLIENT SETNAME me"), "+OK");
    for _ in 0..4 {
        // The read ends only when the timeout has passed.
        assert_eq!(Wire::connect(&server).rest(), "");
    }
    spoke_once.send("CLIENT GETNAME\r\n");
    assert_eq!((spoke_once.line(), spoke_once.line()), ("$2".into(), "me".into()));
}

#[test]
fn commands_may_arrive_byte_by_byte() {
    let server = Server::everywhere(&[]);
    let mut wire = Wire::connect(&server);
    let commands = [
        command(["CL.THROTTLE", "user123", "15", "30", "60"]),
        b"PING\r\n".to_vec(),
        command(["ECHO", "\r\n"]),
    ];
    for byte in commands.concat() {
        wire.send([byte]);
    }
    assert_eq!(wire.five(), [0, 16, 15, -1, 2]);
    wire.0.get_ref().shutdown(Shutdown::Write).unwrap();
    assert_eq!(wire.rest(), "+PONG\r\n$2\r\n\r\n\r\n");
}

#[test]
fn a_protocol_violation_gets_one_error_and_is_closed() {
    let server = Server::everywhere(&[]);
    let mut neighbour = Wire::connect(&server);
    let argument = |bytes: usize| format!("$65536\r\n{}\r\n", "x".repeat(bytes));
    let cases = [
        ("*4294967296\r\n".to_owned(), "invalid multibulk length"),
        ("*18446744073709551616\r\n".to_owned(), "invalid multibulk length"),
        ("*513\r\n".to_owned(), "invalid multibulk length"),
        ("*x\r\n".to_owned(), "invalid multibulk length"),
        (format!("*{}", "9".repeat(100_000)), "invalid multibulk length"),
        ("*1\r\n$4294967296\r\n".to_owned(), "invalid bulk length"),
        ("*1\r\n$-1\r\n".to_owned(), "invalid bulk length"),
        (format!("*1\r\n$65537\r\n{}\r\n", "x".repeat(65_537)), "invalid bulk length"),
        ("*1\r\n".repeat(10_000), "expected '$', got '*'"),
        ("*1\r\n:1\r\n".to_owned(), "expected '$', got ':'"),
        ("*1\r\n\0\u{1}\u{2}".to_owned(), "expected '$', got '\\x00'"),
        ("*1\r\n$4\r\nPINGPING\r\n".to_owned(), "expected a line end"),
        (format!("*20\r\n{}", argument(65_536).repeat(20)), "a command has at most 1048576 bytes"),
        ("x".repeat(70_000), "too big inline request"),
        (format!("{}\r\n", "x ".repeat(600)), "invalid multibulk length"),
        ("GET / HTTP/1.1\r\nhost: tollgate\r\n\r\n".to_owned(), "this port serves the Redis protocol"),
        ("POST /v1/check HTTP/1.1\r\n\r\nTOLL.RESET a\r\n".to_owned(), "this port serves the Redis protocol"),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), "this port serves the Redis protocol"),
    ];
    for (bytes, sentence) in &cases {
        let shown = &bytes[..bytes.len().min(40)];
        for before in ["", "PING\r\n"] {
            let mut wire = Wire::connect(&server);
            // Later bytes are ignored.
            wire.send(format!("{before}{bytes}PING\r\n"));
            let mut said = String::new();
            wire.0.read_to_string(&mut said).expect("an end, and not a reset that may swallow the sentence");
            let complaint = said.strip_prefix(if before.is_empty() { "" } else { "+PONG\r\n" }).unwrap();
            assert!(
                complaint.starts_with(&format!("-ERR Protocol error: {sentence}")),
                "{shown:?}: {said:?}"
            );
            assert_eq!(
                (complaint.matches("\r\n").count(), complaint.matches('\n').count()),
                (1, 1),
                "{said:?}"
            );
            assert!(complaint.ends_with("\r\n"), "{shown:?}: {said:?}");
        }
        assert_eq!(neighbour.ask("PING"), "+PONG", "after {shown:?}");
    }
}

#[test]
fn a_line_of_garbage_is_an_unknown_command() {
    let server = Server::everywhere(&[]);
    let mut wire = Wire::connect(&server);
    for garbage in
        [b"\x00\x01\x02\xff".as_slice(), b"$4", b"+OK", b"%-1", b"\x16\x03\x01\xff\xfe", &[b'z'; 60_000]]
    {
        wire.send(garbage);
        wire.send("\r\n");
        let said = wire.line();
        assert!(said.starts_with("-ERR unknown command '") && said.len() < 1000, "{said:?}");
    }
    let long = "y".repeat(60_000);
    wire.send(command([&"x\r\n+OK\r\n".repeat(1000), &long, &long]));
    let said = wire.line();
    assert!(said.starts_with("-ERR unknown command 'x  +ok  x") && said.len() < 2000, "{said:?}");
    assert_eq!(wire.ask("PING"), "+PONG", "one line each");
}

#[test]
fn a_client_that_never_reads_is_bounded_and_dropped() {
    /// More than all socket buffers hold.
    const BYTES: usize = 64 << 20;
    let server = server("deaf", "timeout = \"300ms\"");
    let mut neighbour = Wire::connect(&server);
    assert_eq!(neighbour.ask("PING"), "+PONG");
    let before = server.peak_bytes();
    // One large command for large reads, then small commands with large replies.
    let mut large_answers = command(["ECHO", &"x".repeat(60_000)]);
    large_answers.extend("COMMAND\r\n".repeat(10_000).bytes());
    let mut commands = vec![large_answers; 8];
    commands.push("PING\r\n".repeat(10_000).into_bytes());
    commands.push(command(["ECHO", &"x".repeat(60_000)]));
    commands.push(command(["CL.THROTTLE", "k", "9", "1", "3600"]).repeat(1000));
    thread::scope(|scope| {
        let deaf = commands.into_iter().map(|commands| {
            let mut stream = TcpStream::connect(server.listens("resp")).unwrap();
            scope.spawn(move || {
                let mut sent = 0;
                // The write ends only when the server closes.
                while sent < BYTES {
                    match stream.write(&commands) {
                        Ok(length) => sent += length,
                        Err(error) => return (sent, Some(error.kind())),
                    }
                }
                (sent, None)
            })
        });
        let deaf: Vec<_> = deaf.collect();
        while !deaf.iter().all(thread::ScopedJoinHandle::is_finished) {
            assert_eq!(neighbour.ask("PING"), "+PONG");
        }
        for deaf in deaf {
            let (sent, ended) = deaf.join().unwrap();
            assert!(
                matches!(ended, Some(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)),
                "{ended:?} after {sent} bytes"
            );
        }
    });
    let grown = server.peak_bytes().saturating_sub(before);
    assert!(grown < 16 << 20, "by {grown} bytes");
    assert_eq!(neighbour.ask("PING"), "+PONG");
}

#[test]
fn a_client_that_reads_late_gets_every_reply() {
    let server = Server::everywhere(&[]);
    let mut neighbour = Wire::connect(&server);
    let mut late = Wire::connect(&server);
    let text = "x".repeat(1000);
    let (mut asked, mut unsent) = (0_usize, Vec::new());
    late.0.get_ref().set_nonblocking(true).unwrap();
    // Until the server has read nothing more for a thousand replies to another client.
    let mut refused = 0;
    while refused < 1000 {
        if unsent.is_empty() {
            unsent = command(["ECHO", &format!("{asked} {text}")]);
            asked += 1;
        }
        match late.0.get_mut().write(&unsent) {
            Ok(length) => {
                unsent.drain(..length);
                refused = 0;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                assert_eq!(neighbour.ask("PING"), "+PONG");
                refused += 1;
            }
        }
        assert!(asked < 100_000, "it takes more and more");
    }
    late.0.get_ref().set_nonblocking(false).unwrap();
    let mut rest = late.0.get_ref().try_clone().unwrap();
    let ending = thread::spawn(move || rest.write_all(&unsent));
    for turn in 0..asked {
        late.line();
        assert_eq!(late.line(), format!("{turn} {text}"));
    }
    ending.join().unwrap().unwrap();
}

#[test]
fn a_hundred_thousand_commands_at_once_are_answered_in_order() {
    const COMMANDS: i64 = 100_000;
    let server = Server::everywhere(&[]);
    let mut wire = Wire::connect(&server);
    let throttle = command(["CL.THROTTLE", "k", "99999", "1", "60"]);
    let all: Vec<u8> = (0..COMMANDS / 2)
        .flat_map(|turn| [command(["ECHO", &turn.to_string()]), throttle.clone()].concat())
        .collect();
    let mut stream = wire.0.get_ref().try_clone().unwrap();
    let sending = thread::spawn(move || stream.write_all(&all));
    for turn in 0..COMMANDS / 2 {
        wire.line();
        assert_eq!(wire.line(), turn.to_string());
        assert_eq!(wire.five()[..3], [0, COMMANDS, COMMANDS - 1 - turn]);
    }
    sending.join().unwrap().unwrap();
    assert_eq!(wire.ask("PING"), "+PONG");
    // Checks only, which are decided as batches.
    let mut stream = wire.0.get_ref().try_clone().unwrap();
    let all = command(["CL.THROTTLE", "b", "99998", "1", "60"]).repeat(usize::try_from(COMMANDS).unwrap());
    let sending = thread::spawn(move || stream.write_all(&all));
    for turn in 1..COMMANDS {
        assert_eq!(wire.five()[..3], [0, COMMANDS - 1, COMMANDS - 1 - turn]);
    }
    assert_eq!(wire.five()[..3], [1, COMMANDS - 1, 0]);
    sending.join().unwrap().unwrap();
}

#[test]
fn many_different_inline_limits_do_not_exhaust_the_server() {
    let server = Server::everywhere(&[]);
    let mut wire = Wire::connect(&server);
    let all: String = (0..20_000).map(|burst| format!("CL.THROTTLE k{burst} {burst} 1 60\r\n")).collect();
    let mut stream = wire.0.get_ref().try_clone().unwrap();
    let sending = thread::spawn(move || stream.write_all(all.as_bytes()));
    for burst in 0..20_000 {
        assert_eq!(wire.five()[..3], [0, burst + 1, burst]);
    }
    sending.join().unwrap().unwrap();
    let mut another = Wire::connect(&server);
    another.send("CL.THROTTLE new 20001 1 60\r\n");
    assert_eq!(another.five()[..3], [0, 20_002, 20_001]);
}

#[test]
fn sigterm_closes_all_connections_and_the_server_exits_zero() {
    let mut server = Server::everywhere(&[]);
    let mut idle = Wire::connect(&server);
    assert_eq!(idle.ask("PING"), "+PONG");
    let mut silent = Wire::connect(&server);
    let mut half = Wire::connect(&server);
    half.send("*2\r\n$4\r\nEC");
    let mut deaf = TcpStream::connect(server.listens("resp")).unwrap();
    deaf.set_nonblocking(true).unwrap();
    let many = "COMMAND\r\n".repeat(10_000);
    while deaf.write(many.as_bytes()).is_ok() {}
    let mut busy = Wire::connect(&server);
    let mut admin = Wire::connect(&server);
    assert_eq!(admin.ask(&format!("AUTH {TOKEN}")), "+OK");
    thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut answered = 0_u64;
            loop {
                busy.send("PING\r\n");
                let mut answer = [0; 7];
                match busy.0.read_exact(&mut answer) {
                    Ok(()) => assert_eq!(&answer, b"+PONG\r\n"),
                    Err(_) => return answered,
                }
                answered += 1;
            }
        });
        server.signal("TERM");
        assert_eq!(server.process.wait().unwrap().code(), Some(0));
        assert!(asking.join().unwrap() > 0);
    });
    assert_eq!((idle.rest(), silent.rest(), half.rest(), admin.rest()), Default::default());
}
