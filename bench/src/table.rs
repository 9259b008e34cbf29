//! Measuring, and the table that comes of it.

use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use crate::contenders::Contender;

/// Each figure is the median of this many rounds, in each of which every contender has its turn.
pub const ROUNDS: usize = 5;

pub struct Case {
    pub name: String,
    pub keys: u64,
}

pub struct Row {
    pub case: String,
    pub threads: u64,
    pub contender: String,
    pub nanos: f64,
}

#[derive(Default)]
pub struct Table(pub Vec<Row>);

impl Table {
    pub fn measure(
        &mut self,
        case: Case,
        wanted: &str,
        threads: &[u64],
        contenders: impl FnOnce() -> Vec<Contender>,
    ) {
        if !case.name.contains(wanted) {
            return;
        }
        eprintln!("{}", case.name);
        let contenders = contenders();
        for &threads in threads {
            let mut times: Vec<Vec<f64>> = contenders.iter().map(|_| Vec::new()).collect();
            for _ in 0..ROUNDS {
                for (contender, times) in contenders.iter().zip(&mut times) {
                    if threads == 1 || contender.shared {
                        times.push(time(contender, threads, case.keys));
                    }
                }
            }
            for (contender, mut times) in contenders.iter().zip(times) {
                times.sort_by(f64::total_cmp);
                if let Some(&nanos) = times.get(times.len() / 2) {
                    eprintln!("  {threads} {:45} {nanos:8.1}", contender.name);
                    let (case, contender) = (case.name.clone(), contender.name.to_owned());
                    self.0.push(Row { case, threads, contender, nanos });
                }
            }
        }
    }

    pub fn nanos(&self, case: &str, threads: u64, contender: &str) -> Option<f64> {
        let found =
            |row: &&Row| row.case == case && row.threads == threads && row.contender.starts_with(contender);
        self.0.iter().find(found).map(|row| row.nanos)
    }

    /// The rows of a table that [`markdown`](Self::markdown) wrote.
    pub fn read(text: &str) -> Self {
        let row = |line: &str| {
            let mut cells = line.trim_matches('|').split('|').map(str::trim);
            let (case, threads) = (cells.next()?.to_owned(), cells.next()?.parse().ok()?);
            let (contender, nanos) = (cells.next()?.to_owned(), cells.next()?.parse().ok()?);
            Some(Row { case, threads, contender, nanos })
        };
        Self(text.lines().filter_map(row).collect())
    }

    pub fn markdown(&self) -> String {
        let mut text = String::from(
            "| case | threads | contender | ns | to tollgate | to governor |\n|---|---|---|---|---|---|\n",
        );
        for Row { case, threads, contender, nanos } in &self.0 {
            let ratio = |to: &str| {
                self.nanos(case, *threads, to).map_or("-".into(), |base| format!("{:.2}", nanos / base))
            };
            let _ = writeln!(
                text,
                "| {case} | {threads} | {contender} | {nanos:.1} | {} | {} |",
                ratio("tollgate"),
                ratio("governor")
            );
        }
        text
    }
}

/// Nanoseconds per check and thread.
fn time(contender: &Contender, threads: u64, keys: u64) -> f64 {
    let start = Barrier::new(usize::try_from(threads).expect("few"));
    let run = |seed: u64| {
        start.wait();
        let begun = Instant::now();
        let admitted = black_box((contender.run)(seed, keys, contender.checks));
        let nanos = begun.elapsed().as_nanos() as f64 / contender.checks as f64;
        let expected = if contender.denies { 0 } else { contender.checks };
        assert_eq!(admitted, expected, "{} decided something else than it was meant to", contender.name);
        nanos
    };
    let times: Vec<f64> = thread::scope(|scope| {
        let run = &run;
        let handles: Vec<_> = (1..=threads).map(|seed| scope.spawn(move || run(seed))).collect();
        handles.into_iter().map(|handle| handle.join().expect("no panic")).collect()
    });
    times.iter().sum::<f64>() / times.len() as f64
}

pub fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .unwrap_or(": unknown")
        .trim_start_matches([' ', '\t', ':']);
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let lock = include_str!("../Cargo.lock");
    let version = |name: &&str| {
        let entry = format!("name = \"{name}\"\nversion = \"");
        let version = lock.rsplit_once(&entry).and_then(|(_, rest)| rest.split('"').next()).unwrap_or("?");
        format!("{name} {version}")
    };
    let names =
        ["tollgate", "governor", "ratelimit", "leaky-bucket", "throttlecrab", "limitador", "hashbrown"];
    let versions: Vec<String> = names.iter().map(version).collect();
    format!("{model}, {cores} cores, {}.\n{}.", env!("RUSTC_VERSION"), versions.join(", "))
}
