//! What the engine writes to: how it is reached, and how often it is synced and how much is written.

use std::fs::OpenOptions;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fmt, io};

use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};

use crate::OpenError;
use crate::file::Pages;

/// Where the file is, and how it is reached.
pub(crate) struct Medium {
    path: PathBuf,
    reach: Box<Reach>,
}

type Reach = dyn Fn() -> io::Result<Box<dyn StorageBackend>> + Send + Sync;

impl fmt::Debug for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Medium").field(&self.path).finish()
    }
}

impl Medium {
    /// The file of this name.
    pub(crate) fn file(path: PathBuf) -> Self {
        let name = path.clone();
        Self::new(path, move || {
            let file = OpenOptions::new().read(true).write(true).open(&name)?;
            let file = FileBackend::new(file).map_err(io::Error::other)?;
            Ok(Box::new(file))
        })
    }

    /// Something else, that is called so in messages.
    pub(crate) fn new(
        path: PathBuf,
        reach: impl Fn() -> io::Result<Box<dyn StorageBackend>> + Send + Sync + 'static,
    ) -> Self {
        Self { path, reach: Box::new(reach) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens it: see [`Pages::open`].
    pub(crate) fn open(
        &self,
        traffic: &Arc<Traffic>,
        repaired: impl Fn(f64) + 'static,
    ) -> Result<Pages, OpenError> {
        let medium = (self.reach)().map_err(OpenError::inaccessible(&self.path))?;
        Pages::open(&self.path, medium, traffic, repaired)
    }
}

/// What was done to a medium.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) syncs: AtomicU64,
    pub(crate) written: AtomicU64,
    pub(crate) length: AtomicU64,
}

/// A medium that counts.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) medium: Box<dyn StorageBackend>,
    pub(crate) traffic: Arc<Traffic>,
}

impl StorageBackend for Watched {
    fn len(&self) -> io::Result<u64> {
        self.medium.len().inspect(|length| self.traffic.length.store(*length, Ordering::Relaxed))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.medium.read(offset, out)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.medium.set_len(length)?;
        self.traffic.length.store(length, Ordering::Relaxed);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.traffic.syncs.fetch_add(1, Ordering::Relaxed);
        self.medium.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let length = u64::try_from(data.len()).unwrap_or(0);
        self.traffic.written.fetch_add(length, Ordering::Relaxed);
        self.medium.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.medium.close()
    }

    // The engine locks the whole file, no more. The directory is locked too, but by a file that someone may remove.

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.medium.try_lock_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.medium.unlock_range(start, end)
    }
}
