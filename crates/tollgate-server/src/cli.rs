//! The command line.
//!
//! A user's error is one sentence on standard error that says what to do, or an excerpt of the file
//! that shows where the error is. Standard output carries only results.

use std::fs::OpenOptions;
use std::io::{self, IsTerminal as _, Write as _};
use std::panic::{self, PanicHookInfo};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use tollgate::{Limit, MAX_COUNT, MemoryStore, RuleSet, block_on};
use tollgate_disk::{DiskStore, catches_panic};

use crate::config::{Flags, Origin, STARTER, WORKERS_MAX, is_yaml};
use crate::loading;
use crate::remote::Target;
use crate::remote::check::check;
use crate::serve::serve_until_signal;
use crate::simulate;

mod administration;

use administration::{Blocks, Client, Explain, Top};

/// Exit status of a command that failed. (1 means denied.)
const FAILED: u8 = 2;

/// Rate limiting for Rust services and for any stack: exact, fast; in memory, on disk or in Redis
#[derive(Debug, Parser)]
#[command(
    name = "tollgate",
    version,
    after_help = "\
Examples:
  tollgate serve                          10 per 60 s per client, on http://127.0.0.1:8080
  curl localhost:8080/check/alice         may alice proceed?
  tollgate check alice                    the same check, for scripts
  tollgate explain client=alice           why is alice admitted or denied?
  tollgate init                           writes a commented configuration
  tollgate validate tollgate.toml         explains it, or shows its errors
  tollgate serve --config tollgate.toml   serves it; edits take effect at once
  tollgate simulate access.log --suggest  the limits that suit the traffic of a log"
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve HTTP, gRPC and the Redis protocol until SIGTERM or SIGINT
    #[command(after_help = "\
Examples:
  tollgate serve                                       10 per 60 s per client
  tollgate serve --limit \"100/s burst 200\"             a token bucket instead
  tollgate serve --http 127.0.0.1:0                    on a free port; the ready line says which
  tollgate serve --data /var/lib/tollgate              counts survive restarts and crashes
  tollgate serve --redis redis://127.0.0.1:6379        shares budgets with other servers
  tollgate serve --envoy-config ratelimit/             the YAML of Envoy's rate limit service
  tollgate serve --config /etc/tollgate/tollgate.toml  rules and settings from a file
  TOLLGATE_STORE_MAX_KEYS=5000000 tollgate serve       any setting from the environment

The file is reloaded on SIGHUP and when it changes. A reload keeps the counts; a file with an error
is rejected as a whole. SIGTERM and SIGINT finish requests in flight and exit 0; a second one skips
stop_delay.")]
    Serve {
        /// Configuration file; `tollgate init` writes a commented one
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// HTTP listen address, or off [default: 127.0.0.1:8080]
        #[arg(long, value_name = "ADDR")]
        http: Option<String>,
        /// gRPC listen address (Envoy's rate limit service), or off [default: 127.0.0.1:8081]
        #[arg(long, value_name = "ADDR")]
        grpc: Option<String>,
        /// Redis protocol listen address, or off [default: 127.0.0.1:6380]
        #[arg(long, value_name = "ADDR")]
        resp: Option<String>,
        /// YAML file of Envoy's rate limit service, or a directory of them: limits for gRPC
        #[arg(long, value_name = "FILE-OR-DIR")]
        envoy_config: Option<PathBuf>,
        /// Limit per client, such as "10/60s fixed", "100/s burst 200" or "50/hour sliding"
        /// [default: 10/60s fixed]
        #[arg(long)]
        limit: Option<Limit>,
        /// Share budgets through Redis or Valkey: redis://[user:password@]host[:port][/database],
        /// rediss:// for TLS, redis+sentinel://h1,h2/service or redis+cluster://h1,h2
        #[arg(long, value_name = "URL", conflicts_with = "data")]
        redis: Option<String>,
        /// Data directory: budgets, and limits set for single clients, survive restarts and crashes
        #[arg(long, value_name = "DIR")]
        data: Option<PathBuf>,
        /// Worker threads [default: one per processor]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=WORKERS_MAX))]
        workers: Option<u64>,
    },
    /// Check a client against a running server: exit 0 allowed, 1 denied, 2 error
    #[command(after_help = "\
