use super::*;

#[test]
fn f2_a_descriptor_counts_down_and_is_then_over_its_limit() {
    let (_server, envoy) = bare();
    for turn in 0..12_u32 {
        let answer = envoy.ask("edge", &[client("alice")]);
        let status = &answer.statuses[0];
        let denied = turn >= 10;
        assert_eq!(status.code(), if denied { Code::OverLimit } else { Code::Ok }, "{answer:?}");
        assert_eq!(limit(status), Some((10, Unit::Minute, "per-client")));
        assert_eq!(status.limit_remaining, 9_u32.saturating_sub(turn));
        let until_reset = status.duration_until_reset.unwrap();
        let nanos = until_reset.seconds * 1_000_000_000 + i64::from(until_reset.nanos);
        assert!((1..=60_000_000_000).contains(&nanos), "{answer:?}");
        let reported = format!("\"per-client\";r={};t=", status.limit_remaining);
        assert!(fields(&answer, "ratelimit")[0].starts_with(&reported), "{answer:?}");
        assert_eq!(fields(&answer, "ratelimit-policy"), ["\"per-client\";q=10;w=60"]);
        let retry_after: Vec<u64> =
            fields(&answer, "retry-after").iter().map(|seconds| seconds.parse().unwrap()).collect();
        assert_eq!(retry_after.len(), usize::from(denied), "{answer:?}");
        assert!(retry_after.iter().all(|seconds| (1..=60).contains(seconds)), "{answer:?}");
        assert!(answer.request_headers_to_add.is_empty() && answer.raw_body.is_empty(), "{answer:?}");
    }
    assert_eq!(envoy.left("edge", &client("bob")), Some(10), "b5: other clients are not affected");
}

#[test]
fn f2_the_header_fields_have_the_configured_style() {
    let x = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"].as_slice();
    for (style, expected) in [
        ("standard", ["ratelimit", "ratelimit-policy"].as_slice()),
        ("trio", &["ratelimit-limit", "ratelimit-policy", "ratelimit-remaining", "ratelimit-reset"]),
        ("x", x),
        ("x-epoch", x),
        ("off", &[]),
    ] {
        let (_server, envoy) = server(
            &format!("style-{style}"),
            &format!(
                "[server]\nheaders = \"{style}\"\n\
                 [[rule]]\nname = \"r\"\nkey = [\"client\"]\nlimit = \"1/hour fixed\""
            ),
        );
        for denied in [false, true] {
            let answer = envoy.ask("edge", &[client("alice")]);
            let mut names: Vec<&str> =
                answer.response_headers_to_add.iter().map(|field| field.key.as_str()).collect();
            names.sort_unstable();
            let mut expected = expected.to_vec();
            expected.extend(denied.then_some("retry-after"));
            expected.sort_unstable();
            assert_eq!(names, expected, "{style}");
        }
    }
}

#[test]
fn b8_there_is_a_status_for_each_descriptor_in_their_order() {
    let (_server, envoy) = bare();
    let descriptors = [
        descriptor(&[("nobody", "asked")]),
        client("a"),
        descriptor(&[]),
        hits(&client("b"), 4),
        descriptor(&[("other", "x")]),
    ];
    let answer = envoy.ask("edge", &descriptors);
    let reported: Vec<_> = answer.statuses.iter().map(|status| (status.code(), left(status))).collect();
    assert_eq!(
        reported,
        [(Code::Ok, None), (Code::Ok, Some(9)), (Code::Ok, None), (Code::Ok, Some(6)), (Code::Ok, None)]
    );
    let free = envoy.ask("edge", &descriptors[..1]);
    assert!(free.statuses[0].duration_until_reset.is_none(), "{free:?}");
    assert!(free.response_headers_to_add.is_empty(), "there is no limit to report: {free:?}");
}

#[test]
fn b8_a_denied_descriptor_charges_no_other() {
    let (_server, envoy) = bare();
    let (empty, full) = (client("empty"), client("full"));
    assert!(envoy.allows("edge", &hits(&empty, 10)));
    for order in [[&full, &empty], [&empty, &full]] {
        let answer = envoy.ask("edge", &order.map(Clone::clone));
        assert_eq!(answer.overall_code(), Code::OverLimit);
        for (descriptor, status) in order.iter().zip(&answer.statuses) {
            let expected = if *descriptor == &empty { (Code::OverLimit, 0) } else { (Code::Ok, 10) };
            assert_eq!((status.code(), status.limit_remaining), expected, "b3: {answer:?}");
        }
        assert_eq!(fields(&answer, "retry-after").len(), 1, "{answer:?}");
    }
    assert_eq!(envoy.left("edge", &full), Some(10));
}

