//! Settings with a syntax of their own.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use tracing_subscriber::EnvFilter;

use super::reader::{ParseError, Setting};

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

/// A log filter.
pub(super) struct Filter(pub(super) String);

impl Setting for Filter {
    const EXPECTED: &'static str = "a level in quotes, such as \"info\"";

    fn from_text(text: &str) -> Result<Self, ParseError> {
        EnvFilter::try_new(text).map_err(|error| {
            ParseError::new(
                error.to_string(),
                "write error, warn, info, debug or trace, or tollgate::access=debug,info",
            )
        })?;
        Ok(Self(text.into()))
    }
}
