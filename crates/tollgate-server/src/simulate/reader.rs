//! One log as batches of requests, read and parsed in a thread of its own.

use std::borrow::Cow;
use std::io::BufRead;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tollgate::{MAX_COUNT, MAX_VALUE_BYTES, Timestamp};

use super::field::{Field, FieldName, Values};
use super::format::{Format, SAMPLE_LINES};
use super::key::{KeyPart, append_key, without_query};
use super::lines::{LINE_BYTES_MAX, Line, Lines};
use super::options::FormatChoice;
use super::report::UnreadableLine;
use super::time::parse_time;
use crate::moment::duration;

/// How far a line may lie behind the newest before it. Servers write a line when the response is
/// sent, some with the time of the request.
pub(super) const LATE_MAX: Duration = Duration::from_secs(60);

/// Unreadable lines that are kept to be shown.
pub(super) const SHOWN_MAX: usize = 5;

/// Requests of a batch: enough to hide the cost of passing it on.
const BATCH_REQUESTS: usize = 2_048;

/// The longest path that is kept: what common servers accept.
const PATH_BYTES_MAX: usize = 8 * 1024;

/// The part of an unreadable line that is shown.
const SHOWN_CHARS: usize = 120;

/// What to extract from each line.
#[derive(Debug)]
pub(super) struct Extraction {
    pub(super) format: FormatChoice,
    pub(super) names: Vec<FieldName>,
    pub(super) key: Vec<KeyPart>,
    /// The field of the cost; without it, a request costs 1.
    pub(super) cost: Option<Field>,
    /// The attributes that rules read, beside the client.
    pub(super) attributes: Vec<(String, Field)>,
    /// Whether a candidate reads the names of clients, and attributes.
    pub(super) has_configuration: bool,
}

/// Requests in the order of the log, with their texts in one string.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) requests: Vec<LoggedRequest>,
    pub(super) text: String,
    /// The attributes of each request, as ranges of `text`; the same number for each request.
    pub(super) attributes: Vec<Option<Span>>,
}

/// A range of a batch's text.
pub(super) type Span = (u32, u32);

/// A request as the log has it.
#[derive(Debug)]
pub(super) struct LoggedRequest {
    pub(super) time: Timestamp,
    pub(super) cost: u64,
    /// The key of the client, if the line has all of its parts.
    pub(super) client: Option<Span>,
}

/// What was found in a log, beside its requests.
#[derive(Debug, Default)]
pub(super) struct LogSummary {
    pub(super) format: Option<&'static str>,
    pub(super) lines: u64,
    pub(super) unreadable: u64,
    pub(super) examples: Vec<UnreadableLine>,
    pub(super) warnings: Vec<String>,
}

impl Batch {
    pub(super) fn text_of(&self, (start, end): Span) -> &str {
        let index = |at: u32| usize::try_from(at).unwrap_or(usize::MAX);
        self.text.get(index(start)..index(end)).unwrap_or_default()
    }

    /// The range of the text from `start` to its end.
    fn span_from(&self, start: usize) -> Span {
        // A batch's text is bounded by its lines, far below 4 GB.
        let index = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        (index(start), index(self.text.len()))
    }
}

