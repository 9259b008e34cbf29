use super::*;

#[test]
fn the_requests_cost_is_the_default_of_each_descriptor() {
    let (_server, envoy) = bare();
    let ask = |hits_addend: u32, descriptors: &[RateLimitDescriptor]| {
        let answer = envoy.send(RateLimitRequest { hits_addend, ..request("edge", descriptors) }).unwrap();
        answer.statuses.iter().map(left).collect::<Vec<_>>()
    };
    let [a, b, c] = ["a", "b", "c"].map(client);
    assert_eq!(ask(0, std::slice::from_ref(&a)), [Some(9)], "the default cost is 1");
    assert_eq!(ask(3, std::slice::from_ref(&a)), [Some(6)]);
    assert_eq!(ask(2, &[a.clone(), hits(&b, 5), hits(&c, 0)]), [Some(4), Some(5), Some(10)]);
    assert_eq!(ask(9, &[hits(&a, 0)]), [Some(4)], "an explicit 0 peeks");
}

#[test]
fn b4_a_cost_beyond_the_limit_is_denied_without_retry_after() {
    let (_server, envoy) = bare();
    for cost in [11, 1 << 40, u64::MAX] {
        let answer = envoy.ask("edge", &[hits(&client("a"), cost)]);
        assert_eq!(answer.overall_code(), Code::OverLimit, "{answer:?}");
        assert!(fields(&answer, "retry-after").is_empty(), "{answer:?}");
    }
    let whole = RateLimitRequest { hits_addend: u32::MAX, ..request("edge", &[client("a")]) };
    assert_eq!(envoy.send(whole).unwrap().overall_code(), Code::OverLimit);
    assert_eq!(envoy.left("edge", &client("a")), Some(10));
}

#[test]
fn c5_negative_hits_refund_at_most_the_usage() {
    let (_server, envoy) = server("refunds", REFUNDS);
    let alice = client("alice");
    assert!(envoy.allows("edge", &hits(&alice, 10)));
    assert!(!envoy.allows("edge", &alice));
    assert_eq!(left(&envoy.status("edge", &back(&alice))), Some(1), "the default cost is 1");
    assert_eq!(left(&envoy.status("edge", &back(&hits(&alice, 3)))), Some(4));
    assert_eq!(left(&envoy.status("edge", &back(&hits(&alice, 0)))), Some(4));
    let status = envoy.status("edge", &back(&hits(&alice, 1_000)));
    assert_eq!((status.code(), left(&status)), (Code::Ok, Some(10)));
    assert_eq!(left(&envoy.status("edge", &back(&client("new")))), Some(10));
}

const REFUNDS: &str = "[server]\ngrpc_refunds = true";

/// Any client that reaches the port could otherwise refund its own usage. Envoy admits a request on
/// an error, so a rejected descriptor must not carry others past their limits.
#[test]
fn c5_negative_hits_are_rejected_unless_configured_and_never_evade_a_limit() {
    let (_server, envoy) = bare();
    let [alice, bob] = ["alice", "bob"].map(client);
    assert!(envoy.allows("edge", &hits(&alice, 10)));
    let refused = envoy.send(request("edge", &[back(&alice)])).unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    assert!(refused.message().contains("grpc_refunds"), "{refused}");
    assert!(!envoy.allows("edge", &alice), "nothing was refunded");
    let mixed = envoy.ask("edge", &[back(&bob), alice]);
    assert_eq!(mixed.overall_code(), Code::OverLimit, "the other is still over its limit");
    assert_eq!(
        refusal(&envoy, "edge", &[back(&client("carol")), hits(&bob, 4)]),
        tonic::Code::InvalidArgument
    );
    assert_eq!(envoy.left("edge", &bob), Some(6), "the descriptor that passes with the error was charged");
}

/// Envoy's recipe: ask with 0 before a request, and charge the cost after the response.
#[test]
fn c7_a_rule_that_records_denied_costs_charges_what_was_used() {
    let (server, envoy) = server(
        "record-denied",
        r#"
        [[rule]]
        name = "tokens"
        key = ["client"]
        limit = ["1000/hour fixed", "5000/day fixed"]
        record_denied = true
        [[rule]]
        name = "strict"
        key = ["strict"]
        limit = "1000/hour fixed"
        "#,
    );
    let ann = client("ann");
    assert!(envoy.allows("any", &hits(&ann, 0)), "it may start");
    assert!(envoy.allows("any", &hits(&ann, 900)));
    assert!(envoy.allows("any", &hits(&ann, 0)), "100 are left");
    let over = envoy.ask("any", &[hits(&ann, 500)]);
    assert_eq!((over.overall_code(), over.statuses[0].limit_remaining), (Code::OverLimit, 0));
    let rate_limit = fields(&over, "ratelimit").concat();
    assert!(rate_limit.contains(r#""tokens";r=0"#), "the numbers after the record: {rate_limit}");
    assert!(rate_limit.contains(r#""tokens.2";r=3600"#), "the day has recorded it too: {rate_limit}");
    assert!(!envoy.allows("any", &hits(&ann, 0)), "400 are owed");
    assert_eq!(server.metric("tollgate_shortfall_units_total"), 0.0);
    assert!(!envoy.allows("any", &hits(&ann, 2_000)));
    assert_eq!(server.metric("tollgate_shortfall_units_total"), 1_400.0, "beyond one whole limit of debt");
    let strict = descriptor(&[("strict", "ann")]);
    assert!(envoy.allows("any", &hits(&strict, 900)) && !envoy.allows("any", &hits(&strict, 500)));
    assert_eq!(envoy.left("any", &strict), Some(100), "b2: not recorded unless the rule says so");
}
