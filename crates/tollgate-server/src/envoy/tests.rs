//! Files written for the reference, and the limits found in them.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use tollgate::{HOUR, Limit, MINUTE, RuleSet, SECOND};

use super::*;

mod errors;

/// A temporary directory, removed on drop.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tollgate-envoy-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn with(self, name: &str, text: impl AsRef<[u8]>) -> Self {
        let file = self.0.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
        self
    }

    fn read(&self) -> Result<Domains, Vec<ConfigErrors>> {
        Domains::read(&self.0, &Backend::Memory(Box::default()))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// The rendered errors of one file.
fn rendered_errors(text: &str) -> String {
    let errors = Directory::new().with("x.yaml", text).read().expect_err("errors");
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn domains(text: &str) -> Domains {
    let read = Directory::new().with("x.yaml", text).read();
    let domains = read.unwrap_or_else(|errors| panic!("{}", errors[0]));
    RuleSet::new(domains.rules().cloned()).expect("rules that work together");
    domains
}

fn find<'a>(domains: &'a Domains, domain: &str, entries: &[(&str, &str)]) -> Option<&'a Matched> {
    domains.get(domain)?.find(entries.iter().copied())
}

/// The rule of a descriptor: its name, its first limit, and what it counts by.
fn rule<'a>(domains: &'a Domains, domain: &str, entries: &[(&str, &str)]) -> Option<&'a Rule> {
    let Verdict::Rule(name) = find(domains, domain, entries)?.verdict else { panic!("not a rule") };
    Some(domains.rules().find(|rule| rule.name() == name).expect("a rule of that name"))
}

/// The name of a descriptor's rule, or `-`.
fn name(domains: &Domains, entries: &[(&str, &str)]) -> String {
    rule(domains, "d", entries).map_or_else(|| "-".into(), |rule| rule.name().to_string())
}

const BASIC: &str = "
domain: d
descriptors:
  - key: tenant
    value: acme
    descriptors:
      - key: user
        rate_limit:
          unit: second
          requests_per_unit: 5
      - key: user
        value: root
        rate_limit:
          unit: SECOND
          requests_per_unit: 10
  - key: path
    rate_limit: {unit: Minute, requests_per_unit: 20}
  - key: path
    value: /login
    rate_limit: {unit: minute, requests_per_unit: 3}
  - key: path
    value: /health
";

#[test]
fn the_most_specific_descriptor_of_each_level_wins() {
    let domains = domains(BASIC);
    assert_eq!(name(&domains, &[("tenant", "acme"), ("user", "ann")]), "d.tenant_acme.user");
    assert_eq!(name(&domains, &[("tenant", "acme"), ("user", "root")]), "d.tenant_acme.user_root");
    assert_eq!(name(&domains, &[("path", "/x")]), "d.path");
    assert_eq!(name(&domains, &[("path", "/login")]), "d.path_/login");
    assert_eq!(name(&domains, &[("path", "/health")]), "-", "a value without a limit is not limited");
    assert_eq!(name(&domains, &[("path", "")]), "d.path", "an empty value is a value");
    assert!(find(&domains, "other", &[("path", "/x")]).is_none());
    assert_eq!(domains.rules().count(), 4);
}

#[test]
fn a_rule_is_keyed_by_the_varying_values_only() {
    let domains = domains(BASIC);
    let user = rule(&domains, "d", &[("tenant", "acme"), ("user", "ann")]).unwrap();
    assert_eq!(user.key_attributes(), ["user"]);
    assert_eq!(*user.limits(), [Limit::fixed_window(5, SECOND)]);
    assert!(!user.is_shadow());
    let root = rule(&domains, "d", &[("tenant", "acme"), ("user", "root")]).unwrap();
    assert!(root.key_attributes().is_empty());
    assert_eq!(*root.limits(), [Limit::fixed_window(10, SECOND)]);
    assert_eq!(*rule(&domains, "d", &[("path", "/")]).unwrap().limits(), [Limit::fixed_window(20, MINUTE)]);
}

