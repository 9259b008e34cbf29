//! The file: pages by their names, and what is known of all of them together.
//!
//! ```text
//! pages:  name → content, CRC-32 of both
//! about:  "state" → the format's version, the seed that identities are made with, how many pages there are, the
//!                   sum of their checksums, and of their lengths, each 8 bytes; CRC-32 of that
//! ```
//!
//! The engine makes a write one transaction, and finds torn ones by checksums of its own. Ours are for
//! what it does not look at when all seems well: a page that changed on the disk does not agree with
//! its checksum, and one that is missing or is an older one does not agree with the sums.

use std::collections::HashSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use redb::{Database, ReadableDatabase as _, ReadableTable as _, StorageBackend, Table, TableDefinition};

use crate::OpenError;
use crate::medium::{Traffic, Watched};

/// The version of the format that is written, and the newest that is understood.
pub(crate) const VERSION: u64 = 2;

const PAGES: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("pages");
const ABOUT: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("about");

/// What all pages together are known as.
const STATE: &str = "state";

/// What the engine may keep in memory of the file. Half of it is for a write: one that takes more is written twice, and a
/// million keys that all changed take 35 MB. The state itself is in memory already.
const CACHE: usize = 128 << 20;

/// A file is made smaller once it is this large, and so many times as large as what it holds. Under load it is four or five
/// times as large: what is written anew goes beside what it replaces, and that is free only after the next write.
const SMALL: u64 = 4 << 20;
const TIMES: u64 = 8;

/// The file, open.
pub(crate) struct Pages {
    /// There until it is dropped.
    database: Option<Database>,
    seed: [u64; 2],
    /// The version that wrote it last.
    version: u64,
    sums: Sums,
    traffic: Arc<Traffic>,
    /// How large it was after it was last made smaller: there is no use in trying again soon.
    compacted: u64,
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages").field("sums", &self.sums).finish_non_exhaustive()
    }
}

/// What is known of all pages together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    pages: u64,
    checksums: u64,
    bytes: u64,
}

impl Sums {
    fn add(&mut self, stored: &[u8]) {
        self.pages = self.pages.wrapping_add(1);
        self.checksums = self.checksums.wrapping_add(checksum_of(stored).into());
        self.bytes = self.bytes.wrapping_add(length(stored));
    }

    fn subtract(&mut self, stored: &[u8]) {
        self.pages = self.pages.wrapping_sub(1);
        self.checksums = self.checksums.wrapping_sub(checksum_of(stored).into());
        self.bytes = self.bytes.wrapping_sub(length(stored));
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // Closing writes too.
        let _ = guarded(|| {
            drop(self.database.take());
            Ok(())
        });
    }
}

impl Pages {
    fn new(database: Database, seed: [u64; 2], traffic: &Arc<Traffic>) -> Self {
        Self {
            database: Some(database),
            seed,
            version: VERSION,
            sums: Sums::default(),
            traffic: Arc::clone(traffic),
            compacted: 0,
        }
    }

    fn database(&self) -> Result<&Database, redb::Error> {
        self.database.as_ref().ok_or(redb::Error::DatabaseClosed)
    }

    /// A new file, for state whose identities are made with this seed.
    pub(crate) fn create(
        medium: Box<dyn StorageBackend>,
        traffic: &Arc<Traffic>,
        seed: [u64; 2],
    ) -> Result<Self, redb::Error> {
        guarded(|| {
            let database = database(medium, traffic, |_| {})?;
            let writing = database.begin_write()?;
            writing.open_table(ABOUT)?.insert(STATE, &*about(seed, Sums::default()))?;
            writing.open_table(PAGES)?;
            writing.commit()?;
            Ok(Self::new(database, seed, traffic))
        })
    }

