//! An undo gives back exactly the units of its take, whatever other takes came since. The calls of
//! the script are those of a request in a Cluster that another slot denies.

use crate::common::Redis;
use tollgate_redis::SCRIPT;

#[test]
fn e3_an_undo_gives_back_only_the_units_of_its_own_take() {
    let redis = Redis::start(&[]);
    let key = format!("undo-{}", crate::common::unique());
    let call = |verb: &str, limit: &str, at: u64, cost: u64, ticket: Option<&str>| -> Vec<String> {
        let key = format!("{{{key}}}:{limit}");
        let (at, cost) = ((1_800_000_000_000_000 + at).to_string(), cost.to_string());
        let mut arguments = vec!["eval", SCRIPT, "1", &key, verb, &at, "60000", limit, &cost, "1"];
        arguments.extend(ticket);
        redis.cli(&arguments).lines().map(str::to_owned).collect()
    };
    let admitted = |answer: &[String]| answer[3] == "0";
    // Two a minute: B, C and D within a minute are one too many.
    let log = "l 2 60000000";
    let ticket = call("try", log, 0, 1, None).pop().unwrap();
    assert!(admitted(&call("take", log, 5_000, 1, None)), "B");
    call("undo", log, 10_000, 1, Some(&ticket));
    assert!(admitted(&call("take", log, 20_000, 1, None)), "C");
    assert!(!admitted(&call("take", log, 60_000_000, 1, None)), "D");
    assert!(admitted(&call("take", log, 60_005_000, 1, None)), "B has lapsed");
    // A sliding window, across the edge of its period: units of the previous period are given back
    // to the previous period.
    let sliding = "s 10 60000000 0";
    let ticket = call("try", sliding, 59_000_000, 4, None).pop().unwrap();
    assert_eq!(call("take", sliding, 60_000_000, 2, None)[4], "4");
    assert_eq!(call("undo", sliding, 60_000_000, 4, Some(&ticket))[4], "8");
    // A new window is not changed by the undo of a take from the window before.
    let fixed = "f 10 60000000 0 0";
    let ticket = call("try", fixed, 0, 4, None).pop().unwrap();
    assert_eq!(call("take", fixed, 60_000_000, 3, None)[4], "7");
    assert_eq!(call("undo", fixed, 60_000_000, 4, Some(&ticket))[4], "7");
    // Nor is a new day.
    let calendar = "m 10 day UTC 0";
    let (today, tomorrow) =
        ("@day UTC 1799971200000000 1800057600000000", "@day UTC 1800057600000000 1800144000000000");
    let ticket = call("try", calendar, 0, 4, Some(today)).pop().unwrap();
    assert_eq!(call("take", calendar, 57_600_000_000, 3, Some(tomorrow))[4], "7");
    assert_eq!(call("undo", calendar, 57_600_000_000, 4, Some(&ticket))[4], "7");
    let missing = call("take", calendar, 144_000_000_000, 1, Some(tomorrow));
    assert_eq!(missing, ["day UTC", "1800144000000000"], "a window that the caller did not hand in");
    // A bucket of one token a second: of four tokens, two have refilled.
    let bucket = "b 10 1000000000 1000 0";
    let ticket = call("try", bucket, 0, 4, None).pop().unwrap();
    assert_eq!(call("take", bucket, 2_000_000, 5, None)[4], "3");
    assert_eq!(call("undo", bucket, 2_000_000, 4, Some(&ticket))[4], "5");
    // Two tokens go back to the sustained bucket, three to the reserve.
    let reserve = "r 2 1000000000 1000 0 10 1000000000000 1000 0";
    let ticket = call("try", reserve, 0, 5, None).pop().unwrap();
    assert_eq!(call("take", reserve, 1_000_000, 4, None)[4], "4");
    assert_eq!(call("undo", reserve, 1_000_000, 5, Some(&ticket))[4], "8");
}