/// Reads a log to its end, or until nobody receives.
///
/// # Errors
/// A sentence that says what to do, if no request can be read at all.
pub(super) fn read_log(
    name: &str,
    log: Box<dyn BufRead + Send>,
    extraction: &Extraction,
    batches: &SyncSender<Batch>,
) -> Result<LogSummary, String> {
    let mut lines = Lines::new(log);
    let mut summary = LogSummary::default();
    let sample = sample(&mut lines, name, &mut summary);
    if sample.is_empty() {
        summary.warnings.push(format!("{name} has no lines"));
        return Ok(summary);
    }
    let wanted = extraction.wanted();
    let texts: Vec<String> = sample.iter().map(|(_, line)| line.clone()).collect();
    let format = Format::detect(extraction.format, &texts, &wanted, &extraction.names)
        .map_err(|error| format!("{name}: {error}"))?;
    extraction.check(name, &format, &mut summary.warnings)?;
    summary.format = Some(format.name());
    let slot = |field: &Field| wanted.iter().position(|wanted| wanted == field).unwrap_or(usize::MAX);
    let mut reader = LogReader {
        name,
        extraction,
        wanted: &wanted,
        key_slots: extraction.key.iter().map(|part| slot(&part.field())).collect(),
        cost_slot: extraction.cost.as_ref().map(slot),
        attribute_slots: extraction.attributes.iter().map(|(_, field)| slot(field)).collect(),
        format,
        batch: Batch::default(),
        newest: Timestamp::EPOCH,
        summary,
    };
    for (number, line) in sample.iter().skip(usize::from(reader.format.has_header())) {
        reader.line(*number, line);
    }
    reader.rest(&mut lines, batches);
    Ok(reader.summary)
}

/// The first lines that are not blank, with their numbers.
fn sample<R: BufRead>(lines: &mut Lines<R>, name: &str, summary: &mut LogSummary) -> Vec<(u64, String)> {
    let mut sample = Vec::new();
    while sample.len() < SAMPLE_LINES {
        match next_line(lines, name, summary) {
            Some(Line::Whole(line)) if line.trim_ascii().is_empty() => {}
            Some(Line::Whole(line)) => {
                sample.push((summary.lines, String::from_utf8_lossy(line).into_owned()))
            }
            Some(Line::TooLong(start)) => too_long(name, start, summary),
            None => break,
        }
    }
    sample
}

/// The next line, counted. A log that cannot be read further ends here, with a warning.
fn next_line<'l, R: BufRead>(
    lines: &'l mut Lines<R>,
    name: &str,
    summary: &mut LogSummary,
) -> Option<Line<'l>> {
    match lines.next() {
        Ok(line) => {
            summary.lines += u64::from(line.is_some());
            line
        }
        Err(error) => {
            summary.warnings.push(format!(
                "{name} cannot be read beyond line {}: {error}; the report has the lines before. If the file \
                 was truncated, copy it again",
                summary.lines
            ));
            None
        }
    }
}

fn too_long(name: &str, start: &[u8], summary: &mut LogSummary) {
    let why = format!("it is longer than {} KiB", LINE_BYTES_MAX / 1024);
    summary.reject(name, summary.lines, &String::from_utf8_lossy(start), why.into());
}

impl Extraction {
    /// The fields to read from each line, each once.
    fn wanted(&self) -> Vec<Field> {
        let mut wanted = vec![Field::Time];
        let key = self.key.iter().map(KeyPart::field);
        let others = self.cost.iter().cloned().chain(self.attributes.iter().map(|(_, field)| field.clone()));
        for field in key.chain(others) {
            if !wanted.contains(&field) {
                wanted.push(field);
            }
        }
        wanted
    }

    /// Checks that the format can have the fields.
    fn check(&self, name: &str, format: &Format, warnings: &mut Vec<String>) -> Result<(), String> {
        let lacks = |field: &Field| (!format.has(field)).then(|| field.name().into_owned());
        let format_name = format.name();
        if let Some(field) = self.key.iter().find_map(|part| lacks(&part.field())) {
            return Err(format!(
                "{name} has the format {format_name}, in which there is no {field}; choose another --key"
            ));
        }
        if let Some(field) = self.cost.as_ref().and_then(lacks) {
            return Err(format!(
                "{name} has the format {format_name}, in which there is no {field}; choose another --cost"
            ));
        }
        for (attribute, field) in &self.attributes {
            if lacks(field).is_some() {
                warnings.push(format!(
                    "a rule reads the attribute {attribute:?}, which {name} ({format_name}) does not have: \
                     no request matches it"
                ));
            }
        }
        Ok(())
    }
}

