//! Draws one token budget over an hour, as streams reserve, settle, die and go into debt:
//! `docs/budget.svg`, which the guide to token budgets shows. Every number in it is the limiter's.
//!
//! `cargo xtask pictures`, or `cargo run -p tollgate --example picture_budget -- FILE`

use std::error::Error;
use std::fmt::Write as _;

use tollgate::{
    Limiter, MINUTE, ManualClock, OnExpiry, Request, Reservation, RuleSet, SECOND, Timestamp, block_on,
};

const LIMIT: &str = "10000/hour debt 5000";

/// How long a stream is reserved for, in minutes. It renews every minute.
const TTL: u64 = 2;

/// What happens, by the minute at which it begins.
const EVENTS: [(u64, Event); 11] = [
    (2, Event::Stream { estimate: 3_000, lasts: 4, end: End::Settles(1_200) }),
    (8, Event::Stream { estimate: 4_000, lasts: 6, end: End::Settles(3_600) }),
    (10, Event::Stream { estimate: 2_000, lasts: 2, end: End::Settles(1_900) }),
    (17, Event::Stream { estimate: 2_500, lasts: 1, end: End::Killed }),
    (24, Event::Stream { estimate: 2_500, lasts: 5, end: End::Settles(6_900) }),
    (32, Event::Stream { estimate: 1_000, lasts: 2, end: End::Settles(1_000) }),
    (35, Event::Stream { estimate: 500, lasts: 2, end: End::Settles(500) }),
    (38, Event::Stream { estimate: 1, lasts: 2, end: End::Settles(1) }),
    (44, Event::Stream { estimate: 400, lasts: 3, end: End::Settles(300) }),
    (53, Event::Record(2_400)),
    (58, Event::Stream { estimate: 500, lasts: 1, end: End::Settles(500) }),
];

/// The remarks, by minute.
const REMARKS: [(u64, &str); 6] = [
    (6, "Reserved 3 000, used 1 200: settling gives 1 800 back."),
    (11, "A stream that lasts renews its reservation."),
    (18, "Killed: nobody settles, the estimate stays charged."),
    (29, "Reserved 2 500, used 6 900: the rest is recorded, and owed."),
    (35, "In debt nothing is admitted, not even one token."),
    (53, "Recorded afterwards: 2 400 tokens of an embedding."),
];

#[derive(Clone, Copy)]
enum Event {
    Stream { estimate: u64, lasts: u64, end: End },
    Record(u64),
}

#[derive(Clone, Copy)]
enum End {
    Settles(u64),
    Killed,
}

/// The budget at one moment.
struct Sample {
    seconds: u64,
    left: u64,
    reserved: u64,
    owed: u64,
}

/// What the hour was like: the samples, and for each stream its minute and whether it was admitted.
#[derive(Default)]
struct Hour {
    samples: Vec<Sample>,
    asked: Vec<(u64, bool)>,
}

struct Stream {
    reservation: Option<Reservation<tollgate::MemoryStore>>,
    estimate: u64,
    /// When it settles; for a killed one, when its reservation expires.
    ends: u64,
    end: End,
}

fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args().nth(1).ok_or("name the file to write: picture_budget FILE")?;
    std::fs::write(file, draw(&simulate()?)?)?;
    Ok(())
}

