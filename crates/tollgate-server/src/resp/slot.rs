//! `TOLL.ACQUIRE`, `TOLL.RENEW` and `TOLL.RELEASE`: slots, for as long as a request is under way.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use tollgate::{Caller, Decision, Error, Limit, MAX_SLOTS, Request, SECOND, Slot, parse_duration};

use super::command::Check;
use super::reply::Replies;
use super::throttle::integer;
use super::{answer, command};
use crate::app::App;
use crate::backend::Backend;
use crate::held::{HeldId, HeldKind, IdError, TTL_MAX};
use crate::inline::THROTTLE;
use crate::value::value_of;

const USAGE: &str = "wrong number of arguments for 'toll.acquire' command; send key n ttl, \
                     or attribute value [attribute value …] [COST n] TTL ttl";

/// A parsed command on slots.
#[derive(Debug)]
pub(super) enum SlotCommand<'a> {
    /// `TOLL.ACQUIRE key n ttl`: one of `n` slots of the key.
    Inline { key: Cow<'a, str>, slots: Limit, ttl: Duration },
    /// `TOLL.ACQUIRE attribute value … [COST n] TTL ttl`: under the rules.
    ByRules { check: Check<'a>, ttl: Duration },
    /// `TOLL.RENEW id ttl`
    Renew { id: HeldId, ttl: Duration },
    /// `TOLL.RELEASE id`
    Release { id: HeldId },
}

impl<'a> SlotCommand<'a> {
    /// Parses a command of this lower-case name; `None` if it is not on slots.
    pub(super) fn parse(name: &str, arguments: &[&'a [u8]]) -> Option<Result<Self, String>> {
        Some(match (name, arguments) {
            ("toll.acquire", [key, slots, ttl]) => inline(key, slots, ttl),
            ("toll.acquire", several) => by_rules(several),
            ("toll.renew", [id, ttl]) => {
                parse_id(id).and_then(|id| Ok(Self::Renew { id, ttl: parse_ttl(ttl)? }))
            }
            ("toll.release", [id]) => parse_id(id).map(|id| Self::Release { id }),
            ("toll.renew" | "toll.release", _) => Err(command::wrong_arity(name)),
            _ => return None,
        })
    }

    /// Executes the command.
    ///
    /// # Errors
    /// As the limiter.
    pub(super) async fn run(&self, app: &App, caller: Caller, replies: &mut Replies) -> Result<(), Error> {
        match self {
            Self::Inline { key, slots, ttl } => match app.limiter.inline(*slots) {
                Ok(limit) => {
                    let request = Request::client(key).under(THROTTLE, &limit).caller(caller);
                    let slot = app.timed(app.limiter.acquire(request, *ttl)).await;
                    slot.map(|slot| {
                        let id = |slot: Slot<Backend>| HeldId::inline(slot.detach(), key, slots.capacity());
                        acquired(replies, slot, id);
                    })
                }
                Err(error) => Err(error),
            },
            Self::ByRules { check, ttl } => {
                let request = check.request.clone().caller(caller);
                let slot = app.timed(app.limiter.acquire(&request, *ttl)).await;
                slot.map(|slot| {
                    let attributes = || -> BTreeMap<String, String> {
                        let names = app.limiter.with_rules(|rules| rules.attributes().to_vec());
                        let value = |name: String| Some((check.request.get(&name)?.to_owned(), name));
                        names.into_iter().filter_map(value).map(|(value, name)| (name, value)).collect()
                    };
                    acquired(replies, slot, |slot| {
                        HeldId::new(app, HeldKind::Slot, slot.detach(), attributes())
                    });
                })
            }
            Self::Renew { id, ttl } => id.renew(app, caller, *ttl).await.map(|()| replies.simple("OK")),
            Self::Release { id } => id.release(app, caller).await.map(|()| replies.simple("OK")),
        }
    }
}

/// Replies as a check does, with the id of the slot if it was granted.
fn acquired(replies: &mut Replies, slot: Slot<Backend>, id: impl FnOnce(Slot<Backend>) -> HeldId) {
    let decision: Decision = slot.decision().clone();
    let id = decision.allowed().then(|| id(slot).to_string());
    answer::acquired(replies, &decision, id.as_deref());
}

fn inline<'a>(key: &'a [u8], slots: &[u8], ttl: &[u8]) -> Result<SlotCommand<'a>, String> {
    let number = u64::try_from(integer(slots)?).ok().filter(|number| (1..=MAX_SLOTS).contains(number));
    let number = number.ok_or_else(|| format!("the number of slots is from 1 to {MAX_SLOTS}"))?;
    Ok(SlotCommand::Inline { key: value_of(key), slots: Limit::concurrent(number), ttl: parse_ttl(ttl)? })
}

