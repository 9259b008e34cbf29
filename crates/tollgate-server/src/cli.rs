//! The command line.
//!
//! What a person did wrong is one sentence on standard error that says what to do. Standard output
//! is for answers.

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use tollgate::{Limit, MAX_COUNT};

use crate::{ask, serve_until_signal};

/// What a command that did not work exits with. (1 is a denial.)
const FAILED: u8 = 2;

/// Allow at most so many requests per client per time.
#[derive(Debug, Parser)]
#[command(
    name = "tollgate",
    version,
    after_help = "\
Examples:
  tollgate serve                          10 per 60 s per client, on http://127.0.0.1:8080
  curl localhost:8080/check/alice         may alice go ahead?
  tollgate check alice                    the same, for scripts"
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Answer requests over HTTP until told to stop
    #[command(after_help = "\
Examples:
  tollgate serve                                       10 per 60 s per client
  tollgate serve --limit \"100/s burst 200\"             a token bucket instead
  tollgate serve --http 127.0.0.1:0                    on a free port; the ready line says which

SIGTERM and SIGINT finish what is in flight and exit 0.")]
    Serve {
        /// Where to listen for HTTP
        #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
        http: String,
        /// What each client may do, such as "10/60s fixed", "100/s burst 200" or "50/hour sliding"
        #[arg(long, default_value = "10/60s fixed")]
        limit: Limit,
    },
    /// Ask a running server whether a client may go ahead: exit 0 allowed, 1 denied, 2 error
    #[command(after_help = "\
Examples:
  tollgate check alice
  tollgate check alice --cost 5
  tollgate check alice --cost 0                        look, and take nothing
  if tollgate check \"$USER\"; then backup; fi")]
    Check {
        /// Who
        client: String,
        /// The server
        #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
        server: String,
        /// How much
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=MAX_COUNT))]
        cost: u64,
    },
}

/// Does what the process's arguments say.
#[must_use]
pub fn run() -> ExitCode {
    match Cli::parse().command {
        None => print(&Cli::command().render_help().to_string()),
        Some(Command::Serve { http, limit }) => match serve_until_signal(&http, limit) {
            Ok(()) => ExitCode::SUCCESS,
            Err(complaint) => fail(&complaint),
        },
        Some(Command::Check { client, server, cost }) => match ask::check(&server, &client, cost) {
            Ok(answer) => {
                let printed = print(&format!("{answer}\n"));
                if answer.allowed { printed } else { ExitCode::from(1) }
            }
            Err(complaint) => fail(&complaint),
        },
    }
}

fn print(text: &str) -> ExitCode {
    // A closed pipe (`tollgate | head -1`) is the reader's choice, not a failure.
    let _ = io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

fn fail(complaint: &str) -> ExitCode {
    let _ = writeln!(io::stderr(), "tollgate: {complaint}");
    ExitCode::from(FAILED)
}
