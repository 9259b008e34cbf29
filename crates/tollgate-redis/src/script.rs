//! The Lua script that decides: its source, its call, and its reply.

use std::sync::LazyLock;
use std::time::Duration;

use redis::{Cmd, Script, Value};
use smallvec::SmallVec;
use tollgate::{
    Answer, Cause, Charge, Effect, HoldId, Key, Limit, MAX_SPAN, OnExpiry, Op, Outcome, Overflow, Part,
    StoreError, Timestamp, Until, Verdict,
};

use crate::calendar::Windows;
use crate::limit::LimitText;

/// The source of the script, to read it or to load it ahead of traffic. It restates the core's
/// arithmetic file by file; tests compare the two.
pub const SCRIPT: &str = concat!(
    include_str!("script/head.lua"),
    include_str!("script/probe.lua"),
    include_str!("script/fast.lua"),
    include_str!("script/algorithm.lua"),
    include_str!("script/fixed_window.lua"),
    include_str!("script/calendar_window.lua"),
    include_str!("script/sliding_window.lua"),
    include_str!("script/sliding_log.lua"),
    include_str!("script/token_bucket.lua"),
    include_str!("script/reserve.lua"),
    include_str!("script/concurrent.lua"),
    include_str!("script/inline.lua"),
    include_str!("script/debt.lua"),
    include_str!("script/holds.lua"),
    include_str!("script/cell.lua"),
    include_str!("script/stored.lua"),
    include_str!("script/blocks.lua"),
    include_str!("script/overflow.lua"),
    include_str!("script/transact.lua"),
);

/// The digest for `EVALSHA`.
static SHA1: LazyLock<String> = LazyLock::new(|| Script::new(SCRIPT).get_hash().to_owned());

/// The latest time that the script accepts: a hundred years later is still exact in a double.
const TIME_MAX_MICROS: u64 = 1 << 52;

/// The largest cost that the script accepts. No limit admits or owes as much, with its overflow.
pub(crate) const COST_MAX: u64 = 1 << 51;

/// The most entries of an index of blocks. Each is about as large as its row's name.
pub(crate) const BLOCKS_MAX: usize = 100_000;

/// An operation of the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// An operation of the store.
    Op(Op),
    /// Take, and return a ticket per charge for [`Undo`](Self::Undo).
    Try,
    /// Undo a [`Try`](Self::Try) or an [`Op::Acquire`], by its tickets.
    Undo,
}

impl Verb {
    /// Whether the script writes the index of blocks.
    pub(crate) const fn indexes(self) -> bool {
        matches!(self, Self::Op(Op::Block { .. } | Op::Reset))
    }
}

/// The clock that the script decides by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeSource {
    /// The server's clock.
    Server,
    /// The caller's readings. A key outlives its idle time by this grace: Redis expires keys by its
    /// own clock, and the caller's may be behind.
    Caller(Duration),
}

/// One charge of a call, with the name and the slot of its key.
#[derive(Clone, Debug)]
pub(crate) struct ScriptCharge {
    pub(crate) key: String,
    pub(crate) slot: u16,
    pub(crate) limit: Limit,
    pub(crate) cost: u64,
    /// The number of the rule in this request, from 1.
    pub(crate) rule: usize,
    pub(crate) shadow: bool,
    /// The number of the budget in this request, from 1, if denied costs are recorded there.
    pub(crate) recorded: Option<usize>,
    pub(crate) part: Part,
}

impl ScriptCharge {
    /// The charge of this index in `charges`.
    pub(crate) fn new(prefix: &str, charges: &[Charge<'_>], index: usize) -> Self {
        let Charge { key, limit, cost, shadow, record_denied, part, .. } = charges[index];
        let number = |same: &dyn Fn(&Key<'_>) -> bool| {
            charges.iter().position(|other| same(&other.key)).unwrap_or(index) + 1
        };
        let rule = number(&|other| other.rule() == key.rule());
        let recorded = record_denied.then(|| number(&|other| other.same_budget(&key)));
        let (key, slot) = crate::key::name_of(prefix, &key);
        Self { key, slot, limit: *limit, cost, rule, shadow, recorded, part }
    }
}

/// Whether an overflow takes part in a call.
pub(crate) fn overflows(charges: &[ScriptCharge]) -> bool {
    charges.iter().any(|charge| charge.part != Part::Whole)
}

/// The script's reply.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) now: Timestamp,
    /// States converted from a limit that was replaced.
    pub(crate) converted: u64,
    /// Whether any stored state changed.
    pub(crate) changed: bool,
    pub(crate) answers: SmallVec<[Answer; 4]>,
    /// A ticket per charge of a [`Verb::Try`] or an [`Op::Acquire`]; empty if the charge drew
    /// nothing.
    pub(crate) tickets: Vec<String>,
}

