//! The file: pages by name, and a header over all of them.
//!
//! ```text
//! pages:  name → content, CRC-32 of both
//! about:  "state" → the header: the version of the format, the seed of identities (two numbers),
//!                   the number of pages, the sum of their checksums, the sum of their lengths,
//!                   8 bytes each; CRC-32 of name and numbers
//! ```
//!
//! The engine writes in transactions, and detects a torn one by its own checksums. It does not
//! verify every page of a file that looks intact; our checksums do. A page that changed on the disk
//! does not match its checksum, and a page that is missing or stale does not match the header.

use std::cell::Cell;
use std::collections::HashSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use redb::{Database, ReadableDatabase as _, ReadableTable as _, StorageBackend, Table, TableDefinition};

use crate::OpenError;
use crate::storage::{CountingBackend, IoCounters};

/// The version of the format that is written and read.
pub(crate) const VERSION: u64 = 3;

const PAGES: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("pages");
const ABOUT: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("about");

/// The name of the header.
const STATE: &str = "state";

/// Cache of the engine. Half of it is for a write: a larger write is written twice, and a million
/// changed keys take 35 MB. Reads need none, because the state is in memory.
const CACHE_BYTES: usize = 128 << 20;

/// The smallest file that is compacted.
const COMPACT_BYTES_MIN: u64 = 4 << 20;

/// A file is compacted when it is this many times as large as its pages. Under load it is four or
/// five times as large: the engine copies on write, and frees an old page only after the next
/// write.
const COMPACT_RATIO: u64 = 8;

/// An open file.
pub(crate) struct PageFile {
    /// `None` only while this is dropped.
    database: Option<Database>,
    seed: [u64; 2],
    totals: Totals,
    io: Arc<IoCounters>,
    /// The size after the last compaction: the next one waits until the file has doubled.
    compacted_bytes: u64,
}

impl fmt::Debug for PageFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageFile").field("totals", &self.totals).finish_non_exhaustive()
    }
}

/// Totals over all pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Totals {
    pages: u64,
    checksums: u64,
    bytes: u64,
}

impl Totals {
    fn add(&mut self, stored: &[u8]) {
        self.pages = self.pages.wrapping_add(1);
        self.checksums = self.checksums.wrapping_add(stored_checksum(stored).into());
        self.bytes = self.bytes.wrapping_add(length(stored));
    }

    fn subtract(&mut self, stored: &[u8]) {
        self.pages = self.pages.wrapping_sub(1);
        self.checksums = self.checksums.wrapping_sub(stored_checksum(stored).into());
        self.bytes = self.bytes.wrapping_sub(length(stored));
    }
}

impl Drop for PageFile {
    fn drop(&mut self) {
        // Closing the database writes, and so may panic.
        let _ = catch_panic(|| {
            drop(self.database.take());
            Ok(())
        });
    }
}

impl PageFile {
    fn new(database: Database, seed: [u64; 2], io: &Arc<IoCounters>) -> Self {
        Self {
            database: Some(database),
            seed,
            totals: Totals::default(),
            io: Arc::clone(io),
            compacted_bytes: 0,
        }
    }

    fn database(&self) -> Result<&Database, redb::Error> {
        self.database.as_ref().ok_or(redb::Error::DatabaseClosed)
    }

    /// Creates a file for state with this seed.
    pub(crate) fn create(
        backend: Box<dyn StorageBackend>,
        io: &Arc<IoCounters>,
        seed: [u64; 2],
    ) -> Result<Self, redb::Error> {
        catch_panic(|| {
            let database = database(backend, io, |_| {})?;
            let writing = database.begin_write()?;
            writing.open_table(ABOUT)?.insert(STATE, &*header(seed, Totals::default()))?;
            writing.open_table(PAGES)?;
            writing.commit()?;
            Ok(Self::new(database, seed, io))
        })
    }

