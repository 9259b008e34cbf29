//! The store: memory decides, and a writer thread persists the changes.

use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{fmt, fs, io};

use redb::backends::FileBackend;
use tollgate::{Applied, Charge, Error, Limit, MemoryStore, Op, Store, StoreError, Timestamp};

use crate::OpenError;
use crate::file::PageFile;
use crate::lock::Lock;
use crate::storage::{IoCounters, Storage};
use crate::writer::{Shared, Writer};

/// The name of the state file.
const FILE: &str = "state.redb";

/// The name of a state file that is being created, so that an unfinished file is not taken for a
/// truncated one.
const UNFINISHED: &str = "state.redb.new";

/// The shortest [flush interval](Builder::flush_interval).
pub const SHORTEST_INTERVAL: Duration = Duration::from_millis(1);

/// The longest [flush interval](Builder::flush_interval). Changes are tracked until they are
/// written.
pub const LONGEST_INTERVAL: Duration = Duration::from_secs(60);

/// When a request is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// At once. Its changes are written in the background.
    #[default]
    Relaxed,
    /// When its changes are synced to the disk.
    Strict,
}

/// Progress of opening a directory.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Progress {
    /// The directory has no state: every budget is full.
    Nothing,
    /// The file was not closed, as after a crash, and is being repaired.
    Checking {
        /// The share that is done, from 0 to 1.
        share: f64,
    },
    /// Pages are being loaded.
    Loading {
        /// Pages loaded.
        done: u64,
        /// Pages in the file.
        of: u64,
    },
}

/// A change of the disk's health.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// A write failed. It is retried once a second.
    Down {
        /// The error of the write.
        reason: String,
    },
    /// A write succeeded again: the disk has all of the state.
    Up,
}

/// Counters of disk I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiskStats {
    /// Whether the last write succeeded.
    pub up: bool,
    /// Writes finished.
    pub writes: u64,
    /// Syncs: one or more per write.
    pub syncs: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Size of the file.
    pub file_bytes: u64,
    /// Duration of the last write.
    pub last_write: Duration,
}

/// A store that survives a crash: see [the crate's documentation](crate).
///
/// Dropping it flushes pending writes, and waits for them.
pub struct DiskStore {
    shared: Arc<Shared>,
    durability: Durability,
    writer: Option<JoinHandle<()>>,
}

impl fmt::Debug for DiskStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskStore").field("dir", &self.shared.dir).finish_non_exhaustive()
    }
}

/// Opens a [`DiskStore`].
pub struct Builder {
    dir: PathBuf,
    memory: MemoryStore,
    durability: Durability,
    flush_interval: Duration,
    on_progress: Arc<dyn Fn(Progress) + Send + Sync>,
    on_change: Box<dyn Fn(&Change) + Send + Sync>,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl Builder {
    /// The memory store that decides. It must be unused. (For [`create`](Self::create), it is one
    /// that a dump was restored to.)
    #[must_use]
    pub fn memory(mut self, memory: MemoryStore) -> Self {
        self.memory = memory;
        self
    }

    /// When a request is answered: at once ([`Relaxed`](Durability::Relaxed)) by default.
    #[must_use]
    pub const fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// The longest time from a change to the start of its write, if no request waits for it: 100
    /// milliseconds by default, at least [`SHORTEST_INTERVAL`], at most [`LONGEST_INTERVAL`].
    #[must_use]
    pub fn flush_interval(mut self, interval: Duration) -> Self {
        self.flush_interval = interval.clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL);
        self
    }

    /// Calls `callback` with the progress of opening.
    #[must_use]
    pub fn on_progress(mut self, callback: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.on_progress = Arc::new(callback);
        self
    }

    /// Calls `callback`, on the writer thread, when the disk fails and when it is back.
    #[must_use]
    pub fn on_change(mut self, callback: impl Fn(&Change) + Send + Sync + 'static) -> Self {
        self.on_change = Box::new(callback);
        self
    }

