//! `MULTI` and `EXEC`.

use super::*;

const THROTTLE: &str = "CL.THROTTLE k 2 1 3600";

#[test]
fn exec_executes_the_queued_commands() {
    let server = Server::everywhere(&[]);
    let mut wire = Wire::connect(&server);
    wire.send(format!(
        "{THROTTLE}\r\nMULTI\r\n{THROTTLE}\r\nPING\r\n{THROTTLE}\r\n{THROTTLE}\r\nCL.THROTTLE k\r\nEXEC\r\nPING\r\n"
    ));
    assert_eq!(wire.five()[..3], [0, 3, 2]);
    assert_eq!(wire.line(), "+OK");
    assert!((0..5).all(|_| wire.line() == "+QUEUED"));
    assert_eq!(wire.line(), "*5");
    assert_eq!(wire.five()[..3], [0, 3, 1]);
    assert_eq!(wire.line(), "+PONG");
    assert_eq!(wire.five()[..3], [0, 3, 0]);
    assert_eq!(wire.five()[..3], [1, 3, 0]);
    assert!(
        wire.line().starts_with("-ERR wrong number of arguments"),
        "an error is the reply of its command"
    );
    assert_eq!(wire.line(), "+PONG");
}

#[test]
fn a_transaction_that_is_not_executed_costs_nothing() {
    let server = Server::everywhere(&[]);
    let mut wire = Wire::connect(&server);
    for (command, ends) in [("DISCARD", "+OK"), ("RESET", "+RESET"), ("NONSENSE", "-ERR unknown command")] {
        assert_eq!([wire.ask("MULTI"), wire.ask(THROTTLE)], ["+OK", "+QUEUED"]);
        let ended = wire.ask(command);
        assert!(ended.starts_with(ends), "{ended}");
        let executed = wire.ask("EXEC");
        let aborted = executed.starts_with("-EXECABORT ");
        assert!(
            if command == "NONSENSE" { aborted } else { executed == "-ERR EXEC without MULTI" },
            "{executed}"
        );
    }
    assert_eq!(wire.ask("DISCARD"), "-ERR DISCARD without MULTI");
    assert_eq!([wire.ask("MULTI"), wire.ask("MULTI")], ["+OK", "-ERR MULTI calls can not be nested"]);
    assert_eq!(wire.ask("EXEC"), "*0");
    wire.send("CL.THROTTLE k 2 1 3600 0\r\n");
    assert_eq!(wire.five()[..3], [0, 3, 3], "nothing was charged");
}

#[test]
fn a_transaction_is_bounded() {
    let server = Server::everywhere(&[]);
    let mut wire = Wire::connect(&server);
    let long = command([b"CL.THROTTLE".as_slice(), &[b'k'; 60_000], b"2", b"1", b"3600"]);
    let short = format!("{THROTTLE}\r\n").into_bytes();
    for (one, kept) in [(short, 1_024), (long, 2)] {
        wire.send("MULTI\r\n");
        assert_eq!(wire.line(), "+OK");
        for number in 1..=kept + 1 {
            wire.send(&one);
            let answer = wire.line();
            let refused = answer.starts_with("-ERR a transaction has at most");
            assert_eq!(refused, number > kept, "{number}: {answer}");
        }
        assert!(wire.ask("EXEC").starts_with("-EXECABORT "));
    }
    assert_eq!(wire.ask("MULTI"), "+OK");
    assert_eq!(wire.ask("COMMAND"), "-ERR this command is not allowed in a transaction");
    assert!(wire.ask("EXEC").starts_with("-EXECABORT "));
    wire.send("CL.THROTTLE k 2 1 3600 0\r\n");
    assert_eq!(wire.five()[..3], [0, 3, 3]);
}

#[test]
fn an_unfinished_transaction_times_out() {
    let file = directory("resp-half-transaction").join("tollgate.toml");
    fs::write(&file, "[server]\ntimeout = \"100ms\"\n").unwrap();
    let server = Server::everywhere(&["--config", file.to_str().unwrap()]);
    let [mut idle, mut half] = [(); 2].map(|()| Wire::connect(&server));
    assert_eq!(idle.ask("PING"), "+PONG");
    assert_eq!([half.ask("MULTI"), half.ask(THROTTLE)], ["+OK", "+QUEUED"]);
    assert_eq!(half.rest(), "", "the server closes the connection");
    assert_eq!(idle.ask("PING"), "+PONG", "a connection without a transaction may be idle");
}
