use super::*;

fn config(redis: &str) -> String {
    let rule = |policy: &str| {
        format!(
            "[[rule]]\nname = \"{policy}\"\nkey = [\"{policy}\"]\nlimit = \"8/h fixed\"\n\
             on_store_error = \"{policy}\"\n"
        )
    };
    let rules = ["open", "closed", "local"].map(rule).concat();
    format!(
        "[server]\ngrpc_refunds = true\n\
         [store]\nkind = \"redis\"\nurl = \"redis://{redis}\"\ndeadline = \"100ms\"\n{rules}"
    )
}

fn assert_the_policy_is_followed(envoy: &Envoy) {
    let [open, closed, local] = ["open", "closed", "local"].map(|policy| descriptor(&[(policy, "x")]));
    for _ in 0..10 {
        assert!(envoy.allows("edge", &open));
        assert!(!envoy.allows("edge", &closed), "and never an error, which Envoy may admit");
    }
    let answer = envoy.ask("edge", &[open.clone(), closed]);
    assert_eq!(answer.overall_code(), Code::OverLimit);
    assert!(envoy.allows("edge", &under(&open, 1, RateLimitUnit::Hour)));
    assert!(envoy.allows("edge", &back(&open)));
    let admitted = (0..8).filter(|_| envoy.allows("edge", &local)).count();
    assert_eq!(admitted, 2, "a quarter of eight");
    let mut health = HealthClient::new(envoy.channel.clone());
    let check = envoy.wait(health.check(HealthCheckRequest::default())).unwrap();
    assert_eq!(check.into_inner().status(), ServingStatus::NotServing);
}

#[test]
fn e4_without_its_redis_it_follows_the_rules_policy() {
    let (_server, envoy) = server("redis-gone", &config("127.0.0.1:1"));
    assert_the_policy_is_followed(&envoy);
}

#[test]
fn e4_the_stores_policy_is_the_default_of_all_limits() {
    let file = directory("grpc-failing-yaml").join("ratelimit.yaml");
    let limit = "rate_limit: {unit: hour, requests_per_unit: 5}";
    fs::write(&file, format!("domain: yaml\ndescriptors:\n  - key: path\n    {limit}\n")).unwrap();
    let rule =
        "[[rule]]\nname = \"own\"\nkey = [\"client\"]\nlimit = \"5/h fixed\"\non_store_error = \"open\"";
    let config = format!(
        "[server]\nenvoy_config = {file:?}\n[store]\nkind = \"redis\"\nurl = \"redis://127.0.0.1:1\"\n\
         on_store_error = \"closed\"\n{rule}\n"
    );
    let (server, envoy) = server("store-policy", &config);
    let path = descriptor(&[("path", "/")]);
    assert!(!envoy.allows("yaml", &path), "as failure_mode_deny would have it");
    assert!(!envoy.allows("edge", &under(&path, 5, RateLimitUnit::Hour)));
    assert!(envoy.allows("edge", &client("a")), "the rule has its own policy");
    let mut resp = TcpStream::connect(server.listens("resp")).unwrap();
    resp.write_all(b"CL.THROTTLE a 4 1 60\r\nQUIT\r\n").unwrap();
    let mut answer = String::new();
    resp.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("*5\r\n:1\r\n"), "limited: {answer}");
}

#[test]
fn e4_with_a_redis_that_hangs_it_follows_the_rules_policy() {
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let (_server, envoy) = server("redis-deaf", &config(&deaf.local_addr().unwrap().to_string()));
    assert_the_policy_is_followed(&envoy);
}
