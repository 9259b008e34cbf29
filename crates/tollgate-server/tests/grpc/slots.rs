use super::*;

/// Envoy's `apply_on_stream_done` sends no id: a slot that it takes could not be released.
#[test]
fn c8_a_rule_with_slots_is_refused_over_grpc() {
    let rules = "[[rule]]\nname = \"streams\"\nkey = [\"client\"]\nlimit = \"2 concurrent\"";
    let (server, envoy) = server("slots", rules);
    let status = envoy.send(request("edge", &[client("a")])).expect_err("it is refused");
    assert_eq!(status.code(), tonic::Code::FailedPrecondition);
    assert!(status.message().contains("rule \"streams\""), "{status:?}");
    assert_eq!(refusal(&envoy, "edge", &[client("a"), client("b")]), tonic::Code::FailedPrecondition);
    let peeked = server.post("/v1/check", &json!({"attributes": {"client": "a"}, "peek": true}));
    assert_eq!(peeked.json()["remaining"], 2, "nothing was taken");
}
