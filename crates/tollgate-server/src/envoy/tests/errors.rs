//! What is wrong is told where it stands, with what to write instead.

use super::{Directory, Domains, told};
use crate::backend::Backend;

/// A file with one limit, which stands from line 5 on.
fn limit(settings: &str) -> String {
    told(&format!("domain: d\ndescriptors:\n  - key: k\n    rate_limit:\n      {settings}\n"))
}

fn assert_told(told: &str, parts: &[&str]) {
    for part in parts {
        assert!(told.contains(part), "{part:?} is not in:\n{told}");
    }
}

/// Asserts that one thing is wrong with a file, and where, and what is said about it.
#[track_caller]
fn assert_wrong(text: &str, place: &str, said: &str) {
    let told = told(text);
    assert_told(&told, &[&format!("x.yaml:{place}"), said]);
    assert_eq!(told.matches("error").count(), 1, "{told}");
}

#[test]
fn a_mistake_in_a_limit_is_told_where_it_stands() {
    for (settings, place, said) in [
        ("unit: minuet\n      requests_per_unit: 1", ":5:13", "did you mean `minute`?"),
        ("unit: 5 parsecs\n      requests_per_unit: 1", ":5:13", "second, minute, hour"),
        ("requests_per_unit: 1", ":4:5", "add `unit: minute`"),
        ("unit: day", ":4:5", "add `requests_per_unit"),
        ("unit: day\n      requests_per_unit: many", ":6:26", "write digits"),
        ("unit: day\n      requests_per_unit: -1", ":6:26", "write digits"),
        ("unit: day\n      requests_per_unit: 1.5", ":6:26", "write digits"),
        ("unit: day\n      requests_per_unit: [1]", ":6:7", "this is a list"),
        ("unit: day\n      requests_per_unit: 9999999999999999", ":6:26", "999999999999999"),
        ("unit: day\n      requests_per_unit: 1\n      unit_multiplier: 0", ":7:24", "from 1 to"),
        ("unit: year\n      requests_per_unit: 1\n      unit_multiplier: 101", ":7:24", "100 years"),
        ("unit: 0s\n      requests_per_unit: 1", ":5:13", "out of range"),
        (
            "unit: day\n      requests_per_unit: 1\n      algorithm: slidng",
            ":7:18",
            "did you mean `sliding`?",
        ),
        (
            "unit: day\n      requests_per_unit: 999999999999\n      algorithm: log",
            ":7:18",
            "the store cannot keep",
        ),
        ("unlimited: true\n      unit: day", ":6:13", "leave out `unit` or `unlimited`"),
        ("unlimited: perhaps\n      unit: day\n      requests_per_unit: 1", ":5:18", "write true or false"),
        ("unti: day\n      unit: day\n      requests_per_unit: 1", ":5:7", "did you mean `unit`?"),
        ("unit: day\n      requests_per_unit: 1\n      shadow_mode: true", ":7:7", "beside its `key`"),
        ("unit: day\n      unit: day\n      requests_per_unit: 1", ":6:7", "first here"),
        ("unit: day\n      requests_per_unit: 1\n      replaces: [{name: }]", ":7:19", "nothing is named"),
        (
            "unit: day\n      requests_per_unit: 1\n      replaces:\n        - name:",
            ":8:11",
            "nothing is named",
        ),
        (
            "name: me\n      unit: day\n      requests_per_unit: 1\n      replaces:\n        - name: me",
            ":9:17",
            "cannot replace itself",
        ),
        ("- unit: day", ":5:7", "`rate_limit` is a mapping"),
    ] {
        let told = limit(settings);
        assert_told(&told, &[&format!("x.yaml{place}\n"), said]);
        assert_eq!(told.matches("error: ").count(), 1, "{told}");
    }
}

#[test]
fn a_mistake_in_a_descriptor_is_told_where_it_stands() {
    assert_wrong("domain: d\ndescriptors:\n  - a\n", "3:5\n", "a descriptor is a mapping");
    assert_wrong("domain: d\ndescriptors:\n  key: a\n", "2:1\n", "`descriptors` is a list");
    assert_wrong("domain: d\ndescriptors:\n  - value: a\n", "3:5\n", "a descriptor has no key");
    assert_wrong("domain: d\ndescriptors:\n  - key: ''\n", "3:10\n", "a descriptor has no key");
    assert_wrong("domain: d\ndescriptors:\n  - key: a*\n", "3:10\n", "only a value can be a pattern");
    assert_wrong(
        "domain: d\ndescriptors:\n  - key: a\n    ratelimit:\n",
        "4:5\n",
        "did you mean `rate_limit`?",
    );
    assert_wrong(
        "domain: d\ndescriptors:\n  - key: a\n    unit: day\n",
        "4:5\n",
        "in a descriptor's `rate_limit`",
    );
    assert_wrong(
        "domain: d\ndescriptors:\n  - key: a\n    value: b\n    share_threshold: true\n",
        "5:22\n",
        "write a `*` into `value`",
    );
    assert_wrong("domian: d\ndomain: e\n", "1:1\n", "did you mean `domain`?");
    assert_wrong("descriptors:\n", "1:1\n", "this file has no domain");
    assert_wrong("domain:\n", "1:1\n", "this file has no domain");
    assert_wrong("- domain\n", "1:1\n", "a file is a mapping");
}

