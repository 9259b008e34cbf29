//! A Redis that is far away: what fits into which deadline, and a breaker that does not flap.

use std::time::Duration;

use crate::common::Redis;
use crate::common::proxy::Proxy;
use crate::node::{LIMIT, Node};
use crate::reach::Certificates;
use tollgate::{Clock as _, HOUR, Limit, TokioClock};

fn node(url: &str, deadline: Duration) -> Node {
    Node::with(url, Limit::fixed_window(LIMIT, HOUR), deadline, deadline)
}

#[test]
fn e4_a_redis_160_ms_away_can_be_used_with_a_longer_deadline() {
    let redis = Redis::start(&[]);
    let proxy = Proxy::start(redis.port);
    proxy.set_delay(Duration::from_millis(80), Duration::ZERO);
    let far = node(&proxy.url(), Duration::from_secs(2));
    far.assert_exact();
    assert_eq!(far.limiter.store().status().trips, 0);
    let down = node(&proxy.url(), Duration::from_millis(50));
    down.assert_degraded();
    let reason = down.down().unwrap();
    assert!(reason.contains("a probe took longer than 50ms"), "{reason}");
}

/// A connection with TLS takes several round trips, for each of which there is a deadline.
#[test]
fn e4_a_redis_that_is_as_far_away_as_the_deadline_allows_can_be_used_over_tls() {
    let certificates = Certificates::new();
    let redis = certificates.server();
    let proxy = Proxy::start(redis.port);
    proxy.set_delay(Duration::from_millis(450), Duration::ZERO);
    let far = node(&certificates.url(proxy.port), Duration::from_millis(1_200));
    let decision = far.check("open", "a");
    assert!(!decision.degraded(), "{:?}", far.down());
}

/// Responses that are in time now and then: the breaker opens a few times, waits longer each time,
/// and wants more probes in a row. (It opened 23 times in 12 s without any of this.)
#[test]
fn e4_a_breaker_does_not_flap_where_a_round_trip_takes_about_as_long_as_the_deadline() {
    let redis = Redis::start(&[]);
    let proxy = Proxy::start(redis.port);
    let node = node(&proxy.url(), Duration::from_millis(50));
    // From 46 to 52 ms, and from 44 to 70 ms.
    for (delay, jitter) in [(23, 3), (22, 13)] {
        proxy.set_delay(Duration::ZERO, Duration::ZERO);
        node.until_back();
        let before = node.limiter.store().status().trips;
        proxy.set_delay(Duration::from_millis(delay), Duration::from_millis(jitter));
        let end = TokioClock.now().saturating_add(Duration::from_secs(12));
        while TokioClock.now() < end {
            let _ = node.check("open", "a");
        }
        let trips = node.limiter.store().status().trips - before;
        assert!(trips <= 5, "the breaker opened {trips} times in 12 s");
    }
    proxy.set_delay(Duration::ZERO, Duration::ZERO);
    node.until_back();
    node.assert_exact();
}
