//! Streams in processes that are killed with SIGKILL: whatever a process was doing, the budgets
//! have what its streams used, to the unit (C7).
//!
//! The process is the test's own binary. It logs each step of a stream to its standard output,
//! before it asks the store and after the answer, and the parent reads the pipe to its end after
//! the kill. A step without an answer may or may not have happened. Every other step must have
//! happened exactly as it was logged, so the units in use are one of a few possible sums.
//!
//! The clock of a process stands still. The parent's is later by more than any reservation can be
//! settled.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tollgate::{
    Clock as _, DAY, Error, Limit, ManualClock, OnExpiry, Request, Reservation, Rule, Store, SystemClock,
    Timestamp,
};

use crate::Random;
use crate::world::{START, World, run, runtime};

/// The variable that makes a process one that is killed: its round, its number and the target.
const ROLE: &str = "TOLLGATE_STREAMS";

/// The variable that sets the number of rounds.
const ROUNDS: &str = "TOLLGATE_KILLS";

const BUDGETS: u64 = 10;
const THREADS: u64 = 4;
const TTL: Duration = Duration::from_secs(30);

/// Streams that one thread has open at a time.
const OPEN_MAX: usize = 25;

/// Kills processes with streams on one store, and compares the budgets with what the streams used;
/// again and again.
///
/// Call it in the test named `test`, which is also what each of the `processes` runs. `start`
/// starts what the store needs, and names it; it lives until the end. `open` opens the store by
/// that name.
///
/// # Panics
/// If a budget differs from what its streams used.
pub fn killed_streams<S: Store, G>(
    test: &str,
    processes: u64,
    start: impl FnOnce() -> (G, String),
    open: impl Fn(&str) -> S,
) {
    let _context = runtime().enter();
    if let Ok(role) = std::env::var(ROLE) {
        let [round, number, target] = *role.splitn(3, ' ').collect::<Vec<_>>() else { panic!("{role}") };
        let (round, number) = (round.parse().expect("a round"), number.parse().expect("a number"));
        return stream_until_killed(&world(open(target), start_of(round)), round, number);
    }
    let (_running, target) = start();
    let rounds = std::env::var(ROUNDS).map_or(8, |rounds| rounds.parse().expect("a number of rounds"));
    let (mut random, mut answers, mut open_steps) = (Random(SystemClock.now().as_nanos()), 0, 0);
    for round in 0..rounds {
        // Some are killed while they start.
        let lines_max = [1, 100, 1_000, 3_000][usize::try_from(round % 4).expect("an index")];
        let children: Vec<(Child, u64)> = (0..processes)
            .map(|number| (spawn(test, &format!("{round} {number} {target}")), random.below(lines_max)))
            .collect();
        let mut ledger = Ledger::default();
        std::thread::scope(|scope| {
            let logs: Vec<_> = children
                .into_iter()
                .map(|(child, lines)| scope.spawn(move || killed(child, lines)))
                .collect();
            for (log, process) in logs.into_iter().zip(0..) {
                let lines = log.join().expect("a killed process");
                lines.iter().for_each(|line| ledger.read(process, line));
            }
        });
        let world = world(open(&target), start_of(round).saturating_add(3 * TTL));
        for budget in 0..BUDGETS {
            let client = client(round, budget);
            let mut peeked = std::iter::repeat_with(|| world.peek(Request::client(&client).cost(0)));
            let decision = peeked.find(|decision| !decision.degraded()).expect("the store is up");
            let in_use = limit().capacity() - decision.remaining() + decision.owed();
            let possible = ledger.possible(budget);
            assert!(possible.contains(&in_use), "{client} has {in_use} in use, not one of {possible:?}");
        }
        let (answered, unanswered) = ledger.counts();
        (answers, open_steps) = (answers + answered, open_steps + unanswered);
    }
    eprintln!("{rounds} rounds of {processes} processes killed: {answers} streams known, {open_steps} not");
    assert!(answers > rounds * processes * 10, "there were streams");
}

/// A limit that denies some streams, and does not refill.
fn limit() -> Limit {
    Limit::fixed_window(3_000, 10_000 * DAY).debt(1_000_000)
}

fn world<S: Store>(store: S, now: Timestamp) -> World<S> {
    World::with_clock(ManualClock::at(now), store, [Rule::new("tokens", limit()).key(["client"])])
}

fn start_of(round: u64) -> Timestamp {
    START.saturating_add(Duration::from_secs(3_600 * round))
}

/// Budgets are new in each round.
fn client(round: u64, budget: u64) -> String {
    format!("{round}-{budget}")
}

fn spawn(test: &str, role: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this test's binary"));
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command.stdout(Stdio::piped()).spawn().expect("a process of streams")
}

/// Kills a process after some lines of its log, and returns the whole log.
fn killed(mut child: Child, lines: u64) -> Vec<String> {
    let mut output = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
    let mut log: Vec<String> =
        output.by_ref().take(usize::try_from(lines).expect("a few thousand")).collect();
    child.kill().expect("it still runs");
    log.extend(output);
    child.wait().expect("it was killed");
    log
}

fn stream_until_killed<S: Store>(world: &World<S>, round: u64, process: u64) {
    // Unbuffered, so that a kill loses no line; and one write a line, which a pipe does not split.
    let stdout = File::from(std::io::stdout().as_fd().try_clone_to_owned().expect("standard output"));
    let log = |line: String| {
        (&stdout).write_all(line.as_bytes()).unwrap_or_else(|_| std::process::exit(0));
    };
    // The test runner has begun a line.
    log("\n".into());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let random = Random(SystemClock.now().as_nanos() ^ (process << 48) ^ (thread << 56));
            let streams = Streams { world, round, log: &log, random, open: Vec::new() };
            scope.spawn(move || {
                let _context = runtime().enter();
                streams.run((thread..).step_by(usize::try_from(THREADS).expect("a few")));
            });
        }
    });
}

