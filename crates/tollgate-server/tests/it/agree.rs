//! B10: one script, every transport, equal outcomes. The library decides first. HTTP (single and
//! batched), the Redis protocol (single and pipelined) and gRPC must decide alike, each in its own
//! server, all on the same injected time.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::google::protobuf::UInt64Value;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::{self, Runtime};
use tollgate::{
    Bucket, Clock as _, Decision, Limit, Limiter, ManualClock, Request, Rule, RuleSet, Timestamp, block_on,
};
use tollgate_http::{Numbers, rate_limit_headers};
use tollgate_server::config::{Config, Origin};
use tollgate_server::{App, Listeners};
use tollgate_testkit::Random;
use tonic::transport::Channel;

mod script;

use script::{RULES, Script, Step, script};

/// The part of an outcome that every transport reports. `fields` are the header fields for a client
/// of HTTP or Envoy.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    allowed: bool,
    remaining: Option<u64>,
    reset_at_ms: Option<u64>,
    retry_after_ms: Option<Option<u64>>,
    rule: Option<String>,
    fields: Option<Vec<(String, String)>>,
}

fn config(name: &str) -> (Origin, Config) {
    let file = crate::common::directory(&format!("agree-{name}")).join("tollgate.toml");
    fs::write(&file, RULES).unwrap();
    let origin = Origin { file: Some(file), ..Origin::default() };
    let config = origin.load().unwrap();
    (origin, config)
}

/// A server in this process with an injected clock.
struct Server {
    clock: ManualClock,
    runtime: Runtime,
    http: String,
    grpc: String,
    resp: String,
}

fn clock() -> ManualClock {
    ManualClock::at(Timestamp::from_secs(1_800_000_000))
}

impl Server {
    fn start(name: &str) -> Self {
        let (origin, config) = config(name);
        let clock = clock();
        let app = Arc::new(App::new(origin, config, Arc::new(clock.clone())).unwrap());
        let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let bind = || runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let [http, grpc, resp] = [bind(), bind(), bind()];
        let address = |listener: &TcpListener| listener.local_addr().unwrap().to_string();
        let addresses = [&http, &grpc, &resp].map(address);
        let listeners = Listeners { http: Some(http), grpc: Some(grpc), resp: Some(resp) };
        runtime.spawn(tollgate_server::serve(listeners, app, std::future::pending()));
        let [http, grpc, resp] = addresses;
        Self { clock, runtime, http, grpc, resp }
    }

    /// Plays the script, each group of requests through `ask`.
    fn play(&self, script: &Script, mut ask: impl FnMut(&[Step]) -> Vec<Seen>) -> Vec<Seen> {
        let play = |(span, steps): &(Duration, Vec<Step>)| {
            self.clock.advance(*span);
            ask(steps)
        };
        script.iter().flat_map(play).collect()
    }
}

fn of_library(decision: &Decision) -> Seen {
    let Numbers { allowed, remaining, reset_at, retry_after_ms, rule, .. } = decision.into();
    let fields = rate_limit_headers(decision);
    let field = |name: &str| Some((name.to_owned(), fields.get(name)?.to_str().unwrap().to_owned()));
    Seen {
        allowed,
        remaining,
        reset_at_ms: Some(reset_at),
        retry_after_ms: Some(retry_after_ms),
        rule: rule.map(str::to_owned),
        fields: Some(FIELDS.iter().filter_map(|name| field(name)).collect()),
    }
}

const FIELDS: [&str; 3] = ["ratelimit-policy", "ratelimit", "retry-after"];

fn by_library(script: &Script) -> Vec<Seen> {
    let (clock, (_, config)) = (clock(), config("library"));
    let limiter = Limiter::builder(config.rules).clock(clock.clone()).build().unwrap();
    let play = |(span, steps): &(Duration, Vec<Step>)| {
        clock.advance(*span);
        let check = |step: &Step| limiter.check(Request::new(&step.attributes()).cost(step.cost)).unwrap();
        steps.iter().map(|step| of_library(&check(step))).collect::<Vec<_>>()
    };
    script.iter().flat_map(play).collect()
}

fn of_json(answer: &Value, fields: Option<Vec<(String, String)>>) -> Seen {
    Seen {
        allowed: answer["allowed"].as_bool().unwrap(),
        remaining: answer["remaining"].as_u64(),
        reset_at_ms: Some(answer["resetAt"].as_u64().unwrap()),
        retry_after_ms: Some(answer["retryAfterMs"].as_u64()),
        rule: answer["rule"].as_str().map(str::to_owned),
        fields,
    }
}

fn as_json(step: &Step) -> Value {
    let attributes: serde_json::Map<String, Value> =
        step.attributes().into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
    json!({"attributes": attributes, "cost": step.cost})
}

