//! The command line.
//!
//! What a person did wrong is one sentence on standard error that says what to do, or shows where
//! in a file it is. Standard output is for answers.

use std::fs::OpenOptions;
use std::io::{self, IsTerminal as _, Write as _};
use std::panic::{self, PanicHookInfo};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use tollgate::{Limit, MAX_COUNT, MemoryStore, block_on};
use tollgate_disk::DiskStore;

use crate::config::{Flags, Origin, STARTER, WORKERS_MAX, is_yaml};
use crate::{ask, loading, serve_until_signal};

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
  tollgate check alice                    the same, for scripts
  tollgate init                           a configuration to start from
  tollgate validate tollgate.toml         what it means, or what is wrong with it
  tollgate serve --config tollgate.toml   serve it; change it and it takes effect"
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Answer requests over HTTP, gRPC and the Redis protocol until told to stop
    #[command(after_help = "\
Examples:
  tollgate serve                                       10 per 60 s per client
  tollgate serve --limit \"100/s burst 200\"             a token bucket instead
  tollgate serve --http 127.0.0.1:0                    on a free port; the ready line says which
  tollgate serve --data /var/lib/tollgate              counts survive restarts and crashes
  tollgate serve --redis redis://127.0.0.1:6379        with other servers, one budget for all
  tollgate serve --envoy-config ratelimit/             Envoy's limits, as its reference service has them
  tollgate serve --config /etc/tollgate/tollgate.toml  rules and settings from a file
  TOLLGATE_STORE_MAX_KEYS=5000000 tollgate serve       any setting of the file, from the environment

The file is read again on SIGHUP and when it changes: counts are kept, and a file with a mistake
changes nothing. SIGTERM and SIGINT finish what is in flight and exit 0; a second one does not wait
for stop_delay.")]
    Serve {
        /// The configuration; `tollgate init` writes one to start from
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Where to listen for HTTP, or off [default: 127.0.0.1:8080]
        #[arg(long, value_name = "ADDR")]
        http: Option<String>,
        /// Where to listen for gRPC, Envoy's rate limit service, or off [default: 127.0.0.1:8081]
        #[arg(long, value_name = "ADDR")]
        grpc: Option<String>,
        /// Where to listen for the Redis protocol, or off [default: 127.0.0.1:6380]
        #[arg(long, value_name = "ADDR")]
        resp: Option<String>,
        /// Limits for gRPC as Envoy's reference service has them: its YAML file, or a directory of them
        #[arg(long, value_name = "FILE-OR-DIR")]
        envoy_config: Option<PathBuf>,
        /// What each client may do, such as "10/60s fixed", "100/s burst 200" or "50/hour sliding"
        /// [default: 10/60s fixed]
        #[arg(long)]
        limit: Option<Limit>,
        /// Share budgets through Redis or Valkey: redis://[user:password@]host[:port][/database], rediss:// for TLS,
        /// redis+sentinel://h1,h2/service or redis+cluster://h1,h2
        #[arg(long, value_name = "URL", conflicts_with = "data")]
        redis: Option<String>,
        /// Keep budgets in this directory, so that they survive a restart and a crash
        #[arg(long, value_name = "DIR")]
        data: Option<PathBuf>,
        /// How many threads answer [default: one for each processor]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=WORKERS_MAX))]
        workers: Option<u64>,
    },
    /// Ask a running server whether a client may go ahead: exit 0 allowed, 1 denied, 2 error
    #[command(after_help = "\
Examples:
  tollgate check alice
  tollgate check alice --cost 5
  tollgate check alice --cost 0                        look, and take nothing
  tollgate check alice --server https://limits.example --cacert ca.pem
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
        /// Whom to believe that the server is who it says, in PEM [default: the usual authorities]
        #[arg(long, value_name = "FILE")]
        cacert: Option<PathBuf>,
    },
    /// Write a commented configuration to start from, never over a file that is there
    #[command(after_help = "\
Examples:
  tollgate init                                        writes tollgate.toml
  tollgate init /etc/tollgate/tollgate.toml
  tollgate init - | less                               only shows it")]
    Init {
        /// Where to
        #[arg(default_value = "tollgate.toml")]
        file: PathBuf,
    },
    /// Say what a configuration means, or where it is wrong and why
    #[command(after_help = "\
Examples:
  tollgate validate                                    reads tollgate.toml
  tollgate validate tollgate.toml && systemctl reload tollgate
  tollgate validate ratelimit.yaml                     limits as Envoy's reference service has them

The environment counts here too, as it does for `tollgate serve`.")]
    Validate {
        /// The configuration
        #[arg(default_value = "tollgate.toml")]
        file: PathBuf,
    },
    /// Write what is in a data directory as lines of JSON, to move it or to keep a copy
    #[command(after_help = "\
Examples:
  tollgate dump --data /var/lib/tollgate > state.jsonl
  tollgate dump --data /old | tollgate restore --data /new

No server may have the directory meanwhile. What is written is as secret as the names of the clients:
they are not in it, but whoever has it can find out whether one is.")]
    Dump {
        /// The directory
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
    },
    /// Make a data directory out of what `tollgate dump` wrote
    #[command(after_help = "\
