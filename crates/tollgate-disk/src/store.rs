//! The store: memory decides, and a thread writes down what changed.

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
use crate::file::Pages;
use crate::lock::Lock;
use crate::medium::{Medium, Traffic};
use crate::writer::{Shared, Writer};

/// The file with the state.
const FILE: &str = "state.redb";

/// The same while it is being made: what is not finished is not taken for a file that was cut.
const UNFINISHED: &str = "state.redb.new";

/// The shortest [flush interval](Builder::flush_interval).
pub const SHORTEST_INTERVAL: Duration = Duration::from_millis(1);

/// The longest [flush interval](Builder::flush_interval): what has changed by then is kept in mind until it is written.
pub const LONGEST_INTERVAL: Duration = Duration::from_secs(60);

/// When an answer may leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// At once: what changed is written in the background.
    #[default]
    Relaxed,
    /// When what it changed is safe on the disk.
    Strict,
}

/// How far loading is.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Progress {
    /// There is no state in the directory: every budget is full.
    Nothing,
    /// The file was not closed, as after a crash, and is gone through: how much of it, from 0 to 1.
    Checking {
        /// How much.
        share: f64,
    },
    /// So many pages of so many are loaded.
    Loading {
        /// Pages.
        done: u64,
        /// Of how many.
        of: u64,
    },
}

/// What became of the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// A write failed. It is tried again once a second.
    Down {
        /// In its own words.
        reason: String,
    },
    /// Everything is written again.
    Up,
}

/// What a store has done to its disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiskStats {
    /// Whether the last write succeeded.
    pub up: bool,
    /// Writes that were finished.
    pub writes: u64,
    /// Syncs, of which a write needs one or more.
    pub syncs: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// How large the file is.
    pub file_bytes: u64,
    /// How long the last write took.
    pub last_write: Duration,
}

/// A store that survives a crash: see [the crate's documentation](crate).
///
/// Dropping it writes down what is not yet written, and waits for that.
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

/// How a [`DiskStore`] is opened.
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
    /// Decides with this store, which has been given its bounds and was asked for nothing yet. (For
    /// [`create`](Self::create), one that was restored.)
    #[must_use]
    pub fn memory(mut self, memory: MemoryStore) -> Self {
        self.memory = memory;
        self
    }

    /// When an answer may leave: at once, unless said otherwise.
    #[must_use]
    pub const fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// How long a change waits for its write to begin, if nobody waits for it: 100 milliseconds unless
    /// said otherwise, at least [`SHORTEST_INTERVAL`] and at most [`LONGEST_INTERVAL`].
    #[must_use]
    pub fn flush_interval(mut self, interval: Duration) -> Self {
        self.flush_interval = interval.clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL);
        self
    }

    /// Tells `tell` how far loading is.
    #[must_use]
    pub fn on_progress(mut self, tell: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.on_progress = Arc::new(tell);
        self
    }

    /// Tells `tell` when the disk fails, and when it is back. It is called on the thread that writes.
    #[must_use]
    pub fn on_change(mut self, tell: impl Fn(&Change) + Send + Sync + 'static) -> Self {
        self.on_change = Box::new(tell);
        self
    }

    /// Opens the directory, or makes it, and loads what is there.
    ///
    /// # Errors
    /// Whatever keeps it from being used.
    pub fn open(self) -> Result<DiskStore, OpenError> {
        let lock = take_directory(&self.dir)?;
        let path = self.dir.join(FILE);
        if !path.try_exists().map_err(OpenError::inaccessible(&path))? {
            (self.on_progress)(Progress::Nothing);
            make_file(&self.dir, &self.memory)?;
        }
        self.open_on(Medium::file(path), Some(lock))
    }

    /// Opens the directory only if there is state in it.
    ///
    /// # Errors
    /// [`OpenError::Empty`] if there is none, and what [`open`](Self::open) fails with.
    pub fn open_existing(self) -> Result<DiskStore, OpenError> {
        let path = self.dir.join(FILE);
        let there = path.try_exists().map_err(OpenError::inaccessible(&path))?;
        if there { self.open() } else { Err(OpenError::Empty { dir: self.dir }) }
    }

    /// Makes the directory, and keeps in it what [`memory`](Self::memory) has: a dump that was restored.
    ///
    /// # Errors
    /// [`OpenError::NotEmpty`] if there is state in it already, and what [`open`](Self::open) fails with.
    pub fn create(self) -> Result<DiskStore, OpenError> {
        let lock = take_directory(&self.dir)?;
        let path = self.dir.join(FILE);
        if path.try_exists().map_err(OpenError::inaccessible(&path))? {
            return Err(OpenError::NotEmpty { dir: self.dir });
        }
        self.memory.follow(true);
        self.memory.all_pages_changed();
        make_file(&self.dir, &self.memory)?;
        let medium = Medium::file(path);
        let traffic = Arc::new(Traffic::default());
        let pages = medium.open(&traffic, |_| {})?;
        self.start(pages, medium, traffic, Some(lock))
    }

    pub(crate) fn open_on(mut self, medium: Medium, lock: Option<Lock>) -> Result<DiskStore, OpenError> {
        let traffic = Arc::new(Traffic::default());
        let tell = Arc::clone(&self.on_progress);
        let mut pages = medium.open(&traffic, move |share| tell(Progress::Checking { share }))?;
        self.memory = self.memory.seeded(pages.seed());
        let (mut done, of) = (0, pages.count());
        let mut loader = self.memory.loader();
        pages.read(medium.path(), |name, content| {
            loader.load(name, content).map_err(|error| error.to_string())?;
            done += 1;
            (self.on_progress)(Progress::Loading { done, of });
            Ok(())
        })?;
        self.memory.follow(true);
        if pages.is_old() {
            self.memory.all_pages_changed();
            pages
                .write(true, |each| self.memory.changed_pages(each))
                .map_err(|error| OpenError::inaccessible(medium.path())(io::Error::other(error)))?;
        }
        self.start(pages, medium, traffic, lock)
    }

    fn start(
        self,
        pages: Pages,
        medium: Medium,
        traffic: Arc<Traffic>,
        lock: Option<Lock>,
    ) -> Result<DiskStore, OpenError> {
        let Self { dir, memory, durability, flush_interval: interval, on_progress: _, on_change: tell } =
            self;
        let shared = Arc::new(Shared::new(dir, memory, traffic));
        let writer = Writer { shared: Arc::clone(&shared), pages: Some(pages), medium, interval, tell, lock };
        let thread = thread::Builder::new().name("tollgate-disk".into()).spawn(move || writer.run());
        let thread = thread.map_err(OpenError::inaccessible(&shared.dir))?;
        Ok(DiskStore { shared, durability, writer: Some(thread) })
    }
}

