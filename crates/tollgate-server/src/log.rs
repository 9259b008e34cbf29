//! The log: on standard error, pretty on a terminal and JSON otherwise.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

/// Installs the logger.
pub(crate) fn start(filter: &str, format: LogFormat) {
    let pretty = match format {
        LogFormat::Auto => io::stderr().is_terminal(),
        LogFormat::Pretty => true,
        LogFormat::Json => false,
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());
    // A logger that is already installed stays.
    let _ = if pretty {
        builder.try_init()
    } else {
        builder.json().flatten_event(true).with_span_list(false).try_init()
    };
}