/// A call of the script, for keys of one slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) verb: Verb,
    pub(crate) charges: &'a [ScriptCharge],
    /// Of a [`Verb::Undo`].
    pub(crate) tickets: &'a [String],
    /// The index of blocks, of a verb that [`indexes`](Verb::indexes) them.
    pub(crate) index: Option<&'a str>,
    pub(crate) now: Timestamp,
    pub(crate) time: TimeSource,
}

/// The command of a call: `EVALSHA`, or `EVAL` for a server that does not have the script.
pub(crate) fn command(call: Call<'_>, windows: &Windows, with_source: bool) -> Result<Cmd, StoreError> {
    let Call { verb, charges, tickets, index, now, time } = call;
    let mut command = Cmd::with_capacity(9 + 4 * charges.len(), 128 + 64 * charges.len());
    match with_source {
        true => command.arg("EVAL").arg(SCRIPT),
        false => command.arg("EVALSHA").arg(SHA1.as_str()),
    };
    command.arg(charges.len() + usize::from(index.is_some()));
    for charge in charges {
        command.arg(&charge.key);
    }
    command.arg(index);
    let overflows = overflows(charges);
    match overflows {
        true => command.arg(format!("+{}", verb_name(verb)?)),
        false => command.arg(verb_name(verb)?),
    };
    match time {
        TimeSource::Server => command.arg("").arg(0),
        TimeSource::Caller(grace) => command.arg(micros(now)).arg(millis(grace)),
    };
    for charge in charges {
        let rule = i64::try_from(charge.rule).unwrap_or(i64::MAX);
        command.arg(LimitText(&charge.limit).to_string()).arg(charge.cost.min(COST_MAX));
        match charge.recorded {
            Some(budget) => command.arg(format!("{rule}:{budget}")),
            None => command.arg(if charge.shadow { -rule } else { rule }),
        };
    }
    match verb {
        Verb::Op(Op::Block { until: Until::Date(until) }) => {
            command.arg(micros_ceil(until)).arg(1).arg(BLOCKS_MAX)
        }
        Verb::Op(Op::Block { until: Until::After(span) }) => {
            command.arg(span_micros(span)).arg(0).arg(BLOCKS_MAX)
        }
        Verb::Op(Op::Reset) => command.arg(BLOCKS_MAX),
        Verb::Op(Op::Reserve { hold, ttl, on_expiry, .. }) => {
            let is_kept = on_expiry == OnExpiry::Keep;
            command.arg(id_text(hold)).arg(span_micros(ttl)).arg(u8::from(is_kept))
        }
        Verb::Op(Op::Acquire { hold, ttl } | Op::Renew { hold, ttl }) => {
            command.arg(id_text(hold)).arg(span_micros(ttl))
        }
        Verb::Op(Op::Settle { hold }) => command.arg(id_text(hold)),
        Verb::Undo => command.arg(tickets),
        _ => &mut command,
    };
    for charge in charges.iter().filter(|_| overflows) {
        command.arg(match charge.part {
            Part::Whole => 0,
            Part::First(number) => i32::from(number),
            Part::Rest(number) => -i32::from(number),
        });
    }
    command.arg(windows.argument());
    Ok(command)
}

/// The command of a probe, on a key that nothing else uses (see `probe.lua`): `EVALSHA`, or `EVAL`
/// for a server that does not have the script, which has it afterwards.
pub(crate) fn probe_command(key: &str, with_source: bool) -> Cmd {
    let mut command = Cmd::new();
    match with_source {
        true => command.arg("EVAL").arg(SCRIPT),
        false => command.arg("EVALSHA").arg(SHA1.as_str()),
    };
    command.arg(1).arg(key).arg("probe");
    command
}

fn verb_name(verb: Verb) -> Result<&'static str, StoreError> {
    Ok(match verb {
        Verb::Op(op) => match op {
            Op::Take | Op::Refuse | Op::Peek | Op::Refund | Op::Penalise | Op::Record | Op::Reset => {
                op.verb()
            }
            Op::Block { .. } | Op::Reserve { .. } | Op::Settle { .. } | Op::Renew { .. } => op.verb(),
            Op::Acquire { .. } => op.verb(),
            _ => return Err(StoreError::Unsupported { verb: op.verb() }),
        },
        Verb::Try => "try",
        Verb::Undo => "undo",
    })
}

/// A time in whole microseconds, rounded down.
pub(crate) fn micros(at: Timestamp) -> u64 {
    (at.as_nanos() / 1_000).min(TIME_MAX_MICROS)
}

/// A time in whole microseconds, rounded up: a block does not end early.
fn micros_ceil(at: Timestamp) -> u64 {
    at.as_nanos().div_ceil(1_000).min(TIME_MAX_MICROS)
}

/// An id whose order as text is its order as a number.
fn id_text(hold: HoldId) -> String {
    format!("{:032x}", hold.0)
}

