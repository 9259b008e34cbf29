//! A simulated disk: a power cut loses unsynced writes and tears the last one. The tests open the
//! store on the result.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use redb::StorageBackend;
use tollgate::{DAY, Limit, Limiter, MemoryStore, Request, Rule, RuleSet, SECOND, block_on};
use tollgate_testkit::Random;

use crate::file::PageFile;
use crate::storage::Storage;
use crate::{Change, DiskStore, Durability, OpenError};

/// The unit that a disk writes atomically.
const SECTOR: usize = 512;

const ENOSPC: i32 = 28;

/// A disk. Clones share it.
#[derive(Clone, Debug, Default)]
struct Disk(Arc<Mutex<Image>>);

#[derive(Debug, Default)]
struct Image {
    /// The contents that a read sees.
    bytes: Vec<u8>,
    /// The contents at the last sync.
    synced: Vec<u8>,
    /// The changes since the last sync.
    unsynced: Vec<Unsynced>,
    /// Writes and syncs left until the power is cut.
    power: Option<u64>,
    /// The largest length that the file can grow to.
    room: Option<usize>,
    /// Whether every write fails.
    full: bool,
}

#[derive(Debug)]
enum Unsynced {
    Write(usize, Vec<u8>),
    Length(usize),
}

impl Image {
    fn use_power(&mut self) -> io::Result<()> {
        match &mut self.power {
            Some(0) => Err(io::Error::other("no power")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl Disk {
    fn image(&self) -> MutexGuard<'_, Image> {
        self.0.lock().unwrap()
    }

    fn storage(&self) -> Storage {
        let disk = self.clone();
        Storage::new(PathBuf::from("simulated"), move || Ok(Box::new(disk.clone())))
    }

    /// A disk with an empty state file.
    fn formatted() -> Self {
        let disk = Self::default();
        drop(PageFile::create(Box::new(disk.clone()), &Arc::default(), MemoryStore::new().seed()).unwrap());
        disk
    }

    /// A disk with these contents.
    fn of(bytes: Vec<u8>) -> Self {
        let image = Image { synced: bytes.clone(), bytes, ..Image::default() };
        Self(Arc::new(Mutex::new(image)))
    }

    /// The disk after a power cut, with a random part of the unsynced changes.
    fn after_the_power_cut(&self, random: &mut Random) -> Self {
        let image = self.image();
        let mut bytes = image.synced.clone();
        for change in &image.unsynced {
            match change {
                Unsynced::Length(length) if random.below(2) == 0 => bytes.resize(*length, 0),
                Unsynced::Write(offset, data) => {
                    let (all, none) = (random.below(4) == 0, random.below(4) == 0);
                    for (sector, start) in data.chunks(SECTOR).zip((*offset..).step_by(SECTOR)) {
                        if all || (!none && random.below(2) == 0) {
                            let end = start + sector.len();
                            bytes.resize(bytes.len().max(end), 0);
                            bytes[start..end].copy_from_slice(sector);
                        }
                    }
                }
                Unsynced::Length(_) => {}
            }
        }
        Self::of(bytes)
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.image().bytes.len().try_into().unwrap())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).unwrap();
        let image = self.image();
        let read = image.bytes.get(offset..offset + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(read);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let length = usize::try_from(length).unwrap();
        let mut image = self.image();
        image.use_power()?;
        if image.room.is_some_and(|room| length > room) {
            return Err(io::Error::from_raw_os_error(ENOSPC));
        }
        image.bytes.resize(length, 0);
        image.unsynced.push(Unsynced::Length(length));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut image = self.image();
        image.use_power()?;
        image.synced = image.bytes.clone();
        image.unsynced.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).unwrap();
        let mut image = self.image();
        // The write during which the power is cut may be torn, but part of it may be on the disk.
        image.unsynced.push(Unsynced::Write(offset, data.to_vec()));
        image.use_power()?;
        if image.full {
            return Err(io::Error::from_raw_os_error(ENOSPC));
        }
        image.bytes[offset..offset + data.len()].copy_from_slice(data);
        Ok(())
    }
}

const RULES: [&str; 2] = ["fixed", "log"];
const CLIENTS: u64 = 40;

fn open(disk: &Disk, durability: Durability) -> Result<Limiter<DiskStore>, OpenError> {
    let rules = RuleSet::new([
        Rule::new("fixed", Limit::fixed_window(1_000_000, 1_000 * DAY)).key(["client"]),
        Rule::new("log", Limit::sliding_log(10_000, 1_000 * DAY)).key(["client"]),
    ]);
    let store = DiskStore::builder("simulated").durability(durability).open_on(disk.storage(), None)?;
    Ok(Limiter::builder(rules.unwrap()).store(store).deadline(100 * SECOND).build().unwrap())
}

type Used = BTreeMap<(&'static str, u64), u64>;

fn used(limiter: &Limiter<DiskStore>) -> Used {
    let keys = RULES.into_iter().flat_map(|rule| (0..CLIENTS).map(move |client| (rule, client)));
    let used = |(rule, client): (&'static str, u64)| {
        let name = client.to_string();
        let answer = block_on(limiter.peek(Request::client(&name).only(rule))).unwrap();
        ((rule, client), answer.limit() - answer.remaining())
    };
    keys.map(used).filter(|(_, used)| *used > 0).collect()
}

/// Draws `times` times, or until the disk fails. Returns the answered units and the unanswered.
fn draw(limiter: &Limiter<DiskStore>, times: u64, random: &mut Random) -> (Used, Used) {
    let (mut answered, mut lost) = (Used::new(), Used::new());
    for _ in 0..times {
        let key = (RULES[usize::try_from(random.below(2)).unwrap()], random.below(CLIENTS));
        let name = key.1.to_string();
        let answer = block_on(limiter.check_async(Request::client(&name).only(key.0).cost(3))).unwrap();
        if answer.degraded() {
            *lost.entry(key).or_default() += 3;
            break;
        }
        *answered.entry(key).or_default() += 3;
    }
    (answered, lost)
}

#[test]
fn strict_loses_no_answered_unit_whenever_the_power_is_cut() {
    let (mut cut, mut recovered) = (0, 0);
    for seed in 0..300 {
        let mut random = Random(seed);
        let mut disk = Disk::formatted();
        let mut before = Used::new();
        // One disk has several power cuts, some of them while it is being opened.
        for _ in 0..3 {
            disk.image().power = Some(random.below(400));
            let (mut answered, mut lost) = Default::default();
            if let Ok(limiter) = open(&disk, Durability::Strict) {
                (answered, lost) = draw(&limiter, 60, &mut random);
                if disk.image().power == Some(0) {
                    cut += 1;
                }
            }
            disk = disk.after_the_power_cut(&mut random);
            let limiter = open(&disk, Durability::Strict).unwrap_or_else(|error| panic!("{seed}: {error}"));
            let after = used(&limiter);
            for key in answered.keys().chain(lost.keys()).chain(before.keys()).chain(after.keys()) {
                let of = |used: &Used| used.get(key).copied().unwrap_or(0);
                let least = of(&before) + of(&answered);
                let found = of(&after);
                assert!(
                    found == least || found == least + of(&lost),
                    "{seed}: {key:?} has {found} in use, and {least} were answered"
                );
            }
            recovered += after.len();
            before = after;
            drop(limiter);
        }
    }
    assert!(cut > 300 && recovered > 1_000, "{cut} {recovered}");
}

/// The contents of a disk after some use and a clean shutdown, and the units in use.
fn filled() -> (Vec<u8>, Used) {
    let disk = Disk::formatted();
    let limiter = open(&disk, Durability::Relaxed).unwrap();
    let (used, _) = draw(&limiter, 300, &mut Random(7));
    drop(limiter);
    let bytes = disk.image().bytes.clone();
    (bytes, used)
}

/// Whether a tampered disk is refused as damaged. A disk that opens must have every unit.
fn refused(bytes: Vec<u8>, expected: &Used, what: &dyn std::fmt::Debug) -> bool {
    let disk = Disk::of(bytes);
    // Twice: a failed open must not make the file look intact.
    let [first, _] = [(); 2].map(|()| match open(&disk, Durability::Relaxed) {
        Ok(limiter) => {
            assert_eq!(&used(&limiter), expected, "{what:?}");
            false
        }
        Err(OpenError::Damaged { .. }) => true,
        Err(error) => panic!("{what:?}: {error}"),
    });
    first
}

#[test]
fn a_file_with_a_flipped_bit_is_refused_or_complete() {
    let (bytes, expected) = filled();
    let mut random = Random(1);
    let mut refusals = 0;
    for _ in 0..1_500 {
        let offset = usize::try_from(random.below(bytes.len().try_into().unwrap())).unwrap();
        let mut changed = bytes.clone();
        changed[offset] ^= 1 << random.below(8);
        refusals += u32::from(refused(changed, &expected, &offset));
    }
    assert!(refusals > 5, "some bits matter: {refusals}");
}

/// If the process was killed, damage to its last write cannot be told from a power cut during it.
#[test]
fn a_damaged_file_that_was_not_closed_is_refused_or_complete_but_for_its_last_write() {
    let disk = Disk::formatted();
    let limiter = open(&disk, Durability::Strict).unwrap();
    let (before, _) = draw(&limiter, 100, &mut Random(7));
    let (last, _) = draw(&limiter, 1, &mut Random(8));
    let bytes = disk.image().bytes.clone();
    drop(limiter);
    let mut after = before.clone();
    last.iter().for_each(|(key, units)| *after.entry(*key).or_default() += units);
    let mut random = Random(3);
    let (mut complete, mut without_last, mut refused) = (0, 0, 0);
    for _ in 0..600 {
        let mut changed = bytes.clone();
        let offset = usize::try_from(random.below(bytes.len().try_into().unwrap())).unwrap();
        changed[offset] ^= 1 << random.below(8);
        match open(&Disk::of(changed), Durability::Strict) {
            Ok(limiter) if used(&limiter) == after => complete += 1,
            Ok(limiter) if used(&limiter) == before => without_last += 1,
            Ok(limiter) => panic!("{offset}: {:?}", used(&limiter)),
            Err(OpenError::Damaged { .. }) => refused += 1,
            Err(error) => panic!("{offset}: {error}"),
        }
    }
    assert!(complete > 100 && refused > 0, "{complete} {without_last} {refused}");
}

#[test]
fn a_panic_of_the_writer_thread_is_reported() {
    let disk = Disk::formatted();
    let store = DiskStore::builder("simulated")
        .on_change(|_| panic!("for the test"))
        .open_on(disk.storage(), None)
        .unwrap();
    let limiter = Limiter::builder(RuleSet::per_client(Limit::per_hour(10))).store(store).build().unwrap();
    disk.image().full = true;
    assert!(limiter.in_memory().unwrap().check("alice").unwrap().allowed());
    assert!(block_on(limiter.store().flush()).is_err());
    assert!(block_on(limiter.store().close()).is_err());
    assert_eq!(limiter.store().failure().as_deref(), Some("the writer thread panicked"));
}

#[test]
fn a_file_with_a_zeroed_sector_is_refused_or_complete() {
    let (bytes, expected) = filled();
    let mut refusals = 0;
    for start in (0..bytes.len()).step_by(SECTOR) {
        let mut torn = bytes.clone();
        torn[start..start + SECTOR].fill(0);
        if torn != bytes {
            refusals += u32::from(refused(torn, &expected, &start));
        }
    }
    assert!(refusals > 5, "{refusals}");
}

#[test]
fn a_truncated_file_is_refused_or_complete() {
    let (bytes, expected) = filled();
    let lengths = (0..bytes.len()).step_by(4096).chain([1, 100, 511, bytes.len() - 1]);
    let refusals: Vec<bool> =
        lengths.map(|length| refused(bytes[..length].to_vec(), &expected, &length)).collect();
    assert!(refusals[0], "an empty file is a truncated file");
    assert!(refusals.iter().filter(|refused| **refused).count() > refusals.len() / 2);
}

#[test]
fn a_full_disk_loses_nothing_once_there_is_room_again() {
    for durability in [Durability::Relaxed, Durability::Strict] {
        let disk = Disk::formatted();
        let changes = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&changes);
        let store = DiskStore::builder("simulated")
            .durability(durability)
            .on_change(move |change| recorded.lock().unwrap().push(change.clone()))
            .open_on(disk.storage(), None)
            .unwrap();
        let rules = RuleSet::per_client(Limit::fixed_window(10, 1_000 * DAY));
        let limiter = Limiter::builder(rules).store(store).deadline(100 * SECOND).build().unwrap();
        let check = |client: &str| block_on(limiter.check_async(client)).unwrap();
        assert_eq!(check("alice").remaining(), 9);
        block_on(limiter.block("bob", tollgate::Timestamp::MAX)).unwrap();
        block_on(limiter.store().flush()).unwrap();
        let full = disk.image().bytes.len();
        disk.image().room = Some(full);
        // New clients use up the room.
        let mut newcomers = (0..).map(|number| format!("client-{number}"));
        while block_on(limiter.store().flush()).is_ok() {
            newcomers.by_ref().take(500).for_each(|client| drop(check(&client)));
        }
        // A retry may have freed a little room; now there is none.
        disk.image().full = true;
        while block_on(limiter.store().flush()).is_ok() {
            newcomers.by_ref().take(500).for_each(|client| drop(check(&client)));
        }
        assert!(!limiter.store().disk_stats().up);
        let degraded = check("alice").degraded();
        assert_eq!(degraded, durability == Durability::Strict, "relaxed mode goes on exactly, in memory");
        let zero_cost = block_on(limiter.check_async(Request::client("alice").cost(0))).unwrap();
        assert_eq!((zero_cost.degraded(), zero_cost.remaining()), (false, 8), "needs no disk");
        // A reset while the disk is full is written once there is room.
        let _ = block_on(limiter.reset("bob"));
        let mut image = disk.image();
        (image.room, image.full) = (None, false);
        drop(image);
        while block_on(limiter.store().flush()).is_err() {
            std::thread::yield_now();
        }
        assert!(limiter.store().disk_stats().up);
        assert_eq!(check("alice").remaining(), 7);
        let live = limiter.store().memory().memory_stats().live;
        drop(limiter);
        let changes = changes.lock().unwrap();
        let [downs @ .., Change::Up] = &**changes else { panic!("{changes:?}") };
        assert!(matches!(downs, [Change::Down { .. }, ..]), "{changes:?}");
        let again = DiskStore::builder("simulated").open_on(disk.storage(), None).unwrap();
        assert_eq!(again.memory().memory_stats().live, live);
    }
}
