//! The log: on standard error, pretty on a terminal and JSON otherwise.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::LogFormat;

/// Installs the logger.
pub(crate) fn start(filter: Targets, format: LogFormat) {
    let pretty = match format {
        LogFormat::Auto => io::stderr().is_terminal(),
        LogFormat::Pretty => true,
        LogFormat::Json => false,
    };
    let lines = fmt::layer().with_writer(io::stderr).with_ansi(io::stderr().is_terminal());
    let filtered = tracing_subscriber::registry().with(filter);
    // A logger that is already installed stays.
    let _ = if pretty {
        filtered.with(lines).try_init()
    } else {
        filtered.with(lines.json().flatten_event(true).with_span_list(false)).try_init()
    };
}
