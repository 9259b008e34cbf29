//! The laws on a real Redis: a single server, a Cluster of three masters with replicas, and a
//! master that Sentinels monitor.

use std::sync::OnceLock;
use std::time::Duration;

use crate::common::{Cluster, Redis, Sentinels, direct};
use tollgate_redis::RedisStore;

const MICROSECOND: Duration = Duration::from_micros(1);

/// The one server of this process.
fn redis() -> &'static Redis {
    static REDIS: OnceLock<Redis> = OnceLock::new();
    REDIS.get_or_init(|| Redis::start(&[]))
}

/// It remembers denials for as long as they last.
fn caching_store() -> RedisStore {
    direct(&redis().url()).remember_denials(Duration::from_secs(3600)).build().unwrap()
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
tollgate_testkit::conformance!(caching, caching_store, resolution = MICROSECOND, together, cases = 100);
tollgate_testkit::conformance!(
    cluster,
    cluster_store,
    resolution = MICROSECOND,
    together,
    cases = 24,
    sharded
);
tollgate_testkit::conformance!(sentinel, sentinel_store, resolution = MICROSECOND, together, cases = 24);
