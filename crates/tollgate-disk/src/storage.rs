//! The storage under the engine: how it is opened, and counters of its I/O.

use std::fs::OpenOptions;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fmt, io};

use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};

use crate::OpenError;
use crate::file::PageFile;

/// The path of a file, and how it is opened.
pub(crate) struct Storage {
    path: PathBuf,
    open_backend: Box<OpenBackend>,
}

type OpenBackend = dyn Fn() -> io::Result<Box<dyn StorageBackend>> + Send + Sync;

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Storage").field(&self.path).finish()
    }
}

impl Storage {
    /// The file at `path`.
    pub(crate) fn file(path: PathBuf) -> Self {
        let name = path.clone();
        Self::new(path, move || {
            let file = OpenOptions::new().read(true).write(true).open(&name)?;
            let file = FileBackend::new(file).map_err(io::Error::other)?;
            Ok(Box::new(file))
        })
    }

    /// Any backend. Messages call it `path`.
    pub(crate) fn new(
        path: PathBuf,
        open_backend: impl Fn() -> io::Result<Box<dyn StorageBackend>> + Send + Sync + 'static,
    ) -> Self {
        Self { path, open_backend: Box::new(open_backend) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file: see [`PageFile::open`].
    pub(crate) fn open(
        &self,
        io: &Arc<IoCounters>,
        on_repair: impl Fn(f64) + 'static,
    ) -> Result<PageFile, OpenError> {
        let backend = (self.open_backend)().map_err(OpenError::inaccessible(&self.path))?;
        PageFile::open(&self.path, backend, io, on_repair)
    }
}

/// Counters of I/O, and the length of the file.
#[derive(Debug, Default)]
pub(crate) struct IoCounters {
    pub(crate) syncs: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) file_bytes: AtomicU64,
}

/// A backend that counts its I/O.
#[derive(Debug)]
pub(crate) struct CountingBackend {
    pub(crate) backend: Box<dyn StorageBackend>,
    pub(crate) io: Arc<IoCounters>,
}

impl StorageBackend for CountingBackend {
    fn len(&self) -> io::Result<u64> {
        self.backend.len().inspect(|length| self.io.file_bytes.store(*length, Ordering::Relaxed))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.backend.read(offset, out)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.backend.set_len(length)?;
        self.io.file_bytes.store(length, Ordering::Relaxed);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.io.syncs.fetch_add(1, Ordering::Relaxed);
        self.backend.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let length = u64::try_from(data.len()).unwrap_or(0);
        self.io.written_bytes.fetch_add(length, Ordering::Relaxed);
        self.backend.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.backend.close()
    }

    // The engine locks the whole file. The lock of the directory is not enough: its file may be
    // removed.

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.backend.try_lock_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.backend.unlock_range(start, end)
    }
}