#[test]
fn a_descriptor_matches_only_at_its_own_depth() {
    let domains = domains(BASIC);
    for entries in [
        &[][..],
        &[("tenant", "acme")],
        &[("tenant", "other"), ("user", "ann")],
        &[("tenant", "acme"), ("user", "ann"), ("path", "/x")],
        &[("path", "/x"), ("path", "/x")],
        &[("user", "ann")],
        &[("user", "ann"), ("tenant", "acme")],
    ] {
        assert_eq!(name(&domains, entries), "-", "{entries:?}");
    }
}

#[test]
fn a_key_and_a_value_do_not_match_a_joined_key() {
    let domains =
        domains("{domain: d, descriptors: [{key: a_b, rate_limit: {unit: day, requests_per_unit: 1}}]}");
    assert_eq!(name(&domains, &[("a_b", "x")]), "d.a_b");
    assert_eq!(name(&domains, &[("a", "b")]), "-");
}

const PATTERNS: &str = "
domain: d
descriptors:
  - {key: p, value: '*', rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: p, value: /a*, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: p, value: /a/*/z, rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: p, value: /a/*/m/*/z, rate_limit: {unit: day, requests_per_unit: 4}}
  - {key: p, value: /a/b, rate_limit: {unit: day, requests_per_unit: 5}}
  - key: p
    value: s*
    share_threshold: true
    rate_limit: {unit: day, requests_per_unit: 6}
    descriptors: [{key: q, rate_limit: {unit: day, requests_per_unit: 7}}]
  - {key: o, value: x*y, rate_limit: {unit: day, requests_per_unit: 8}}
  - {key: o, rate_limit: {unit: day, requests_per_unit: 9}}
";

#[test]
fn an_exact_value_precedes_the_most_specific_pattern() {
    let domains = domains(PATTERNS);
    let of = |key, value| name(&domains, &[(key, value)]);
    assert_eq!(of("p", "/a/b"), "d.p_/a/b");
    assert_eq!(of("p", "/a/c"), "d.p_/a*");
    assert_eq!(of("p", "/a"), "d.p_/a*", "a star matches the empty text");
    assert_eq!(of("p", "/a/1/z"), "d.p_/a/*/z");
    assert_eq!(of("p", "/a/1/m/2/z"), "d.p_/a/*/m/*/z");
    assert_eq!(of("p", "/a/z"), "d.p_/a*", "prefix and suffix do not overlap");
    assert_eq!(of("p", "else"), "d.p_*");
    assert_eq!(of("o", "xy"), "d.o_x*y");
    assert_eq!(of("o", "xyz"), "d.o", "the key alone comes last");
}

#[test]
fn each_value_of_a_pattern_has_a_budget_unless_they_share_one() {
    let domains = domains(PATTERNS);
    let key = |entries: &[_]| rule(&domains, "d", entries).unwrap().key_attributes().to_vec();
    assert_eq!(key(&[("p", "/a/c")]), ["p"]);
    assert!(key(&[("p", "s1")]).is_empty(), "shared");
    assert_eq!(key(&[("p", "s1"), ("q", "1")]), ["q"], "shared above as well");
}

#[test]
fn unlimited_and_zero_differ_from_no_limit() {
    let domains = domains(
        "
domain: d
descriptors:
  - {key: free, rate_limit: {unlimited: yes, requests_per_unit: 9}}
  - {key: banned, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: none, rate_limit:}
",
    );
    let verdict = |key| find(&domains, "d", &[(key, "x")]).map(|matched| matched.verdict);
    assert_eq!(verdict("free"), Some(Verdict::Unlimited));
    assert_eq!(verdict("banned"), Some(Verdict::DenyAll(HOUR)));
    assert!(find(&domains, "d", &[("banned", "x")]).unwrap().shadow);
    assert_eq!(verdict("none"), None);
    assert_eq!(domains.rules().count(), 0);
}

