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
