//! The script that decides: its source, a call of it, and its answer.

use std::sync::LazyLock;
use std::time::Duration;

use redis::{Cmd, Script, Value};
use smallvec::SmallVec;
use tollgate::{
    Answer, Cause, Charge, HoldId, Limit, MAX_SPAN, Op, Outcome, StoreError, Timestamp, Until, Verdict,
};

use crate::limit::Text;

/// The whole script, for who wants to read it, or load it before anyone asks. It restates the core's arithmetic file by
/// file, and tests hold the two together.
pub const SCRIPT: &str = concat!(
    include_str!("script/head.lua"),
    include_str!("script/short.lua"),
    include_str!("script/algorithm.lua"),
    include_str!("script/fixed_window.lua"),
    include_str!("script/sliding_window.lua"),
    include_str!("script/sliding_log.lua"),
    include_str!("script/token_bucket.lua"),
    include_str!("script/reserve.lua"),
    include_str!("script/inline.lua"),
    include_str!("script/cell.lua"),
    include_str!("script/transact.lua"),
);

/// What Redis knows it by.
static SHA1: LazyLock<String> = LazyLock::new(|| Script::new(SCRIPT).get_hash().to_owned());

/// The latest time the script can count from: with a hundred years added it is still exact in a double.
const LATEST: u64 = 1 << 52;

/// The largest cost the script can tell apart; no limit admits as much.
const DEAREST: u64 = 1 << 51;

/// How the script is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// One of the store's.
    Op(Op),
    /// Take, and say what it takes to undo it.
    Try,
    /// Undo a `Try`, by its tickets.
    Undo,
    /// Count an attempt that was denied elsewhere, where attempts count.
    Refuse,
}

/// Where the time comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Time {
    /// The server's own clock.
    Server,
    /// The caller's readings; keys outlive their idling by so long, because nobody knows how that clock goes on.
    Caller(Duration),
}

/// One charge of a call: the name of its key, and what it is charged.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) key: String,
    pub(crate) slot: u16,
    pub(crate) limit: Limit,
    pub(crate) cost: u64,
    /// The rule's number in this request, from 1.
    pub(crate) rule: usize,
    pub(crate) shadow: bool,
}

impl Line {
    pub(crate) fn new(prefix: &str, charge: &Charge<'_>, rule: usize) -> Self {
        let (key, slot) = crate::key::name_of(prefix, &charge.key);
        let Charge { limit, cost, shadow, .. } = *charge;
        Self { key, slot, limit: *limit, cost, rule, shadow }
    }
}

/// What the script answered.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) now: Timestamp,
    /// How many states were converted from a limit that was replaced.
    pub(crate) converted: u64,
    /// Whether anything has changed.
    pub(crate) changed: bool,
    pub(crate) answers: SmallVec<[Answer; 4]>,
    /// For each charge of a [`Verb::Try`], what undoes it: nothing if it drew nothing.
    pub(crate) tickets: Vec<String>,
}

/// The call as a command: by its hash, or in full for a server that does not have it.
pub(crate) fn command(
    verb: Verb,
    lines: &[Line],
    tickets: &[String],
    now: Timestamp,
    time: Time,
    in_full: bool,
) -> Result<Cmd, StoreError> {
    let mut command = Cmd::with_capacity(9 + 4 * lines.len(), 128 + 64 * lines.len());
    match in_full {
        true => command.arg("EVAL").arg(SCRIPT),
        false => command.arg("EVALSHA").arg(SHA1.as_str()),
    };
    command.arg(lines.len());
    for line in lines {
        command.arg(&line.key);
    }
    command.arg(word(verb)?);
    match time {
        Time::Server => command.arg("").arg(0),
        Time::Caller(grace) => command.arg(micros(now)).arg(millis(grace)),
    };
    for line in lines {
        let rule = i64::try_from(line.rule).unwrap_or(i64::MAX);
        command.arg(Text(&line.limit).to_string()).arg(line.cost.min(DEAREST));
        command.arg(if line.shadow { -rule } else { rule });
    }
    match verb {
        Verb::Op(Op::Block { until: Until::Date(until) }) => command.arg(micros_ceil(until)).arg(1),
        Verb::Op(Op::Block { until: Until::After(span) }) => command.arg(span_micros(span)).arg(0),
        Verb::Op(Op::Reserve { hold: HoldId(hold), holder, ttl, firm }) => {
            command.arg(format!("{hold:x}")).arg(holder).arg(span_micros(ttl)).arg(u8::from(firm))
        }
        Verb::Op(Op::Settle { hold: HoldId(hold) }) => command.arg(format!("{hold:x}")),
        Verb::Undo => command.arg(tickets),
        _ => &mut command,
    };
    Ok(command)
}

