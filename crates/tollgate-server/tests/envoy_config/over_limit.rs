use super::*;

const BUDGETS: &str = "
domain: llm
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 1000}
  - key: strict
    rate_limit: {unit: hour, requests_per_unit: 1000, record_over_limit: false}
  - key: other
    rate_limit: {unit: hour, requests_per_unit: 10}
";

#[test]
fn c7_a_hit_beyond_the_limit_is_recorded_unless_the_limit_says_otherwise() {
    let (server, envoy) = serve(&written("over-limit", BUDGETS));
    for (key, recorded) in [("user", true), ("strict", false)] {
        let client = descriptor(&[(key, "ann")]);
        assert!(envoy.allows("llm", &hits(&client, 900)));
        let over = envoy.status("llm", &hits(&client, 500));
        assert_eq!((over.code(), over.limit_remaining), (Code::OverLimit, if recorded { 0 } else { 100 }));
        assert_eq!(envoy.allows("llm", &client), !recorded, "{key}");
    }
    let user = descriptor(&[("user", "ann")]);
    assert!(!envoy.allows("llm", &hits(&user, 5_000)), "more than the whole limit");
    assert_eq!(server.metric("tollgate_shortfall_units_total"), 4_401.0, "beyond one whole limit of debt");
}

#[test]
fn c7_asking_with_0_is_over_limit_when_nothing_is_left_and_charges_nothing() {
    let (_server, envoy) = serve(&written("over-limit-zero", BUDGETS));
    let (user, other) = (descriptor(&[("user", "ann")]), descriptor(&[("other", "ann")]));
    assert!(envoy.allows("llm", &hits(&user, 999)));
    for _ in 0..3 {
        assert_eq!(envoy.left("llm", &user), Some(1));
        assert!(envoy.allows("llm", &hits(&user, 0)));
    }
    assert!(envoy.allows("llm", &user));
    assert!(!envoy.allows("llm", &hits(&user, 0)), "exactly at the limit");
    let both = envoy.ask("llm", &[hits(&user, 0), other.clone()]);
    assert_eq!(both.overall_code(), Code::OverLimit);
    assert_eq!(envoy.left("llm", &other), Some(10), "b8: nothing was taken from the other");
}

#[test]
fn c7_only_the_descriptors_that_are_over_their_limits_are_recorded() {
    let text = format!("{BUDGETS}  - key: banned\n    rate_limit: {{unit: hour, requests_per_unit: 0}}\n");
    let (_server, envoy) = serve(&written("over-limit-several", &text));
    let [ann, bob] = ["ann", "bob"].map(|name| descriptor(&[("user", name)]));
    assert!(envoy.allows("llm", &hits(&ann, 900)));
    let both = envoy.ask("llm", &[hits(&ann, 500), hits(&bob, 500)]);
    let left: Vec<u32> = both.statuses.iter().map(|status| status.limit_remaining).collect();
    assert_eq!((both.overall_code(), left), (Code::OverLimit, vec![0, 1_000]));
    assert_eq!(envoy.left("llm", &bob), Some(1_000), "b8: nothing was taken from the other");
    // A limit of 0 denies the request as a whole.
    let carl = descriptor(&[("user", "carl")]);
    assert!(envoy.allows("llm", &hits(&carl, 900)));
    let banned = descriptor(&[("banned", "x")]);
    let all = envoy.ask("llm", &[banned, hits(&carl, 500), hits(&bob, 500)]);
    let left: Vec<u32> = all.statuses.iter().map(|status| status.limit_remaining).collect();
    assert_eq!((all.overall_code(), left), (Code::OverLimit, vec![0, 0, 1_000]));
    assert!(!envoy.allows("llm", &hits(&carl, 0)), "400 are owed");
    assert_eq!(envoy.left("llm", &bob), Some(1_000));
}
