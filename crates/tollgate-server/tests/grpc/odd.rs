use super::*;

#[test]
fn an_empty_domain_and_no_descriptors_are_rejected() {
    let (_server, envoy) = bare();
    assert_eq!(refusal(&envoy, "", &[client("a")]), tonic::Code::InvalidArgument);
    assert_eq!(refusal(&envoy, "edge", &[]), tonic::Code::InvalidArgument);
    assert_eq!(envoy.left("edge", &client("a")), Some(10));
}

#[test]
fn b5_unusual_values_are_counted_separately() {
    let (_server, envoy) = bare();
    let long = "x".repeat(5_000);
    let longer = format!("{long}x");
    let edge = "y".repeat(1_024);
    let over_the_edge = "y".repeat(1_025);
    for value in ["", "\0", "\0=", "\0=00", "ü\u{10ffff}", &edge, &over_the_edge, &long, &longer] {
        let status = envoy.status("edge", &hits(&client(value), 10));
        assert_eq!((status.code(), left(&status)), (Code::Ok, Some(0)), "{}", value.len());
        assert!(!envoy.allows("edge", &client(value)), "an error would admit the request");
    }
    assert_eq!(envoy.left("edge", &client("x")), Some(10));
}

#[test]
fn a_value_beyond_the_longest_is_still_matched() {
    let rule = "[[rule]]\nname = \"login\"\nmatch = { path = \"/login*\" }\nkey = [\"client\"]\nlimit = \"2/hour fixed\"";
    let (_server, envoy) = server("odd-path", rule);
    let long = format!("/login?{}", "a".repeat(2_000));
    let to = |path: &str| descriptor(&[("client", "alice"), ("path", path)]);
    assert!(envoy.allows("edge", &to("/login")) && envoy.allows("edge", &to(&long)));
    assert!(!envoy.allows("edge", &to(&long)), "a query does not evade a rule");
}

#[test]
fn b5_unusual_domains_are_counted_separately() {
    let rule = "[[rule]]\nname = \"by-domain\"\nkey = [\"domain\", \"client\"]\nlimit = \"2/hour fixed\"";
    let (_server, envoy) = server("odd-domain", rule);
    let long = "x".repeat(5_000);
    for domain in ["x", "\0", "ü", &long, &format!("{long}x")] {
        assert!(envoy.allows(domain, &hits(&client("a"), 2)), "{}", domain.len());
        assert!(!envoy.allows(domain, &client("a")));
    }
}

#[test]
fn entries_that_no_rule_uses_change_nothing() {
    let (_server, envoy) = bare();
    let long = "k".repeat(100_000);
    let odd = [("client", "a"), ("", ""), (&long, &long), ("\0", "\0"), ("client", "b"), ("client.2", "c")];
    let status = envoy.status("edge", &descriptor(&odd));
    assert_eq!((status.code(), left(&status)), (Code::Ok, Some(9)));
    assert_eq!(envoy.left("edge", &client("a")), Some(9));
}

#[test]
fn descriptors_beyond_the_bound_are_rejected() {
    let (_server, envoy) = bare();
    let many: Vec<_> = (0..1_000).map(|number| client(&number.to_string())).collect();
    assert_eq!(refusal(&envoy, "edge", &many), tonic::Code::InvalidArgument);
    let answer = envoy.ask("edge", &many[..64]);
    assert!(answer.statuses.iter().all(|status| left(status) == Some(9)), "{answer:?}");
}

#[test]
fn a_descriptor_with_very_many_entries_does_not_block_the_server() {
    let (_server, envoy) = bare();
    let mut entries = vec![("client", "a")];
    entries.resize(100_000, ("", ""));
    // Any answer will do. A request that never ends would block a thread.
    let mut service = RateLimitServiceClient::new(envoy.channel.clone());
    let asked = service.should_rate_limit(request("edge", &[descriptor(&entries)]));
    let answer = envoy.wait(async { tokio::time::timeout(MINUTE / 2, asked).await });
    if let Ok(answer) = answer.expect("an answer, or the server spins") {
        assert_eq!(left(&answer.into_inner().statuses[0]), Some(9));
    }
    assert!(envoy.allows("edge", &client("b")));
}

#[test]
fn a_message_beyond_the_bound_is_rejected_and_the_connection_stays_open() {
    let (_server, envoy) = bare();
    let large = "x".repeat(2 << 20);
    let code = refusal(&envoy, "edge", &[client("a"), client(&large)]);
    assert!(matches!(code, tonic::Code::ResourceExhausted | tonic::Code::OutOfRange), "{code:?}");
    assert_eq!(envoy.left("edge", &client("a")), Some(10));
}
