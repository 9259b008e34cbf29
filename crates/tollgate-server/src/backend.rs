//! The configured store: memory, disk or Redis. No other module chooses between them.

use tollgate::{
    Applied, Charge, Error, Limit, MemoryStats, MemoryStore, Op, Rule, Store, StoreError, Timestamp,
};
use tollgate_disk::{DiskStore, Durability};
use tollgate_redis::RedisStore;

/// The configured store.
#[derive(Debug)]
pub(crate) enum Backend {
    /// State in this process.
    Memory(Box<MemoryStore>),
    /// State in this process, and in a directory.
    Disk(DiskStore),
    /// State in Redis, shared with other servers.
    Redis(RedisStore),
}

impl Backend {
    /// The in-memory store that decides, unless it is Redis.
    pub(crate) fn memory(&self) -> Option<&MemoryStore> {
        match self {
            Self::Memory(memory) => Some(memory),
            Self::Disk(disk) => Some(disk.memory()),
            Self::Redis(_) => None,
        }
    }

    /// Statistics of the in-memory store, if there is one.
    pub(crate) fn memory_stats(&self) -> Option<MemoryStats> {
        self.memory().map(MemoryStore::memory_stats)
    }

    pub(crate) const fn as_redis(&self) -> Option<&RedisStore> {
        match self {
            Self::Memory(_) | Self::Disk(_) => None,
            Self::Redis(redis) => Some(redis),
        }
    }

    pub(crate) const fn as_disk(&self) -> Option<&DiskStore> {
        match self {
            Self::Memory(_) | Self::Redis(_) => None,
            Self::Disk(disk) => Some(disk),
        }
    }

    /// The store's name in the configuration.
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::Memory(_) => "memory",
            Self::Disk(_) => "disk",
            Self::Redis(_) => "redis",
        }
    }

    /// The store's current failure, if any.
    pub(crate) fn failure(&self) -> Option<String> {
        match self {
            Self::Memory(_) => None,
            Self::Disk(disk) => disk.failure(),
            Self::Redis(redis) => redis.status().down,
        }
    }

    /// Asks the store whether it can decide.
    ///
    /// # Errors
    /// Why it cannot.
    pub(crate) async fn ping(&self) -> Result<(), String> {
        match self {
            Self::Memory(_) => Ok(()),
            // A relaxed store answers whatever the disk does.
            Self::Disk(disk) if disk.durability() == Durability::Relaxed => Ok(()),
            Self::Disk(disk) => disk.failure().map_or(Ok(()), Err),
            Self::Redis(redis) => redis.ping().await.map_err(|error| error.to_string()),
        }
    }

    /// Flushes pending writes.
    ///
    /// # Errors
    /// If a write failed.
    pub(crate) async fn close(&self) -> Result<(), StoreError> {
        match self {
            Self::Memory(_) | Self::Redis(_) => Ok(()),
            Self::Disk(disk) => disk.close().await,
        }
    }
}

impl Store for Backend {
    async fn apply(&self, op: Op, charges: &[Charge<'_>], now: Timestamp) -> Result<Applied, StoreError> {
        match self {
            Self::Memory(memory) => memory.apply(op, charges, now).await,
            Self::Disk(disk) => disk.apply(op, charges, now).await,
            Self::Redis(redis) => redis.apply(op, charges, now).await,
        }
    }

    async fn apply_each(
        &self,
        op: Op,
        requests: &[&[Charge<'_>]],
        now: Timestamp,
    ) -> Vec<Result<Applied, StoreError>> {
        match self {
            Self::Memory(memory) => memory.apply_each(op, requests, now).await,
            Self::Disk(disk) => disk.apply_each(op, requests, now).await,
            Self::Redis(redis) => redis.apply_each(op, requests, now).await,
        }
    }

    fn recall(&self, op: Op, charges: &[Charge<'_>], now: Timestamp) -> Option<Applied> {
        match self {
            Self::Memory(_) | Self::Disk(_) => None,
            Self::Redis(redis) => redis.recall(op, charges, now),
        }
    }

    fn batch_max(&self) -> usize {
        match self {
            Self::Memory(memory) => memory.batch_max(),
            Self::Disk(disk) => disk.batch_max(),
            Self::Redis(redis) => redis.batch_max(),
        }
    }

    fn in_flight_max(&self) -> usize {
        match self {
            Self::Memory(memory) => memory.in_flight_max(),
            Self::Disk(disk) => disk.in_flight_max(),
            Self::Redis(redis) => redis.in_flight_max(),
        }
    }

    async fn ready(&self) {
        match self {
            Self::Memory(memory) => memory.ready().await,
            Self::Disk(disk) => disk.ready().await,
            Self::Redis(redis) => redis.ready().await,
        }
    }

    async fn clear(&self, rule: &str) -> Result<u64, StoreError> {
        match self {
            Self::Memory(memory) => Store::clear(&**memory, rule).await,
            Self::Disk(disk) => Store::clear(disk, rule).await,
            Self::Redis(redis) => redis.clear(rule).await,
        }
    }

    fn accepts(&self, limit: &Limit) -> Result<(), Error> {
        match self {
            Self::Memory(memory) => memory.accepts(limit),
            Self::Disk(disk) => disk.accepts(limit),
            Self::Redis(redis) => redis.accepts(limit),
        }
    }

    fn accepts_overflow(&self, rule: &Rule, into: &Rule) -> Result<(), Error> {
        match self {
            Self::Memory(memory) => memory.accepts_overflow(rule, into),
            Self::Disk(disk) => disk.accepts_overflow(rule, into),
            Self::Redis(redis) => redis.accepts_overflow(rule, into),
        }
    }

    fn live_keys(&self) -> Option<u64> {
        match self {
            Self::Memory(memory) => memory.live_keys(),
            Self::Disk(disk) => disk.live_keys(),
            Self::Redis(redis) => redis.live_keys(),
        }
    }

    fn decides_in(&self) -> Option<&MemoryStore> {
        match self {
            Self::Memory(memory) => Some(memory),
            Self::Disk(disk) => disk.decides_in(),
            Self::Redis(_) => None,
        }
    }
}