#[test]
fn two_descriptors_of_the_same_key_and_value_are_both_pointed_at() {
    let told =
        told("domain: d\ndescriptors:\n  - key: a\n    value: b\n  - key: a\n  - key: a\n    value: b\n");
    assert_told(&told, &["x.yaml:7:12\n", "again", "first here", "4 |     value: b"]);
}

#[test]
fn a_limit_counts_by_eight_values_at_most() {
    let nested = |levels: usize| {
        let open: String = (0..levels).map(|n| format!("descriptors: [{{key: k{n}, ")).collect();
        let close = "}]".repeat(levels);
        format!("{{domain: d, {open} rate_limit: {{unit: day, requests_per_unit: 1}}{close}}}")
    };
    assert_eq!(super::domains(&nested(8)).rules().next().unwrap().key_attributes().len(), 8);
    assert_told(&told(&nested(9)), &["x.yaml:1:", "would count by 9 values", "8 without one are the most"]);
}

#[test]
fn what_is_not_yaml_is_told_at_its_line_and_column() {
    assert_told(&told("domain: d\ndescriptors:\n  - key: \"a\n"), &["this is not YAML", "x.yaml:3:10\n"]);
    assert_told(&told("domain: d\ndescriptors: [\n"), &["this is not YAML", "x.yaml:2:16\n"]);
    assert_told(&told("domain: d\n\tdescriptors:\n"), &["this is not YAML", "x.yaml:2:1\n", "spaces"]);
    assert_told(&told("domain: *d\n"), &["this is not YAML", "x.yaml:1:9\n"]);
    assert_told(&told("domain: d\n---\ndomain: e\n"), &["more than one document", "x.yaml:3:1\n"]);
    assert_told(&told(""), &["x.yaml is empty"]);
    assert_told(&told("# only a comment\n"), &["x.yaml is empty"]);
}

#[test]
fn columns_are_right_after_text_that_is_not_ascii() {
    let text = "# größer als 🦀\r\ndomain: dömäne # ✓✓✓\r\ndescriptors:\r\n  - {key: ключ, valeu: x} # ß\r\n";
    assert_wrong(text, "4:17\n", "did you mean `value`?");
    assert_wrong(
        "domain: \u{1f980}\ndescriptors:\n  - key: \"\u{1f980}\"\n    vlaue: x\n",
        "4:5\n",
        "`value`",
    );
    assert_wrong("\u{feff}domain: ä\nx: y\n", "2:1\n", "there is no setting `x` here");
}

#[test]
fn all_mistakes_of_all_files_are_told_at_once() {
    let directory = Directory::new()
        .with("1.yaml", "domain: d\ndescriptors: [{}, {key: k, rate_limit: {unit: x}}]\n")
        .with("2.yaml", "domain: d\n")
        .with("3.yaml", [0xff])
        .with("4.yaml", "[")
        .with("5.yaml", "domain: e\n");
    let errors = directory.read().unwrap_err();
    let told: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), 4);
    assert_told(&told[0], &["1.yaml: 3 mistakes"]);
    assert_told(&told[1], &["2.yaml:1:9\n", "another file has the domain \"d\"", "1.yaml"]);
    assert_told(&told[2], &["3.yaml: it is not UTF-8 after 0 bytes"]);
    assert_told(&told[3], &["4.yaml:", "this is not YAML"]);
}

#[test]
fn a_file_that_would_be_too_large_is_refused_and_not_written_out() {
    let mut bomb = String::from("domain: d\ndescriptors:\n  - key: k0\n    descriptors: &a0 [{key: k}]\n");
    for n in 1..40 {
        let below = n - 1;
        bomb += &format!("  - key: k{n}\n    descriptors: &a{n}\n");
        bomb += &format!(
            "      - {{key: a, descriptors: *a{below}}}\n      - {{key: b, descriptors: *a{below}}}\n"
        );
    }
    assert_told(&told(&bomb), &["too large", "this makes it too large", "x.yaml:"]);
    assert_told(&told(&format!("domain: {}", "[".repeat(200))), &["nested too deeply", "x.yaml:1:"]);
    let steps: String = (0..300).map(|n| format!("{}a:\n", " ".repeat(n))).collect();
    assert_told(&told(&steps), &["nested too deeply"]);
    assert_told(
        &told("domain: d\ndescriptors: &d [{key: a, descriptors: *d}]\n"),
        &["stands inside", ":2:40\n"],
    );
    assert_told(&told(&" ".repeat((4 << 20) + 1)), &["x.yaml: it is larger than 4 MiB"]);
}

#[test]
fn what_aliases_repeat_is_told_once() {
    let text =
        "domain: d\ndescriptors:\n  - {key: a, rate_limit: &r {unit: x}}\n  - {key: b, rate_limit: *r}\n";
    assert_told(&told(text), &["x.yaml:3:36\n", "3 mistakes"]);
}

#[test]
fn a_path_without_files_is_told() {
    let read = |path: &std::path::Path| {
        Domains::read(path, &Backend::Memory(Box::default())).unwrap_err()[0].to_string()
    };
    let directory = Directory::new();
    assert!(read(&directory.0).contains("there is no file *.yaml or *.yml"));
    assert!(read(&directory.0.join("none.yaml")).contains("none.yaml: No such file"));
    assert!(Domains::text(&directory.0).contains("there is no file"));
}
