//! Parses frames into commands.

use std::borrow::Cow;

use smallvec::SmallVec;
use tollgate::{AsRequest, MAX_COUNT, Request};

use super::frame::Frame;
use super::throttle::{LastLimit, Throttle, integer};
use crate::app::App;
use crate::inline::THROTTLE;
use crate::value::value_of;

/// A parsed command.
#[derive(Debug)]
pub(super) enum Command<'a> {
    /// A check.
    Decide(CheckRequest<'a>),
    /// A check that changes nothing.
    Peek(CheckRequest<'a>),
    /// Any other command, by its name in lower case.
    Other(String),
}

/// A check, and the form of its reply.
#[derive(Debug)]
pub(super) enum CheckRequest<'a> {
    /// `CL.THROTTLE`
    Throttle(Throttle<'a>),
    /// `TOLL.CHECK`
    Check(Check<'a>),
}

/// The error for too few arguments.
const USAGE: &str = "wrong number of arguments for 'toll.check' command; \
                     send attribute value [attribute value …] [COST n] [PEEK]";

/// `TOLL.CHECK attribute value [attribute value …] [COST n] [PEEK]`
#[derive(Debug)]
pub(super) struct Check<'a> {
    attributes: Vec<(&'a str, Cow<'a, str>)>,
    cost: u64,
}

impl<'a> Command<'a> {
    /// Parses a complete frame.
    ///
    /// # Errors
    /// A sentence for the error reply.
    pub(super) fn read(
        app: &App,
        last: &mut LastLimit,
        frame: &Frame,
        bytes: &'a [u8],
    ) -> Result<Self, String> {
        let mut arguments = frame.arguments(bytes);
        let name = arguments.next().unwrap_or_default();
        if name.eq_ignore_ascii_case(THROTTLE.as_bytes()) {
            let throttle = Throttle::read(app, last, arguments)?;
            // A quantity of 0 peeks, so that not even a changed limit converts the state.
            let wrap = if throttle.is_peek() { Self::Peek } else { Self::Decide };
            return Ok(wrap(CheckRequest::Throttle(throttle)));
        }
        if name.eq_ignore_ascii_case(b"toll.check") {
            let (check, peek) = Check::read(arguments)?;
            let wrap = if peek { Self::Peek } else { Self::Decide };
            return Ok(wrap(CheckRequest::Check(check)));
        }
        Ok(Self::Other(String::from_utf8_lossy(name).to_lowercase()))
    }
}

impl<'a> Check<'a> {
    fn read(mut arguments: impl ExactSizeIterator<Item = &'a [u8]>) -> Result<(Self, bool), String> {
        let (mut attributes, mut cost, mut peek) = (Vec::<(&str, _)>::new(), None, false);
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
            if attributes.iter().any(|(known, _)| known.as_bytes() == name) {
                return Err(twice());
            }
            let name = std::str::from_utf8(name).map_err(|_| "an attribute name is not UTF-8")?;
            attributes.push((name, value_of(value)));
        }
        if attributes.is_empty() {
            return Err(USAGE.into());
        }
        Ok((Self { attributes, cost: cost.unwrap_or(1) }, peek))
    }
}

impl AsRequest for &Check<'_> {
    fn with_request<R>(&self, f: impl FnOnce(Request<'_>) -> R) -> R {
        let pairs: SmallVec<[(&str, &str); 4]> =
            self.attributes.iter().map(|(name, value)| (*name, &**value)).collect();
        match pairs.as_slice() {
            [(tollgate::CLIENT, client)] => f(Request::client(client).cost(self.cost)),
            pairs => f(Request::new(pairs).cost(self.cost)),
        }
    }
}

impl AsRequest for &CheckRequest<'_> {
    fn with_request<R>(&self, f: impl FnOnce(Request<'_>) -> R) -> R {
        match self {
            CheckRequest::Throttle(throttle) => throttle.with_request(f),
            CheckRequest::Check(check) => check.with_request(f),
        }
    }
}