/// The streams of one thread.
struct Streams<'a, S: Store, L> {
    world: &'a World<S>,
    round: u64,
    log: &'a L,
    random: Random,
    /// The open ones: ids and reservations.
    open: Vec<(u64, Reservation<S>)>,
}

impl<S: Store, L: Fn(String)> Streams<'_, S, L> {
    /// Streams until the process is killed, or the store does not answer: a busy machine.
    fn run(mut self, mut ids: impl Iterator<Item = u64>) {
        while ids.next().and_then(|id| self.step(id)).is_some() {}
    }

    /// One step of a new stream, or of one that is open. `None` if the store does not answer: it
    /// may have happened.
    fn step(&mut self, id: u64) -> Option<()> {
        if self.open.len() < OPEN_MAX && self.random.below(2) == 0 {
            return self.reserve(id);
        }
        if !self.open.is_empty() {
            return self.proceed();
        }
        let (budget, cost) = (self.random.below(BUDGETS), 1 + self.random.below(60));
        (self.log)(format!("record {id} {budget} {cost}\n"));
        let client = client(self.round, budget);
        answered(run(self.world.limiter.record(Request::client(&client).cost(cost))))?;
        (self.log)(format!("done {id}\n"));
        Some(())
    }

    fn reserve(&mut self, id: u64) -> Option<()> {
        let (budget, estimate) = (self.random.below(BUDGETS), 1 + self.random.below(60));
        let kept = self.random.below(2);
        let on_expiry = if kept == 1 { OnExpiry::Keep } else { OnExpiry::GiveBack };
        // Without a settlement it is charged so much.
        (self.log)(format!("reserve {id} {budget} {}\n", estimate * kept));
        let client = client(self.round, budget);
        let request = Request::client(&client).cost(estimate);
        let reserved = answered(run(self.world.limiter.reserve(request, TTL, on_expiry)))?;
        if reserved.decision().degraded() {
            return None;
        }
        let allowed = reserved.decision().allowed();
        (self.log)(format!("{} {id}\n", if allowed { "done" } else { "denied" }));
        self.open.extend(allowed.then_some((id, reserved)));
        Some(())
    }

    /// Renews, settles or drops a stream that is open.
    fn proceed(&mut self) -> Option<()> {
        let index = usize::try_from(self.random.below(4)).expect("small").min(self.open.len() - 1);
        let (id, stream) = self.open.remove(index);
        match self.random.below(4) {
            0 => {
                answered(run(stream.renew(TTL)))?;
                self.open.push((id, stream));
            }
            1 => drop(stream),
            _ => {
                let cost = self.random.below(120);
                (self.log)(format!("settle {id} {cost}\n"));
                assert_eq!(answered(run(stream.settle(cost)))?.shortfall, 0);
                (self.log)(format!("done {id}\n"));
            }
        }
        Some(())
    }
}

/// The store's answer, if there is one.
fn answered<T: std::fmt::Debug>(result: Result<T, Error>) -> Option<T> {
    match result {
        Err(Error::StoreUnavailable { .. }) => None,
        answer => Some(answer.expect("held and valid")),
    }
}

/// What one stream has used, as far as its log says.
#[derive(Clone, Copy)]
struct Line {
    budget: u64,
    /// Used if the last step did not happen.
    before: u64,
    /// Used if it did.
    after: u64,
    answered: bool,
}

/// The log of a round, by process and stream.
#[derive(Default)]
struct Ledger(BTreeMap<(u64, u64), Line>);

impl Ledger {
    fn read(&mut self, process: u64, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let [verb, ref numbers @ ..] = *words else { return };
        let Ok(numbers) = numbers.iter().map(|word| word.parse()).collect::<Result<Vec<u64>, _>>() else {
            return;
        };
        match (verb, numbers.as_slice()) {
            ("reserve" | "record", &[id, budget, after]) => {
                self.0.insert((process, id), Line { budget, before: 0, after, answered: false });
            }
            ("settle", &[id, cost]) => {
                let line = self.0.get_mut(&(process, id)).expect("reserved before");
                *line = Line { before: line.after, after: cost, answered: false, ..*line };
            }
            ("done", &[id]) => self.0.get_mut(&(process, id)).expect("asked before").answered = true,
            ("denied", &[id]) => {
                let line = self.0.get_mut(&(process, id)).expect("asked before");
                *line = Line { after: 0, answered: true, ..*line };
            }
            // The test runner writes to the same output.
            _ => {}
        }
    }

    /// The sums that can be in use of a budget.
    fn possible(&self, budget: u64) -> BTreeSet<u64> {
        let lines = self.0.values().filter(|line| line.budget == budget);
        lines.fold(BTreeSet::from([0]), |sums, line| {
            let with = |used: u64| sums.iter().map(move |sum| sum + used);
            let before = (!line.answered).then(|| with(line.before));
            with(line.after).chain(before.into_iter().flatten()).collect()
        })
    }

    /// Streams whose last step was answered, and the others.
    fn counts(&self) -> (u64, u64) {
        let answered = self.0.values().filter(|line| line.answered).count();
        (answered as u64, (self.0.len() - answered) as u64)
    }
}
