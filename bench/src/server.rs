//! Servers under `wrk`, side by side: tollgate, an axum handler that does nothing, nginx with `limit_req`, and throttlecrab's server.
//! One thread answers in each; the load generator has the other processor. Everyone has a turn in each round, and medians are told.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const ROUNDS: usize = 7;
const SECONDS: u64 = 4;

/// What tollgate answers, for those who answer the same to everyone.
const ANSWER: &str = r#"{"allowed":true,"remaining":999999999,"resetAt":1700000060000,"limit":1000000000,"retryAfterMs":0,"rule":"per-client","degraded":false}"#;

/// A server under test.
struct Server {
    name: &'static str,
    process: Child,
    url: String,
    /// What `wrk` is to send, if not a plain GET.
    script: Option<PathBuf>,
    rounds: Vec<Round>,
}

#[derive(Clone, Copy)]
struct Round {
    per_second: f64,
    p99_ms: f64,
    cpu_us: f64,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Measures them all, and says it in Markdown.
pub fn table(root: &Path) -> String {
    let work = root.join("bench/target/servers");
    fs::create_dir_all(&work).expect("a writable project");
    let mut servers = [tollgate(root), bare(), nginx(&work), throttlecrab(root, &work)];
    for round in 0..=ROUNDS {
        for server in &mut servers {
            let measured = server.measure();
            // The first is to warm up.
            if round > 0 {
                eprintln!("{round}/{ROUNDS} {}: {:.0} per second, p99 {:.2} ms", server.name, measured.per_second, measured.p99_ms);
                server.rounds.push(measured);
            }
        }
    }
    let mut text = format!(
        "## Servers\n\nWritten by `cargo xtask bench --server`: `wrk -t1 -c50 -d{SECONDS}s`, one worker thread in each server, client and server on \
         the same two processors; medians of {ROUNDS} rounds in which everyone has a turn. The ratios are medians of the rounds' own.\n\n\
         | server | requests per second | p99, ms | processor time per request, us | tollgate's rate to its | tollgate's p99 to its |\n\
         |---|---|---|---|---|---|\n"
    );
    let [ours, ..] = &servers;
    for server in &servers {
        let of = |part: fn(&Round) -> f64| median(server.rounds.iter().map(part).collect());
        let ratio = |part: fn(&Round) -> f64| {
            median(ours.rounds.iter().zip(&server.rounds).map(|(ours, theirs)| part(ours) / part(theirs)).collect())
        };
        let (rate, p99): (fn(&Round) -> f64, fn(&Round) -> f64) = (|round| round.per_second, |round| round.p99_ms);
        let _ = writeln!(
            text,
            "| {} | {:.0} | {:.2} | {:.2} | {:.2} | {:.2} |",
            server.name, of(rate), of(p99), of(|round| round.cpu_us), ratio(rate), ratio(p99)
        );
    }
    text
}

/// Serves nothing but a constant, as fast as axum can.
pub fn serve_bare(address: &str) {
    use axum::Router;
    use axum::http::header::CONTENT_TYPE;
    use axum::routing::get;

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(address).await.expect("a free port");
        println!("ready");
        let handler = || async { ([(CONTENT_TYPE, "application/json")], ANSWER) };
        let router: Router = Router::new().route("/check/{client}", get(handler));
        // As the others do: small answers leave at once.
        let listener = axum::serve::ListenerExt::tap_io(listener, |stream| drop(stream.set_nodelay(true)));
        axum::serve(listener, router).await.expect("a listener");
    });
}

fn tollgate(root: &Path) -> Server {
    let address = free_address();
    let mut command = Command::new(root.join("target/release/tollgate"));
    command.args(["serve", "--http", &address, "--workers", "1", "--limit", "1000000000/s"]);
    start("tollgate", &address, &mut command)
}

fn bare() -> Server {
    let address = free_address();
    let mut command = Command::new(std::env::current_exe().expect("a program"));
    start("axum, a constant", &address, command.args(["bare", &address]))
}

