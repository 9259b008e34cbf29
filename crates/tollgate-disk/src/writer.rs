//! The thread that writes down what changed, in turns.
//!
//! A turn takes everything that has changed when it begins, writes it as one transaction, and is done
//! when that is synced. Who waits for a change waits for the next turn to begin: so all who wait while
//! one is under way share the next, and its sync.
//!
//! If a turn fails the file is closed, changes are no longer followed, and once a second the file is
//! opened again and everything is written anew: memory is the truth.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tollgate::{Clock as _, MemoryStore, StoreError, SystemClock, Timestamp};

use crate::file::Pages;
use crate::lock::Lock;
use crate::medium::{Medium, Traffic};
use crate::store::Change;

/// How long to wait before a file that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// A write that takes longer than this is as good as one that failed: the disk may hang.
const STUCK: Duration = Duration::from_secs(10);

/// What the store and its writer share.
pub(crate) struct Shared {
    pub(crate) dir: PathBuf,
    pub(crate) memory: MemoryStore,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) writes: AtomicU64,
    /// In nanoseconds.
    pub(crate) last_write: AtomicU64,
    /// When the turn that is under way began; 0 if none is.
    busy_since: AtomicU64,
    /// How many turns have begun.
    begun: AtomicU64,
    orders: Mutex<Orders>,
    ordered: Condvar,
    turns: watch::Sender<Turns>,
}

#[derive(Debug, Default)]
struct Orders {
    /// The turn that somebody waits for.
    wanted: u64,
    closing: bool,
}

/// How turns have ended. Numbers count from 1.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns {
    /// The last that succeeded: everything before its beginning is safe.
    saved: u64,
    /// The last that failed, and why.
    failed: u64,
    reason: String,
    /// There will be no more.
    closed: bool,
}

impl Turns {
    /// Why the last one failed, if it did.
    fn failure(&self) -> Option<String> {
        (self.failed > self.saved).then(|| self.reason.clone())
    }
}

impl Shared {
    pub(crate) fn new(dir: PathBuf, memory: MemoryStore, traffic: Arc<Traffic>) -> Self {
        Self {
            dir,
            memory,
            traffic,
            writes: AtomicU64::new(0),
            last_write: AtomicU64::new(0),
            busy_since: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            orders: Mutex::default(),
            ordered: Condvar::new(),
            turns: watch::Sender::new(Turns::default()),
        }
    }

    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Orders a turn that will see everything that has changed by now, and says which.
    fn order(&self) -> u64 {
        // A turn counts itself before it looks for changes, so one that has not begun yet sees this one.
        let turn = self.begun.load(Ordering::SeqCst).saturating_add(1);
        let mut orders = self.orders();
        orders.wanted = orders.wanted.max(turn);
        drop(orders);
        self.ordered.notify_one();
        turn
    }

    /// Begins a turn, and says which.
    fn begin(&self) -> u64 {
        self.begun.fetch_add(1, Ordering::SeqCst).saturating_add(1)
    }

    /// Tells everyone who waits for a turn how it ended.
    fn end(&self, turn: u64, ended: &Result<(), String>) {
        self.turns.send_modify(|turns| match ended {
            Ok(()) => turns.saved = turn,
            Err(reason) => (turns.failed, turns.reason) = (turn, reason.clone()),
        });
    }

    /// Waits until everything that has changed by now is safe.
    pub(crate) async fn saved(&self) -> Result<(), StoreError> {
        let turn = self.order();
        let ended = |turns: &Turns| turns.saved >= turn || turns.failed >= turn || turns.closed;
        let mut watching = self.turns.subscribe();
        // The sender is here, so it is not gone.
        let turns = watching.wait_for(ended).await.map(|turns| turns.clone()).unwrap_or_default();
        if turns.saved >= turn {
            return Ok(());
        }
        let closed = "it was closed".to_owned();
        Err(StoreError::Unavailable { reason: if turns.failed >= turn { turns.reason } else { closed } })
    }

    /// Has the writer end after one more turn.
    pub(crate) fn close(&self) {
        self.orders().closing = true;
        self.ordered.notify_one();
    }

    /// Waits until the writer has ended. Says how its last turn did.
    pub(crate) async fn closed(&self) -> Result<(), StoreError> {
        let mut watching = self.turns.subscribe();
        let failure = watching.wait_for(|turns| turns.closed).await.ok().and_then(|turns| turns.failure());
        failure.map_or(Ok(()), |reason| Err(StoreError::Unavailable { reason }))
    }

    /// What is wrong with the disk, if anything is.
    pub(crate) fn failure(&self) -> Option<String> {
        let since = self.busy_since.load(Ordering::Relaxed);
        let busy = now().since(Timestamp::from_nanos(since));
        let stuck = || format!("a write has been under way for {} seconds", busy.as_secs());
        self.turns.borrow().failure().or_else(|| (since > 0 && busy >= STUCK).then(stuck))
    }
}

