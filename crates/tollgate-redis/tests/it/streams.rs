//! C7 across processes: processes with streams on one Redis are killed, and the budgets have what
//! their streams used.

use crate::common::{Redis, direct, unique};

#[test]
fn c7_killed_processes_on_one_redis_leave_what_their_streams_used() {
    let test = "streams::c7_killed_processes_on_one_redis_leave_what_their_streams_used";
    let start = || {
        let redis = Redis::start(&[]);
        let target = format!("{} streams-{}", redis.url(), unique());
        (redis, target)
    };
    tollgate_testkit::killed_streams(test, 3, start, |target| {
        let (url, prefix) = target.split_once(' ').unwrap();
        direct(url).prefix(prefix).build().unwrap()
    });
}