/// The script as it is tried: whole, so that it is there afterwards, on a key that is good for nothing else.
pub(crate) fn probe(key: &str) -> Cmd {
    let mut command = redis::cmd("EVAL");
    command.arg(SCRIPT).arg(1).arg(key).arg("take").arg("").arg(0).arg("f 1000000 1000000 0 0").arg(1).arg(1);
    command
}

fn word(verb: Verb) -> Result<&'static str, StoreError> {
    Ok(match verb {
        Verb::Op(op) => match op {
            Op::Take | Op::Peek | Op::Refund | Op::Penalise | Op::Reset => op.verb(),
            Op::Block { .. } | Op::Reserve { .. } | Op::Settle { .. } => op.verb(),
            _ => return Err(StoreError::Unsupported { verb: op.verb() }),
        },
        Verb::Try => "try",
        Verb::Undo => "undo",
        Verb::Refuse => "refuse",
    })
}

/// A moment in whole microseconds.
pub(crate) fn micros(at: Timestamp) -> u64 {
    (at.as_nanos() / 1_000).min(LATEST)
}

/// The same, rounded up: a block does not end early.
fn micros_ceil(at: Timestamp) -> u64 {
    at.as_nanos().div_ceil(1_000).min(LATEST)
}

/// A span in microseconds, rounded up.
fn span_micros(span: Duration) -> u64 {
    u64::try_from(span.min(MAX_SPAN).as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Reads the script's answer.
pub(crate) fn reply(value: &Value, verb: Verb, lines: &[Line]) -> Result<Reply, StoreError> {
    let number = |value: &Value| match value {
        Value::Int(number) => Some(*number),
        _ => None,
    };
    let ticket = |value: &Value| match value {
        Value::BulkString(ticket) => String::from_utf8(ticket.clone()).ok(),
        _ => None,
    };
    let values = if let Value::Array(values) = value { values.as_slice() } else { &[] };
    let ticketed = if verb == Verb::Try { lines.len() } else { 0 };
    let (values, tickets) = values.split_at(values.len().saturating_sub(ticketed));
    let numbers: Option<SmallVec<[i64; 31]>> = values.iter().map(number).collect();
    let tickets: Option<Vec<String>> = tickets.iter().map(ticket).collect();
    let numbers = numbers.as_deref().and_then(<[i64]>::split_first_chunk);
    let Some(([now, converted, changed], (rest, []))) =
        numbers.map(|(head, rest)| (*head, rest.as_chunks::<7>()))
    else {
        return Err(StoreError::Unavailable { reason: format!("the script answered {value:?}") });
    };
    if rest.len() != lines.len() {
        let reason = format!("the script answered {} of {} charges", rest.len(), lines.len());
        return Err(StoreError::Unavailable { reason });
    }
    let now = moment(now);
    let answer = |(numbers, line): (&[i64; 7], &Line)| {
        let [wait, remaining, reset_at, grows_at, units, held, blocked] = *numbers;
        let verdict = match u64::try_from(wait) {
            Ok(0) => Verdict::Allowed,
            Ok(wait) => Verdict::Denied { retry_after: Duration::from_micros(wait) },
            Err(_) => Verdict::Never,
        };
        let outcome = Outcome {
            now,
            verdict,
            remaining: remaining.unsigned_abs(),
            reset_at: moment(reset_at),
            grows_at: moment(grows_at),
        };
        // What a settlement lacks includes what the script was not even asked for.
        let beyond = if held == 1 { line.cost.saturating_sub(DEAREST) } else { 0 };
        let cause = if blocked > 0 { Cause::Block { until: moment(blocked) } } else { Cause::Limit };
        Answer { outcome, units: units.unsigned_abs().saturating_add(beyond), held: held == 1, cause }
    };
    Ok(Reply {
        now,
        converted: converted.unsigned_abs(),
        changed: changed > 0,
        answers: rest.iter().zip(lines).map(answer).collect(),
        tickets: tickets.unwrap_or_default(),
    })
}

fn moment(micros: i64) -> Timestamp {
    Timestamp::from_nanos(micros.unsigned_abs().saturating_mul(1_000))
}