fn by_http(script: &Script) -> Vec<Seen> {
    let server = Server::start("http");
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let url = format!("http://{}/v1/check", server.http);
    let ask = |step: &Step| {
        let mut answer =
            agent.post(&url).content_type("application/json").send(as_json(step).to_string()).unwrap();
        let field =
            |name: &str| Some((name.to_owned(), answer.headers().get(name)?.to_str().unwrap().to_owned()));
        let fields = FIELDS.iter().filter_map(|name| field(name)).collect();
        let body: Value = serde_json::from_str(&answer.body_mut().read_to_string().unwrap()).unwrap();
        assert_eq!(answer.status().as_u16(), if body["allowed"] == true { 200 } else { 429 });
        of_json(&body, Some(fields))
    };
    server.play(script, |steps| steps.iter().map(ask).collect())
}

fn by_http_batches(script: &Script) -> Vec<Seen> {
    let server = Server::start("batches");
    let url = format!("http://{}/v1/check/batch", server.http);
    server.play(script, |steps| {
        let checks: Vec<Value> = steps.iter().map(as_json).collect();
        let mut answer = ureq::post(&url)
            .content_type("application/json")
            .send(json!({"checks": checks}).to_string())
            .unwrap();
        let body: Value = serde_json::from_str(&answer.body_mut().read_to_string().unwrap()).unwrap();
        body["results"].as_array().unwrap().iter().map(|answer| of_json(answer, None)).collect()
    })
}

fn as_command(step: &Step) -> redis::Cmd {
    let mut command = redis::cmd("TOLL.CHECK");
    for (name, value) in step.attributes() {
        command.arg(name).arg(value);
    }
    command.arg("COST").arg(step.cost);
    command
}

fn of_redis(answer: &redis::Value) -> Seen {
    let fields: std::collections::HashMap<String, redis::Value> =
        redis::from_redis_value_ref(answer).unwrap();
    let number = |name: &str| redis::from_redis_value_ref::<Option<u64>>(&fields[name]).unwrap();
    Seen {
        allowed: redis::from_redis_value_ref(&fields["allowed"]).unwrap(),
        remaining: number("remaining"),
        reset_at_ms: number("reset_at_ms"),
        retry_after_ms: Some(number("retry_after_ms")),
        rule: redis::from_redis_value_ref(&fields["rule"]).unwrap(),
        fields: None,
    }
}

fn by_resp(script: &Script, protocol: &str) -> Vec<Seen> {
    let server = Server::start(&format!("resp-{protocol}"));
    let client = redis::Client::open(format!("redis://{}/?protocol={protocol}", server.resp)).unwrap();
    let mut connection = client.get_connection().unwrap();
    let mut ask = |step: &Step| of_redis(&as_command(step).query(&mut connection).unwrap());
    server.play(script, |steps| steps.iter().map(&mut ask).collect())
}

fn by_pipelines(script: &Script) -> Vec<Seen> {
    let server = Server::start("pipelines");
    let client = redis::Client::open(format!("redis://{}/?protocol=resp3", server.resp)).unwrap();
    let mut connection = client.get_connection().unwrap();
    server.play(script, |steps| {
        let mut pipeline = redis::pipe();
        for step in steps {
            pipeline.add_command(as_command(step));
        }
        let answers: Vec<redis::Value> = pipeline.query(&mut connection).unwrap();
        answers.iter().map(of_redis).collect()
    })
}

fn by_grpc(script: &Script) -> Vec<Seen> {
    let server = Server::start("grpc");
    let channel = Channel::from_shared(format!("http://{}", server.grpc)).unwrap();
    let channel = server.runtime.block_on(channel.connect()).unwrap();
    let ask = |step: &Step| {
        let entry = |(key, value): (&str, &str)| Entry { key: key.into(), value: value.into() };
        let descriptor = RateLimitDescriptor {
            entries: step.attributes().into_iter().map(entry).collect(),
            hits_addend: Some(UInt64Value { value: step.cost }),
            ..Default::default()
        };
        let request = RateLimitRequest { domain: "d".into(), descriptors: vec![descriptor], hits_addend: 0 };
        let mut client = RateLimitServiceClient::new(channel.clone());
        let answer = server.runtime.block_on(client.should_rate_limit(request)).unwrap().into_inner();
        let [status] = answer.statuses.as_slice() else { panic!("{answer:?}") };
        assert_eq!(status.code, answer.overall_code);
        let limit = status.current_limit.as_ref().unwrap();
        let reset = status.duration_until_reset.as_ref().unwrap();
        let reset = Duration::new(reset.seconds.try_into().unwrap(), reset.nanos.try_into().unwrap());
        let headers = answer.response_headers_to_add.iter();
        let fields: Vec<(String, String)> =
            headers.map(|field| (field.key.clone(), field.value.clone())).collect();
        let field = |name: &&str| fields.iter().find(|(known, _)| known == name).cloned();
        // A limit is named after its rule, the second of a rule with `.2`.
        let rule = limit.name.strip_suffix(".2").unwrap_or(&limit.name);
        Seen {
            allowed: answer.overall_code == i32::from(Code::Ok),
            remaining: Some(status.limit_remaining.into()),
            reset_at_ms: Some(server.clock.now().saturating_add(reset).as_millis_ceil()),
            retry_after_ms: None,
            rule: Some(rule.to_owned()),
            fields: Some(FIELDS.iter().filter_map(field).collect()),
        }
    };
    server.play(script, |steps| steps.iter().map(ask).collect())
}