fn simulate() -> Result<Hour, Box<dyn Error>> {
    let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
    let limiter = Limiter::builder(RuleSet::per_client(LIMIT.parse()?)).clock(clock.clone()).build()?;
    let alice = Request::client("alice");
    let (mut hour, mut open) = (Hour::default(), Vec::<Stream>::new());
    for seconds in (0..=3_600).step_by(5) {
        let minute = seconds / 60;
        if seconds % 60 == 0 {
            for stream in open.extract_if(.., |stream| stream.ends == minute) {
                if let (Some(reservation), End::Settles(cost)) = (stream.reservation, stream.end) {
                    block_on(reservation.settle(cost))?;
                }
            }
            for stream in &open {
                if let Some(reservation) = &stream.reservation {
                    block_on(reservation.renew(TTL as u32 * MINUTE))?;
                }
            }
            for (_, event) in EVENTS.into_iter().filter(|(begins, _)| *begins == minute) {
                match event {
                    Event::Record(cost) => _ = block_on(limiter.record(alice.cost(cost)))?,
                    Event::Stream { estimate, lasts, end } => {
                        let request = alice.cost(estimate);
                        let made = block_on(limiter.reserve(request, TTL as u32 * MINUTE, OnExpiry::Keep))?;
                        let admitted = made.decision().allowed();
                        hour.asked.push((minute, admitted));
                        match end {
                            End::Settles(_) if admitted => {
                                let ends = minute + lasts;
                                open.push(Stream { reservation: Some(made), estimate, ends, end });
                            }
                            End::Killed => {
                                // A process that was killed runs no destructor.
                                std::mem::forget(made);
                                open.push(Stream { reservation: None, estimate, ends: minute + TTL, end });
                            }
                            End::Settles(_) => {}
                        }
                    }
                }
            }
        }
        let now = block_on(limiter.peek(alice.cost(0)))?;
        let reserved = open.iter().map(|stream| stream.estimate).sum();
        hour.samples.push(Sample { seconds, left: now.remaining(), reserved, owed: now.owed() });
        clock.advance(5 * SECOND);
    }
    Ok(hour)
}

const LEFT: f64 = 70.0;
const RIGHT: f64 = 876.0;
/// Where the whole limit, nothing and the floor are drawn.
const FULL: f64 = 92.0;
const ZERO: f64 = 312.0;
const FLOOR: f64 = 378.0;

const STYLE: &str = "\
.card{fill:#fff}.ink{fill:#1d2433}.soft{fill:#566178}.grid{stroke:#dfe4ec}.axis{stroke:#8a94a8}\
.left{fill:#8fc1ec}.reserved{fill:#f3b64b}.used{fill:#eceff4}.owed{fill:#d1495b}\
.admitted{fill:#1a7f5a}.denied{stroke:#d1495b}.mark{fill:#1d2433}.number{fill:#fff}\
@media(prefers-color-scheme:dark){.card{fill:#141a26}.ink{fill:#e8ecf4}.soft{fill:#a6b0c3}\
.grid{stroke:#2b3446}.axis{stroke:#68748c}.left{fill:#3d7fb8}.reserved{fill:#c98a1e}.used{fill:#222b3b}\
.owed{fill:#e0697a}.admitted{fill:#4cc38a}.denied{stroke:#ff8091}.mark{fill:#e8ecf4}.number{fill:#141a26}}";

fn x(seconds: u64) -> f64 {
    LEFT + (RIGHT - LEFT) * seconds as f64 / 3_600.0
}

/// The height of a number of tokens, which is negative if they are owed.
fn y(tokens: f64) -> f64 {
    ZERO - (ZERO - FULL) * tokens / 10_000.0
}

