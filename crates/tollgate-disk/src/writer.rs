//! The writer thread: persists changes, one commit after the other.
//!
//! A commit takes every change made before it begins, writes them as one transaction, and ends when
//! that is synced. A request that waits for its change waits for the next commit to begin, so all
//! requests that wait during one commit share the next one and its sync.
//!
//! If a commit fails, the file is closed and changes are no longer tracked. Once a second the file
//! is opened again and the whole state is written: memory is the truth.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::coop::unconstrained;
use tollgate::{Clock as _, MemoryStore, StoreError, SystemClock, Timestamp};

use crate::file::PageFile;
use crate::lock::Lock;
use crate::storage::{IoCounters, Storage};
use crate::store::Change;

/// Wait before a failed commit is retried.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// A write that takes longer than this is reported as a failure: the disk may hang.
const STUCK_AFTER: Duration = Duration::from_secs(10);

/// State that the store and its writer share.
pub(crate) struct Shared {
    pub(crate) dir: PathBuf,
    pub(crate) memory: MemoryStore,
    pub(crate) io: Arc<IoCounters>,
    pub(crate) writes: AtomicU64,
    pub(crate) last_write_nanos: AtomicU64,
    /// When the current commit began, in nanoseconds; 0 between commits.
    busy_since: AtomicU64,
    /// Commits begun so far.
    commits_begun: AtomicU64,
    requests: Mutex<CommitRequests>,
    requested: Condvar,
    commits: watch::Sender<Commits>,
}

#[derive(Debug, Default)]
struct CommitRequests {
    /// The latest commit that a request waits for.
    wanted: u64,
    closing: bool,
}

/// The results of commits. Commits are numbered from 1.
#[derive(Clone, Debug, Default)]
pub(crate) struct Commits {
    /// The last commit that succeeded: changes made before it began are durable.
    durable: u64,
    /// The last commit that failed.
    failed: u64,
    /// Why it failed.
    reason: String,
    /// Whether the writer has ended.
    closed: bool,
}

impl Commits {
    /// Why the last commit failed, if it did.
    fn failure(&self) -> Option<String> {
        (self.failed > self.durable).then(|| self.reason.clone())
    }
}

impl Shared {
    pub(crate) fn new(dir: PathBuf, memory: MemoryStore, io: Arc<IoCounters>) -> Self {
        Self {
            dir,
            memory,
            io,
            writes: AtomicU64::new(0),
            last_write_nanos: AtomicU64::new(0),
            busy_since: AtomicU64::new(0),
            commits_begun: AtomicU64::new(0),
            requests: Mutex::default(),
            requested: Condvar::new(),
            commits: watch::Sender::new(Commits::default()),
        }
    }

    fn requests(&self) -> MutexGuard<'_, CommitRequests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests a commit of every change made so far. Returns its number.
    fn request_commit(&self) -> u64 {
        // A commit counts itself before it collects changes, so one that has not begun collects
        // them all.
        let commit = self.commits_begun.load(Ordering::SeqCst).saturating_add(1);
        let mut requests = self.requests();
        requests.wanted = requests.wanted.max(commit);
        drop(requests);
        self.requested.notify_one();
        commit
    }

    /// Begins a commit. Returns its number.
    fn begin_commit(&self) -> u64 {
        self.commits_begun.fetch_add(1, Ordering::SeqCst).saturating_add(1)
    }

    /// Publishes the result of a commit to the requests that wait for it.
    fn end_commit(&self, commit: u64, result: &Result<(), String>) {
        self.commits.send_modify(|commits| match result {
            Ok(()) => commits.durable = commit,
            Err(reason) => (commits.failed, commits.reason) = (commit, reason.clone()),
        });
    }

    /// Waits until every change made so far is durable.
    pub(crate) async fn wait_durable(&self) -> Result<(), StoreError> {
        let commit = self.request_commit();
        let ended =
            |commits: &Commits| commits.durable >= commit || commits.failed >= commit || commits.closed;
        let commits = self.wait_until(ended).await;
        if commits.durable >= commit {
            return Ok(());
        }
        let closed = "the store is closed".to_owned();
        Err(StoreError::Unavailable {
            reason: if commits.failed >= commit { commits.reason } else { closed },
        })
    }

    /// Ends the writer after one more commit.
    pub(crate) fn close(&self) {
        self.requests().closing = true;
        self.requested.notify_one();
    }

    /// Waits until the writer has ended. Returns the result of its last commit.
    pub(crate) async fn wait_closed(&self) -> Result<(), StoreError> {
        let commits = self.wait_until(|commits| commits.closed).await;
        commits.failure().map_or(Ok(()), |reason| Err(StoreError::Unavailable { reason }))
    }

    /// Waits until the results of commits satisfy a condition.
    ///
    /// A tokio task that has used its budget of operations is suspended until its runtime polls it
    /// again. A caller that blocks that runtime's thread would wait for ever, so the wait is
    /// exempt.
    async fn wait_until(&self, condition: impl FnMut(&Commits) -> bool) -> Commits {
        let mut watching = self.commits.subscribe();
        let commits = unconstrained(watching.wait_for(condition)).await;
        commits.expect("`self` owns the sender, so the channel is open").clone()
    }

