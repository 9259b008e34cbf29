use super::*;

#[test]
fn c4_an_inline_limit_replaces_the_rules() {
    let (_server, envoy) = bare();
    let alice = client("alice");
    let inline = under(&alice, 3, RateLimitUnit::Hour);
    for (code, left_now) in [(Code::Ok, 2), (Code::Ok, 1), (Code::Ok, 0), (Code::OverLimit, 0)] {
        let status = envoy.status("edge", &inline);
        assert_eq!((status.code(), left(&status)), (code, Some(left_now)));
        let reported = limit(&status).unwrap();
        assert_eq!((reported.0, reported.1), (3, Unit::Hour));
    }
    assert_eq!(envoy.left("edge", &alice), Some(10), "the rules were not charged");
    assert!(envoy.allows("edge", &hits(&alice, 10)));
    assert_eq!(envoy.left("edge", &under(&client("bob"), 3, RateLimitUnit::Hour)), Some(3));
    assert_eq!(envoy.left("edge", &inline), Some(0));
    for (unit, reported) in [
        (RateLimitUnit::Second, Unit::Second),
        (RateLimitUnit::Minute, Unit::Minute),
        (RateLimitUnit::Day, Unit::Day),
        (RateLimitUnit::Month, Unit::Month),
        (RateLimitUnit::Year, Unit::Year),
    ] {
        let status = envoy.status("edge", &under(&client(reported.as_str_name()), u32::MAX, unit));
        let reported = (u32::MAX, reported);
        assert_eq!(limit(&status).map(|limit| (limit.0, limit.1)), Some(reported), "{status:?}");
    }
}

#[test]
fn b12_inline_limits_of_one_unit_share_a_count() {
    let (_server, envoy) = bare();
    let under = |count| under(&client("alice"), count, RateLimitUnit::Hour);
    assert!(envoy.allows("edge", &hits(&under(10), 10)));
    assert!(!envoy.allows("edge", &under(10)));
    assert_eq!(envoy.left("edge", &under(100)), Some(90));
    assert!(envoy.allows("edge", &under(100)));
    assert_eq!(envoy.left("edge", &under(100)), Some(89));
    assert_eq!(envoy.left("edge", &under(5)), Some(0));
    assert!(!envoy.allows("edge", &under(5)));
    assert_eq!(envoy.left("edge", &under(100)), Some(89), "a denial under 5 gave nothing back");
    let bob = |unit| super::under(&client("bob"), 7, unit);
    assert!(envoy.allows("edge", &hits(&bob(RateLimitUnit::Hour), 4)));
    assert_eq!(envoy.left("edge", &bob(RateLimitUnit::Day)), Some(7), "the unit is part of the key");
    assert_eq!(envoy.left("edge", &bob(RateLimitUnit::Hour)), Some(3));
}

#[test]
fn b12_two_alternating_limits_admit_no_more_than_either() {
    let (_server, envoy) = bare();
    let admitted = |count| {
        let sent = under(&client("alice"), count, RateLimitUnit::Hour);
        (0..150).filter(|_| envoy.allows("edge", &sent)).count()
    };
    assert_eq!(admitted(5), 5);
    assert_eq!((0..10).map(|_| admitted(100) + admitted(5)).sum::<usize>(), 95);
}

#[test]
fn b2_a_check_under_a_smaller_limit_refunds_nothing() {
    let (_server, envoy) = bare();
    let under = |count| under(&client("alice"), count, RateLimitUnit::Hour);
    assert!(envoy.allows("edge", &hits(&under(10), 10)));
    assert!(!envoy.allows("edge", &hits(&under(1), 0)), "nothing is left of one");
    assert!(!envoy.allows("edge", &under(10)), "all ten are in use");
}