/// Compares the outcomes, as far as the transport reports them.
fn assert_agree(transport: &str, script: &Script, library: &[Seen], seen: &[Seen]) {
    assert_eq!(library.len(), seen.len(), "{transport}");
    let steps = script.iter().flat_map(|(_, steps)| steps);
    for (index, ((expected, found), step)) in library.iter().zip(seen).zip(steps).enumerate() {
        let mut expected = expected.clone();
        if found.retry_after_ms.is_none() {
            expected.retry_after_ms = None;
        }
        if found.fields.is_none() {
            expected.fields = None;
        }
        // Envoy asks with a cost of 0 whether anything is left.
        if transport == "gRPC" && step.cost == 0 && expected.remaining == Some(0) {
            let answer = (found.allowed, found.remaining);
            assert_eq!(answer, (false, Some(0)), "{transport}: step {index}, {step:?}");
            continue;
        }
        assert_eq!(*found, expected, "{transport}: step {index}, {step:?}");
    }
}

#[test]
fn b10_every_transport_gives_the_same_outcomes_as_the_library() {
    for seed in 1..=3 {
        let script = script(seed);
        let library = by_library(&script);
        let allowed = library.iter().filter(|seen| seen.allowed).count();
        assert!(allowed > 40 && library.len() - allowed > 40, "{allowed} of {}", library.len());
        assert_agree("HTTP", &script, &library, &by_http(&script));
        assert_agree("HTTP in batches", &script, &library, &by_http_batches(&script));
        assert_agree("RESP 2", &script, &library, &by_resp(&script, "resp2"));
        assert_agree("RESP 3", &script, &library, &by_resp(&script, "resp3"));
        assert_agree("RESP, pipelined", &script, &library, &by_pipelines(&script));
        assert_agree("gRPC", &script, &library, &by_grpc(&script));
    }
}

#[test]
fn b10_cl_throttle_equals_the_librarys_bucket_in_seconds_rounded_up() {
    let server = Server::start("throttle");
    let mut connection =
        redis::Client::open(format!("redis://{}", server.resp)).unwrap().get_connection().unwrap();
    let rule = Rule::inline("throttled").key(["client"]);
    let own = clock();
    let library = Limiter::builder(RuleSet::new([rule]).unwrap()).clock(own.clone()).build().unwrap();
    let mut random = Random(7);
    let (mut limited, mut never) = (0, 0);
    for _ in 0..3_000 {
        let span =
            Duration::from_nanos([0, 1, 250_000_000, 999_999_999, 3_000_000_000][random.below(5) as usize]);
        own.advance(span);
        server.clock.advance(span);
        // The limit changes now and then, under the same key.
        let (key, quantity) = (format!("k{}", random.below(5)), [1, 1, 0, 2, 9][random.below(5) as usize]);
        let (burst, count, period) = [(3, 1, 2), (3, 1, 2), (7, 3, 1), (0, 2, 60)][random.below(4) as usize];
        let answer: [i64; 5] = redis::cmd("CL.THROTTLE")
            .arg(&key)
            .arg(burst)
            .arg(count)
            .arg(period)
            .arg(quantity)
            .query(&mut connection)
            .unwrap();
        let bucket = Bucket {
            capacity: burst + 1,
            amount: count,
            interval: Duration::from_secs(period),
            stepped: false,
        };
        let limit = library.inline(Limit::new(tollgate::Algorithm::TokenBucket(bucket)).unwrap()).unwrap();
        let request = Request::client(&key).cost(quantity).under("throttled", &limit);
        // A quantity of 0 peeks.
        let decision = if quantity == 0 { block_on(library.peek(request)) } else { library.check(request) };
        let decision = decision.unwrap();
        let seconds = |span: Duration| span.as_nanos().div_ceil(1_000_000_000).try_into().unwrap();
        let retry = decision.retry_after().filter(|_| !decision.allowed()).map_or(-1, seconds);
        let reset = seconds(decision.reset_at().since(decision.now()));
        let whole = i64::try_from(burst + 1).unwrap();
        let left = i64::try_from(decision.remaining()).unwrap();
        assert_eq!(answer, [i64::from(!decision.allowed()), whole, left, retry, reset], "{key} {quantity}");
        limited += answer[0];
        never += i64::from(answer[0] == 1 && answer[3] == -1);
    }
    assert!(limited > 500 && never > 50, "{limited} {never}");
}