    /// Opens the directory, which is created if it is missing, and loads its state.
    ///
    /// # Errors
    /// [`OpenError`] if the directory cannot be used.
    pub fn open(self) -> Result<DiskStore, OpenError> {
        let lock = lock_directory(&self.dir)?;
        let path = self.dir.join(FILE);
        if !path.try_exists().map_err(OpenError::inaccessible(&path))? {
            (self.on_progress)(Progress::Nothing);
            create_file(&self.dir, &self.memory)?;
        }
        self.open_on(Storage::file(path), Some(lock))
    }

    /// Opens the directory only if it has state.
    ///
    /// # Errors
    /// [`OpenError::Empty`] if it has none, and the errors of [`open`](Self::open).
    pub fn open_existing(self) -> Result<DiskStore, OpenError> {
        let path = self.dir.join(FILE);
        let exists = path.try_exists().map_err(OpenError::inaccessible(&path))?;
        if exists { self.open() } else { Err(OpenError::Empty { dir: self.dir }) }
    }

    /// Creates the directory and writes the state of [`memory`](Self::memory) to it, for example a
    /// restored dump.
    ///
    /// # Errors
    /// [`OpenError::NotEmpty`] if the directory has state, and the errors of [`open`](Self::open).
    pub fn create(self) -> Result<DiskStore, OpenError> {
        let lock = lock_directory(&self.dir)?;
        let path = self.dir.join(FILE);
        if path.try_exists().map_err(OpenError::inaccessible(&path))? {
            return Err(OpenError::NotEmpty { dir: self.dir });
        }
        self.memory.set_tracked(true);
        self.memory.all_pages_changed();
        create_file(&self.dir, &self.memory)?;
        let storage = Storage::file(path);
        let io = Arc::new(IoCounters::default());
        let pages = storage.open(&io, |_| {})?;
        self.start(pages, storage, io, Some(lock))
    }

    pub(crate) fn open_on(mut self, storage: Storage, lock: Option<Lock>) -> Result<DiskStore, OpenError> {
        let io = Arc::new(IoCounters::default());
        let on_progress = Arc::clone(&self.on_progress);
        let pages = storage.open(&io, move |share| on_progress(Progress::Checking { share }))?;
        self.memory = self.memory.seeded(pages.seed());
        let (mut done, of) = (0, pages.count());
        let mut loader = self.memory.loader();
        pages.read(storage.path(), |name, content| {
            loader.load(name, content).map_err(|error| error.to_string())?;
            done += 1;
            (self.on_progress)(Progress::Loading { done, of });
            Ok(())
        })?;
        self.memory.set_tracked(true);
        self.start(pages, storage, io, lock)
    }

    fn start(
        self,
        pages: PageFile,
        storage: Storage,
        io: Arc<IoCounters>,
        lock: Option<Lock>,
    ) -> Result<DiskStore, OpenError> {
        let Self { dir, memory, durability, flush_interval: interval, on_progress: _, on_change } = self;
        let shared = Arc::new(Shared::new(dir, memory, io));
        let writer =
            Writer { shared: Arc::clone(&shared), pages: Some(pages), storage, interval, on_change, lock };
        let thread = thread::Builder::new().name("tollgate-disk".into()).spawn(move || writer.run());
        let thread = thread.map_err(OpenError::inaccessible(&shared.dir))?;
        Ok(DiskStore { shared, durability, writer: Some(thread) })
    }
}