fn draw(hour: &Hour) -> Result<String, Box<dyn Error>> {
    let mut svg = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 524" width="900" height="524" role="img" aria-label="One token budget over an hour: left, reserved, used and owed" font-family="system-ui, -apple-system, 'Segoe UI', sans-serif">
<style>{STYLE}</style>
<rect class="card" width="900" height="524" rx="10"/>
<text class="ink" x="24" y="34" font-size="17" font-weight="600">One token budget over an hour</text>
<text class="soft" x="24" y="54" font-size="12" font-family="ui-monospace, monospace">{LIMIT}</text>
"##
    );
    legend(&mut svg)?;
    writeln!(
        svg,
        r##"<rect class="used" x="{LEFT}" y="{FULL}" width="{}" height="{}"/>"##,
        RIGHT - LEFT,
        ZERO - FULL
    )?;
    let held = |sample: &Sample| (sample.left + sample.reserved).min(10_000) as f64;
    area(&mut svg, "reserved", &hour.samples, held)?;
    area(&mut svg, "left", &hour.samples, |sample| sample.left as f64)?;
    area(&mut svg, "owed", &hour.samples, |sample| -(sample.owed as f64))?;
    axes(&mut svg)?;
    for (minute, admitted) in &hour.asked {
        let (x, y) = (x(minute * 60), FLOOR + 18.0);
        if *admitted {
            writeln!(svg, r##"<circle class="admitted" cx="{x:.1}" cy="{y}" r="4"/>"##)?;
        } else {
            let (x, y) = (x - 4.0, y - 4.0);
            writeln!(svg, r##"<path class="denied" d="M{x:.1} {y}l8 8m0-8l-8 8" stroke-width="2"/>"##)?;
        }
    }
    remarks(&mut svg, &hour.samples)?;
    svg.push_str("</svg>\n");
    Ok(svg)
}

fn legend(svg: &mut String) -> Result<(), Box<dyn Error>> {
    for (x, class) in [(370, "left"), (424, "reserved"), (510, "used"), (570, "owed")] {
        writeln!(svg, r##"<rect class="{class}" x="{x}" y="24" width="14" height="11"/>"##)?;
        writeln!(svg, r##"<text class="soft" x="{}" y="34" font-size="12">{class}</text>"##, x + 19)?;
    }
    svg.push_str(
        r##"<circle class="admitted" cx="644" cy="30" r="4"/><text class="soft" x="654" y="34" font-size="12">stream admitted</text>
<path class="denied" d="M770 26l8 8m0-8l-8 8" stroke-width="2"/><text class="soft" x="784" y="34" font-size="12">stream denied</text>
"##,
    );
    Ok(())
}

/// Fills between nothing and the tokens of each sample.
fn area(
    svg: &mut String,
    class: &str,
    samples: &[Sample],
    tokens: impl Fn(&Sample) -> f64,
) -> Result<(), Box<dyn Error>> {
    let mut path = format!("M{LEFT} {ZERO}");
    for sample in samples {
        write!(path, "L{:.1} {:.1}", x(sample.seconds), y(tokens(sample)))?;
    }
    writeln!(svg, r##"<path class="{class}" d="{path}L{RIGHT} {ZERO}Z"/>"##)?;
    Ok(())
}

fn axes(svg: &mut String) -> Result<(), Box<dyn Error>> {
    for (tokens, label) in [(10_000, "10 000"), (5_000, "5 000"), (0, "0"), (-2_500, "−2 500")] {
        let (y, class) = (y(f64::from(tokens)), if tokens == 0 { "axis" } else { "grid" });
        writeln!(svg, r##"<path class="{class}" d="M{LEFT} {y:.1}H{RIGHT}" stroke-width="1"/>"##)?;
        writeln!(
            svg,
            r##"<text class="soft" x="{}" y="{:.1}" font-size="11" text-anchor="end">{label}</text>"##,
            LEFT - 8.0,
            y + 4.0
        )?;
    }
    for minute in (0..=60).step_by(10) {
        let x = x(minute * 60);
        writeln!(
            svg,
            r##"<path class="grid" d="M{x:.1} {FULL}V{FLOOR}" stroke-dasharray="2 4"/><text class="soft" x="{x:.1}" y="{}" font-size="11" text-anchor="middle">{minute} min</text>"##,
            FLOOR + 46.0
        )?;
    }
    Ok(())
}

/// Numbers in the picture, and what they mean below it.
fn remarks(svg: &mut String, samples: &[Sample]) -> Result<(), Box<dyn Error>> {
    for (index, (minute, remark)) in REMARKS.into_iter().enumerate() {
        let sample = samples.iter().find(|sample| sample.seconds == minute * 60).ok_or("within the hour")?;
        let at = y((sample.left + sample.reserved).min(10_000) as f64) - 16.0;
        let number = |svg: &mut String, x: f64, y: f64| {
            writeln!(
                svg,
                r##"<circle class="mark" cx="{x:.1}" cy="{y:.1}" r="9"/><text class="number" x="{x:.1}" y="{:.1}" font-size="11" font-weight="600" text-anchor="middle">{}</text>"##,
                y + 4.0,
                index + 1
            )
        };
        number(svg, x(minute * 60), at)?;
        let (column, row) = ((index / 3) as f64, (index % 3) as f64);
        let (left, line) = (33.0 + column * 400.0, 456.0 + row * 24.0);
        number(svg, left, line - 4.0)?;
        writeln!(
            svg,
            r##"<text class="ink" x="{}" y="{line}" font-size="13">{remark}</text>"##,
            left + 18.0
        )?;
    }
    Ok(())
}
