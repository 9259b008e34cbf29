//! A plain counter in Redis as a store: `INCRBY` and `PEXPIRE`, no script.
//!
//! `cargo run -p tollgate-redis --example counter -- redis://127.0.0.1:6379`
//!
//! A pattern for key-value services that have counters and no scripts. [`CounterStore`] documents
//! the limits of a counter. On Redis itself, use `RedisStore`, which keeps every law. This example
//! does not reconnect; the redis crate's `ConnectionManager` does.
#![expect(clippy::print_stdout, reason = "an example")]

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Client, Pipeline, RedisResult};
use tollgate::{Counter, CounterStore, Limiter, MINUTE, Rule, RuleSet, StoreError};

/// Counters in Redis, under a prefix.
#[derive(Clone, Debug)]
pub(crate) struct RedisCounter {
    connection: MultiplexedConnection,
    prefix: String,
}

impl RedisCounter {
    pub(crate) async fn connect(url: &str, prefix: &str) -> RedisResult<Self> {
        let connection = Client::open(url)?.get_multiplexed_async_connection().await?;
        Ok(Self { connection, prefix: prefix.to_owned() })
    }
}

impl Counter for RedisCounter {
    async fn add(&self, name: &[u8], n: u64, ttl: Duration) -> Result<u64, StoreError> {
        let mut connection = self.connection.clone();
        let name = [self.prefix.as_bytes(), name].concat();
        let sum = match n {
            0 => {
                redis::cmd("GET").arg(&name).query_async(&mut connection).await.map(Option::unwrap_or_default)
            }
            n => adding(&name, n, ttl).query_async(&mut connection).await.map(|(sum,)| sum),
        };
        sum.map_err(|error| StoreError::Unavailable { reason: error.to_string() })
    }
}

/// Adds and sets the expiry in one transaction. Between two separate commands a caller may die, and
/// leave a counter that never expires.
pub(crate) fn adding(name: &[u8], n: u64, ttl: Duration) -> Pipeline {
    // A minute more: Redis expires keys by its own clock, and the caller's may be behind.
    let millis = ttl.saturating_add(MINUTE).as_millis();
    let mut pipeline = redis::pipe();
    pipeline.atomic().incr(name, n);
    pipeline.pexpire(name, i64::try_from(millis).unwrap_or(i64::MAX)).ignore();
    pipeline
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let counter = RedisCounter::connect(&url, "example:").await?;
    let limit = "5/minute fixed aligned counting denied".parse::<tollgate::Limit>()?;
    let rules = RuleSet::new([Rule::new("per-client", limit).key(["client"])])?;
    let limiter = Limiter::builder(rules).store(CounterStore(counter)).build()?;
    for _ in 0..7 {
        let decision = limiter.check_async("alice").await?;
        println!("allowed: {}, {} left", decision.allowed(), decision.remaining());
    }
    Ok(())
}