Examples:
  tollgate restore --data /var/lib/tollgate < state.jsonl

Nothing is overwritten: a directory that has state already is refused.")]
    Restore {
        /// The directory
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
    },
    /// Write what a shell needs to complete commands
    #[command(after_help = "\
Examples:
  tollgate completions bash > /etc/bash_completion.d/tollgate
  tollgate completions zsh > ~/.zfunc/_tollgate
  tollgate completions fish > ~/.config/fish/completions/tollgate.fish")]
    Completions {
        /// Which
        shell: Shell,
    },
}

/// Does what the process's arguments say.
#[must_use]
pub fn run() -> ExitCode {
    panic::set_hook(Box::new(report));
    let done = match Cli::parse().command {
        None => Ok(Cli::command().render_help().to_string()),
        Some(Command::Serve { config, http, grpc, resp, envoy_config, limit, workers, redis, data }) => {
            let workers = workers.and_then(|workers| usize::try_from(workers).ok());
            let flags = Flags { http, grpc, resp, envoy_config, limit, workers, redis, data };
            serve_until_signal(Origin::of_process(config, flags), colour()).map(|()| String::new())
        }
        Some(Command::Check { client, server, cost, cacert }) => {
            match ask::check(&server, &client, cost, cacert.as_deref()) {
                Ok(answer) if !answer.allowed => {
                    print(&format!("{answer}\n"));
                    return ExitCode::from(1);
                }
                answer => answer.map(|answer| format!("{answer}\n")),
            }
        }
        Some(Command::Init { file }) => init(&file),
        Some(Command::Validate { file }) => validate(file),
        Some(Command::Dump { data }) => dump(&data),
        Some(Command::Restore { data }) => restore(&data),
        Some(Command::Completions { shell }) => Ok(completions(shell)),
    };
    match done {
        Ok(text) => {
            print(&text);
            ExitCode::SUCCESS
        }
        Err(complaint) => {
            // What shows a place in a file begins as compilers begin.
            let name = if complaint.contains('\n') { "" } else { "tollgate: " };
            let _ = writeln!(io::stderr(), "{name}{complaint}");
            ExitCode::from(FAILED)
        }
    }
}

fn init(file: &Path) -> Result<String, String> {
    let name = file.display();
    if file == Path::new("-") {
        return Ok(STARTER.into());
    }
    let mut written =
        OpenOptions::new().write(true).create_new(true).open(file).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => format!("{name} is there already; name another, or move it away"),
            _ => format!("cannot write {name}: {error}; name another place"),
        })?;
    written.write_all(STARTER.as_bytes()).map_err(|error| format!("cannot write {name}: {error}"))?;
    Ok(format!("wrote {name}; change it, then: tollgate serve --config {name}\n"))
}

fn validate(file: PathBuf) -> Result<String, String> {
    let name = file.display().to_string();
    let origin = match is_yaml(&file) || file.is_dir() {
        true => Origin::of_process(None, Flags { envoy_config: Some(file), ..Flags::default() }),
        false => Origin::of_process(Some(file), Flags::default()),
    };
    let config = origin.load();
    let config = config.map_err(|errors| errors.render(colour()))?;
    let warnings: String = config.warnings.iter().map(|warning| format!("warning: {warning}\n")).collect();
    Ok(format!("{name} is right.\n{warnings}\n{config}"))
}

fn dump(data: &Path) -> Result<String, String> {
    let store = DiskStore::builder(data).on_progress(loading::progress_reporter()).open_existing();
    let store = store.map_err(|error| error.to_string())?;
    match store.memory().dump(io::BufWriter::new(io::stdout().lock())) {
        // A closed pipe (`tollgate dump | head`) is the reader's choice.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write the dump: {error}"))
        }
        _ => Ok(String::new()),
    }
}

fn restore(data: &Path) -> Result<String, String> {
    let memory = MemoryStore::new().restored(io::stdin().lock()).map_err(|error| error.to_string())?;
    let store = DiskStore::builder(data).memory(memory).create().map_err(|error| error.to_string())?;
    let keys = store.memory().memory_stats().live;
    block_on(store.close()).map_err(|error| error.to_string())?;
    Ok(format!("{keys} keys are in {} now; next: tollgate serve --data {0}\n", data.display()))
}

/// Says what went wrong inside, in one line. What the storage engine stumbles over is told by whoever asked it.
fn report(panic: &PanicHookInfo<'_>) {
    let engine = panic.location().is_some_and(|place| place.file().contains("/redb-"));
    if !engine {
        let what = panic.payload_as_str().unwrap_or("for no known reason");
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(
            io::stderr(),
            "tollgate: this is a mistake in tollgate, please report it: {what} ({place})"
        );
    }
}

fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tollgate", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Whether whoever reads the errors sees colours.
fn colour() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

fn print(text: &str) {
    // A closed pipe (`tollgate | head -1`) is the reader's choice, not a failure.
    let _ = io::stdout().write_all(text.as_bytes());
}