    /// Opens an existing file. After a crash the engine repairs it first, and calls `on_repair`
    /// with its progress, from 0 to 1.
    pub(crate) fn open(
        path: &Path,
        backend: Box<dyn StorageBackend>,
        io: &Arc<IoCounters>,
        on_repair: impl Fn(f64) + 'static,
    ) -> Result<Self, OpenError> {
        if backend.len().map_err(OpenError::inaccessible(path))? == 0 {
            return Err(OpenError::damaged(path, "it is empty"));
        }
        let read = catch_panic(|| {
            let pages = Self::new(database(backend, io, on_repair)?, [0; 2], io);
            let header = pages.database()?.begin_read()?.open_table(ABOUT)?.get(STATE)?;
            let header = header
                .and_then(|stored| Some(verified_content(STATE.as_bytes(), stored.value())?.to_owned()));
            Ok((pages, header))
        });
        let (mut pages, header) = read.map_err(|error| open_error(path, error))?;
        let damaged = || OpenError::damaged(path, "its header is missing or damaged");
        let header = header.ok_or_else(damaged)?;
        let version = header.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        if let Some(version) = version.filter(|version| *version != VERSION) {
            return Err(OpenError::OtherVersion { dir: path.parent().unwrap_or(path).to_owned(), version });
        }
        let [_, seed_0, seed_1, count, checksums, bytes] = parse_numbers(&header).ok_or_else(damaged)?;
        pages.seed = [seed_0, seed_1];
        pages.totals = Totals { pages: count, checksums, bytes };
        Ok(pages)
    }

    pub(crate) const fn seed(&self) -> [u64; 2] {
        self.seed
    }

    /// Number of pages.
    pub(crate) const fn count(&self) -> u64 {
        self.totals.pages
    }

    /// Passes the name and content of every page to `each`. An error of `each` means that the file
    /// is damaged.
    pub(crate) fn read(
        &self,
        path: &Path,
        mut each: impl FnMut(&[u8], &[u8]) -> Result<(), String>,
    ) -> Result<(), OpenError> {
        let mut totals = Totals::default();
        let mut damage = None;
        let read = catch_panic(|| {
            let pages = self.database()?.begin_read()?.open_table(PAGES)?;
            for row in pages.iter()? {
                let (name, stored) = row?;
                let (name, stored) = (name.value(), stored.value());
                totals.add(stored);
                let content = verified_content(name, stored);
                let content = content.ok_or("a page does not match its checksum".to_owned());
                if let Err(reason) = content.and_then(|content| each(name, content)) {
                    damage = Some(reason);
                    break;
                }
            }
            Ok(())
        });
        read.map_err(|error| open_error(path, error))?;
        match damage {
            Some(reason) => Err(OpenError::damaged(path, reason)),
            None if totals != self.totals => {
                Err(OpenError::damaged(path, "pages are missing, or older than the rest"))
            }
            None => Ok(()),
        }
    }

    /// Writes the pages that `fill` passes on, all or none, and returns their number when they are
    /// synced. With `replace_all`, pages that `fill` does not pass on are removed, and equal pages
    /// are not rewritten, so that this takes little room.
    pub(crate) fn write(
        &mut self,
        replace_all: bool,
        fill: impl FnOnce(&mut dyn FnMut(&[u8], &[u8])),
    ) -> Result<u64, redb::Error> {
        catch_panic(|| {
            let writing = self.database()?.begin_write()?;
            let mut totals = self.totals;
            let mut pages = writing.open_table(PAGES)?;
            let mut stale = if replace_all { names(&pages)? } else { HashSet::new() };
            let (mut count, mut result, mut buffer) = (0, Ok(()), Vec::new());
            fill(&mut |name, content| {
                if result.is_ok() {
                    let compare = stale.remove(name);
                    result = replace(&mut pages, &mut totals, name, content, compare, &mut buffer);
                    count += 1;
                }
            });
            result?;
            for name in stale {
                replace(&mut pages, &mut totals, &name, &[], true, &mut buffer)?;
            }
            drop(pages);
            if count == 0 && !replace_all {
                writing.abort()?;
                return Ok(0);
            }
            writing.open_table(ABOUT)?.insert(STATE, &*header(self.seed, totals))?;
            writing.commit()?;
            self.totals = totals;
            Ok(count)
        })
    }

    /// Compacts the file, if much of it is unused.
    pub(crate) fn compact(&mut self) -> Result<(), redb::Error> {
        let length = self.io.file_bytes.load(Ordering::Relaxed);
        if length < COMPACT_BYTES_MIN
            || length / COMPACT_RATIO < self.totals.bytes
            || length / 2 < self.compacted_bytes
        {
            return Ok(());
        }
        catch_panic(|| Ok(self.database.as_mut().map(Database::compact).transpose()?))?;
        self.compacted_bytes = self.io.file_bytes.load(Ordering::Relaxed);
        Ok(())
    }
}