#[test]
fn the_settings_beside_a_limit_are_found_with_it() {
    let domains = domains(
        "
domain: d
descriptors:
  - key: a
    shadow_mode: true
    detailed_metric: true
    value_to_metric: true
    metadata: {anything: [goes, {here: 1}]}
    rate_limit: {name: one, unit: day, requests_per_unit: 1}
  - key: b
    quota_mode: true
    rate_limit:
      replaces: [{name: one}, {name: two}]
      unit: day
      requests_per_unit: 1
",
    );
    let a = find(&domains, "d", &[("a", "")]).unwrap();
    assert!(a.shadow && a.detailed);
    assert_eq!(a.name, "one");
    assert!(rule(&domains, "d", &[("a", "")]).unwrap().is_shadow());
    let b = find(&domains, "d", &[("b", "")]).unwrap();
    assert!(b.shadow && !b.detailed);
    assert_eq!((b.name.as_str(), b.replaces.as_slice()), ("", &["one".to_owned(), "two".into()][..]));
    assert!(rule(&domains, "d", &[("b", "")]).unwrap().is_shadow());
}

#[test]
fn a_limit_is_a_fixed_window_unless_another_algorithm_is_named() {
    let limit = |settings: &str| {
        let text = format!("{{domain: d, descriptors: [{{key: k, rate_limit: {{{settings}}}}}]}}");
        rule(&domains(&text), "d", &[("k", "v")]).unwrap().limits()[0].to_string()
    };
    for (settings, wanted) in [
        ("unit: week, requests_per_unit: 7", "7/week fixed"),
        ("unit: month, requests_per_unit: 7", "7/30d fixed"),
        ("unit: YEAR, requests_per_unit: 7", "7/365d fixed"),
        ("unit: minute, requests_per_unit: 7, unit_multiplier: 5", "7/5m fixed"),
        ("unit: 90s, requests_per_unit: 7", "7/90s fixed"),
        ("unit: 15m, requests_per_unit: 7, unit_multiplier: 2", "7/30m fixed"),
        ("unit: hour, requests_per_unit: 7, algorithm: fixed", "7/hour fixed"),
        ("unit: hour, requests_per_unit: 7, algorithm: fixed aligned", "7/hour fixed aligned"),
        ("unit: hour, requests_per_unit: 7, algorithm: sliding", "7/hour sliding"),
        ("unit: hour, requests_per_unit: 7, algorithm: log", "7/hour log"),
        ("unit: hour, requests_per_unit: 7, algorithm: bucket", "7/hour"),
        ("unit: month, requests_per_unit: 7, algorithm: calendar", "7/month"),
        ("unit: YEAR, requests_per_unit: 7, algorithm: calendar at europe/berlin", "7/year at Europe/Berlin"),
        ("unit: day, requests_per_unit: 7, unit_multiplier: 1, algorithm: calendar", "7/day at UTC"),
        ("unit: hour, requests_per_unit: 1_000", "1000/hour fixed"),
        ("unit: hour, requests_per_unit: 0x10", "16/hour fixed"),
        ("unit: hour, requests_per_unit: 010", "8/hour fixed"),
        ("unit: hour, requests_per_unit: '12'", "12/hour fixed"),
    ] {
        assert_eq!(limit(settings), wanted, "{settings}");
    }
}

