//! The storage engines that could be beneath the disk store, on what it writes: many small updates
//! of the same keys, in batches, each batch synced. Either a row for each key, or one for each of
//! 32 768 pages of keys.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Instant;

use fjall::{Keyspace, KeyspaceCreateOptions, PersistMode};
use redb::{ReadableDatabase as _, ReadableTable as _, TableDefinition};

use crate::disk::{median, on_disk};

const KEYS: u64 = 1_000_000;

type Row = (Vec<u8>, Vec<u8>);

trait Engine {
    /// Writes rows, and is done when they are safe.
    fn write(&mut self, rows: &mut dyn Iterator<Item = Row>);
    /// Reads everything.
    fn scan(&self) -> u64;
}

struct Redb(redb::Database);

const TABLE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("state");

impl Engine for Redb {
    fn write(&mut self, rows: &mut dyn Iterator<Item = Row>) {
        let writing = self.0.begin_write().expect("a disk");
        let mut table = writing.open_table(TABLE).expect("a disk");
        for (key, value) in rows {
            table.insert(&*key, &*value).expect("a disk");
        }
        drop(table);
        writing.commit().expect("a disk");
    }

    fn scan(&self) -> u64 {
        let table = self.0.begin_read().expect("a disk").open_table(TABLE).expect("a table");
        table.iter().expect("rows").map(|row| row.expect("a row").1.value().len() as u64).sum()
    }
}

struct Fjall {
    database: fjall::Database,
    rows: Keyspace,
}

impl Engine for Fjall {
    fn write(&mut self, rows: &mut dyn Iterator<Item = Row>) {
        let mut batch = self.database.batch().durability(Some(PersistMode::SyncData));
        for (key, value) in rows {
            batch.insert(&self.rows, key, value);
        }
        batch.commit().expect("a disk");
    }

    fn scan(&self) -> u64 {
        self.rows.iter().map(|row| row.value().expect("a row").len() as u64).sum()
    }
}

fn open(name: &str, dir: &Path) -> Box<dyn Engine> {
    if name == "redb" {
        return Box::new(Redb(redb::Database::create(dir.join("state.redb")).expect("a disk")));
    }
    let database = fjall::Database::builder(dir).open().expect("a disk");
    let rows = database.keyspace("state", KeyspaceCreateOptions::default).expect("a disk");
    Box::new(Fjall { database, rows })
}

/// A number that looks random.
fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number ^ (number >> 32)
}

/// A batch: these keys have changed.
fn rows(keys: impl Iterator<Item = u64>, by_page: bool) -> Vec<Row> {
    let id = |key: u64| [&mixed(key).to_be_bytes()[..], &mixed(key ^ 1 << 40).to_be_bytes()[..4]].concat();
    let state = mixed(1).to_le_bytes();
    if !by_page {
        let rows: BTreeMap<Vec<u8>, Vec<u8>> =
            keys.map(|key| (id(key), [&[0; 2], &state[..]].concat())).collect();
        return rows.into_iter().collect();
    }
    let pages: BTreeSet<u16> = keys.map(|key| (mixed(key) >> 49) as u16).collect();
    // A million keys are 31 on each of 32 768 pages.
    pages
        .into_iter()
        .map(|page| {
            (page.to_be_bytes().to_vec(), [&id(page.into())[..], &[0; 2], &state].concat().repeat(31))
        })
        .collect()
}

pub fn compare(work: &Path, text: &mut String) {
    let _ = writeln!(
        text,
        "### Storage engines\n\n{KEYS} keys of 22 bytes each; milliseconds until a batch of so many random keys is safe, and how much processor time that \
         took beside it.\n\n\
         | engine | rows | 400 000 changed | slowest of 15 | 10 000 changed | 40 changed | slowest of 200 | processor, 400 000 | bytes a key | opens and reads |\n\
         |---|---|---|---|---|---|---|---|---|---|"
    );
    for name in ["redb", "fjall"] {
        for (layout, by_page) in [("a key", false), ("a page", true)] {
            let dir = work.join(format!("{name}-{by_page}"));
            fs::create_dir_all(&dir).expect("a writable project");
            let mut engine = open(name, &dir);
            engine.write(&mut rows(0..KEYS, by_page).into_iter());
            let mut seed = 0;
            let mut batches = |engine: &mut Box<dyn Engine>, changed: u64, times: usize| {
                let mut processor = 0.0;
                let mut took: Vec<f64> = (0..times)
                    .map(|_| {
                        let keys = (0..changed).map(|_| {
                            seed += 1;
                            mixed(seed) % KEYS
                        });
                        let rows = rows(keys, by_page);
                        let (before, begun) = (processor_ms(), Instant::now());
                        engine.write(&mut rows.into_iter());
                        processor += processor_ms() - before;
                        begun.elapsed().as_secs_f64() * 1e3
                    })
                    .collect();
                took.sort_by(f64::total_cmp);
                (median(took.clone()), took[times - 1], processor / times as f64)
            };
            let dense = batches(&mut engine, 400_000, 15);
            let middle = batches(&mut engine, 10_000, 40);
            let sparse = batches(&mut engine, 40, 200);
            let bytes = on_disk(&dir) as f64 / KEYS as f64;
            drop(engine);
            let begun = Instant::now();
            assert!(open(name, &dir).scan() >= 10 * KEYS);
            let read = begun.elapsed().as_secs_f64() * 1e3;
            let line = format!(
                "| {name} | {layout} | {:.0} | {:.0} | {:.1} | {:.2} | {:.1} | {:.0} | {bytes:.0} | {read:.0} |",
                dense.0, dense.1, middle.0, sparse.0, sparse.1, dense.2
            );
            eprintln!("{line}");
            let _ = writeln!(text, "{line}");
            fs::remove_dir_all(&dir).expect("a writable project");
        }
    }
    text.push('\n');
}

/// What this process has spent, all its threads together.
fn processor_ms() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").expect("Linux");
    let ticks = stat.rsplit(')').next().expect("a name").split(' ').skip(12).take(2);
    ticks.map(|ticks| ticks.parse::<f64>().expect("a number") * 10.0).sum()
}
