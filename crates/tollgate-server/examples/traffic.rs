//! Writes an access log of invented traffic, the same on every run: for documentation, tests and
//! benchmarks of `tollgate simulate`.
//!
//! ```sh
//! cargo run --release -p tollgate-server --example traffic -- 1000000 > access.log
//! ```
//!
//! One day, 17 November 2026, in the combined format. Four in five requests come from people, who
//! load a page and what belongs to it within two seconds. One in ten comes from apps that poll, one
//! in twenty from crawlers at a steady rate, and the rest from three scripts that hammer `/login`
//! in the evening. Addresses are from 198.18.0.0/15, which RFC 2544 reserves for benchmarks.

use std::env;
use std::io::{self, BufWriter, Write};

/// Midnight of the day.
const DAY: u64 = 86_400;

/// Requests of each hour, per thousand of the day.
const HOURS: [u64; 24] =
    [14, 9, 6, 5, 5, 8, 18, 36, 55, 62, 64, 63, 60, 61, 62, 60, 57, 56, 58, 62, 64, 56, 37, 22];

fn main() -> io::Result<()> {
    let requests = env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(100_000);
    let mut log = BufWriter::with_capacity(1 << 20, io::stdout().lock());
    match write_day(&mut log, requests) {
        // A closed pipe (`traffic | head`) is the reader's choice.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

fn write_day(log: &mut impl Write, requests: u64) -> io::Result<()> {
    let (mut dice, mut pages) = (Dice(7), Vec::new());
    // Busier days have more people, not busier ones.
    let people = (requests / 90).clamp(20, 100_000);
    let mut owed = 0;
    for second in 0..DAY {
        let hour = HOURS[usize::try_from(second / 3_600).unwrap_or(0)];
        // Thousandths of a request, scaled so that the day has them all.
        owed += requests * hour * 1_000 / (3_600 * HOURS.iter().sum::<u64>());
        for _ in 0..owed / 1_000 {
            let client = client(&mut dice, &mut pages, people, second);
            write_line(log, &mut dice, client, second)?;
        }
        owed %= 1_000;
    }
    log.flush()
}

/// A client and what it asks for.
#[derive(Clone, Copy)]
enum Client {
    Person(u64),
    App(u64),
    Crawler(u64),
    Script(u64),
}

fn client(dice: &mut Dice, pages: &mut Vec<(u64, u64)>, people: u64, second: u64) -> Client {
    let is_evening = (19 * 3_600..21 * 3_600).contains(&second);
    match dice.below(100) {
        0..5 => Client::Crawler(dice.below(6)),
        5..15 => Client::App(dice.below(people / 10 + 1)),
        15..45 if is_evening => Client::Script(dice.below(3)),
        _ => {
            // A page brings on average eight more requests of the same person.
            pages.retain(|(_, until)| *until >= second);
            match pages.is_empty() || dice.below(9) == 0 {
                true => {
                    let person = dice.below(people);
                    pages.push((person, second + 2));
                    Client::Person(person)
                }
                false => {
                    let page = usize::try_from(dice.below(64)).unwrap_or(0) % pages.len();
                    Client::Person(pages[page].0)
                }
            }
        }
    }
}

fn write_line(log: &mut impl Write, dice: &mut Dice, client: Client, second: u64) -> io::Result<()> {
    let (network, number, method, path, agent) = match client {
        Client::Person(number) => {
            (18, number, "GET", dice.path(), "Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0")
        }
        Client::App(number) => (19, number, "GET", "/api/v1/inbox", "example-app/3.1"),
        Client::Crawler(number) => (19, 120_000 + number, "GET", dice.path(), "example-crawler/1.0"),
        Client::Script(number) => (19, 130_000 + number, "POST", "/login", "python-requests/2.32"),
    };
    // Steps that are prime to the size of the network spread the addresses.
    let host = (number * 40_503) % 65_536;
    let (hour, minute, bytes) = (second / 3_600, second / 60 % 60, 200 + dice.below(20_000));
    writeln!(
        log,
        "198.{network}.{}.{} - - [17/Nov/2026:{hour:02}:{minute:02}:{:02} +0000] \"{method} {path} HTTP/1.1\" \
         200 {bytes} \"-\" \"{agent}\"",
        host >> 8,
        host & 255,
        second % 60,
    )
}

/// Deterministic pseudo-random numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn path(&mut self) -> &'static str {
        const PATHS: [&str; 8] = [
            "/",
            "/articles/42",
            "/articles/77",
            "/search?q=limits",
            "/static/app.js",
            "/static/style.css",
            "/static/logo.svg",
            "/api/v1/articles",
        ];
        PATHS[usize::try_from(self.below(8)).unwrap_or(0)]
    }
}