fn database(
    backend: Box<dyn StorageBackend>,
    io: &Arc<IoCounters>,
    on_repair: impl Fn(f64) + 'static,
) -> Result<Database, redb::Error> {
    let backend = CountingBackend { backend, io: Arc::clone(io) };
    Ok(Database::builder()
        .set_cache_size(CACHE_BYTES)
        .set_repair_callback(move |session| on_repair(session.progress()))
        .create_with_backend(backend)?)
}

/// The names of all pages.
fn names(pages: &Table<'_, &[u8], &[u8]>) -> Result<HashSet<Vec<u8>>, redb::Error> {
    pages.iter()?.map(|row| Ok(row?.0.value().to_vec())).collect()
}

/// Replaces the page of this name, or removes it if the content is empty. With `compare`, an equal
/// page is not rewritten.
fn replace(
    pages: &mut Table<'_, &[u8], &[u8]>,
    totals: &mut Totals,
    name: &[u8],
    content: &[u8],
    compare: bool,
    buffer: &mut Vec<u8>,
) -> Result<(), redb::Error> {
    let old = if content.is_empty() {
        pages.remove(name)?
    } else {
        buffer.clear();
        buffer.extend_from_slice(content);
        buffer.extend(checksum(name, content).to_le_bytes());
        if compare && pages.get(name)?.is_some_and(|old| old.value() == buffer.as_slice()) {
            return Ok(());
        }
        totals.add(buffer);
        pages.insert(name, buffer.as_slice())?
    };
    if let Some(old) = old {
        totals.subtract(old.value());
    }
    Ok(())
}

/// The header as it is stored.
fn header(seed: [u64; 2], Totals { pages, checksums, bytes }: Totals) -> Vec<u8> {
    let [seed_0, seed_1] = seed;
    let numbers = [VERSION, seed_0, seed_1, pages, checksums, bytes].map(u64::to_le_bytes);
    let content = numbers.as_flattened();
    [content, &checksum(STATE.as_bytes(), content).to_le_bytes()].concat()
}

fn checksum(name: &[u8], content: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(name);
    hasher.update(content);
    hasher.finalize()
}

/// The checksum that is stored with a page.
fn stored_checksum(stored: &[u8]) -> u32 {
    stored.last_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// The content of a page, if it matches its checksum.
fn verified_content<'a>(name: &[u8], stored: &'a [u8]) -> Option<&'a [u8]> {
    let (content, _) = stored.split_last_chunk::<4>()?;
    (checksum(name, content) == stored_checksum(stored)).then_some(content)
}

fn parse_numbers<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let (numbers, []) = bytes.as_chunks::<8>() else { return None };
    let numbers: [[u8; 8]; N] = numbers.try_into().ok()?;
    Some(numbers.map(u64::from_le_bytes))
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

thread_local!(static CATCHES_PANIC: Cell<bool> = const { Cell::new(false) });

/// Whether a panic of this thread is caught and becomes an error: the storage engine asserts some
/// of what it reads. For panic hooks, which are called before.
pub fn catches_panic() -> bool {
    CATCHES_PANIC.get()
}

/// Calls the engine and turns a panic into an error. The panic's message speaks of the engine's
/// code, so it is left out.
fn catch_panic<T>(call: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, redb::Error> {
    let outer = CATCHES_PANIC.replace(true);
    let called = catch_unwind(AssertUnwindSafe(call));
    CATCHES_PANIC.set(outer);
    called.unwrap_or_else(|_| {
        Err(redb::Error::Corrupted("the storage engine found content that it never writes".into()))
    })
}

/// The error of opening a file, from the engine's.
fn open_error(path: &Path, error: redb::Error) -> OpenError {
    match error {
        redb::Error::DatabaseAlreadyOpen => {
            OpenError::InUse { dir: path.parent().unwrap_or(path).to_owned(), process: None }
        }
        redb::Error::Io(source) if source.raw_os_error().is_some() => OpenError::inaccessible(path)(source),
        redb::Error::UpgradeRequired(version) => {
            OpenError::damaged(path, format_args!("the storage engine cannot read its format {version}"))
        }
        error => OpenError::damaged(path, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_hook_can_tell_that_a_panic_becomes_an_error() {
        let failed = catch_panic::<()>(|| {
            assert!(catch_panic(|| Ok(catches_panic())).unwrap() && catches_panic());
            panic!("a page is out of order");
        });
        let error = failed.unwrap_err().to_string();
        assert!(error.contains("never writes") && !error.contains("out of order"), "{error}");
        assert!(!catches_panic(), "a panic elsewhere is a bug");
    }
}
