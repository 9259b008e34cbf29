//! Where state is kept: the one place that chooses.

use tollgate::{Applied, Charge, Error, Limit, MemoryStats, MemoryStore, Op, Store, StoreError, Timestamp};
use tollgate_redis::RedisStore;

/// The store that was configured.
#[derive(Debug)]
pub enum Backend {
    /// In this process.
    Memory(Box<MemoryStore>),
    /// In Redis, for all servers that share it.
    Redis(RedisStore),
}

impl Backend {
    /// How full the table is, if it is here.
    pub(crate) fn memory_stats(&self) -> Option<MemoryStats> {
        self.as_memory().map(MemoryStore::memory_stats)
    }

    pub(crate) const fn as_redis(&self) -> Option<&RedisStore> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(redis) => Some(redis),
        }
    }

    /// What it is called in configuration.
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::Memory(_) => "memory",
            Self::Redis(_) => "redis",
        }
    }
}

impl Store for Backend {
    async fn apply(&self, op: Op, charges: &[Charge<'_>], now: Timestamp) -> Result<Applied, StoreError> {
        match self {
            Self::Memory(memory) => memory.apply(op, charges, now).await,
            Self::Redis(redis) => redis.apply(op, charges, now).await,
        }
    }

    fn accepts(&self, limit: &Limit) -> Result<(), Error> {
        match self {
            Self::Memory(memory) => memory.accepts(limit),
            Self::Redis(redis) => redis.accepts(limit),
        }
    }

    fn live_keys(&self) -> Option<u64> {
        match self {
            Self::Memory(memory) => memory.live_keys(),
            Self::Redis(redis) => redis.live_keys(),
        }
    }

    fn as_memory(&self) -> Option<&MemoryStore> {
        match self {
            Self::Memory(memory) => Some(memory),
            Self::Redis(_) => None,
        }
    }
}
