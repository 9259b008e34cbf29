//! The types of settings.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use tollgate::{Limit, parse_duration};
use tracing_subscriber::filter::{LevelFilter, Targets};

use super::setting::{ParseError, Setting};
use super::tree::{Scalar, ScalarKind};

impl Setting for String {
    const EXPECTED: &'static str = "a text in quotes";

    fn from_text(text: &str) -> Result<Self, ParseError> {
        if text.is_empty() {
            Err(ParseError::new("it is empty", "write something, or leave it out"))
        } else {
            Ok(text.into())
        }
    }
}

impl Setting for u64 {
    const EXPECTED: &'static str = "a whole number";

    fn from_text(text: &str) -> Result<Self, ParseError> {
        let digits = text.replace('_', "");
        digits
            .parse()
            .map_err(|_| ParseError::new("this is not a whole number", "write digits, such as 1000"))
    }

    fn from_other(scalar: &Scalar) -> Option<Self> {
        let ScalarKind::Integer { radix } = scalar.kind else { return None };
        Self::from_str_radix(&scalar.text.replace('_', ""), radix).ok()
    }
}

impl Setting for f64 {
    const EXPECTED: &'static str = "a number";

    fn from_text(text: &str) -> Result<Self, ParseError> {
        text.parse().map_err(|_| ParseError::new("this is not a number", "write one such as 0.25"))
    }

    fn from_other(scalar: &Scalar) -> Option<Self> {
        let is_number = matches!(scalar.kind, ScalarKind::Float | ScalarKind::Integer { .. });
        is_number.then(|| scalar.text.replace('_', "").parse().ok()).flatten()
    }
}

/// A whole percentage, from 1 to 100.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Percentage(pub(crate) u8);

impl Setting for Percentage {
    const EXPECTED: &'static str = "a percentage in quotes, such as \"80%\"";

    fn from_text(text: &str) -> Result<Self, ParseError> {
        let percent = text.strip_suffix('%').and_then(|number| number.trim_end().parse().ok());
        percent
            .filter(|percent| (1..=100).contains(percent))
            .map(Self)
            .ok_or_else(|| ParseError::new("this is not a whole percentage", "write \"1%\" to \"100%\""))
    }
}

impl Setting for bool {
    const EXPECTED: &'static str = "true or false";

    fn from_text(text: &str) -> Result<Self, ParseError> {
        text.parse().map_err(|_| ParseError::new("this is neither true nor false", "write true or false"))
    }

    fn from_other(scalar: &Scalar) -> Option<Self> {
        (scalar.kind == ScalarKind::Boolean).then(|| scalar.text.parse().ok()).flatten()
    }
}

impl Setting for Duration {
    const EXPECTED: &'static str = "a duration in quotes, such as \"100ms\"";

    fn from_text(text: &str) -> Result<Self, ParseError> {
        Ok(parse_duration(text)?)
    }
}

impl Setting for Limit {
    const EXPECTED: &'static str = "a limit in quotes, such as \"100/s burst 200\"";

    fn from_text(text: &str) -> Result<Self, ParseError> {
        Ok(text.parse()?)
    }
}

/// A listen address, or `off`. A port alone is one on loopback.
pub(super) struct Address(pub(super) String);

impl Setting for Address {
    const EXPECTED: &'static str = "an address and a port in quotes, such as \"127.0.0.1:8080\", or \"off\"";

    fn from_text(text: &str) -> Result<Self, ParseError> {
        let port =
            text.rsplit_once(':').and_then(|(host, port)| (!host.is_empty()).then_some(port.parse::<u16>()));
        if text.parse::<u16>().is_ok() {
            return Ok(Self(format!("127.0.0.1:{text}")));
        }
        if text == "off" || matches!(port, Some(Ok(_))) {
            return Ok(Self(text.into()));
        }
        Err(ParseError::new("this is not an address with a port", format!("write {}", Self::EXPECTED)))
    }
}

/// A duration that may be zero.
pub(super) struct Delay(pub(super) Duration);

impl Setting for Delay {
    const EXPECTED: &'static str = Duration::EXPECTED;

    fn from_text(text: &str) -> Result<Self, ParseError> {
        if matches!(text.trim(), "0" | "0s" | "0ms") {
            Ok(Self(Duration::ZERO))
        } else {
            Duration::from_text(text).map(Self)
        }
    }
}

/// A network, or a single address.
pub(super) struct Network(pub(super) IpNet);

impl Setting for Network {
    const EXPECTED: &'static str = "a network in quotes, such as \"10.0.0.0/8\"";

    fn from_text(text: &str) -> Result<Self, ParseError> {
        let network = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        network.map(Self).map_err(|_| {
            ParseError::new("this is neither a network nor an address", format!("write {}", Self::EXPECTED))
        })
    }
}

/// A log filter: a level, or levels of targets.
impl Setting for Targets {
    const EXPECTED: &'static str = "a level in quotes, such as \"info\"";

    fn from_text(text: &str) -> Result<Self, ParseError> {
        text.split(',').map(str::trim).try_fold(Self::new(), |filter, directive| {
            Ok(match directive.split_once('=') {
                // A bracket is a filter by span, which this is not.
                Some((target, its_level)) if !target.contains('[') => {
                    filter.with_target(target.trim(), level(its_level.trim())?)
                }
                _ => filter.with_default(level(directive)?),
            })
        })
    }
}

fn level(text: &str) -> Result<LevelFilter, ParseError> {
    // `LevelFilter` reads an empty text as `error`.
    let known = text.parse().ok().filter(|_| !text.is_empty());
    known.ok_or_else(|| {
        ParseError::new(
            format!("{text:?} is not a level"),
            "write error, warn, info, debug, trace or off, or tollgate::access=debug,info",
        )
    })
}