Examples:
  tollgate check alice
  tollgate check alice --cost 5
  tollgate check alice --cost 0                        peek: charges nothing
  tollgate check alice --server https://limits.example --cacert ca.pem
  if tollgate check \"$USER\"; then backup; fi")]
    Check {
        /// Client name
        client: String,
        /// Cost in units
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=MAX_COUNT))]
        cost: u64,
        #[command(flatten)]
        target: Target,
    },
    /// Explain a decision, changing nothing: exit 0 if the request is admitted, 1 denied, 2 error
    #[command(after_help = "\
Examples:
  tollgate explain client=alice path=/login
  tollgate explain client=alice --cost 5
  tollgate explain client=alice --json | jq .rules
  tollgate explain client=alice --server https://limits.example --token-file admin.token")]
    Explain(Explain),
    /// Show, block, unblock or reset a client, or give it limits of its own: exit 2 on an error
    #[command(after_help = "\
Examples:
  tollgate client show alice
  tollgate client block alice --for 10m
  tollgate client unblock alice
  tollgate client reset alice
  tollgate client limit alice --rule per-client 100/s
  tollgate client limit alice --clear
  if tollgate client show alice --json > alice.json; then backup; fi")]
    Client(Client),
    /// List the blocked clients
    #[command(after_help = "\
Examples:
  tollgate blocks
  tollgate blocks --json | jq -r '.blocks[].client'")]
    Blocks(Blocks),
    /// Watch a server: rates, rules, clients
    #[command(after_help = "\
Examples:
  tollgate top
  tollgate top --server https://limits.example --token-file admin.token

Keys: s sorts the rules, / filters rules and clients, the arrows scroll, q quits.")]
    Top(Top),
    /// Write a commented configuration file; an existing file is never overwritten
    #[command(after_help = "\
Examples:
  tollgate init                                        writes tollgate.toml
  tollgate init /etc/tollgate/tollgate.toml
  tollgate init - | less                               prints it")]
    Init {
        /// File to write, or - for standard output
        #[arg(default_value = "tollgate.toml")]
        file: PathBuf,
    },
    /// Explain a configuration, or show its errors and where they are
    #[command(after_help = "\
Examples:
  tollgate validate                                    reads tollgate.toml
  tollgate validate tollgate.toml && systemctl reload tollgate
  tollgate validate ratelimit.yaml                     the YAML of Envoy's rate limit service

TOLLGATE_* variables apply here as they do to `tollgate serve`.")]
    Validate {
        /// Configuration file
        #[arg(default_value = "tollgate.toml")]
        file: PathBuf,
    },
    /// Replay access logs against limits: who would have been denied, and which limit to choose
    #[command(after_help = "\
Examples:
  tollgate simulate access.log --limit \"10/s burst 20\" --limit \"100/min sliding\"
  tollgate simulate access.log.*.gz access.log --config tollgate.toml
  tollgate simulate access.log --suggest                 limits that touch 0.1 % of clients
  tollgate simulate access.log --suggest --per hour --at-most 0.01% --of requests
  tollgate simulate api.jsonl --key header:x-api-key --cost tokens --limit \"50000/min\"
  zcat access.log.gz | tollgate simulate --limit 100/min --html report.html

Formats are detected: nginx and Apache (common, combined), JSON lines, CSV with a header, Caddy,
Traefik, Envoy, and AWS load balancers. Compressed logs (.gz, .zst) are read as they are.")]
    Simulate(Box<simulate::Options>),
    /// Write the state of a data directory as lines of JSON, for a backup or a move
    #[command(after_help = "\
Examples:
  tollgate dump --data /var/lib/tollgate > state.jsonl
  tollgate dump --data /old | tollgate restore --data /new

No server may use the directory meanwhile. POST /v1/backup dumps the state of a server that runs.
Keep the dump as secret as the clients' names: it does not contain them, but a reader can test
whether a given name is in it.")]
    Dump {
        /// Data directory
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
    },
    /// Create a data directory from the output of `tollgate dump`, or from a backup
    #[command(after_help = "\
Examples:
  tollgate restore --data /var/lib/tollgate < state.jsonl

A directory that already holds state is refused.")]
    Restore {
        /// Data directory
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
    },
    /// Write shell completions
    #[command(after_help = "\
Examples:
  tollgate completions bash > /etc/bash_completion.d/tollgate
  tollgate completions zsh > ~/.zfunc/_tollgate
  tollgate completions fish > ~/.config/fish/completions/tollgate.fish")]
    Completions {
        /// Shell
        shell: Shell,
    },
}

