//! The example of a plain counter, on a real Redis: it keeps the laws that a counter can keep.

#[path = "../../examples/counter.rs"]
#[expect(dead_code, reason = "the example's main")]
mod example;

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::OnceLock;

use crate::common::{Redis, unique};
use example::{RedisCounter, adding};
use tollgate::{Counter as _, HOUR, MINUTE};
use tollgate_testkit::run;

/// The one server of this process.
fn redis() -> &'static Redis {
    static REDIS: OnceLock<Redis> = OnceLock::new();
    REDIS.get_or_init(|| Redis::start(&[]))
}

fn counter() -> RedisCounter {
    run(RedisCounter::connect(&redis().url(), &unique())).unwrap()
}

// Redis expires keys by its own clock, long after the schedules of the laws end: the laws show that
// no key expires too early.
tollgate_testkit::conformance!(laws, counter = |_| counter());

/// The `PTTL` of a counter in milliseconds: -1 if it never expires, -2 if there is none.
fn ttl_millis(name: &str) -> i64 {
    redis().cli(&["pttl", name]).parse().unwrap()
}

#[test]
fn e2_every_counter_expires_and_reading_makes_none() {
    let name = unique();
    let counter = run(RedisCounter::connect(&redis().url(), "")).unwrap();
    let add = |n| run(counter.add(name.as_bytes(), n, HOUR)).unwrap();
    assert_eq!((add(0), ttl_millis(&name)), (0, -2));
    assert_eq!(add(3), 3);
    assert_eq!(redis().cli(&["pexpire", &name, "1"]), "1");
    crate::common::until("the counter has expired", || ttl_millis(&name) == -2);
    assert_eq!((add(2), add(5), add(0)), (2, 7, 7));
    let hour_and_a_minute = i64::try_from((HOUR + MINUTE).as_millis()).unwrap();
    let ttl = ttl_millis(&name);
    assert!((1..=hour_and_a_minute).contains(&ttl), "{ttl}");
    assert_eq!(redis().cli(&["set", &name, "-1"]), "OK");
    assert!(run(counter.add(name.as_bytes(), 0, HOUR)).is_err(), "not a count");
}

/// A caller dies after each byte of its commands.
#[test]
fn e2_a_caller_that_dies_leaves_no_counter_that_never_expires() {
    let name = unique();
    let bytes = adding(name.as_bytes(), 1, HOUR).get_packed_pipeline();
    let mut counted = 0;
    for sent in 0..=bytes.len() {
        let mut connection = TcpStream::connect(("127.0.0.1", redis().port)).unwrap();
        connection.write_all(&bytes[..sent]).unwrap();
        connection.shutdown(Shutdown::Write).unwrap();
        // Redis closes the connection after the last complete command.
        connection.read_to_end(&mut Vec::new()).unwrap();
        let ttl = ttl_millis(&name);
        assert_ne!(ttl, -1, "never expires, after {sent} of {} bytes", bytes.len());
        counted += u32::from(ttl > 0);
    }
    assert_eq!(counted, 1, "all or nothing");
}
