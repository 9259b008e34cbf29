//! Servers side by side, a table for each protocol; for HTTP under `wrk`: tollgate, an axum handler
//! that does nothing, nginx with `limit_req`, and throttlecrab's server. One thread answers in
//! each; the load generator has the other processor.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process::{Process, free_address, one_worker};
use crate::turns::{Contender, ROUNDS, Turn, compare};
use crate::{grpc, resp};

const SECONDS: u64 = 4;

/// What tollgate answers, for those who answer the same to everyone.
const ANSWER: &str = r#"{"allowed":true,"remaining":999999999,"resetAt":1700000060000,"limit":1000000000,"retryAfterMs":0,"rule":"per-client","degraded":false}"#;

/// Measures all of them, or those of one protocol, and says it in Markdown.
pub fn table(root: &Path, wanted: &str) -> String {
    let protocols: [(&str, fn(&Path) -> String); 3] =
        [("http", http), ("resp", resp::table), ("grpc", grpc::table)];
    let mut text = format!(
        "## Servers\n\nWritten by `cargo xtask bench --server`: one worker thread in each server, client and server on the same two \
         processors; medians of {ROUNDS} rounds in which everyone has a turn. The ratios are medians of the rounds' own.\n"
    );
    for (_, table) in protocols.iter().filter(|(name, _)| name.contains(wanted)) {
        text += "\n";
        text += &table(root);
    }
    text
}

fn http(root: &Path) -> String {
    let work = root.join("bench/target/servers");
    fs::create_dir_all(&work).expect("a writable project");
    let script = throttle_script(&work);
    let (tollgate, bare, nginx) = (Process::tollgate(root, "http"), Process::own("bare"), nginx(&work));
    let throttlecrab = Process::throttlecrab(root, "http");
    let rows = compare(&mut [
        Contender::new("tollgate", &tollgate, || wrk(&tollgate, "check/alice", None)),
        Contender::new("axum, a constant", &bare, || wrk(&bare, "check/alice", None)),
        Contender::new("nginx, limit_req", &nginx, || wrk(&nginx, "check/alice", None)),
        Contender::new("throttlecrab-server", &throttlecrab, || {
            wrk(&throttlecrab, "throttle", Some(&script))
        }),
    ]);
    format!("### HTTP\n\n`wrk -t1 -c50 -d{SECONDS}s`.\n\n{rows}")
}

/// Serves nothing but a constant, as fast as axum can.
pub fn serve_bare(address: &str) {
    use axum::Router;
    use axum::http::header::CONTENT_TYPE;
    use axum::routing::get;

    one_worker().block_on(async {
        let listener = tokio::net::TcpListener::bind(address).await.expect("a free port");
        println!("ready");
        let handler = || async { ([(CONTENT_TYPE, "application/json")], ANSWER) };
        let router: Router = Router::new().route("/check/{client}", get(handler));
        // As the others do: small answers leave at once.
        let listener = axum::serve::ListenerExt::tap_io(listener, |stream| drop(stream.set_nodelay(true)));
        axum::serve(listener, router).await.expect("a listener");
    });
}

fn nginx(work: &Path) -> Process {
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
    Process::start(address, Command::new("nginx").arg("-c").arg(&file))
}

/// How `wrk` is to ask throttlecrab: not with a plain GET.
fn throttle_script(work: &Path) -> PathBuf {
    let script = work.join("throttle.lua");
    let body =
        r#"{"key":"alice","max_burst":1000000000,"count_per_period":1000000000,"period":1,"quantity":1}"#;
    let lua = format!(
        "wrk.method = 'POST'\nwrk.body = '{body}'\nwrk.headers['content-type'] = 'application/json'\n"
    );
    fs::write(&script, lua).expect("a writable project");
    script
}

fn wrk(process: &Process, path: &str, script: Option<&Path>) -> Turn {
    let mut wrk = Command::new("wrk");
    wrk.args(["-t1", "-c50", "--latency", &format!("-d{SECONDS}s")]);
    if let Some(script) = script {
        wrk.arg("-s").arg(script);
    }
    let output =
        wrk.arg(format!("http://{}/{path}", process.address)).stderr(Stdio::inherit()).output().expect("wrk");
    let said = BufReader::new(&output.stdout[..]).lines().map_while(Result::ok).collect::<Vec<_>>();
    assert!(!said.iter().any(|line| line.contains("Non-2xx")), "{wrk:?}: {said:?}");
    let field = |name: &str| {
        let line =
            said.iter().find_map(|line| line.trim().strip_prefix(name)).unwrap_or_else(|| panic!("{said:?}"));
        line.trim().to_owned()
    };
    Turn {
        requests: said
            .iter()
            .find_map(|line| line.trim().split_once(" requests in ")?.0.parse().ok())
            .expect("a count"),
        per_second: field("Requests/sec:").parse().expect("a number"),
        p99_ms: Some(milliseconds(&field("99%"))),
    }
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
