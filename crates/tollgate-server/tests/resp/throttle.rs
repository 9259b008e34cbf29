//! `CL.THROTTLE`, as redis-cell answers it.

use super::*;

#[test]
fn cl_throttle_answers_with_the_integers_of_redis_cell() {
    let server = Server::everywhere(&[]);
    for version in VERSIONS {
        let shown = cli(&server, version, &format!("CL.THROTTLE user123{version} 15 30 60"));
        assert_eq!(shown, five([0, 16, 15, -1, 2]));
        let shown = cli(&server, version, &format!("CL.THROTTLE seventh{version} 15 7 60"));
        assert_eq!(shown, five([0, 16, 15, -1, 9]), "eight and four sevenths, rounded up");
        // Time passes from here on, though hardly any of an hour.
        let slow = |quantity: u8| {
            numbers(&cli(&server, version, &format!("cl.throttle slow{version} 2 1 3600 {quantity}")))
        };
        assert_eq!(slow(1), [0, 3, 2, -1, 3600]);
        for _ in 0..2 {
            let peeked = slow(0);
            assert_eq!(peeked[..4], [0, 3, 2, -1], "a quantity of 0 takes nothing");
            assert!((1..=3600).contains(&peeked[4]), "{peeked:?}");
        }
        let never = slow(4);
        assert_eq!(never[..4], [1, 3, 2, -1], "what can never fit is not worth waiting for");
        assert!((1..=3600).contains(&never[4]), "{never:?}");
        assert_eq!(slow(2)[..4], [0, 3, 0, -1]);
        let denied = slow(1);
        assert_eq!(denied[..3], [1, 3, 0]);
        assert!((1..=3600).contains(&denied[3]) && (7201..=10_800).contains(&denied[4]), "{denied:?}");
    }
}

/// The replies of redis-cell 0.2.2 to the same sequence of commands. It rounds seconds down.
const REDIS_CELL: [(&str, [i64; 5]); 12] = [
    ("9 1 3600 10", [0, 10, 0, -1, 36_000]),
    ("99 1 3600", [0, 100, 89, -1, 39_599]),
    ("99 7 86400 0", [0, 100, 96, -1, 39_599]),
    ("4 1 3600", [1, 5, 0, 25_199, 39_599]),
    ("4 1 3600 0", [1, 5, 0, 21_599, 39_599]),
    ("99 1 3600 89", [0, 100, 0, -1, 359_999]),
    ("99 1 3600", [1, 100, 0, 3599, 359_999]),
    ("0 1 3600 0", [1, 1, 0, 356_399, 359_999]),
    ("99 1 3600 0", [0, 100, 0, -1, 359_999]),
    ("+999 01 3600 100", [0, 1000, 800, -1, 719_999]),
    ("99 1 3600 0", [1, 100, 0, 359_999, 719_999]),
    ("99 100 3600", [1, 100, 0, 716_435, 719_999]),
];

#[test]
fn b12_one_key_under_many_limits_is_answered_as_by_redis_cell() {
    let server = Server::everywhere(&[]);
    for (call, said) in REDIS_CELL {
        // Each on a new connection: the state belongs to the key.
        let mut wire = Wire::connect(&server);
        wire.send(format!("CL.THROTTLE k {call}\r\n"));
        let five = wire.five();
        assert_eq!(five[..3], said[..3], "{call}");
        for (ours, theirs) in five[3..].iter().zip(&said[3..]) {
            // Rounding differs by a second, and the test may take a minute.
            let minute = *theirs - 60..=*theirs + 1;
            assert!(if *theirs < 0 { ours == theirs } else { minute.contains(ours) }, "{call}: {five:?}");
        }
    }
}

#[test]
fn b12_two_limits_in_turn_admit_no_more_than_either() {
    let server = Server::everywhere(&[]);
    let mut wire = Wire::connect(&server);
    let mut in_turn = |key: &str, limits: [&str; 2]| {
        let mut admitted = [0; 2];
        for _ in 0..300 {
            for (count, limit) in admitted.iter_mut().zip(limits) {
                wire.send(format!("CL.THROTTLE {key} {limit}\r\n"));
                *count += i32::from(wire.five()[0] == 0);
            }
        }
        admitted
    };
    // As many as redis-cell admits.
    assert_eq!(in_turn("k", ["99 100 3600", "4 5 3600"]), [20, 4]);
    assert_eq!(in_turn("q", ["99 100 86400", "999 1000 1"]), [100, 0]);
}