fn nginx(work: &Path) -> Server {
    let address = free_address();
    let directory = work.join("nginx");
    fs::create_dir_all(directory.join("check")).expect("a writable project");
    fs::write(directory.join("check/alice"), ANSWER).expect("a writable project");
    let directory = directory.display();
    let config = format!(
        "daemon off; worker_processes 1; pid {directory}/pid; error_log {directory}/error.log crit;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n\
           access_log off; default_type application/json; sendfile on; tcp_nodelay on;\n\
           open_file_cache max=10; keepalive_requests 100000000;\n\
           client_body_temp_path {directory}/a; proxy_temp_path {directory}/b; fastcgi_temp_path {directory}/c;\n\
           uwsgi_temp_path {directory}/d; scgi_temp_path {directory}/e;\n\
           limit_req_zone $uri zone=clients:10m rate=1000000r/s;\n\
           server {{ listen {address}; root {directory}; location /check/ {{ limit_req zone=clients burst=1000000 nodelay; }} }}\n\
         }}\n"
    );
    let file = work.join("nginx.conf");
    fs::write(&file, config).expect("a writable project");
    start("nginx, limit_req", &address, Command::new("nginx").arg("-c").arg(&file))
}

fn throttlecrab(root: &Path, work: &Path) -> Server {
    let address = free_address();
    let (host, port) = address.split_once(':').expect("an address");
    let script = work.join("throttle.lua");
    let body = r#"{"key":"alice","max_burst":1000000000,"count_per_period":1000000000,"period":1,"quantity":1}"#;
    let lua = format!("wrk.method = 'POST'\nwrk.body = '{body}'\nwrk.headers['content-type'] = 'application/json'\n");
    fs::write(&script, lua).expect("a writable project");
    let mut command = Command::new(root.join("bench/target/rivals/bin/throttlecrab-server"));
    command.args(["--http", "--http-host", host, "--http-port", port, "--log-level", "error"]).env("TOKIO_WORKER_THREADS", "1");
    let mut server = start("throttlecrab-server", &address, &mut command);
    server.url = format!("http://{address}/throttle");
    server.script = Some(script);
    server
}

/// Starts a server and waits until it answers.
fn start(name: &'static str, address: &str, command: &mut Command) -> Server {
    let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let process = process.unwrap_or_else(|error| panic!("{name}: {error}: {command:?}"));
    let server = Server { name, process, url: format!("http://{address}/check/alice"), script: None, rounds: Vec::new() };
    for _ in 0..500 {
        if TcpStream::connect(address).is_ok() {
            return server;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{name} does not listen on {address}");
}

impl Server {
    fn measure(&self) -> Round {
        let before = processor_seconds(self.process.id());
        let mut wrk = Command::new("wrk");
        wrk.args(["-t1", "-c50", "--latency", &format!("-d{SECONDS}s")]);
        if let Some(script) = &self.script {
            wrk.arg("-s").arg(script);
        }
        let output = wrk.arg(&self.url).stderr(Stdio::inherit()).output().expect("wrk");
        let used = processor_seconds(self.process.id()) - before;
        let said = BufReader::new(&output.stdout[..]).lines().map_while(Result::ok).collect::<Vec<_>>();
        assert!(!said.iter().any(|line| line.contains("Non-2xx")), "{}: {said:?}", self.name);
        let field = |name: &str| {
            let line = said.iter().find_map(|line| line.trim().strip_prefix(name)).unwrap_or_else(|| panic!("{said:?}"));
            line.trim().to_owned()
        };
        let requests: f64 = said.iter().find_map(|line| line.trim().split_once(" requests in ")?.0.parse().ok()).expect("a count");
        Round {
            per_second: field("Requests/sec:").parse().expect("a number"),
            p99_ms: milliseconds(&field("99%")),
            cpu_us: used * 1e6 / requests,
        }
    }
}

/// What a process and its children have used of the processors, nginx's worker being a child.
fn processor_seconds(process: u32) -> f64 {
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    let all = children.split_whitespace().filter_map(|child| child.parse().ok()).chain([process]);
    let ticks = |process: u32| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let field = |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
        field(11) + field(12)
    };
    all.map(ticks).sum::<f64>() / 100.0
}

fn milliseconds(written: &str) -> f64 {
    let split = written.find(|c: char| c.is_alphabetic()).expect("a unit");
    let number: f64 = written[..split].parse().expect("a number");
    match &written[split..] {
        "us" => number / 1e3,
        "ms" => number,
        "s" => number * 1e3,
        unit => panic!("{unit}"),
    }
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").to_string()
}