/// Says that there will be no more turns.
struct Ended(Arc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.turns.send_modify(|turns| {
            turns.closed = true;
            if std::thread::panicking() {
                (turns.failed, turns.reason) = (u64::MAX, "the thread that writes has ended".into());
            }
        });
    }
}

/// What the thread has to itself. The file is closed before the directory is given back.
pub(crate) struct Writer {
    pub(crate) shared: Arc<Shared>,
    /// The file, unless it failed.
    pub(crate) pages: Option<Pages>,
    pub(crate) medium: Medium,
    pub(crate) interval: Duration,
    pub(crate) tell: Box<dyn Fn(&Change) + Send + Sync>,
    #[expect(dead_code, reason = "held, and given back when it is dropped")]
    pub(crate) lock: Option<Lock>,
}

impl Writer {
    pub(crate) fn run(self) {
        // Dropped last, whatever happens: the file is closed and the directory given back before anyone is told.
        let _ended = Ended(Arc::clone(&self.shared));
        let mut writer = self;
        writer.take_turns();
    }

    fn take_turns(&mut self) {
        let mut due = now().saturating_add(self.interval);
        loop {
            let closing = self.wait(due);
            let began = now();
            let turn = self.shared.begin();
            let was_up = self.pages.is_some();
            self.shared.busy_since.store(began.as_nanos(), Ordering::Relaxed);
            let mut ended = self.write();
            self.shared.end(turn, &ended);
            if ended.is_ok() {
                // Nobody waits for this: it is a turn of its own only if it fails.
                ended = self.compact();
                if ended.is_err() {
                    self.shared.end(self.shared.begin(), &ended);
                }
            }
            self.shared.busy_since.store(0, Ordering::Relaxed);
            // Where writing takes long, it still takes no more than a third of the time: others need the processor and its
            // caches too.
            let took = now().since(began);
            due = began.saturating_add(self.interval.max(took.saturating_mul(3)));
            let up = ended.is_ok();
            if let Err(reason) = ended {
                // Not before it has been tried again is there any use in taking note of what changes.
                self.pages = None;
                self.shared.memory.follow(false);
                due = now().saturating_add(RETRY);
                if was_up {
                    (self.tell)(&Change::Down { reason });
                }
            } else if !was_up {
                (self.tell)(&Change::Up);
            }
            if closing {
                return;
            }
            if !up {
                self.refuse_until(due);
            }
        }
    }

    /// Waits for an order, or until `due` if there is anything to write. Says whether this is the last
    /// turn.
    fn wait(&self, mut due: Timestamp) -> bool {
        let Shared { ordered, begun, memory, .. } = &*self.shared;
        let mut orders = self.shared.orders();
        loop {
            if orders.closing {
                return true;
            }
            if orders.wanted > begun.load(Ordering::SeqCst) {
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
            orders = ordered.wait_timeout(orders, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// While the file is away, tells everyone who orders a turn so at once.
    fn refuse_until(&self, due: Timestamp) {
        let Shared { ordered, begun, turns, .. } = &*self.shared;
        let mut orders = self.shared.orders();
        while !orders.closing {
            if orders.wanted > begun.load(Ordering::SeqCst) {
                let turn = self.shared.begin();
                turns.send_modify(|turns| turns.failed = turn);
                continue;
            }
            let left = due.since(now());
            if left.is_zero() {
                return;
            }
            orders = ordered.wait_timeout(orders, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// One turn.
    fn write(&mut self) -> Result<(), String> {
        let Shared { memory, traffic, writes, last_write, .. } = &*self.shared;
        let began = now();
        let anew = self.pages.is_none();
        let pages = match &mut self.pages {
            Some(pages) => pages,
            none => {
                let pages = self.medium.open(traffic, |_| {}).map_err(|error| error.to_string())?;
                if pages.seed() != memory.seed() {
                    return Err("the file is another store's now".into());
                }
                memory.follow(true);
                memory.all_pages_changed();
                none.insert(pages)
            }
        };
        if !anew && !memory.has_changed() {
            return Ok(());
        }
        let written =
            pages.write(anew, |each| memory.changed_pages(each)).map_err(|error| error.to_string())?;
        if written > 0 {
            writes.fetch_add(1, Ordering::Relaxed);
            let took = u64::try_from(now().since(began).as_nanos()).unwrap_or(u64::MAX);
            last_write.store(took, Ordering::Relaxed);
        }
        Ok(())
    }

    fn compact(&mut self) -> Result<(), String> {
        let compacted = self.pages.as_mut().map(Pages::compact).transpose();
        compacted.map(|_| ()).map_err(|error| error.to_string())
    }
}

fn now() -> Timestamp {
    SystemClock.now()
}
