//! `tollgate simulate`: what a limit would have done to the traffic of a log.
//!
//! The log is replayed through the limiter of the server, on the log's own time. Memory is bounded
//! by the number of clients, and does not grow with the lines. What it does not promise: a client
//! that had been denied might have behaved differently, which no log can tell.

use std::fs;

mod candidate;
mod field;
mod format;
mod html;
mod input;
mod key;
mod lines;
mod merge;
mod options;
mod progress;
mod reader;
mod replay;
mod report;
mod session;
mod steps;
mod suggest;
mod terminal;
mod time;
mod timeline;
mod trace;
mod traffic;
mod trial;

pub(crate) use options::Options;
use session::Session;

/// Runs the simulation and returns what goes to standard output.
///
/// # Errors
/// A sentence that says what to do.
pub(crate) fn run(options: &Options, colour: bool) -> Result<String, String> {
    let mut session = Session::new(options, colour)?;
    let mut report = session.first_pass()?;
    if options.suggest {
        session.suggest(&mut report)?;
    }
    if let Some(page) = &options.html {
        session.trace(&mut report)?;
        fs::write(page, html::page(&report)?)
            .map_err(|error| format!("cannot write {}: {error}; name another path", page.display()))?;
    }
    if options.json {
        let json = serde_json::to_string(&report).map_err(|error| error.to_string())?;
        return Ok(format!("{json}\n"));
    }
    let page = options.html.as_ref().map(|page| format!("\nwrote {}\n", page.display()));
    Ok(terminal::render(&report) + &page.unwrap_or_default())
}

#[cfg(test)]
mod tests;
