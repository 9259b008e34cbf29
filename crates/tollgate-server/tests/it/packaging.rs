//! The Grafana dashboard and the alert rules of `packaging/`, tested with a real Prometheus against
//! the metrics that the server really exports.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::common::{Server, directory, eventually, parse};
use crate::redis_server::Redis;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

const RULES: &str = r#"
    [[rule]]
    name = "per-client"
    key = ["client"]
    limit = "10/60s fixed"
    [[rule]]
    name = "shadow"
    limit = "1/hour fixed"
    shadow = true
"#;

fn packaging(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(file)
}

/// The queries of the dashboard, with its variables replaced.
fn queries() -> Vec<String> {
    let text = fs::read_to_string(packaging("grafana/tollgate.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let query = |target: &Value| {
        let query = target["expr"].as_str().unwrap();
        query.replace("$__rate_interval", "1m").replace("$job", "tollgate").replace("$instance", ".*")
    };
    targets.map(query).collect()
}

/// A Prometheus that scrapes a server five times a second, killed when dropped.
struct Prometheus {
    process: Child,
    address: String,
}

impl Prometheus {
    fn scraping(server: &Server) -> Self {
        let folder = directory("packaging-prometheus");
        let config = format!(
            "global: {{scrape_interval: 200ms, scrape_timeout: 200ms}}\n\
             scrape_configs: [{{job_name: tollgate, static_configs: [{{targets: ['{}']}}]}}]\n",
            server.address
        );
        fs::write(folder.join("prometheus.yml"), config).unwrap();
        // The port is free until Prometheus binds it.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let process = Command::new("prometheus")
            .current_dir(&folder)
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data", "--log.level=error"])
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { process, address }
    }

    /// The values of a query: none if it fails.
    fn query(&self, query: &str) -> Vec<f64> {
        let Ok(mut stream) = TcpStream::connect(&self.address) else { return Vec::new() };
        let query = utf8_percent_encode(query, NON_ALPHANUMERIC);
        let head = "host: prometheus\r\nconnection: close";
        write!(stream, "GET /api/v1/query?query={query} HTTP/1.0\r\n{head}\r\n\r\n").unwrap();
        let mut response = String::new();
        let _ = stream.read_to_string(&mut response);
        let answer: Value = serde_json::from_str(&parse(&response).body).unwrap_or_default();
        assert_ne!(answer["status"], "error", "{answer}");
        let results = answer["data"]["result"].as_array().cloned().unwrap_or_default();
        results.iter().filter_map(|result| result["value"][1].as_str()?.parse().ok()).collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn every_query_of_the_dashboard_returns_something_after_a_known_load() {
    let folder = directory("packaging-load");
    let (config, data) = (folder.join("tollgate.toml"), folder.join("data"));
    fs::write(&config, RULES).unwrap();
    let server = Server::start(&["--config", config.to_str().unwrap(), "--data", data.to_str().unwrap()]);
    let prometheus = Prometheus::scraping(&server);
    eventually("the first scrape", || prometheus.query("tollgate_build_info") == [1.0]);
    // The load comes between two scrapes: a rate needs both.
    for _ in 0..30 {
        server.get("/check/alice");
    }
    eventually("the load is scraped", || {
        prometheus.query("sum(increase(tollgate_decisions_total[1m]))").first().is_some_and(|sum| *sum > 0.0)
    });
    let queries = queries();
    assert!(queries.len() >= 20, "{queries:?}");
    for query in &queries {
        let values = prometheus.query(query);
        assert!(values.iter().any(|value| !value.is_nan()), "{query}: {values:?}");
    }
    let rejected = queries.iter().find(|query| query.contains('/')).unwrap();
    let rate = prometheus.query(rejected).into_iter().fold(0.0, f64::max);
    assert!((0.5..0.8).contains(&rate), "20 of 30 were denied: {rate}");
}

#[test]
fn every_metric_of_an_alert_or_a_query_is_exported_and_no_rule_is_named() {
    let folder = directory("packaging-metrics");
    let exported = |arguments: &[&str]| Server::start(arguments).get("/metrics").body;
    let data = folder.join("data");
    // Of some things there is no sample before Redis said so.
    let redis = Redis::start(&[]);
    let shared = Server::start(&["--redis", &redis.url()]);
    eventually("Redis was asked", || {
        let page = shared.get("/metrics").body;
        ["evicted_keys_total ", "round_trip_microseconds "].iter().all(|name| page.contains(name))
    });
    let pages = [exported(&["--data", data.to_str().unwrap()]), shared.get("/metrics").body];
    let alerts = fs::read_to_string(packaging("prometheus/tollgate.rules.yml")).unwrap();
    let all = alerts + &queries().join("\n");
    let names: BTreeSet<&str> = all
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| word.starts_with("tollgate_"))
        .collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        let follows = |rest: &str| rest.starts_with(['{', ' ']) || rest.starts_with("_bucket");
        let is_sample = |line: &str| line.strip_prefix(name).is_some_and(follows);
        let is_exported = pages.iter().any(|page| page.lines().any(is_sample));
        assert!(is_exported, "{name}");
    }
    assert!(!all.contains("rule=\"") && !all.contains("per-client"));
}

#[test]
fn alerts_fire_on_what_they_are_for_and_not_on_a_healthy_server() {
    let rules = fs::canonicalize(packaging("prometheus/tollgate.rules.yml")).unwrap();
    let tests = include_str!("../alerts.yml").replace("RULES", rules.to_str().unwrap());
    let file = directory("packaging-alerts").join("alerts.yml");
    fs::write(&file, tests).unwrap();
    for arguments in [[&"check".into(), &"rules".into(), &rules], [&"test".into(), &"rules".into(), &file]] {
        let ran = Command::new("promtool").args(arguments).output().unwrap();
        let said = [ran.stdout, ran.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
        assert!(ran.status.success(), "{}", said.concat());
    }
}