#[test]
fn b8_an_inline_limit_of_zero_denies_and_charges_no_other_descriptor() {
    let (_server, envoy) = bare();
    let nothing = under(&client("alice"), 0, RateLimitUnit::Hour);
    let own = under(&client("carol"), 5, RateLimitUnit::Hour);
    let answer = envoy.ask("edge", &[client("bob"), nothing.clone(), own.clone()]);
    let codes: Vec<Code> = answer.statuses.iter().map(|status| status.code()).collect();
    assert_eq!(codes, [Code::Ok, Code::OverLimit, Code::Ok]);
    assert_eq!(limit(&answer.statuses[1]), Some((0, Unit::Hour, "envoy.override")));
    assert_eq!(envoy.left("edge", &client("bob")), Some(10));
    assert_eq!(envoy.left("edge", &own), Some(5));
    assert!(!envoy.allows("edge", &nothing));
    assert!(!envoy.allows("edge", &hits(&nothing, 0)), "b3: a peek finds nothing either");
}

#[test]
fn f2_a_header_field_of_one_limit_occurs_once() {
    let (_server, envoy) = server("inline-x", "[server]\nheaders = \"x\"");
    let nothing = under(&client("alice"), 0, RateLimitUnit::Hour);
    let answer = envoy.ask("edge", &[client("bob"), client("carol"), nothing]);
    for name in ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"] {
        assert!(fields(&answer, name).len() <= 1, "{name} in {answer:?}");
    }
}

#[test]
fn f2_there_is_no_retry_after_if_a_retry_is_always_denied() {
    let (_server, envoy) = bare();
    assert!(envoy.allows("edge", &hits(&client("bob"), 10)));
    let nothing = under(&client("alice"), 0, RateLimitUnit::Hour);
    let answer = envoy.ask("edge", &[client("bob"), nothing]);
    assert_eq!(answer.overall_code(), Code::OverLimit);
    assert!(fields(&answer, "retry-after").is_empty(), "{answer:?}");
}

#[test]
fn an_unknown_unit_is_rejected() {
    let (_server, envoy) = bare();
    let mut odd = under(&client("a"), 5, RateLimitUnit::Unknown);
    assert_eq!(refusal(&envoy, "edge", &[client("bob"), odd.clone()]), tonic::Code::InvalidArgument);
    for unit in [99, -1, i32::MAX] {
        odd.limit.as_mut().unwrap().unit = unit;
        assert_eq!(refusal(&envoy, "edge", &[client("bob"), odd.clone()]), tonic::Code::InvalidArgument);
    }
    assert_eq!(envoy.left("edge", &client("bob")), Some(10), "and nothing was taken");
}

#[test]
fn b5_descriptors_that_join_to_the_same_text_are_different() {
    let (_server, envoy) = bare();
    let long = "x".repeat(5_000);
    let all = [
        ("edge", descriptor(&[("a", "bc")])),
        ("edge", descriptor(&[("ab", "c")])),
        ("edge", descriptor(&[("abc", "")])),
        ("edge", descriptor(&[("", "abc")])),
        ("edgea", descriptor(&[("", "bc")])),
        ("edge", descriptor(&[("a", "b"), ("c", "d")])),
        ("edge", descriptor(&[("c", "d"), ("a", "b")])),
        ("edge", descriptor(&[("a", "b,c,d")])),
        ("edge,a", descriptor(&[("b", "c,d")])),
        ("edge", descriptor(&[("a", "b,1:c,1:d")])),
        ("edge", descriptor(&[("a", "b"), ("c,1:d", "")])),
        ("edge", descriptor(&[])),
        ("edge", descriptor(&[("", "")])),
        ("edge", descriptor(&[("", ""), ("", "")])),
        ("edge", descriptor(&[("a", &long)])),
        ("edge", descriptor(&[("a", &format!("{long}x"))])),
        ("edge", descriptor(&[("\0", "\0")])),
        ("edge", descriptor(&[("\0\0", "")])),
    ];
    for (domain, descriptor) in &all {
        let status = envoy.status(domain, &under(descriptor, 3, RateLimitUnit::Hour));
        assert_eq!(left(&status), Some(2), "{domain} {descriptor:?}");
    }
}