    /// A file that is there. If it was not closed, the engine goes through it first and tells
    /// `repaired` how far it is, from 0 to 1.
    pub(crate) fn open(
        path: &Path,
        medium: Box<dyn StorageBackend>,
        traffic: &Arc<Traffic>,
        repaired: impl Fn(f64) + 'static,
    ) -> Result<Self, OpenError> {
        if medium.len().map_err(OpenError::inaccessible(path))? == 0 {
            return Err(OpenError::damaged(path, "it is empty"));
        }
        let read = guarded(|| {
            let pages = Self::new(database(medium, traffic, repaired)?, [0; 2], traffic);
            let about = pages.database()?.begin_read()?.open_table(ABOUT)?.get(STATE)?;
            let about = about.and_then(|about| Some(content_of(STATE.as_bytes(), about.value())?.to_owned()));
            Ok((pages, about))
        });
        let (mut pages, about) = read.map_err(|error| open_error(path, error))?;
        let damaged = || OpenError::damaged(path, "it does not say what it is");
        let about = about.ok_or_else(damaged)?;
        let version = about.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        if let Some(version) = version.filter(|version| *version > VERSION) {
            return Err(OpenError::Newer { dir: path.parent().unwrap_or(path).to_owned(), version });
        }
        let [version, one, other, count, checksums, bytes] = numbers(&about).ok_or_else(damaged)?;
        (pages.seed, pages.version) = ([one, other], version);
        pages.sums = Sums { pages: count, checksums, bytes };
        Ok(pages)
    }

    /// Whether an older version wrote it: then it is read once, and written anew.
    pub(crate) const fn is_old(&self) -> bool {
        self.version < VERSION
    }

    pub(crate) const fn seed(&self) -> [u64; 2] {
        self.seed
    }

    /// How many there are.
    pub(crate) const fn count(&self) -> u64 {
        self.sums.pages
    }

    /// Hands out all pages. What `each` says is wrong with one is wrong with the file.
    pub(crate) fn read(
        &self,
        path: &Path,
        mut each: impl FnMut(&[u8], &[u8]) -> Result<(), String>,
    ) -> Result<(), OpenError> {
        let mut sums = Sums::default();
        let mut wrong = None;
        let read = guarded(|| {
            let pages = self.database()?.begin_read()?.open_table(PAGES)?;
            for row in pages.iter()? {
                let (name, stored) = row?;
                let (name, stored) = (name.value(), stored.value());
                sums.add(stored);
                let content = content_of(name, stored);
                let done = content.ok_or("a page does not agree with its checksum".to_owned());
                if let Err(reason) = done.and_then(|content| each(name, content)) {
                    wrong = Some(reason);
                    break;
                }
            }
            Ok(())
        });
        read.map_err(|error| open_error(path, error))?;
        match wrong {
            Some(reason) => Err(OpenError::damaged(path, reason)),
            None if sums != self.sums => {
                Err(OpenError::damaged(path, "pages are missing, or older than the rest"))
            }
            None => Ok(()),
        }
    }

    /// Writes the pages that `fill` hands over, all of them or none, and is done when they are safe.
    /// `anew`: those are all there are, whatever is in the file; what is the same there is left alone, so
    /// that this takes little room. Says how many there were.
    pub(crate) fn write(
        &mut self,
        anew: bool,
        fill: impl FnOnce(&mut dyn FnMut(&[u8], &[u8])),
    ) -> Result<u64, redb::Error> {
        guarded(|| {
            let writing = self.database()?.begin_write()?;
            let mut sums = self.sums;
            let mut pages = writing.open_table(PAGES)?;
            let mut others = if anew { names(&pages)? } else { HashSet::new() };
            let (mut count, mut done, mut stored) = (0, Ok(()), Vec::new());
            fill(&mut |name, content| {
                if done.is_ok() {
                    let there = others.remove(name);
                    done = replace(&mut pages, &mut sums, name, content, there, &mut stored);
                    count += 1;
                }
            });
            done?;
            for name in others {
                replace(&mut pages, &mut sums, &name, &[], true, &mut stored)?;
            }
            drop(pages);
            if count == 0 && !anew {
                writing.abort()?;
                return Ok(0);
            }
            writing.open_table(ABOUT)?.insert(STATE, &*about(self.seed, sums))?;
            writing.commit()?;
            self.sums = sums;
            Ok(count)
        })
    }

