//! The Redis protocol under `redis-benchmark`: tollgate, a real Redis that only counts, the limiter
//! in Lua that people run in it, and throttlecrab's server.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use crate::process::{Process, free_address};
use crate::turns::{Contender, Turn, compare};

const CONNECTIONS: u64 = 50;
const CLIENTS: u64 = 100_000;
/// How long a turn takes, about.
const SECONDS: f64 = 2.0;
/// How many requests tell how many that is, and how many are enough.
const REQUESTS_TRIED: u64 = 50_000;
const REQUESTS_MAX: u64 = 2_000_000;

/// A fixed window, as it is usually written.
const LUA: &str = "\
local current = redis.call('INCR', KEYS[1])
if current == 1 then
  redis.call('EXPIRE', KEYS[1], ARGV[2])
end
if current > tonumber(ARGV[1]) then
  return 0
end
return 1
";

const CL_THROTTLE: &str = "CL.THROTTLE key:__rand_int__ 1000000 1000000 60";
const THROTTLE: &str = "THROTTLE key:__rand_int__ 1000000 1000000 60";
const INCR: &str = "INCR key:__rand_int__";

/// What the answer to a request that is admitted begins with: redis-cell says whether it is
/// limited, throttlecrab whether it is not.
const NOT_LIMITED: &str = "*5\r\n:0\r\n";
const ALLOWED: &str = "*5\r\n:1\r\n";

/// Measures them all, and says it in Markdown.
pub fn table(root: &Path) -> String {
    let (tollgate, redis, throttlecrab) =
        (Process::tollgate(root, "resp"), redis(), Process::throttlecrab(root, "redis"));
    let loaded = ask(&redis, &["SCRIPT", "LOAD", LUA]);
    let sha = loaded.lines().nth(1).unwrap_or_else(|| panic!("{loaded}"));
    // Not the keys of INCR, which have no expiry.
    let lua = format!("EVALSHA {sha} 1 lua:__rand_int__ 1000000 60");
    let pipelined = compare(&mut [
        contender("tollgate, CL.THROTTLE", &tollgate, 16, CL_THROTTLE, NOT_LIMITED),
        contender("Redis, INCR", &redis, 16, INCR, ":").goal(1.0),
        contender("Redis, a fixed window in Lua", &redis, 16, &lua, ":1\r\n").goal(3.0),
        contender("throttlecrab-server, THROTTLE", &throttlecrab, 16, THROTTLE, ALLOWED).goal(3.0),
    ]);
    let mut one_by_one = [
        contender("tollgate, CL.THROTTLE", &tollgate, 1, CL_THROTTLE, NOT_LIMITED),
        contender("tollgate, PING", &tollgate, 1, "PING", "+PONG"),
        contender("Redis, PING", &redis, 1, "PING", "+PONG").goal(0.9),
        contender("Redis, INCR", &redis, 1, INCR, ":"),
        contender("throttlecrab-server, THROTTLE", &throttlecrab, 1, THROTTLE, ALLOWED),
    ];
    let alone = compare(&mut one_by_one);
    let [_, ping, redis_ping, ..] = &one_by_one;
    format!(
        "### The Redis protocol\n\n`redis-benchmark -c {CONNECTIONS} -r {CLIENTS}`, as many requests as take about {SECONDS} s. The ratios are \
         those of `CL.THROTTLE`. A server whose rate times its processor time is well below a second was not the bound: redis-benchmark was, \
         or both waited.\n\n\
         16 requests in a pipeline, `-P 16`:\n\n{pipelined}\n\
         One request at a time on each connection, `-P 1`; the rate of tollgate's PING is {:.2} of Redis's:\n\n{alone}",
        ping.rate_to(redis_ping)
    )
}

fn redis() -> Process {
    let address = free_address();
    let (host, port) = address.split_once(':').expect("an address");
    let mut command = Command::new("redis-server");
    command.args(["--bind", host, "--port", port, "--save", "", "--appendonly", "no"]);
    Process::start(address.clone(), &mut command)
}

/// Someone who has just answered `command` as `expected`, and how many of them make a turn.
fn contender<'a>(
    name: &'static str,
    process: &'a Process,
    pipeline: u64,
    command: &str,
    expected: &str,
) -> Contender<'a> {
    let command: Vec<String> = command.split(' ').map(str::to_owned).collect();
    let arguments: Vec<&str> = command.iter().map(String::as_str).collect();
    let said = ask(process, &arguments);
    assert!(said.starts_with(expected), "{name}: {said}");
    let tried = benchmark(process, pipeline, REQUESTS_TRIED, &command);
    let requests = ((tried.per_second * SECONDS) as u64).clamp(REQUESTS_TRIED / 5, REQUESTS_MAX);
    Contender::new(name, process, move || benchmark(process, pipeline, requests, &command))
}

/// The answer to one command. The connection is told to end after it, so that what came is all of
/// it.
fn ask(process: &Process, command: &[&str]) -> String {
    let mut stream = TcpStream::connect(&process.address).expect("a listener");
    let mut sent = String::new();
    for arguments in [command, &["QUIT"]] {
        sent += &format!("*{}\r\n", arguments.len());
        sent.extend(arguments.iter().map(|argument| format!("${}\r\n{argument}\r\n", argument.len())));
    }
    stream.write_all(sent.as_bytes()).expect("a connection");
    let mut said = String::new();
    stream.read_to_string(&mut said).expect("an answer");
    said.strip_suffix("+OK\r\n").unwrap_or_else(|| panic!("{said}")).to_owned()
}

/// What redis-benchmark gets out of a server. It ends with a failure if an answer is an error.
///
/// Its latencies are not told: they are those of the first reply of a pipeline.
fn benchmark(process: &Process, pipeline: u64, requests: u64, command: &[String]) -> Turn {
    let (host, port) = process.address.split_once(':').expect("an address");
    let mut benchmark = Command::new("redis-benchmark");
    benchmark.args(["-h", host, "-p", port, "--csv"]);
    for (flag, number) in [("-c", CONNECTIONS), ("-P", pipeline), ("-r", CLIENTS), ("-n", requests)] {
        benchmark.args([flag, &number.to_string()]);
    }
    let output = benchmark.args(command).output().expect("redis-benchmark");
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let failed = !output.status.success()
        || [&said, &complained].iter().any(|text| text.contains("Error from server"));
    assert!(!failed, "{command:?}: {said}{complained}");
    let per_second = rate(&said).unwrap_or_else(|| panic!("{command:?}: {said}{complained}"));
    Turn { requests: requests as f64, per_second, p99_ms: None }
}

/// What stands under `rps`: one line of headings, one of figures, everything in quotes.
fn rate(csv: &str) -> Option<f64> {
    let fields =
        |line: &str| line.trim().trim_matches('"').split("\",\"").map(str::to_owned).collect::<Vec<_>>();
    let mut lines = csv.lines().skip_while(|line| !line.starts_with("\"test\""));
    let column = fields(lines.next()?).iter().position(|heading| heading == "rps")?;
    fields(lines.next()?).get(column)?.parse().ok()
}