impl DiskStore {
    /// The state in this directory, which is made if it is not there.
    ///
    /// # Errors
    /// Whatever keeps the directory from being used.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::builder(dir).open()
    }

    /// The same, piece by piece.
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

    /// Waits until everything that has been done by now is safe on the disk.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if it could not be written.
    pub async fn flush(&self) -> Result<(), StoreError> {
        self.shared.saved().await
    }

    /// Writes down everything and gives the directory back. From then on nothing is kept: a relaxed store
    /// goes on in memory, a strict one fails.
    ///
    /// # Errors
    /// As [`flush`](Self::flush). The directory is given back all the same.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.shared.close();
        self.shared.closed().await
    }

    /// What decides. To look at: what changes in it is the writer's to follow.
    #[must_use]
    pub fn memory(&self) -> &MemoryStore {
        &self.shared.memory
    }

    /// When an answer may leave.
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

    /// What it has done to its disk.
    #[must_use]
    pub fn disk_stats(&self) -> DiskStats {
        let Shared { traffic, writes, last_write, .. } = &*self.shared;
        DiskStats {
            up: self.failure().is_none(),
            writes: writes.load(Ordering::Relaxed),
            syncs: traffic.syncs.load(Ordering::Relaxed),
            written_bytes: traffic.written.load(Ordering::Relaxed),
            file_bytes: traffic.length.load(Ordering::Relaxed),
            last_write: Duration::from_nanos(last_write.load(Ordering::Relaxed)),
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
            self.shared.saved().await?;
        }
        Ok(applied)
    }

    async fn clear(&self, rule: &str) -> Result<u64, StoreError> {
        let keys = self.shared.memory.clear(rule);
        if self.durability == Durability::Strict {
            self.shared.saved().await?;
        }
        Ok(keys)
    }

    fn accepts(&self, limit: &Limit) -> Result<(), Error> {
        self.shared.memory.accepts(limit)
    }

    fn live_keys(&self) -> Option<u64> {
        self.shared.memory.live_keys()
    }

    fn as_memory(&self) -> Option<&MemoryStore> {
        (self.durability == Durability::Relaxed).then_some(&self.shared.memory)
    }
}

/// Makes the directory if it is not there, and takes it.
fn take_directory(dir: &Path) -> Result<Lock, OpenError> {
    let made: Vec<&Path> = dir.ancestors().take_while(|dir| !dir.exists()).collect();
    // Whoever can read what is in it can aim for collisions.
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(OpenError::inaccessible(dir))?;
    for parent in made.iter().filter_map(|dir| dir.parent()) {
        let parent = if parent == Path::new("") { Path::new(".") } else { parent };
        sync_directory(parent).map_err(OpenError::inaccessible(parent))?;
    }
    Lock::take(dir)
}

/// Has what was made in a directory be found there after a power cut.
fn sync_directory(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Makes the file with what has changed in `memory`, under its name only once it is whole.
fn make_file(dir: &Path, memory: &MemoryStore) -> Result<(), OpenError> {
    let (unfinished, path) = (dir.join(UNFINISHED), dir.join(FILE));
    let inaccessible = || OpenError::inaccessible(&unfinished);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true).mode(0o600);
    let file = options.open(&unfinished).map_err(inaccessible())?;
    let medium = FileBackend::new(file).map_err(|error| inaccessible()(io::Error::other(error)))?;
    let made = Pages::create(Box::new(medium), &Arc::default(), memory.seed())
        .and_then(|mut pages| pages.write(false, |each| memory.changed_pages(each)));
    made.map_err(|error| inaccessible()(io::Error::other(error)))?;
    fs::rename(&unfinished, &path).map_err(inaccessible())?;
    sync_directory(dir).map_err(inaccessible())
}