impl DiskStore {
    /// Opens this directory, which is created if it is missing.
    ///
    /// # Errors
    /// [`OpenError`] if the directory cannot be used.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::builder(dir).open()
    }

    /// A builder for a store in this directory.
    #[must_use]
    pub fn builder(dir: impl AsRef<Path>) -> Builder {
        Builder {
            dir: dir.as_ref().to_owned(),
            memory: MemoryStore::new(),
            durability: Durability::default(),
            flush_interval: Duration::from_millis(100),
            on_progress: Arc::new(|_| {}),
            on_change: Box::new(|_| {}),
        }
    }

    /// Flushes pending writes, and waits until they are synced.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if a write failed.
    pub async fn flush(&self) -> Result<(), StoreError> {
        self.shared.wait_durable().await
    }

    /// Flushes pending writes, and releases the directory. Later changes are not persisted: a
    /// relaxed store goes on in memory, a strict one fails.
    ///
    /// # Errors
    /// As [`flush`](Self::flush). The directory is released all the same.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.shared.close();
        self.shared.wait_closed().await
    }

    /// The memory store that decides. For reading: the writer tracks its changes.
    #[must_use]
    pub fn memory(&self) -> &MemoryStore {
        &self.shared.memory
    }

    /// When a request is answered.
    #[must_use]
    pub const fn durability(&self) -> Durability {
        self.durability
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.shared.dir
    }

    /// Why the last write failed, if it did.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.shared.failure()
    }

    /// Counters of disk I/O.
    #[must_use]
    pub fn disk_stats(&self) -> DiskStats {
        let Shared { io, writes, last_write_nanos, .. } = &*self.shared;
        DiskStats {
            up: self.failure().is_none(),
            writes: writes.load(Ordering::Relaxed),
            syncs: io.syncs.load(Ordering::Relaxed),
            written_bytes: io.written_bytes.load(Ordering::Relaxed),
            file_bytes: io.file_bytes.load(Ordering::Relaxed),
            last_write: Duration::from_nanos(last_write_nanos.load(Ordering::Relaxed)),
        }
    }
}

impl Drop for DiskStore {
    fn drop(&mut self) {
        self.shared.close();
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

impl Store for DiskStore {
    async fn apply(&self, op: Op, charges: &[Charge<'_>], now: Timestamp) -> Result<Applied, StoreError> {
        let applied = self.shared.memory.apply_now(op, charges, now)?;
        if self.durability == Durability::Strict && applied.changed {
            self.shared.wait_durable().await?;
        }
        Ok(applied)
    }

    async fn clear(&self, rule: &str) -> Result<u64, StoreError> {
        let keys = self.shared.memory.clear(rule);
        if self.durability == Durability::Strict {
            self.shared.wait_durable().await?;
        }
        Ok(keys)
    }

    fn accepts(&self, limit: &Limit) -> Result<(), Error> {
        self.shared.memory.accepts(limit)
    }

    fn live_keys(&self) -> Option<u64> {
        self.shared.memory.live_keys()
    }

    /// Strict answers wait for a commit, which is the same for any number of them.
    fn in_flight_max(&self) -> usize {
        usize::MAX
    }

    fn decides_in(&self) -> Option<&MemoryStore> {
        (self.durability == Durability::Relaxed).then_some(&self.shared.memory)
    }
}

/// Creates the directory if it is missing, and locks it.
fn lock_directory(dir: &Path) -> Result<Lock, OpenError> {
    let created: Vec<&Path> = dir.ancestors().take_while(|dir| !dir.exists()).collect();
    // Private: a reader of the seed can aim for hash collisions.
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(OpenError::inaccessible(dir))?;
    for parent in created.iter().filter_map(|dir| dir.parent()) {
        let parent = if parent == Path::new("") { Path::new(".") } else { parent };
        sync_directory(parent).map_err(OpenError::inaccessible(parent))?;
    }
    Lock::take(dir)
}

/// Syncs a directory, so that files created in it survive a power cut.
fn sync_directory(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Creates the state file with the changed pages of `memory`, and renames it once it is complete.
fn create_file(dir: &Path, memory: &MemoryStore) -> Result<(), OpenError> {
    let (unfinished, path) = (dir.join(UNFINISHED), dir.join(FILE));
    let inaccessible = || OpenError::inaccessible(&unfinished);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true).mode(0o600);
    let file = options.open(&unfinished).map_err(inaccessible())?;
    let backend = FileBackend::new(file).map_err(|error| inaccessible()(io::Error::other(error)))?;
    let created = PageFile::create(Box::new(backend), &Arc::default(), memory.seed())
        .and_then(|mut pages| pages.write(false, |each| memory.changed_pages(each)));
    created.map_err(|error| inaccessible()(io::Error::other(error)))?;
    fs::rename(&unfinished, &path).map_err(inaccessible())?;
    sync_directory(dir).map_err(inaccessible())
}
