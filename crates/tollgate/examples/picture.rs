//! Draws how each algorithm admits the same bursty traffic: `docs/algorithms.svg`, which the README
//! shows.
//!
//! `cargo xtask pictures`, or `cargo run -p tollgate --example picture -- FILE`

use std::error::Error;
use std::fmt::Write as _;
use std::time::Duration;

use tollgate::{Limit, Meter, Timestamp};

const ROWS: [(&str, &str, &str); 5] = [
    ("fixed window", "10/10s fixed", "two budgets meet at a window's edge"),
    ("sliding window", "10/10s sliding", "the burst still weighs in the next period"),
    ("sliding log", "10/10s log", "never more than 10 in any 10 seconds"),
    ("token bucket", "10/10s", "a burst, then one a second"),
    (
        "bucket with reserve",
        "5 refill 5/10s reserve 10 refill 2/10s",
        "one deep burst, then the sustained rate",
    ),
];

const SECONDS: u64 = 40;
const LEFT: f64 = 290.0;
const WIDTH: f64 = 582.0;
const ROW: f64 = 92.0;
const TOP: f64 = 64.0;

fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args().nth(1).ok_or("name the file to write: picture FILE")?;
    std::fs::write(file, draw()?)?;
    Ok(())
}

/// Steady traffic, with a burst before a window's edge, one after it, and a late one.
fn traffic() -> Vec<u64> {
    let steady = (0..SECONDS).step_by(2).map(|second| second * 1_000);
    let bursts = [(8_000, 12), (10_400, 12), (27_000, 20)];
    let bursts = bursts.into_iter().flat_map(|(start, count)| (0..count).map(move |i| start + i * 90));
    let mut millis: Vec<u64> = steady.chain(bursts).collect();
    millis.sort_unstable();
    millis
}

fn x(millis: u64) -> f64 {
    LEFT + WIDTH * millis as f64 / (SECONDS * 1_000) as f64
}

fn draw() -> Result<String, Box<dyn Error>> {
    let height = TOP + ROW * ROWS.len() as f64 + 34.0;
    let mut svg = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 {height}" width="900" height="{height}" role="img" aria-label="Five algorithms admitting the same traffic" font-family="system-ui, -apple-system, 'Segoe UI', sans-serif">
<rect width="900" height="{height}" rx="10" fill="#ffffff"/>
<text x="24" y="32" font-size="17" font-weight="600" fill="#1d2433">The same traffic, five limits of about ten per ten seconds</text>
<circle cx="612" cy="27" r="4" fill="#1a7f5a"/><text x="621" y="31" font-size="12" fill="#4a5468">admitted</text>
<path d="M688 23l8 8m0-8l-8 8" stroke="#d1495b" stroke-width="1.8"/><text x="702" y="31" font-size="12" fill="#4a5468">denied</text>
<rect x="756" y="21" width="14" height="11" fill="#d7e8f7"/><text x="775" y="31" font-size="12" fill="#4a5468">remaining</text>
"##
    );
    for (index, (name, notation, remark)) in ROWS.into_iter().enumerate() {
        row(&mut svg, TOP + ROW * index as f64, name, notation, remark)?;
    }
    for second in (0..=SECONDS).step_by(5) {
        let (x, y) = (x(second * 1_000), height - 14.0);
        writeln!(
            svg,
            r##"<text x="{x}" y="{y}" font-size="11" fill="#6b7488" text-anchor="middle">{second} s</text>"##
        )?;
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}

fn row(svg: &mut String, top: f64, name: &str, notation: &str, remark: &str) -> Result<(), Box<dyn Error>> {
    let limit: Limit = notation.parse()?;
    let (base, floor) = (Timestamp::from_secs(1_000_000), top + ROW - 16.0);
    let at = |millis| base.saturating_add(Duration::from_millis(millis));
    let y = |left: u64| floor - 56.0 * left as f64 / limit.capacity() as f64;
    let (mut meter, mut area, mut marks, mut admitted) = (Meter::new(limit), String::new(), String::new(), 0);
    let arrivals = traffic();
    let mut next = arrivals.iter().peekable();
    for millis in (0..=SECONDS * 1_000).step_by(10) {
        while let Some(arrival) = next.next_if(|arrival| **arrival <= millis) {
            let x = x(*arrival);
            if meter.decide(at(*arrival), 1).allowed() {
                admitted += 1;
                writeln!(marks, r##"<circle cx="{x:.1}" cy="{:.1}" r="3" fill="#1a7f5a"/>"##, floor - 8.0)?;
            } else {
                let (left, up) = (x - 2.5, floor - 22.5);
                writeln!(
                    marks,
                    r##"<path d="M{left:.1} {up:.1}l5 5m0-5l-5 5" stroke="#d1495b" stroke-width="1.4"/>"##
                )?;
            }
        }
        write!(area, "L{:.1} {:.1}", x(millis), y(meter.peek(at(millis), 0).remaining))?;
    }
    let (right, total) = (LEFT + WIDTH, arrivals.len());
    writeln!(svg, r##"<path d="M{LEFT} {floor}{area}L{right} {floor}Z" fill="#d7e8f7"/>"##)?;
    for second in (0..=SECONDS).step_by(10) {
        let x = x(second * 1_000);
        writeln!(
            svg,
            r##"<path d="M{x} {}V{floor}" stroke="#e3e7ef" stroke-dasharray="2 3"/>"##,
            floor - 60.0
        )?;
    }
    writeln!(svg, r##"<path d="M{LEFT} {floor}H{right}" stroke="#b9c1d1"/>"##)?;
    svg.push_str(&marks);
    let label = |svg: &mut String, dy: f64, size: u8, style: &str, text: &str| {
        writeln!(svg, r##"<text x="24" y="{}" font-size="{size}" {style}>{text}</text>"##, top + dy)
    };
    label(svg, 28.0, 14, r##"font-weight="600" fill="#1d2433""##, name)?;
    label(svg, 45.0, 11, r##"font-family="ui-monospace, monospace" fill="#2f6f9f""##, notation)?;
    label(svg, 61.0, 11, r##"fill="#6b7488""##, remark)?;
    writeln!(
        svg,
        r##"<text x="{}" y="{}" font-size="11" fill="#6b7488" text-anchor="end">{admitted} of {total} admitted</text>"##,
        right,
        top + 12.0
    )?;
    Ok(())
}