#[test]
fn b8_the_same_budget_twice_is_charged_once_with_the_larger_cost() {
    let (_server, envoy) = bare();
    let alice = client("alice");
    let answer = envoy.ask("edge", &[alice.clone(), hits(&alice, 3), hits(&alice, 2)]);
    assert_eq!(answer.overall_code(), Code::Ok);
    assert_eq!(fields(&answer, "ratelimit").len(), 1, "{answer:?}");
    assert_eq!(envoy.left("edge", &alice), Some(7));
}

#[test]
fn c2_rules_match_on_the_domain_and_the_entries() {
    let (_server, envoy) = server(
        "match",
        r#"
        [[rule]]
        name = "login"
        match = { domain = "edge", path = "/login" }
        key = ["remote_address"]
        limit = "3/hour fixed"
        [[rule]]
        name = "pair"
        key = ["generic_key", "generic_key.2"]
        limit = "5/hour fixed"
        "#,
    );
    let login = |address: &str, path: &str| descriptor(&[("remote_address", address), ("path", path)]);
    let status = envoy.status("edge", &login("10.0.0.1", "/login"));
    assert_eq!((limit(&status), left(&status)), (Some((3, Unit::Hour, "login")), Some(2)));
    let turned = descriptor(&[("path", "/login"), ("remote_address", "10.0.0.1")]);
    assert_eq!(envoy.left("edge", &turned), Some(2), "the order of attributes does not matter");
    assert_eq!(envoy.left("edge", &login("10.0.0.2", "/login")), Some(3));
    for (domain, free) in [
        ("edge", login("10.0.0.1", "/logins")),
        ("inside", login("10.0.0.1", "/login")),
        ("edge", descriptor(&[("path", "/login")])),
        ("edge", descriptor(&[("generic_key", "a")])),
        // An entry called `domain` does not override the domain.
        ("inside", descriptor(&[("domain", "edge"), ("path", "/login"), ("remote_address", "10.0.0.1")])),
    ] {
        assert_eq!(envoy.left(domain, &free), None, "{domain} {free:?}");
    }
    let pair = |one, other| descriptor(&[("generic_key", one), ("generic_key", other)]);
    let status = envoy.status("any", &pair("a", "b"));
    assert_eq!((limit(&status), left(&status)), (Some((5, Unit::Hour, "pair")), Some(4)));
    assert_eq!(envoy.left("any", &pair("a", "b")), Some(4));
    assert_eq!(envoy.left("any", &pair("b", "a")), Some(5), "b5");
}

#[test]
fn c2_a_shadow_rule_never_denies() {
    let rule = "[[rule]]\nname = \"watched\"\nkey = [\"client\"]\nlimit = \"2/hour fixed\"\nshadow = true";
    let (server, envoy) = server("shadow", rule);
    for left_now in [1, 0, 0, 0] {
        let status = envoy.status("edge", &client("alice"));
        assert_eq!(status.code(), Code::Ok);
        assert_eq!((limit(&status), left(&status)), (Some((2, Unit::Hour, "watched")), Some(left_now)));
    }
    let denied = r#"tollgate_rule_decisions_total{rule="watched",outcome="shadow_denied"}"#;
    assert!(server.metric(denied) >= 2.0);
}

#[test]
fn b8_of_two_limits_the_deciding_one_is_reported() {
    let (_server, envoy) = server(
        "two",
        r#"
        [[rule]]
        name = "spikes"
        key = ["spikes"]
        limit = ["3/min fixed", "5/hour fixed"]
        [[rule]]
        name = "sustained"
        key = ["sustained"]
        limit = ["4/min fixed", "3/hour fixed"]
        "#,
    );
    for (key, reported) in
        [("spikes", (3, Unit::Minute, "spikes")), ("sustained", (3, Unit::Hour, "sustained.2"))]
    {
        for (code, left_now) in [(Code::Ok, 2), (Code::Ok, 1), (Code::Ok, 0), (Code::OverLimit, 0)] {
            let answer = envoy.ask("edge", &[descriptor(&[(key, "x")])]);
            let status = &answer.statuses[0];
            assert_eq!((status.code(), left(status)), (code, Some(left_now)), "{answer:?}");
            assert_eq!(limit(status), Some(reported));
            let policies = fields(&answer, "ratelimit-policy").join(", ");
            assert_eq!(policies.matches(";q=").count(), 2, "both are in the fields: {policies}");
        }
    }
}

#[test]
fn b10_http_and_grpc_share_a_budget() {
    let (server, envoy) = bare();
    assert!(envoy.allows("edge", &hits(&client("alice"), 4)));
    assert_eq!(server.get("/check/alice").json()["remaining"], 5);
    assert_eq!(envoy.left("edge", &client("alice")), Some(5));
}
