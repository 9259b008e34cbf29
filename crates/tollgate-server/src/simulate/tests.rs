//! B10: `simulate` decides as a server does, request by request, and both as the oracle does.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tollgate::{Decision, ManualClock, Request, Timestamp};
use tollgate_http::millis_ceil;
use tollgate_testkit::Random;
use tollgate_testkit::oracle::{Oracle, Verb};

use super::candidate::{Candidate, Configured};
use super::field::Field;
use super::input::Input;
use super::options::FormatChoice;
use super::progress::Progress;
use super::reader::Extraction;
use super::replay::{Consumer, replay};
use super::steps::Steps;
use super::traffic::Traffic;
use crate::config::Origin;
use crate::{App, Listeners, serve};

const REQUESTS: usize = 1_000_000;

/// Requests that the oracle decides, too, which keeps whole histories, and a server over sockets.
const SAMPLE: usize = 2_000;

/// Every algorithm, several rules, keys and costs.
const RULES: &str = r#"
    [[rule]]
    name = "global"
    limit = "900/s burst 1200"
    [[rule]]
    name = "per-client"
    key = ["client"]
    limit = ["5/s burst 9", "200/min sliding"]
    [[rule]]
    name = "per-path"
    key = ["client", "path"]
    limit = "40/10s log"
    cost = 2
    [[rule]]
    name = "deep"
    key = ["client"]
    limit = "20 refill 4/s reserve 40 refill 1/s"
    [[rule]]
    name = "window"
    key = ["path"]
    limit = "20000/min fixed"
    [[rule]]
    name = "watch"
    key = ["client"]
    limit = "2/min"
    shadow = true
"#;

struct Call {
    millis: u64,
    client: u64,
    path: &'static str,
    cost: u64,
}

fn calls(requests: usize) -> Vec<Call> {
    let mut random = Random(7);
    let mut below = |bound| random.below(bound);
    let mut millis = 1_800_000_000_000;
    let mut call = |_| {
        millis += [0, 0, 0, 1, 1, 2, 3, 7][usize::try_from(below(8)).unwrap()];
        // Low numbers are busier.
        let clients = below(400);
        let path = ["/", "/login", "/search"][usize::try_from(below(3)).unwrap()];
        Call {
            millis,
            client: below(clients + 1),
            path,
            cost: [1, 1, 1, 0, 2, 5][usize::try_from(below(6)).unwrap()],
        }
    };
    (0..requests).map(&mut call).collect()
}

/// What is compared of a decision.
#[derive(Debug, PartialEq)]
struct Seen {
    allowed: bool,
    remaining: u64,
    retry_after: Option<Duration>,
}

impl From<&Decision> for Seen {
    fn from(decision: &Decision) -> Self {
        let summary = decision.summary();
        Self {
            allowed: decision.allowed(),
            remaining: summary.remaining,
            retry_after: summary.verdict.retry_after(),
        }
    }
}

/// Keeps every decision.
struct Recorder {
    candidate: Candidate,
    seen: Vec<Seen>,
}

impl Consumer for Recorder {
    fn take(&mut self, steps: &Steps) {
        let Self { candidate, seen } = self;
        candidate.decide(steps, |_| true, |_, decision| seen.push(Seen::from(decision.unwrap())));
    }
}

fn simulated(config: &Path, log: PathBuf) -> Vec<Seen> {
    let configured = Configured::read(config, false).unwrap();
    let attributes = vec!["path".to_owned()];
    assert!(configured.attributes().eq(&attributes));
    let extraction = Extraction {
        format: FormatChoice::Auto,
        names: Vec::new(),
        key: vec!["address".parse().unwrap()],
        cost: Some(Field::Named("cost".into())),
        attributes: vec![("path".to_owned(), Field::Path)],
        has_configuration: true,
    };
    let logs = Input::find(&[log], false).unwrap();
    let mut recorder = Recorder { candidate: configured.candidate(&attributes).unwrap(), seen: Vec::new() };
    let progress = Progress::new("", &logs);
    replay(&logs, &extraction, &mut Traffic::new(), &mut [&mut recorder], &progress).unwrap();
    recorder.seen
}

/// Calls, the rules that they are decided by, and what `simulate` decides.
struct World {
    directory: PathBuf,
    origin: Origin,
    calls: Vec<Call>,
    simulated: Vec<Seen>,
}