/// A span in microseconds, rounded up.
fn span_micros(span: Duration) -> u64 {
    u64::try_from(span.min(MAX_SPAN).as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Parses the script's reply.
pub(crate) fn parse_reply(value: &Value, verb: Verb, charges: &[ScriptCharge]) -> Result<Reply, StoreError> {
    let number = |value: &Value| match value {
        Value::Int(number) => Some(*number),
        _ => None,
    };
    let ticket = |value: &Value| match value {
        Value::BulkString(ticket) => String::from_utf8(ticket.clone()).ok(),
        _ => None,
    };
    let values = if let Value::Array(values) = value { values.as_slice() } else { &[] };
    let has_tickets = matches!(verb, Verb::Try | Verb::Op(Op::Acquire { .. }));
    let ticket_count = if has_tickets { charges.len() } else { 0 };
    let (values, tickets) = values.split_at(values.len().saturating_sub(ticket_count));
    let numbers: Option<SmallVec<[i64; 35]>> = values.iter().map(number).collect();
    let tickets: Option<Vec<String>> = tickets.iter().map(ticket).collect();
    let per_overflow = if overflows(charges) { 2 * charges.len() } else { 0 };
    let numbers =
        numbers.as_deref().map(|numbers| numbers.split_at(numbers.len().saturating_sub(per_overflow)));
    let (numbers, parts) = numbers.unwrap_or_default();
    let numbers = numbers.split_first_chunk();
    let Some(([now, converted, changed], (rest, []))) =
        numbers.map(|(head, rest)| (*head, rest.as_chunks::<8>()))
    else {
        return Err(StoreError::Unavailable { reason: format!("the script answered {value:?}") });
    };
    if rest.len() != charges.len() {
        let reason = format!("the script answered {} of {} charges", rest.len(), charges.len());
        return Err(StoreError::Unavailable { reason });
    }
    let now = timestamp(now);
    let mut parts = parts.as_chunks::<2>().0.iter();
    let answer = |(numbers, charge): (&[i64; 8], &ScriptCharge)| {
        let [drawn, lent] = parts.next().copied().unwrap_or_default().map(i64::unsigned_abs);
        let overflow = match charge.part {
            Part::Whole => Overflow::None,
            Part::First(_) => Overflow::From { drawn, lent },
            Part::Rest(_) => Overflow::Into { drawn },
        };
        let [wait, remaining, reset_at, grows_at, units, held, blocked, owed] = *numbers;
        let verdict = match u64::try_from(wait) {
            Ok(0) => Verdict::Allowed,
            Ok(wait) => Verdict::Denied { retry_after: Duration::from_micros(wait) },
            Err(_) => Verdict::Never,
        };
        let outcome = Outcome {
            now,
            verdict,
            remaining: remaining.unsigned_abs(),
            owed: owed.unsigned_abs(),
            reset_at: timestamp(reset_at),
            grows_at: timestamp(grows_at),
        };
        let units = units.unsigned_abs();
        // The shortfall includes the cost beyond the script's maximum.
        let shortfall = units.saturating_add(charge.cost.saturating_sub(COST_MAX));
        let effect = match verb {
            Verb::Op(Op::Refund) => Effect::GivenBack { units },
            Verb::Op(Op::Penalise) => Effect::Drawn { units },
            Verb::Op(Op::Record) => Effect::Recorded { shortfall },
            Verb::Op(Op::Take | Op::Refuse) | Verb::Try if held == 1 => Effect::Recorded { shortfall },
            Verb::Op(Op::Settle { .. } | Op::Renew { .. }) if held == 0 => Effect::NotReserved,
            Verb::Op(Op::Renew { .. }) => Effect::Renewed,
            Verb::Op(Op::Settle { .. }) if held == 1 => Effect::Settled { shortfall },
            Verb::Op(Op::Settle { .. }) => Effect::SettledLate { shortfall },
            _ => Effect::None,
        };
        let cause = if blocked > 0 { Cause::Block { until: timestamp(blocked) } } else { Cause::Limit };
        Answer { outcome, effect, cause, overflow }
    };
    Ok(Reply {
        now,
        converted: converted.unsigned_abs(),
        changed: changed > 0,
        answers: rest.iter().zip(charges).map(answer).collect(),
        tickets: tickets.unwrap_or_default(),
    })
}

fn timestamp(micros: i64) -> Timestamp {
    Timestamp::from_nanos(micros.unsigned_abs().saturating_mul(1_000))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The commands that a text quotes.
    fn quoted(text: &str) -> BTreeSet<&str> {
        let is_command = |word: &&str| {
            let is_upper = |byte: u8| byte.is_ascii_uppercase();
            word.len() > 2
                && word.bytes().all(is_upper)
                && !["INCR", "LIMIT", "WITHSCORES", "WRONGTYPE"].contains(word)
        };
        text.split('\'').filter(is_command).collect()
    }

    #[test]
    fn e4_a_probe_calls_every_command_of_the_script() {
        let probe = include_str!("script/probe.lua");
        assert_eq!(quoted(probe), quoted(&SCRIPT.replace(probe, "")));
    }
}
