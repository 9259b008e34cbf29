//! Parses frames into commands.

use std::borrow::Cow;

use smallvec::SmallVec;
use tollgate::{Caller, MAX_COUNT, RequestBuf};

use super::frame::Frame;
use super::slot::SlotCommand;
use super::throttle::{Throttle, integer};
use crate::inline::THROTTLE;
use crate::value::{attribute_value, value_of};

/// A parsed command.
#[derive(Debug)]
pub(super) enum Command<'a> {
    /// `CL.THROTTLE`
    Throttle(Throttle<'a>),
    /// `TOLL.CHECK`
    Check(Check<'a>),
    /// `TOLL.RECORD`
    Record(Check<'a>),
    /// `TOLL.ACQUIRE`, `TOLL.RENEW` or `TOLL.RELEASE`
    Slot(SlotCommand<'a>),
    /// A command for administrators. Others do not learn that its arguments are wrong.
    Admin(Result<Admin<'a>, String>),
    /// `EXEC`
    Exec,
    /// Any other command.
    Other(Other<'a>),
}

/// A command for administrators.
#[derive(Debug)]
pub(super) enum Admin<'a> {
    /// `TOLL.RESET client`
    Reset(Cow<'a, str>),
    /// `TOLL.RULES`
    Rules,
}

/// A command that has nothing to do with limits.
#[derive(Debug)]
pub(super) struct Other<'a> {
    /// In lower case.
    pub(super) name: String,
    pub(super) arguments: SmallVec<[&'a [u8]; 8]>,
}

/// The error for too few arguments.
const USAGE: &str = "wrong number of arguments for 'toll.check' command; \
                     send attribute value [attribute value …] [COST n] [PEEK]";

/// `TOLL.CHECK attribute value [attribute value …] [COST n] [PEEK]`
#[derive(Debug)]
pub(super) struct Check<'a> {
    pub(super) request: RequestBuf<'a>,
    pub(super) peek: bool,
}

impl<'a> Command<'a> {
    /// Parses a complete frame.
    ///
    /// # Errors
    /// A sentence for the error reply.
    pub(super) fn parse(frame: &Frame, bytes: &'a [u8]) -> Result<Self, String> {
        let mut arguments = frame.arguments(bytes);
        let name = arguments.next().unwrap_or_default();
        if name.eq_ignore_ascii_case(THROTTLE.as_bytes()) {
            return Throttle::parse(arguments).map(Self::Throttle);
        }
        if name.eq_ignore_ascii_case(b"toll.check") {
            return Check::parse(arguments).map(Self::Check);
        }
        if name.eq_ignore_ascii_case(b"toll.record") {
            return Check::parse(arguments)
                .map_err(|error| error.replace("toll.check", "toll.record"))
                .and_then(|check| match check.peek {
                    true => Err("a record cannot PEEK; TOLL.CHECK can".into()),
                    false => Ok(Self::Record(check)),
                });
        }
        let name = String::from_utf8_lossy(name).to_lowercase();
        let arguments: SmallVec<[&[u8]; 8]> = arguments.collect();
        if let Some(slot) = SlotCommand::parse(&name, &arguments) {
            return slot.map(Self::Slot);
        }
        Ok(match (name.as_str(), arguments.as_slice()) {
            ("toll.reset", [client]) => Self::Admin(Ok(Admin::Reset(value_of(client)))),
            ("toll.rules", []) => Self::Admin(Ok(Admin::Rules)),
            ("toll.reset" | "toll.rules", _) => Self::Admin(Err(wrong_arity(&name))),
            ("exec", []) => Self::Exec,
            _ => Self::Other(Other { name, arguments }),
        })
    }
}

/// The error for a wrong number of arguments.
pub(super) fn wrong_arity(name: &str) -> String {
    format!("wrong number of arguments for '{name}' command")
}

impl<'a> Check<'a> {
    /// The check of this caller.
    pub(super) fn sent_by(mut self, caller: Caller) -> Self {
        self.request = self.request.caller(caller);
        self
    }

    pub(super) fn parse(mut arguments: impl Iterator<Item = &'a [u8]>) -> Result<Self, String> {
        let (mut request, mut cost, mut peek) = (RequestBuf::default(), None, false);
        while let Some(name) = arguments.next() {
            if name.eq_ignore_ascii_case(b"PEEK") {
                peek = true;
                continue;
            }
            let Some(value) = arguments.next() else { return Err(USAGE.into()) };
            let twice = || format!("'{}' is given twice", name.escape_ascii());
            if name.eq_ignore_ascii_case(b"COST") {
                let units = u64::try_from(integer(value)?).ok().filter(|cost| *cost <= MAX_COUNT);
                let units = units.ok_or_else(|| format!("the cost is from 0 to {MAX_COUNT}"))?;
                if cost.replace(units).is_some() {
                    return Err(twice());
                }
                continue;
            }
            let attribute = std::str::from_utf8(name).map_err(|_| "an attribute name is not UTF-8")?;
            if request.get(attribute).is_some() {
                return Err(twice());
            }
            request.push(attribute, attribute_value(attribute, value));
        }
        if request.is_empty() {
            return Err(USAGE.into());
        }
        Ok(Self { request: request.cost(cost.unwrap_or(1)), peek })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &[u8]) -> Result<Command<'_>, String> {
        let mut frame = Frame::default();
        assert_eq!(frame.read(line), Ok(Some(line.len())));
        Command::parse(&frame, line)
    }

    /// Limits are resolved later: parsing accepts those that the limiter rejects.
    #[test]
    fn commands_are_parsed_without_a_limiter() {
        let throttle = parse(b"cl.throttle k 9 1 0 0\r\n");
        assert!(matches!(throttle, Ok(Command::Throttle(throttle)) if throttle.is_peek()));
        assert!(matches!(parse(b"CL.THROTTLE k 9 1 0\r\n"), Ok(Command::Throttle(call)) if !call.is_peek()));
        assert!(matches!(parse(b"TOLL.CHECK client a PEEK\r\n"), Ok(Command::Check(check)) if check.peek));
        assert!(matches!(parse(b"toll.check client a\r\n"), Ok(Command::Check(check)) if !check.peek));
        assert!(matches!(parse(b"toll.record client a COST 9\r\n"), Ok(Command::Record(_))));
        assert!(parse(b"toll.record client a PEEK\r\n").is_err());
        assert!(matches!(parse(b"PiNG\r\n"), Ok(Command::Other(other)) if other.name == "ping"));
        assert!(matches!(parse(b"EXEC\r\n"), Ok(Command::Exec)));
        let reset = parse(b"Toll.Reset ann\r\n");
        assert!(matches!(reset, Ok(Command::Admin(Ok(Admin::Reset(client)))) if client == "ann"));
        assert!(matches!(parse(b"toll.rules\r\n"), Ok(Command::Admin(Ok(Admin::Rules)))));
        assert!(matches!(parse(b"toll.rules x\r\n"), Ok(Command::Admin(Err(_)))));
        assert!(parse(b"CL.THROTTLE k 9 x 1\r\n").is_err() && parse(b"TOLL.CHECK client\r\n").is_err());
    }
}