impl World {
    fn new(name: &str, requests: usize) -> Self {
        let directory = std::env::temp_dir().join(format!("tollgate-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let (config, log) = (directory.join("tollgate.toml"), directory.join("log.csv"));
        fs::write(&config, RULES).unwrap();
        let calls = calls(requests);
        let mut text = "time,address,path,cost\n".to_owned();
        for Call { millis, client, path, cost } in &calls {
            writeln!(text, "{millis},c{client},{path},{cost}").unwrap();
        }
        fs::write(&log, text).unwrap();
        let simulated = simulated(&config, log);
        assert_eq!(simulated.len(), calls.len());
        Self { directory, origin: Origin { file: Some(config), ..Origin::default() }, calls, simulated }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

#[test]
fn b10_a_million_requests_are_decided_as_a_server_and_the_oracle_decide_them() {
    let World { origin, calls, simulated, .. } = &World::new("equal", REQUESTS);
    let (loaded, clock) = (origin.load().unwrap(), ManualClock::default());
    let mut oracle = Oracle::new(loaded.rules.rules(), Duration::from_millis(1));
    let app = App::new(origin.clone(), loaded, Arc::new(clock.clone())).unwrap();
    let mut denied = 0;
    for (index, (call, simulated)) in calls.iter().zip(simulated).enumerate() {
        let (now, client) = (Timestamp::from_millis(call.millis), format!("c{}", call.client));
        clock.set(now);
        let attributes = [("client", client.as_str()), ("path", call.path)];
        let decision = app.check_in_memory(Request::new(&attributes).cost(call.cost)).unwrap().unwrap();
        assert_eq!(*simulated, Seen::from(&decision), "request {index}");
        if index < SAMPLE {
            let expected = oracle.ask(Verb::Check, &attributes, call.cost, now);
            let admitted = expected.iter().filter(|limit| limit.rule != "watch").all(|limit| limit.allowed);
            assert_eq!(simulated.allowed, admitted, "request {index}: {expected:?}");
        }
        denied += u32::from(!simulated.allowed);
    }
    assert!((100_000..900_000).contains(&denied), "both outcomes are frequent: {denied}");
}

/// Half of them over HTTP and half over the Redis protocol, which draw on the same budgets.
#[test]
fn b10_a_sample_is_decided_over_real_sockets_as_it_is_simulated() {
    let World { origin, calls, simulated, .. } = &World::new("sockets", SAMPLE);
    let (loaded, clock) = (origin.load().unwrap(), ManualClock::default());
    let app = Arc::new(App::new(origin.clone(), loaded, Arc::new(clock.clone())).unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listen = || runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let (http, resp) = (listen(), listen());
    let connect = |listener: &tokio::net::TcpListener| {
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_nodelay(true).unwrap();
        BufReader::new(stream)
    };
    let mut streams = [connect(&http), connect(&resp)];
    let listeners = Listeners { http: Some(http), grpc: None, resp: Some(resp) };
    runtime.spawn(serve(listeners, app, std::future::pending()));
    let mut denied = 0;
    for (index, (call, simulated)) in calls.iter().zip(simulated).enumerate() {
        clock.set(Timestamp::from_millis(call.millis));
        let answer = match index % 2 {
            0 => over_http(&mut streams[0], call),
            _ => over_resp(&mut streams[1], call),
        };
        let retry = simulated.retry_after.map(millis_ceil);
        assert_eq!(answer, (simulated.allowed, Some(simulated.remaining), retry), "request {index}");
        denied += u32::from(!simulated.allowed);
    }
    assert!(denied > 100, "both outcomes are frequent: {denied}");
}

/// Whether a request is allowed, what remains, and the milliseconds to wait.
type Answer = (bool, Option<u64>, Option<u64>);

fn over_http(stream: &mut BufReader<TcpStream>, call: &Call) -> Answer {
    let Call { client, path, cost, .. } = call;
    let attributes = serde_json::json!({ "client": format!("c{client}"), "path": path });
    let body = serde_json::json!({ "attributes": attributes, "cost": cost }).to_string();
    let head = "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length";
    write!(stream.get_mut(), "{head}: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut length = 0;
    loop {
        let line = line(stream).to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(bytes) = line.strip_prefix("content-length: ") {
            length = bytes.parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    (body["allowed"].as_bool().unwrap(), body["remaining"].as_u64(), body["retryAfterMs"].as_u64())
}

fn over_resp(stream: &mut BufReader<TcpStream>, call: &Call) -> Answer {
    let Call { client, path, cost, .. } = call;
    write!(stream.get_mut(), "TOLL.CHECK client c{client} path {path} COST {cost}\r\n").unwrap();
    let length: usize = line(stream).strip_prefix('*').unwrap().parse().unwrap();
    // Names and texts are bulk strings, whose length has a line of its own.
    let mut value = || match line(stream) {
        bulk if bulk.starts_with('$') && bulk != "$-1" => line(stream),
        other => other,
    };
    let fields: HashMap<String, String> = (0..length / 2).map(|_| (value(), value())).collect();
    let number = |name: &str| fields[name].strip_prefix(':').and_then(|number| number.parse().ok());
    (number("allowed") == Some(1), number("remaining"), number("retry_after_ms"))
}

fn line(stream: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}
