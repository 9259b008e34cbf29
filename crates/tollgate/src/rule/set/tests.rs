//! Which rules cover a request, and under which limits.

use super::*;
use crate::SECOND;

const LIMIT: Limit = Limit::per_second(1);

fn covered(rules: &RuleSet, attributes: &[(&str, &str)]) -> Vec<(String, u64)> {
    covering(rules, Request::new(attributes))
}

fn covering(rules: &RuleSet, request: Request<'_>) -> Vec<(String, u64)> {
    let mut covered = Vec::new();
    let collect = |each| -> Result<(), ()> {
        covered.push(each);
        Ok(())
    };
    rules.cover(&request, collect).unwrap();
    let limits = |covered: &Covered| {
        let rule = &rules.rules[covered.rule];
        let nth = covered.replacement.map_or(0, |index| index + 1);
        let (budget, limits) = rules.budgets(rule).nth(nth).unwrap();
        (format!("{}{budget}", rule.name), limits[0].capacity())
    };
    covered.iter().map(limits).collect()
}

#[test]
fn c2_the_attributes_of_a_set_are_those_of_all_its_rules_and_overrides() {
    let rules = RuleSet::new([
        Rule::new("global", LIMIT),
        Rule::new("login", LIMIT).matching("path", "/login").key(["client"]),
        Rule::new("tenant", LIMIT).key(["tenant", "client"]),
    ])
    .unwrap();
    assert_eq!(rules.attributes(), ["client", "path", "tenant"]);
    let rules = rules.with_overrides([Override::new("login", LIMIT).matching("plan", "gold")]).unwrap();
    assert_eq!(rules.attributes(), ["client", "path", "plan", "tenant"]);
}