    /// Why the disk fails, if it does.
    pub(crate) fn failure(&self) -> Option<String> {
        let since = self.busy_since.load(Ordering::Relaxed);
        let busy = now().since(Timestamp::from_nanos(since));
        let stuck = || format!("a write has taken {} seconds so far", busy.as_secs());
        self.commits.borrow().failure().or_else(|| (since > 0 && busy >= STUCK_AFTER).then(stuck))
    }
}

/// Publishes, when it is dropped, that the writer has ended.
struct CloseOnDrop(Arc<Shared>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.commits.send_modify(|commits| {
            commits.closed = true;
            if std::thread::panicking() {
                (commits.failed, commits.reason) = (u64::MAX, "the writer thread panicked".into());
            }
        });
    }
}

/// The state of the writer thread. Field order matters: the file is closed before the lock is
/// released.
pub(crate) struct Writer {
    pub(crate) shared: Arc<Shared>,
    /// The file; `None` after a failed commit.
    pub(crate) pages: Option<PageFile>,
    pub(crate) storage: Storage,
    pub(crate) interval: Duration,
    pub(crate) on_change: Box<dyn Fn(&Change) + Send + Sync>,
    #[expect(dead_code, reason = "held until it is dropped")]
    pub(crate) lock: Option<Lock>,
}

impl Writer {
    pub(crate) fn run(self) {
        // Dropped last, even after a panic: the file is closed and the directory released before
        // the end is published.
        let _close = CloseOnDrop(Arc::clone(&self.shared));
        let mut writer = self;
        writer.commit_until_closed();
    }

    fn commit_until_closed(&mut self) {
        let mut due = now().saturating_add(self.interval);
        loop {
            let closing = self.wait_for_work(due);
            let began = now();
            let commit = self.shared.begin_commit();
            let was_up = self.pages.is_some();
            self.shared.busy_since.store(began.as_nanos(), Ordering::Relaxed);
            let mut result = self.commit();
            self.shared.end_commit(commit, &result);
            if result.is_ok() {
                // No request waits for a compaction; only a failed one is published, as a commit.
                result = self.compact();
                if result.is_err() {
                    self.shared.end_commit(self.shared.begin_commit(), &result);
                }
            }
            self.shared.busy_since.store(0, Ordering::Relaxed);
            // Slow commits take at most a third of the time: requests need the processor and its
            // caches too.
            let took = now().since(began);
            due = began.saturating_add(self.interval.max(took.saturating_mul(3)));
            let up = result.is_ok();
            if let Err(reason) = result {
                // The retry writes the whole state, so changes until then need no tracking.
                self.pages = None;
                self.shared.memory.set_tracked(false);
                due = now().saturating_add(RETRY_INTERVAL);
                if was_up {
                    (self.on_change)(&Change::Down { reason });
                }
            } else if !was_up {
                (self.on_change)(&Change::Up);
            }
            if closing {
                return;
            }
            if !up {
                self.fail_requests_until(due);
            }
        }
    }

    /// Waits for a requested commit, or until `due` if there are changes. Returns whether the store
    /// is closing.
    fn wait_for_work(&self, mut due: Timestamp) -> bool {
        let Shared { requested, commits_begun, memory, .. } = &*self.shared;
        let mut requests = self.shared.requests();
        loop {
            if requests.closing {
                return true;
            }
            if requests.wanted > commits_begun.load(Ordering::SeqCst) {
                return false;
            }
            let left = due.since(now());
            if left.is_zero() {
                if self.pages.is_none() || memory.has_changed() {
                    return false;
                }
                due = now().saturating_add(self.interval);
                continue;
            }
            requests = requested.wait_timeout(requests, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Fails every requested commit at once, until the next retry.
    fn fail_requests_until(&self, due: Timestamp) {
        let Shared { requested, commits_begun, commits, .. } = &*self.shared;
        let mut requests = self.shared.requests();
        while !requests.closing {
            if requests.wanted > commits_begun.load(Ordering::SeqCst) {
                let commit = self.shared.begin_commit();
                commits.send_modify(|commits| commits.failed = commit);
                continue;
            }
            let left = due.since(now());
            if left.is_zero() {
                return;
            }
            requests = requested.wait_timeout(requests, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn commit(&mut self) -> Result<(), String> {
        let Shared { memory, io, writes, last_write_nanos, .. } = &*self.shared;
        let began = now();
        let replace_all = self.pages.is_none();
        let pages = match &mut self.pages {
            Some(pages) => pages,
            none => {
                let pages = self.storage.open(io, |_| {}).map_err(|error| error.to_string())?;
                if pages.seed() != memory.seed() {
                    return Err("the file was replaced by that of another store".into());
                }
                memory.set_tracked(true);
                memory.all_pages_changed();
                none.insert(pages)
            }
        };
        if !replace_all && !memory.has_changed() {
            return Ok(());
        }
        let written =
            pages.write(replace_all, |each| memory.changed_pages(each)).map_err(|error| error.to_string())?;
        if written > 0 {
            writes.fetch_add(1, Ordering::Relaxed);
            let took = u64::try_from(now().since(began).as_nanos()).unwrap_or(u64::MAX);
            last_write_nanos.store(took, Ordering::Relaxed);
        }
        Ok(())
    }

    fn compact(&mut self) -> Result<(), String> {
        let compacted = self.pages.as_mut().map(PageFile::compact).transpose();
        compacted.map(|_| ()).map_err(|error| error.to_string())
    }
}

fn now() -> Timestamp {
    SystemClock.now()
}