/// Reads lines into batches.
struct LogReader<'a> {
    name: &'a str,
    extraction: &'a Extraction,
    wanted: &'a [Field],
    key_slots: Vec<usize>,
    cost_slot: Option<usize>,
    attribute_slots: Vec<usize>,
    format: Format,
    batch: Batch,
    newest: Timestamp,
    summary: LogSummary,
}

impl LogReader<'_> {
    fn rest<R: BufRead>(&mut self, lines: &mut Lines<R>, batches: &SyncSender<Batch>) {
        while let Some(line) = next_line(lines, self.name, &mut self.summary) {
            match line {
                Line::Whole(line) => match std::str::from_utf8(line) {
                    Ok(line) => self.line(self.summary.lines, line),
                    Err(_) => self.line(self.summary.lines, &String::from_utf8_lossy(line)),
                },
                Line::TooLong(start) => too_long(self.name, start, &mut self.summary),
            }
            if self.batch.requests.len() >= BATCH_REQUESTS
                && batches.send(std::mem::take(&mut self.batch)).is_err()
            {
                return;
            }
        }
        // The receiver is gone only if the run has failed.
        let _ = batches.send(std::mem::take(&mut self.batch));
    }

    fn line(&mut self, number: u64, line: &str) {
        if line.trim_ascii().is_empty() {
            return;
        }
        let mut values = Values::new();
        let read = self.format.read(line, self.wanted, &mut values).and_then(|()| self.push(&values));
        if let Err(why) = read {
            self.summary.reject(self.name, number, line, why);
        }
    }

    fn push(&mut self, values: &Values<'_>) -> Result<(), Cow<'static, str>> {
        let time = values.first().and_then(|time| time.as_deref()).ok_or("it has no time")?;
        let time = parse_time(time).ok_or_else(|| format!("{time:?} is not a time"))?;
        if time.saturating_add(LATE_MAX) < self.newest {
            let behind = Duration::from_secs(self.newest.since(time).as_secs());
            let behind = duration(behind);
            return Err(format!("its time is {behind} before an earlier line's; sort the log by time").into());
        }
        let cost = match self.cost_slot {
            None => 1,
            Some(slot) => {
                let cost = values.get(slot).and_then(|cost| cost.as_deref()).ok_or("it has no cost")?;
                let parsed = cost.parse().ok().filter(|cost| *cost <= MAX_COUNT);
                parsed.ok_or_else(|| format!("the cost {cost:?} is not a whole number"))?
            }
        };
        self.newest = self.newest.max(time);
        let start = self.batch.text.len();
        let client = append_key(&self.extraction.key, values, &self.key_slots, &mut self.batch.text);
        let client = client.map(|()| self.batch.span_from(start));
        for ((_, field), slot) in self.extraction.attributes.iter().zip(&self.attribute_slots) {
            let value =
                values.get(*slot).and_then(|value| value.as_deref()).filter(|value| !value.is_empty());
            // Longer values share the budget of their beginning. A path is shortened when it has
            // been normalised.
            let (value, bytes_max) = match *field {
                Field::Path => (value.map(without_query), PATH_BYTES_MAX),
                _ => (value, MAX_VALUE_BYTES),
            };
            let value = value.map(|value| value.get(..value.floor_char_boundary(bytes_max)).unwrap_or(value));
            let start = self.batch.text.len();
            let span = value.map(|value| {
                self.batch.text.push_str(value);
                self.batch.span_from(start)
            });
            self.batch.attributes.push(span);
        }
        // A late line is decided when it is read: the time of a log does not go back.
        self.batch.requests.push(LoggedRequest { time: self.newest, cost, client });
        Ok(())
    }
}

impl LogSummary {
    fn reject(&mut self, name: &str, number: u64, line: &str, why: Cow<'static, str>) {
        self.unreadable += 1;
        if self.examples.len() < SHOWN_MAX {
            let text = line.chars().map(|letter| if letter.is_control() { ' ' } else { letter });
            self.examples.push(UnreadableLine {
                log: name.into(),
                line: number,
                why: why.into_owned(),
                text: text.take(SHOWN_CHARS).collect(),
            });
        }
    }
}
