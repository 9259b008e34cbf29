//! A durable store on SQLite, written outside of tollgate: a row per key, and a transaction that
//! reads, decides and commits.
//!
//! Run `cargo run -p tollgate-testkit --example sqlite -- limits.sqlite` repeatedly: units in use
//! stay in use. `tests/sqlite.rs` runs the laws over it.
//!
//! What it promises: every law, an answer only after it is on disk, and one file for several
//! processes. What it does not promise: speed. Requests are serialised, an admission waits for a
//! sync, and the calling thread blocks. SQLite's lock is not fair, so a process that finds the file
//! busy for a second fails, and the rule's failure policy answers.
#![expect(clippy::print_stdout, reason = "an example")]

use std::error::Error;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior, params};
use tollgate::{
    Applied, Cell, Charge, Clock as _, HOUR, Limit, Limiter, Op, Rule, RuleSet, SECOND, Store, StoreError,
    SystemClock, Timestamp, Transaction, block_on, transact,
};

/// An error of SQLite, or a row that is not a state.
type Failure = Box<dyn Error>;

/// Budgets in a SQLite file.
#[derive(Debug)]
pub(crate) struct SqliteStore(Mutex<Connection>);

impl SqliteStore {
    /// Opens or creates the file.
    pub(crate) fn open(path: impl AsRef<Path>) -> rusqlite::Result<Self> {
        let connection = Connection::open(path)?;
        // Another process may be committing.
        connection.busy_timeout(SECOND)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.execute_batch(
            "CREATE TABLE IF NOT EXISTS cells (
                key BLOB PRIMARY KEY, state TEXT NOT NULL, expires_at INTEGER NOT NULL
             ) WITHOUT ROWID;
             CREATE INDEX IF NOT EXISTS cells_by_expiry ON cells (expires_at);",
        )?;
        Ok(Self(Mutex::new(connection)))
    }

    /// Deletes the rows that expired before this time, and returns how many. Call it now and then
    /// with a time an hour ago: a clock set back by less than that loses nothing.
    pub(crate) fn forget(&self, before: Timestamp) -> rusqlite::Result<usize> {
        let expired = [nanos(before)];
        self.lock().execute("DELETE FROM cells WHERE expires_at < ?1", expired)
    }

    /// A thread that panicked left no transaction open: dropping a transaction rolls it back.
    fn lock(&self) -> std::sync::MutexGuard<'_, Connection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn decide(&self, op: Op, charges: &[Charge<'_>], now: Timestamp) -> Result<Applied, Failure> {
        let mut connection = self.lock();
        // Immediate: the rows must not change between reading and writing.
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut cells =
            charges.iter().map(|charge| read(&transaction, charge)).collect::<Result<Vec<_>, _>>()?;
        let Transaction { applied, changed } = transact(op, charges, &mut cells, now, now);
        for ((charge, cell), _) in charges.iter().zip(&cells).zip(changed).filter(|(_, changed)| *changed) {
            write(&transaction, charge, cell)?;
        }
        transaction.commit()?;
        Ok(applied)
    }
}

impl Store for SqliteStore {
    async fn apply(&self, op: Op, charges: &[Charge<'_>], now: Timestamp) -> Result<Applied, StoreError> {
        self.decide(op, charges, now)
            .map_err(|failure| StoreError::Unavailable { reason: failure.to_string() })
    }
}

fn read(connection: &Connection, charge: &Charge<'_>) -> Result<Cell, Failure> {
    let mut select = connection.prepare_cached("SELECT state FROM cells WHERE key = ?1")?;
    let row: Option<String> = select.query_row([key(charge)], |row| row.get(0)).optional()?;
    let Some(row) = row else { return Ok(Cell::new(*charge.limit)) };
    let state = serde_json::from_str(&row)?;
    Cell::from_state(*charge.limit, &state)
        .ok_or_else(|| format!("{row} is not a state; delete its row to start with a full budget").into())
}

fn write(connection: &Connection, charge: &Charge<'_>, cell: &Cell) -> Result<(), Failure> {
    let mut replace = connection.prepare_cached("REPLACE INTO cells VALUES (?1, ?2, ?3)")?;
    let state = serde_json::to_string(&cell.state())?;
    replace.execute(params![key(charge), state, nanos(cell.expires_at())])?;
    Ok(())
}

fn key(charge: &Charge<'_>) -> Vec<u8> {
    let mut key = Vec::new();
    charge.key.encode(&mut key);
    key
}

/// A time as a SQLite integer. All times fit.
fn nanos(time: Timestamp) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

fn main() -> Result<(), Failure> {
    let path = std::env::args().nth(1).ok_or("name a file: sqlite limits.sqlite")?;
    let rules = RuleSet::new([Rule::new("per-client", Limit::fixed_window(10, HOUR)).key(["client"])])?;
    let limiter = Limiter::builder(rules).store(SqliteStore::open(path)?).deadline(SECOND).build()?;
    for _ in 0..3 {
        let decision = block_on(limiter.check_async("alice"))?;
        println!("allowed: {}, {} left", decision.allowed(), decision.remaining());
    }
    let forgotten = limiter.store().forget(SystemClock.now().saturating_sub(HOUR))?;
    println!("{forgotten} expired rows deleted");
    Ok(())
}
