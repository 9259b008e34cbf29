//! Metrics and spans over OTLP, as a receiver with OpenTelemetry's own messages decodes them.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;
use tonic::Request;

use crate::common::{Server, TOLLGATE, directory, tollgate};
use crate::python::python_with;
use crate::rls::{Envoy, descriptor, request};
use crate::wire::Wire;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

/// A receiver of OTLP.
struct Receiver {
    process: Child,
    lines: BufReader<ChildStdout>,
    endpoint: String,
}

impl Receiver {
    fn start() -> Self {
        let python = python_with("opentelemetry-proto==1.45.2").join("python");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common/otlp.py");
        let mut process = Command::new(python).arg(script).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap());
        let mut port = String::new();
        lines.read_line(&mut port).unwrap();
        Self { process, lines, endpoint: format!("http://127.0.0.1:{}", port.trim()) }
    }

    /// A server that exports everything to it when it stops.
    fn server(&self, settings: &[(&str, &str)]) -> Server {
        let free = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--resp", "127.0.0.1:0"];
        let mut command = Command::new(TOLLGATE);
        command.arg("serve").args(free).args(["--limit", "2/h"]);
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &self.endpoint).envs(settings.iter().copied());
        command.env("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20key");
        Server::with_log(&mut command)
    }

    /// The requests until the last, which a stopping server sends: all spans, and the last metrics.
    fn until_stopped(&mut self, server: &mut Server) -> (Vec<Value>, Value) {
        server.signal("TERM");
        assert_eq!(server.exit_code(), Some(0));
        self.process.kill().unwrap();
        let (mut spans, mut metrics) = (Vec::new(), Value::Null);
        for line in self.lines.by_ref().lines() {
            let mut request: Value = serde_json::from_str(&line.unwrap()).unwrap();
            assert_eq!(request["type"], "application/x-protobuf");
            assert_eq!(request["key"], "a key");
            assert_eq!(request["unknown"], false);
            let message = request["message"].take();
            match request["path"].as_str().unwrap() {
                "/v1/traces" => {
                    let scope = &message["resource_spans"][0]["scope_spans"][0];
                    spans.extend(scope["spans"].as_array().unwrap().iter().cloned());
                }
                _ => metrics = message,
            }
        }
        (spans, metrics)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The attributes of a span, a point or a resource: the text of each.
fn attributes(of: &Value) -> BTreeMap<String, String> {
    let pairs = of["attributes"].as_array().into_iter().flatten();
    let text = |value: &Value| match value.as_object().unwrap().values().next().unwrap() {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    pairs.map(|pair| (pair["key"].as_str().unwrap().to_owned(), text(&pair["value"]))).collect()
}

/// A protobuf `bytes` field, which JSON has in base64, in hexadecimal.
fn hexadecimal(bytes: &Value) -> String {
    use base64::Engine as _;
    let bytes = base64::engine::general_purpose::STANDARD.decode(bytes.as_str().unwrap_or_default()).unwrap();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn nanos(of: &Value, name: &str) -> u64 {
    of[name].as_str().unwrap().parse().unwrap()
}

/// One request over each protocol, from clients with names.
fn ask_everywhere(server: &Server) {
    assert_eq!(server.get("/check/alice").status, 200);
    let envoy = Envoy::of(server);
    envoy.ask("any", &[descriptor(&[("client", "alice")])]);
    assert!(Wire::connect(server).ask("TOLL.CHECK client alice").starts_with('*'));
}

#[test]
fn a_request_over_each_protocol_is_a_span_without_the_clients_name() {
    let mut receiver = Receiver::start();
    let mut server = receiver.server(&[("TOLLGATE_TELEMETRY_SAMPLE", "1"), ("OTEL_SERVICE_NAME", "edge")]);
    ask_everywhere(&server);
    // Neither of these is decided.
    assert_eq!(server.get("/healthz").status, 200);
    assert_eq!(server.get("/check/alice?cost=x").status, 400);
    let (spans, metrics) = receiver.until_stopped(&mut server);
    let mut seen: Vec<_> =
        spans.iter().map(|span| (span["name"].as_str().unwrap(), attributes(span))).collect();
    seen.sort();
    let expected = |protocol: &str, allowed: &str| {
        let pairs =
            [("allowed", allowed), ("decisions", "1"), ("protocol", protocol), ("rule", "per-client")];
        pairs.map(|(key, value)| (format!("tollgate.{key}"), value.to_owned())).into()
    };
    let grpc = ("grpc ShouldRateLimit", expected("grpc", "true"));
    // The third request is over the limit of two.
    assert_eq!(
        seen,
        [grpc, ("http client", expected("http", "true")), ("resp check", expected("resp", "false"))]
    );
    for span in &spans {
        assert_eq!((hexadecimal(&span["trace_id"]).len(), hexadecimal(&span["span_id"]).len()), (32, 16));
        assert_eq!(span["kind"], "SPAN_KIND_SERVER");
        assert!(nanos(span, "start_time_unix_nano") <= nanos(span, "end_time_unix_nano"));
    }
    let resource = attributes(&metrics["resource_metrics"][0]["resource"]);
    assert_eq!(resource["service.name"], "edge");
    assert_eq!(resource["service.version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn a_callers_trace_is_continued_and_its_decision_to_sample_counts() {
    let mut receiver = Receiver::start();
    let settings =
        [("OTEL_TRACES_SAMPLER", "parentbased_always_off"), ("TOLLGATE_TELEMETRY_CLIENT_NAMES", "true")];
    let mut server = receiver.server(&settings);
    ask_everywhere(&server);
    let sampled = format!("00-{TRACE}-{CALLER}-01");
    server.send("GET", "/check/bob", &[("traceparent", &format!("00-{TRACE}-{CALLER}-00"))], "");
    server.send("POST", "/v1/check", &[("traceparent", &sampled)], r#"{"attributes": {"client": "carol"}}"#);
    let batch =
        r#"{"checks": [{"attributes": {"client": "a"}}, {"attributes": {"client": "b"}, "cost": 3}]}"#;
    server.send("POST", "/v1/check/batch", &[("traceparent", &sampled)], batch);
    let held = r#"{"attributes": {"client": "erin"}, "ttl": "1m"}"#;
    server.send("POST", "/v1/reserve", &[("traceparent", &sampled)], held);
    server.send("GET", "/auth", &[("traceparent", &sampled)], "");
    let envoy = Envoy::of(&server);
    let mut call = Request::new(request("any", &[descriptor(&[("client", "dave")])]));
    call.metadata_mut().insert("traceparent", sampled.parse().unwrap());
    envoy.send(call).unwrap();
    drop(envoy);
    let (spans, _) = receiver.until_stopped(&mut server);
    let mut seen: Vec<_> =
        spans.iter().map(|span| (span["name"].as_str().unwrap(), attributes(span))).collect();
    seen.sort();
    let clients: Vec<_> = seen.iter().map(|(name, of)| (*name, of["tollgate.client"].as_str())).collect();
    // The batch's is that of its denial.
    let expected = [
        ("grpc ShouldRateLimit", "dave"),
        ("http auth", "127.0.0.1"),
        ("http batch", "b"),
        ("http check", "carol"),
        ("http reserve", "erin"),
    ];
    assert_eq!(clients, expected);
    assert_eq!((&*seen[2].1["tollgate.decisions"], &*seen[2].1["tollgate.allowed"]), ("2", "false"));
    for span in &spans {
        assert_eq!(hexadecimal(&span["trace_id"]), TRACE);
        assert_eq!(hexadecimal(&span["parent_span_id"]), CALLER);
    }
}

/// The samples of a page of `/metrics`, by name and sorted labels.
fn samples(page: &str) -> BTreeMap<(String, BTreeMap<String, String>), f64> {
    let sample = |line: &str| {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.strip_suffix('}').and_then(|s| s.split_once('{')).unwrap_or((series, ""));
        let label = |label: &str| {
            let (name, value) = label.split_once("=\"").unwrap();
            let value = value.trim_end_matches('"');
            let bound = || value.parse().map(|bound: f64| bound.to_string()).unwrap();
            (name.to_owned(), if name == "le" { bound() } else { value.to_owned() })
        };
        let labels = labels.split(',').filter(|label| !label.is_empty()).map(label).collect();
        ((name.to_owned(), labels), value.parse().unwrap())
    };
    page.lines().filter(|line| !line.starts_with('#')).map(sample).collect()
}

/// The samples of an export, as Prometheus names them.
fn exported(metrics: &Value) -> BTreeMap<(String, BTreeMap<String, String>), f64> {
    let number = |value: &Value| match value {
        Value::String(text) => text.parse().unwrap(),
        // Zeros are left out.
        Value::Null => 0.0,
        other => other.as_f64().unwrap(),
    };
    let mut samples = BTreeMap::new();
    for metric in metrics["resource_metrics"][0]["scope_metrics"][0]["metrics"].as_array().unwrap() {
        let name = metric["name"].as_str().unwrap();
        let points = |kind: &str| metric[kind]["data_points"].as_array().into_iter().flatten();
        for point in points("gauge") {
            samples.insert((name.to_owned(), attributes(point)), number(&point["as_int"]));
        }
        for point in points("sum") {
            assert_eq!(metric["sum"]["aggregation_temporality"], "AGGREGATION_TEMPORALITY_CUMULATIVE");
            assert_eq!(metric["sum"]["is_monotonic"], true);
            samples.insert((format!("{name}_total"), attributes(point)), number(&point["as_int"]));
        }
        for point in points("histogram") {
            assert_eq!(metric["unit"], "s");
            let labels = attributes(point);
            samples.insert((format!("{name}_sum"), labels.clone()), number(&point["sum"]));
            samples.insert((format!("{name}_count"), labels.clone()), number(&point["count"]));
            let bounds = point["explicit_bounds"].as_array().unwrap().iter().map(number);
            let counts = point["bucket_counts"].as_array().unwrap().iter().map(number);
            let mut sum = 0.0;
            for (bound, count) in bounds.chain([f64::INFINITY]).zip(counts) {
                sum += count;
                let labels = labels.clone().into_iter().chain([("le".into(), bound.to_string())]).collect();
                samples.insert((format!("{name}_bucket"), labels), sum);
            }
        }
    }
    samples
}

#[test]
fn the_exported_metrics_are_those_of_the_metrics_page_with_equal_numbers() {
    let mut receiver = Receiver::start();
    let mut server = receiver.server(&[]);
    ask_everywhere(&server);
    let page = samples(&server.get("/metrics").body);
    let (spans, metrics) = receiver.until_stopped(&mut server);
    assert!(spans.len() < 3, "one request in a hundred is sampled");
    let exported = exported(&metrics);
    let names = |of: &BTreeMap<_, f64>| of.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&exported), names(&page));
    // The scrape itself, and the end of its connection, come after the page.
    let changes = |(name, labels): &(String, BTreeMap<String, String>)| {
        let label = |name: &str, value: &str| labels.get(name).is_some_and(|label| label == value);
        name.starts_with("tollgate_connections") && label("listener", "http")
            || name == "tollgate_connections"
            || name.starts_with("tollgate_http_request") && label("route", "monitoring")
            || name == "tollgate_http_responses_total" && label("status", "200")
            || name == "tollgate_telemetry_exports_total"
    };
    for (series, value) in exported.iter().filter(|(series, _)| !changes(series)) {
        assert_eq!(page[series], *value, "{series:?}");
    }
    let decisions = |outcome: &str| {
        let labels = BTreeMap::from([("outcome".to_owned(), outcome.to_owned())]);
        exported[&("tollgate_decisions_total".to_owned(), labels)]
    };
    assert_eq!([decisions("allowed"), decisions("denied")], [2.0, 1.0]);
}

#[test]
fn a_receiver_that_is_down_costs_a_log_line_and_counted_spans() {
    let receiver = Receiver::start();
    let settings = [("TOLLGATE_TELEMETRY_SAMPLE", "1"), ("OTEL_METRIC_EXPORT_INTERVAL", "100")];
    let endpoint = receiver.endpoint.clone();
    let mut server = receiver.server(&settings);
    drop(receiver);
    ask_everywhere(&server);
    let line = server.log_line("cannot export telemetry");
    assert!(line.contains(&endpoint) && line.contains("is a receiver of OTLP over HTTP there?"), "{line}");
    crate::common::eventually("three spans are dropped", || {
        server.metric("tollgate_telemetry_dropped_spans_total") == 3.0
    });
    assert!(server.metric("tollgate_telemetry_exports_total{signal=\"traces\",result=\"failed\"}") >= 1.0);
    server.signal("TERM");
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn settings_of_telemetry_are_validated_and_shown() {
    let file = directory("telemetry").join("tollgate.toml");
    let validate = |text: &str, variables: &[(&str, &str)]| {
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(TOLLGATE);
        let output = command.arg("validate").arg(&file).envs(variables.iter().copied()).output().unwrap();
        let shown = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.success(), shown)
    };
    let on = "[telemetry]\notlp = \"http://127.0.0.1:4318/\"\n";
    let (valid, shown) = validate(on, &[]);
    let summary = "Exports metrics every minute, and spans of 1 % of requests, to http://127.0.0.1:4318.";
    assert!(valid && shown.contains(summary), "{shown}");
    let (valid, shown) = validate(on, &[("OTEL_EXPORTER_OTLP_ENDPOINT", "https://example.com/otlp")]);
    assert!(valid && shown.contains("to https://example.com/otlp."), "{shown}");
    for off in [("OTEL_SDK_DISABLED", "true"), ("TOLLGATE_TELEMETRY_OTLP", "off")] {
        let (valid, shown) = validate(on, &[off]);
        assert!(valid && !shown.contains("Exports"), "{off:?}: {shown}");
    }
    let none = ("OTEL_SDK_DISABLED", "");
    let invalid = [
        ("otlp = \"localhost:4318\"", none, "this is not a URL over HTTP"),
        ("otlp = \"http://me:secret@localhost:4318\"", none, "put credentials in the variable"),
        ("sample = 2", none, "`sample` is a share from 0 to 1"),
        ("interval = \"1ms\"", none, "`interval` is at least 100ms"),
        ("smaple = 1", none, "did you mean `sample`?"),
        ("", ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"), "only http/protobuf is spoken"),
        ("", ("OTEL_TRACES_SAMPLER", "jaeger_remote"), "this sampler is unknown"),
        ("", ("OTEL_EXPORTER_OTLP_HEADERS", "x-key"), "write key=value,key=value"),
    ];
    for (line, variable, error) in invalid {
        let text =
            if line.starts_with("otlp") { format!("[telemetry]\n{line}\n") } else { format!("{on}{line}\n") };
        let (valid, shown) = validate(&text, &[variable]);
        assert!(!valid && shown.contains(error), "{line} {variable:?}: {shown}");
    }
    assert!(!tollgate(&["validate", "no-such-file"]).status.success());
}