#[test]
fn repeated_keys_are_numbered() {
    let names = |keys: &[&'static str]| attribute_names(keys.iter().copied()).join(" ");
    assert_eq!(names(&["a", "b", "a", "a"]), "a b a.2 a.3");
    assert_eq!(names(&["a", "a", "a.2"]), "a a.2 a.2.2");
    assert_eq!(names(&["a.2", "a", "a"]), "a.2 a a.3");
    let domains = domains(
        "
domain: d
descriptors:
  - key: generic_key
    value: x
    descriptors:
      - key: generic_key
        descriptors: [{key: generic_key, rate_limit: {unit: day, requests_per_unit: 1}}]
",
    );
    let found = rule(&domains, "d", &[("generic_key", "x"), ("generic_key", "y"), ("generic_key", "z")]);
    assert_eq!(found.unwrap().key_attributes(), ["generic_key.2", "generic_key.3"]);
}

#[test]
fn invalid_names_keep_a_stem_and_never_clash() {
    let long = "x".repeat(200);
    let text = format!(
        "
domain: d
descriptors:
  - {{key: {long}, rate_limit: {{unit: day, requests_per_unit: 1}}}}
  - {{key: {long}y, rate_limit: {{unit: day, requests_per_unit: 1}}}}
  - {{key: länge, rate_limit: {{unit: day, requests_per_unit: 1}}}}
  - {{key: lünge, rate_limit: {{unit: day, requests_per_unit: 1}}}}
  - {{key: a, value: b_c, rate_limit: {{unit: day, requests_per_unit: 1}}}}
  - {{key: a_b, value: c, rate_limit: {{unit: day, requests_per_unit: 1}}}}
  - {{key: a_b_c, rate_limit: {{unit: day, requests_per_unit: 1}}}}
  - {{key: k~0123456789abcdef, rate_limit: {{unit: day, requests_per_unit: 1}}}}
"
    );
    let domains = domains(&text);
    assert_eq!(domains.rules().count(), 8, "all names differ, or the rule set would be invalid");
    assert!(name(&domains, &[("länge", "")]).starts_with("d.l?nge~"));
    assert!(name(&domains, &[(&long, "")]).starts_with("d.xxxx"));
    assert_eq!(name(&domains, &[(&long, "")]).len(), 128);
    assert!(name(&domains, &[("a_b", "c")]).starts_with("d.a_b_c~"));
    assert_ne!(name(&domains, &[("a_b", "c")]), name(&domains, &[("a", "b_c")]));
    assert!(name(&domains, &[("k~0123456789abcdef", "")]).starts_with("d.k~0123456789abcdef~"));
    assert_eq!(name(&domains, &[("länge", "")]), "d.l?nge~9262ab070128d2cc", "the same in every process");
}

#[test]
fn domains_whose_full_keys_are_equal_have_different_rules() {
    let of = |domain| {
        format!(
            "domain: {domain}\ndescriptors: [{{key: k, rate_limit: {{unit: day, requests_per_unit: 1}}}}]"
        )
    };
    let nested = "
domain: d
descriptors:
  - {key: e, descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]}
";
    let domains = Directory::new().with("1.yaml", of("d.e")).with("2.yaml", nested).read().unwrap();
    RuleSet::new(domains.rules().cloned()).expect("two names");
}

#[test]
fn a_directory_means_its_files_except_hidden_ones() {
    let file = |domain: &str| format!("domain: {domain}\n");
    let directory = Directory::new()
        .with("b.yml", file("b"))
        .with("a.yaml", file("a"))
        .with(".hidden.yaml", "no: [")
        .with("notes.txt", "no: [")
        .with("config/c.yaml", "no: [");
    let domains = directory.read().unwrap();
    assert!(domains.get("a").is_some() && domains.get("b").is_some());
    let text = Domains::text(&directory.0);
    assert!(text.find("domain: a").unwrap() < text.find("domain: b").unwrap(), "{text}");
    assert!(!text.contains("no:"), "{text}");
    let file = Domains::read(&directory.0.join("a.yaml"), &Backend::Memory(Box::default())).unwrap();
    assert!(file.get("a").is_some() && file.get("b").is_none());
}

#[test]
fn a_runtime_directory_keeps_its_files_in_config() {
    let directory = Directory::new().with("config/a.yaml", "---\ndomain: a\n");
    assert!(directory.read().unwrap().get("a").is_some());
    assert!(Domains::text(&directory.0).contains("domain: a"));
}

#[test]
fn anchors_aliases_and_merges_are_expanded() {
    let domains = domains(
        "
domain: d
descriptors:
  - key: a
    rate_limit: &daily
      unit: day
      requests_per_unit: 1
  - {key: b, rate_limit: *daily}
  - {key: c, rate_limit: {<<: *daily, requests_per_unit: 2}}
",
    );
    let limit = |key| rule(&domains, "d", &[(key, "")]).unwrap().limits()[0].to_string();
    assert_eq!([limit("a"), limit("b"), limit("c")], ["1/day fixed", "1/day fixed", "2/day fixed"]);
}