fn by_rules<'a>(arguments: &[&'a [u8]]) -> Result<SlotCommand<'a>, String> {
    let is_ttl = |pair: &&[&[u8]]| matches!(pair, [name, _] if name.eq_ignore_ascii_case(b"TTL"));
    let ttls: Vec<&[&[u8]]> = arguments.chunks(2).filter(is_ttl).collect();
    let [[_, ttl]] = *ttls else { return Err(USAGE.into()) };
    let others = arguments.chunks(2).filter(|pair| !is_ttl(pair)).flatten().copied();
    let check = Check::parse(others).map_err(|_| USAGE)?;
    if check.peek {
        return Err("an acquisition cannot PEEK; TOLL.CHECK can".into());
    }
    Ok(SlotCommand::ByRules { check, ttl: parse_ttl(ttl)? })
}

/// A time to live: seconds, or a duration such as `500ms`.
fn parse_ttl(text: &[u8]) -> Result<Duration, String> {
    let seconds = || Some(SECOND * u32::try_from(integer(text).ok()?).ok()?);
    let duration = || parse_duration(std::str::from_utf8(text).ok()?).ok();
    let ttl = seconds().or_else(duration).filter(|ttl| !ttl.is_zero() && *ttl <= TTL_MAX);
    ttl.ok_or_else(|| "the ttl is in seconds, or a duration such as 500ms: more than 0 and at most 1h".into())
}

fn parse_id(text: &[u8]) -> Result<HeldId, String> {
    let text = std::str::from_utf8(text).map_err(|_| IdError::Invalid.to_string())?;
    HeldId::parse(HeldKind::Slot, text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c8_commands_on_slots_are_parsed_and_mistakes_say_what_to_send() {
        let parse = |line: &'static str| {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            SlotCommand::parse(std::str::from_utf8(words[0]).unwrap(), &words[1..]).unwrap()
        };
        assert!(matches!(
            parse("toll.acquire jobs 5 30"),
            Ok(SlotCommand::Inline { key, slots, ttl })
                if key == "jobs" && slots == Limit::concurrent(5) && ttl == 30 * SECOND
        ));
        for line in ["toll.acquire client a TTL 500ms", "toll.acquire TTL 500ms client a COST 3"] {
            assert!(matches!(
                parse(line),
                Ok(SlotCommand::ByRules { ttl, .. }) if ttl == Duration::from_millis(500)
            ));
        }
        let wrong = |line, part: &str| {
            let error = parse(line).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        };
        wrong("toll.acquire jobs 0 30", "from 1 to 8192");
        wrong("toll.acquire jobs x 30", "not an integer");
        wrong("toll.acquire jobs 5 0", "more than 0 and at most 1h");
        wrong("toll.acquire jobs 5 2h", "more than 0 and at most 1h");
        wrong("toll.acquire client a", "send key n ttl");
        wrong("toll.acquire client a TTL 1 TTL 2", "send key n ttl");
        wrong("toll.renew x", "wrong number of arguments");
        wrong("toll.release ?", "does not exist");
    }
}