#[test]
fn c2_a_rule_covers_a_matching_request_that_has_every_attribute_of_its_key() {
    let rules = RuleSet::new([
        Rule::new("global", LIMIT),
        Rule::new("login", LIMIT).matching("path", "/login").key(["client"]),
        Rule::new("api", LIMIT).matching("path", "/api/*").key(["client", "tenant"]),
    ])
    .unwrap();
    let names = |attributes: &[(&str, &str)]| {
        covered(&rules, attributes).into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert_eq!(names(&[]), ["global"]);
    assert_eq!(names(&[("client", "a"), ("path", "/login")]), ["global", "login"]);
    assert_eq!(names(&[("client", "a"), ("path", "/login/x")]), ["global"]);
    assert_eq!(names(&[("path", "/login")]), ["global"], "the key is incomplete");
    assert_eq!(names(&[("client", "a"), ("tenant", "t"), ("path", "/api/x")]), ["global", "api"]);
}

#[test]
fn c2_a_condition_with_several_values_holds_if_one_of_them_does() {
    let rules = RuleSet::new([
        Rule::new("write", LIMIT).matching("method", ["POST", "PUT"]),
        Rule::new("tree", LIMIT).matching("path", ["/", "/api/*"]),
    ]);
    let limit = |capacity| Limit::per(capacity, SECOND);
    let rules = rules.unwrap().with_overrides([
        Override::new("write", limit(2)).matching("client", ["a", "b"]),
        Override::new("write", limit(3)).matching("client", ["b", "c*"]),
    ]);
    let rules = rules.unwrap();
    let found = |attributes: &[(&str, &str)]| covered(&rules, attributes);
    let named = |name: &str, capacity| vec![(name.to_owned(), capacity)];
    assert_eq!(found(&[("method", "POST"), ("path", "/b")]), named("write", 1));
    assert_eq!(found(&[("method", "GET"), ("path", "/api/x")]), named("tree", 1));
    assert_eq!(found(&[("method", "GET"), ("path", "/b")]), []);
    assert_eq!(found(&[("method", "PUT"), ("client", "b")]), named("writeclient=a|b", 2));
    assert_eq!(found(&[("method", "PUT"), ("client", "cc")]), named("writeclient=b|c*", 3));
    let none = RuleSet::new([Rule::new("r", LIMIT).matching("path", [])]).unwrap_err().to_string();
    assert!(none.contains("lists no value"), "{none}");
}

#[test]
fn c2_an_own_request_covers_the_budgets_keyed_by_its_attributes_alone() {
    let rules = RuleSet::new([
        Rule::new("global", LIMIT),
        Rule::new("per-client", LIMIT).key(["client"]),
        Rule::new("login", LIMIT).matching("path", "/login").key(["client"]),
        Rule::new("route", LIMIT).key(["client", "path"]),
    ])
    .unwrap();
    let names = |request: Request<'_>| {
        covering(&rules, request).into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert_eq!(names(Request::client("a")), ["global", "per-client"]);
    assert_eq!(names(Request::client("a").own()), ["per-client", "login"]);
}

#[test]
fn b12_an_own_request_covers_every_override_that_may_apply_to_the_client() {
    let rules = RuleSet::new([Rule::new("r", LIMIT).key(["client"])]).unwrap();
    let limit = |capacity| Limit::per(capacity, SECOND);
    let rules = rules
        .with_overrides([
            Override::new("r", limit(2)).matching("path", "/x"),
            Override::new("r", limit(3)).matching("client", "a").matching("path", "/y"),
            Override::new("r", limit(4)).matching("client", "b").matching("path", "/y"),
            Override::new("r", limit(5)).matching("client", "a*"),
            Override::new("r", limit(6)).matching("path", "/z"),
        ])
        .unwrap();
    let own = covering(&rules, Request::client("a").own());
    let expected = [("r", 5), ("rpath=/x", 2), ("rclient=a,path=/y", 3)];
    assert_eq!(own, expected.map(|(name, capacity)| (name.to_owned(), capacity)));
}

#[test]
fn c4_an_override_for_an_exact_value_takes_an_asterisk_literally() {
    let rules = RuleSet::new([Rule::new("r", LIMIT).key(["client"])]).unwrap();
    let rules =
        rules.with_overrides([Override::new("r", Limit::per_second(9)).exactly("client", "a*")]).unwrap();
    assert_eq!(covered(&rules, &[("client", "a*")])[0].1, 9);
    assert_eq!(covered(&rules, &[("client", "ab")])[0].1, 1);
}

#[test]
fn c4_the_first_matching_override_applies() {
    let rules = RuleSet::new([Rule::new("r", LIMIT).key(["client"])]).unwrap();
    let limit = |capacity| Limit::per(capacity, SECOND);
    let rules = rules
        .with_overrides([
            Override::new("r", limit(2)).matching("client", "gold-*").matching("path", "/x"),
            Override::new("r", limit(3)).matching("client", "gold-1"),
            Override::new("r", limit(4)).matching("client", "gold-*"),
            Override::new("r", limit(5)).matching("client", "gold-2"),
        ])
        .unwrap();
    let capacity = |attributes: &[(&str, &str)]| covered(&rules, attributes)[0].1;
    assert_eq!(capacity(&[("client", "gold-1"), ("path", "/x")]), 2);
    assert_eq!(capacity(&[("client", "gold-1")]), 3);
    assert_eq!(capacity(&[("client", "gold-2")]), 4, "the pattern comes first");
    assert_eq!(capacity(&[("client", "iron")]), 1);
}

#[test]
fn d3_an_invalid_rule_is_rejected_with_its_field() {
    let error = |rule: Rule| RuleSet::new([rule]).unwrap_err().to_string();
    assert!(error(Rule::new("", LIMIT)).contains("name: write 1 to 128 printable"));
    assert!(error(Rule::new("naïve", LIMIT)).contains("name: "));
    assert!(error(Rule::new("r", LIMIT).cost(0)).contains("cost: 0 is out of range"));
    assert!(error(Rule::new("r", Vec::new())).contains("limit: it has no limit"));
    assert!(error(Rule::new("r", LIMIT).key([""])).contains("key: an attribute has no name"));
    assert!(error(Rule::new("r", LIMIT).key(["a", "a"])).contains("key: attribute \"a\" is listed twice"));
    assert!(error(Rule::new("r", LIMIT).matching("", "x")).contains("match: "));
    let twins = RuleSet::new([Rule::new("r", LIMIT), Rule::new("r", LIMIT)]).unwrap_err();
    assert_eq!(twins.code(), "invalid_rule");
    let lost = RuleSet::default().with_overrides([Override::new("r", LIMIT).matching("client", "x")]);
    assert_eq!(lost.unwrap_err().code(), "unknown_rule");
}