    /// Gives room back that the state no longer needs, if that is much.
    pub(crate) fn compact(&mut self) -> Result<(), redb::Error> {
        let length = self.traffic.length.load(Ordering::Relaxed);
        if length < SMALL || length / TIMES < self.sums.bytes || length / 2 < self.compacted {
            return Ok(());
        }
        guarded(|| Ok(self.database.as_mut().map(Database::compact).transpose()?))?;
        self.compacted = self.traffic.length.load(Ordering::Relaxed);
        Ok(())
    }
}

fn database(
    medium: Box<dyn StorageBackend>,
    traffic: &Arc<Traffic>,
    repaired: impl Fn(f64) + 'static,
) -> Result<Database, redb::Error> {
    let medium = Watched { medium, traffic: Arc::clone(traffic) };
    Ok(Database::builder()
        .set_cache_size(CACHE)
        .set_repair_callback(move |session| repaired(session.progress()))
        .create_with_backend(medium)?)
}

/// The names of all pages.
fn names(pages: &Table<'_, &[u8], &[u8]>) -> Result<HashSet<Vec<u8>>, redb::Error> {
    pages.iter()?.map(|row| Ok(row?.0.value().to_vec())).collect()
}

/// Puts a page in the place of the one of that name; one with nothing on it is not kept. One that may be
/// the `same` is looked at first.
fn replace(
    pages: &mut Table<'_, &[u8], &[u8]>,
    sums: &mut Sums,
    name: &[u8],
    content: &[u8],
    same: bool,
    stored: &mut Vec<u8>,
) -> Result<(), redb::Error> {
    let old = if content.is_empty() {
        pages.remove(name)?
    } else {
        stored.clear();
        stored.extend_from_slice(content);
        stored.extend(checksum(name, content).to_le_bytes());
        if same && pages.get(name)?.is_some_and(|old| old.value() == stored.as_slice()) {
            return Ok(());
        }
        sums.add(stored);
        pages.insert(name, stored.as_slice())?
    };
    if let Some(old) = old {
        sums.subtract(old.value());
    }
    Ok(())
}

/// What is said of all pages together.
fn about(seed: [u64; 2], Sums { pages, checksums, bytes }: Sums) -> Vec<u8> {
    let [one, other] = seed;
    let numbers = [VERSION, one, other, pages, checksums, bytes].map(u64::to_le_bytes);
    let content = numbers.as_flattened();
    [content, &checksum(STATE.as_bytes(), content).to_le_bytes()].concat()
}

fn checksum(name: &[u8], content: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(name);
    hasher.update(content);
    hasher.finalize()
}

/// What a page says its checksum is.
fn checksum_of(stored: &[u8]) -> u32 {
    stored.last_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// What is on a page, if it agrees with its checksum.
fn content_of<'a>(name: &[u8], stored: &'a [u8]) -> Option<&'a [u8]> {
    let (content, _) = stored.split_last_chunk::<4>()?;
    (checksum(name, content) == checksum_of(stored)).then_some(content)
}

fn numbers<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let (numbers, []) = bytes.as_chunks::<8>() else { return None };
    let numbers: [[u8; 8]; N] = numbers.try_into().ok()?;
    Some(numbers.map(u64::from_le_bytes))
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

/// Calls the engine. It checks what it reads with assertions here and there; what it finds is an error
/// to us like any other.
fn guarded<T>(call: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, redb::Error> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let reason = panic.downcast_ref::<String>().map(String::as_str);
        let reason =
            reason.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("for no known reason");
        Err(redb::Error::Corrupted(format!("the storage engine gave up: {reason}")))
    })
}

/// What the engine found wrong with a file.
fn open_error(path: &Path, error: redb::Error) -> OpenError {
    match error {
        redb::Error::DatabaseAlreadyOpen => {
            OpenError::InUse { dir: path.parent().unwrap_or(path).to_owned(), process: None }
        }
        redb::Error::Io(source) if source.raw_os_error().is_some() => OpenError::inaccessible(path)(source),
        redb::Error::UpgradeRequired(version) => {
            OpenError::damaged(path, format_args!("the storage engine does not know its format {version}"))
        }
        error => OpenError::damaged(path, error),
    }
}
