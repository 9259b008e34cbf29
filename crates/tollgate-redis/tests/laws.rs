//! The laws over a real Redis: every one over a single server, and all of them over a Cluster.

mod common;

use std::sync::OnceLock;
use std::time::Duration;

use common::{Cluster, Redis};
use tollgate_testkit::Laws;

const MICROSECOND: Duration = Duration::from_micros(1);

/// The one server of this process.
fn redis() -> &'static Redis {
    static REDIS: OnceLock<Redis> = OnceLock::new();
    REDIS.get_or_init(|| Redis::start(&[]))
}

tollgate_testkit::conformance!(single, || redis().store(), resolution = MICROSECOND);
