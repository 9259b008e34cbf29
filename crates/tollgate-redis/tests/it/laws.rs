//! The laws on a real Redis: a single server, a Cluster of three masters with replicas, and a
//! master that Sentinels monitor.

use std::sync::OnceLock;
use std::time::Duration;

use crate::common::{Cluster, Redis, Sentinels, direct};
use tollgate_redis::RedisStore;
use tollgate_testkit::Laws;

const MICROSECOND: Duration = Duration::from_micros(1);

/// The one server of this process.
fn redis() -> &'static Redis {
    static REDIS: OnceLock<Redis> = OnceLock::new();
    REDIS.get_or_init(|| Redis::start(&[]))
}

fn cluster_store() -> RedisStore {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(Cluster::start).store()
}

fn sentinel_store() -> RedisStore {
    static SENTINELS: OnceLock<Sentinels> = OnceLock::new();
    direct(&SENTINELS.get_or_init(Sentinels::start).url()).build().unwrap()
}

tollgate_testkit::conformance!(single, || redis().store(), resolution = MICROSECOND);
tollgate_testkit::conformance!(
    cluster,
    cluster_store,
    resolution = MICROSECOND,
    together,
    cases = 24,
    sharded
);
tollgate_testkit::conformance!(sentinel, sentinel_store, resolution = MICROSECOND, together, cases = 24);

/// Without the laws that compare the numbers of limits that did not deny: in a cached denial they
/// are those of the time when Redis decided.
#[test]
fn a_store_that_caches_denials_keeps_the_laws() {
    let caching = || {
        let store = direct(&redis().url()).remember_denials(Duration::from_secs(3600));
        store.build().unwrap()
    };
    let laws = Laws::new(caching).resolution(MICROSECOND).cases(100);
    laws.b1_never_too_many();
    laws.b2_denial_is_free();
    laws.b3_remaining_is_true();
    laws.b4_retry_after_is_exact();
    laws.b5_keys_are_islands();
    laws.b7_a_clock_that_jumps_breaks_nothing();
    laws.b8_the_same_key_twice_is_charged_once();
    laws.b9_racing_threads_admit_exactly_the_limit();
    laws.c5_reservations_live_in_the_store();
    laws.c5_blocks_live_in_the_store();
}