/// Runs the command that the process's arguments name.
#[must_use]
pub fn run() -> ExitCode {
    panic::set_hook(Box::new(report));
    let result = match Cli::parse().command {
        None => printed(Ok(Cli::command().render_help().to_string())),
        Some(Command::Serve { config, http, grpc, resp, envoy_config, limit, workers, redis, data }) => {
            let workers = workers.and_then(|workers| usize::try_from(workers).ok());
            let flags = Flags { http, grpc, resp, envoy_config, limit, workers, redis, data };
            serve_until_signal(Origin::of_process(config, flags), colour()).map(|()| ExitCode::SUCCESS)
        }
        Some(Command::Check { client, cost, target }) => {
            target.remote().and_then(|remote| check(&remote, &client, cost)).map(|answer| {
                print(&format!("{answer}\n"));
                ExitCode::from(u8::from(!answer.allowed))
            })
        }
        Some(Command::Explain(explain)) => explain.run(),
        Some(Command::Client(client)) => client.run(),
        Some(Command::Blocks(blocks)) => blocks.run(),
        Some(Command::Top(top)) => top.run(),
        Some(Command::Init { file }) => printed(init(&file)),
        Some(Command::Validate { file }) => printed(validate(file)),
        Some(Command::Simulate(options)) => printed(simulate::run(&options, colour())),
        Some(Command::Dump { data }) => printed(dump(&data)),
        Some(Command::Restore { data }) => printed(restore(&data)),
        Some(Command::Completions { shell }) => printed(Ok(completions(shell))),
    };
    match result {
        Ok(code) => code,
        Err(message) => {
            // A message of several lines is a rendered excerpt, which begins like a compiler's.
            let name = if message.contains('\n') { "" } else { "tollgate: " };
            let _ = writeln!(io::stderr(), "{name}{message}");
            ExitCode::from(FAILED)
        }
    }
}

/// Prints the result of a command that succeeded.
fn printed(result: Result<String, String>) -> Result<ExitCode, String> {
    result.map(|text| {
        print(&text);
        ExitCode::SUCCESS
    })
}

fn init(file: &Path) -> Result<String, String> {
    let name = file.display();
    if file == Path::new("-") {
        return Ok(STARTER.into());
    }
    let mut written =
        OpenOptions::new().write(true).create_new(true).open(file).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                format!("{name} already exists; name another file, or move it away")
            }
            _ => format!("cannot write {name}: {error}; name another path"),
        })?;
    written.write_all(STARTER.as_bytes()).map_err(|error| format!("cannot write {name}: {error}"))?;
    Ok(format!("wrote {name}; edit it, then: tollgate serve --config {name}\n"))
}

fn validate(file: PathBuf) -> Result<String, String> {
    let name = file.display().to_string();
    let origin = match is_yaml(&file) || file.is_dir() {
        true => Origin::of_process(None, Flags { envoy_config: Some(file), ..Flags::default() }),
        false => Origin::of_process(Some(file), Flags::default()),
    };
    let is_envoy = origin.file.is_none();
    let mut config = origin.load().map_err(|errors| errors.render(colour()))?;
    if is_envoy {
        // The default rule decides other domains, and is not in the file.
        let in_file = config.rules.rules().iter().filter(|rule| rule.is_on_demand()).cloned();
        config.rules = RuleSet::new(in_file).map_err(|error| error.to_string())?;
    }
    let warnings: String = config.warnings.iter().map(|warning| format!("warning: {warning}\n")).collect();
    Ok(format!("{name} is valid.\n{warnings}\n{config}"))
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
    Ok(format!("restored {keys} keys to {}; next: tollgate serve --data {0}\n", data.display()))
}

/// Reports a panic in one line, unless it becomes an error of the disk store.
fn report(panic: &PanicHookInfo<'_>) {
    if !catches_panic() {
        let message = panic.payload_as_str().unwrap_or("no message");
        let location = panic.location().map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(
            io::stderr(),
            "tollgate: this is a bug in tollgate, please report it: {message} ({location})"
        );
    }
}

fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tollgate", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Whether standard error shows colours.
fn colour() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

fn print(text: &str) {
    // A closed pipe (`tollgate | head -1`) is the reader's choice.
    let _ = io::stdout().write_all(text.as_bytes());
}
