//! Where state is kept: the one place that chooses.

use tollgate::{Applied, Charge, Error, Limit, MemoryStats, MemoryStore, Op, Store, StoreError, Timestamp};
use tollgate_disk::{DiskStore, Durability};
use tollgate_redis::RedisStore;

/// The store that was configured.
#[derive(Debug)]
pub enum Backend {
    /// In this process.
    Memory(Box<MemoryStore>),
    /// In this process, and in a directory.
    Disk(DiskStore),
    /// In Redis, for all servers that share it.
    Redis(RedisStore),
}

impl Backend {
    /// What decides, if that is in this process.
    pub(crate) fn memory(&self) -> Option<&MemoryStore> {
        match self {
            Self::Memory(memory) => Some(memory),
            Self::Disk(disk) => Some(disk.memory()),
            Self::Redis(_) => None,
        }
    }

    /// How full the table is, if it is here.
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

    /// What it is called in configuration.
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::Memory(_) => "memory",
            Self::Disk(_) => "disk",
            Self::Redis(_) => "redis",
        }
    }

    /// What is wrong with it at the moment, if anything is.
    pub(crate) fn failure(&self) -> Option<String> {
        match self {
            Self::Memory(_) => None,
            Self::Disk(disk) => disk.failure(),
            Self::Redis(redis) => redis.status().down,
        }
    }

    /// Whether it answers.
    pub(crate) async fn answers(&self) -> bool {
        match self {
            Self::Memory(_) => true,
            // Relaxed answers whatever the disk does.
            Self::Disk(disk) => disk.durability() == Durability::Relaxed || disk.failure().is_none(),
            Self::Redis(redis) => redis.ping().await.is_ok(),
        }
    }

    /// Has everything that is to be kept be kept, before the process ends.
    ///
    /// # Errors
    /// Why it could not be.
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

    fn live_keys(&self) -> Option<u64> {
        match self {
            Self::Memory(memory) => memory.live_keys(),
            Self::Disk(disk) => disk.live_keys(),
            Self::Redis(redis) => redis.live_keys(),
        }
    }

    fn as_memory(&self) -> Option<&MemoryStore> {
        match self {
            Self::Memory(memory) => Some(memory),
            Self::Disk(disk) => disk.as_memory(),
            Self::Redis(_) => None,
        }
    }
}
