//! Errors are reported with their position and a fix.

use super::{Directory, Domains, rendered_errors};
use crate::backend::Backend;

/// The errors of a file with one limit, whose settings begin on line 5.
fn limit(settings: &str) -> String {
    rendered_errors(&format!("domain: d\ndescriptors:\n  - key: k\n    rate_limit:\n      {settings}\n"))
}

fn assert_contains(rendered: &str, parts: &[&str]) {
    for part in parts {
        assert!(rendered.contains(part), "{part:?} is not in:\n{rendered}");
    }
}

/// Asserts that a file has one error, with this position and text.
#[track_caller]
fn assert_error(text: &str, position: &str, message: &str) {
    let rendered = rendered_errors(text);
    assert_contains(&rendered, &[&format!("x.yaml:{position}"), message]);
    assert_eq!(rendered.matches("error").count(), 1, "{rendered}");
}

#[test]
fn an_error_in_a_limit_has_its_position() {
    for (settings, position, message) in [
        ("unit: minuet\n      requests_per_unit: 1", ":5:13", "did you mean `minute`?"),
        ("unit: 5 parsecs\n      requests_per_unit: 1", ":5:13", "second, minute, hour"),
        ("requests_per_unit: 1", ":4:5", "such as `unit: minute`"),
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
        (
            "unit: day\n      requests_per_unit: 1\n      algorithm: calendar at Mordor",
            ":7:18",
            "the name of a time zone in the IANA database",
        ),
        (
            "unit: 90s\n      requests_per_unit: 1\n      algorithm: calendar",
            ":5:13",
            "write hour, day, week, month or year",
        ),
        (
            "unit: day\n      requests_per_unit: 1\n      unit_multiplier: 2\n      algorithm: calendar",
            ":7:24",
            "remove `unit_multiplier`",
        ),
        ("unlimited: true\n      unit: day", ":6:13", "remove `unit` or `unlimited`"),
        ("unlimited: perhaps\n      unit: day\n      requests_per_unit: 1", ":5:18", "write true or false"),
        ("unti: day\n      unit: day\n      requests_per_unit: 1", ":5:7", "did you mean `unit`?"),
        ("unit: day\n      requests_per_unit: 1\n      shadow_mode: true", ":7:7", "beside its `key`"),
        ("unit: day\n      unit: day\n      requests_per_unit: 1", ":6:7", "first here"),
        ("unit: day\n      requests_per_unit: 1\n      replaces: [{name: }]", ":7:19", "has no name"),
        ("unit: day\n      requests_per_unit: 1\n      replaces:\n        - name:", ":8:11", "has no name"),
        (
            "name: me\n      unit: day\n      requests_per_unit: 1\n      replaces:\n        - name: me",
            ":9:17",
            "cannot replace itself",
        ),
        ("- unit: day", ":5:7", "`rate_limit` is a mapping"),
    ] {
        let rendered = limit(settings);
        assert_contains(&rendered, &[&format!("x.yaml{position}\n"), message]);
        assert_eq!(rendered.matches("error: ").count(), 1, "{rendered}");
    }
}

#[test]
fn an_error_in_a_descriptor_has_its_position() {
    assert_error("domain: d\ndescriptors:\n  - a\n", "3:5\n", "a descriptor is a mapping");
    assert_error("domain: d\ndescriptors:\n  key: a\n", "2:1\n", "`descriptors` is a list");
    assert_error("domain: d\ndescriptors:\n  - value: a\n", "3:5\n", "a descriptor has no key");
    assert_error("domain: d\ndescriptors:\n  - key: ''\n", "3:10\n", "a descriptor has no key");
    assert_error("domain: d\ndescriptors:\n  - key: a*\n", "3:10\n", "only a value can be a pattern");
    assert_error(
        "domain: d\ndescriptors:\n  - key: a\n    ratelimit:\n",
        "4:5\n",
        "did you mean `rate_limit`?",
    );
    assert_error(
        "domain: d\ndescriptors:\n  - key: a\n    unit: day\n",
        "4:5\n",
        "in a descriptor's `rate_limit`",
    );
    assert_error(
        "domain: d\ndescriptors:\n  - key: a\n    value: b\n    share_threshold: true\n",
        "5:22\n",
        "write a `*` into `value`",
    );
    assert_error("domian: d\ndomain: e\n", "1:1\n", "did you mean `domain`?");
    assert_error("descriptors:\n", "1:1\n", "this file has no domain");
    assert_error("domain:\n", "1:1\n", "this file has no domain");
    assert_error("- domain\n", "1:1\n", "a file is a mapping");
}

#[test]
fn duplicate_descriptors_are_both_shown() {
    let rendered = rendered_errors(
        "domain: d\ndescriptors:\n  - key: a\n    value: b\n  - key: a\n  - key: a\n    value: b\n",
    );
    assert_contains(&rendered, &["x.yaml:7:12\n", "again", "first here", "4 |     value: b"]);
}

#[test]
fn a_limit_is_keyed_by_eight_values_at_most() {
    let nested = |levels: usize| {
        let open: String = (0..levels).map(|n| format!("descriptors: [{{key: k{n}, ")).collect();
        let close = "}]".repeat(levels);
        format!("{{domain: d, {open} rate_limit: {{unit: day, requests_per_unit: 1}}{close}}}")
    };
    assert_eq!(super::domains(&nested(8)).rules().next().unwrap().key_attributes().len(), 8);
    assert_contains(
        &rendered_errors(&nested(9)),
        &["x.yaml:1:", "is keyed by 9 varying values", "at most 8 may vary"],
    );
}

#[test]
fn invalid_yaml_is_reported_with_line_and_column() {
    assert_contains(
        &rendered_errors("domain: d\ndescriptors:\n  - key: \"a\n"),
        &["this is not YAML", "x.yaml:3:10\n"],
    );
    assert_contains(&rendered_errors("domain: d\ndescriptors: [\n"), &["this is not YAML", "x.yaml:2:16\n"]);
    assert_contains(
        &rendered_errors("domain: d\n\tdescriptors:\n"),
        &["this is not YAML", "x.yaml:2:1\n", "spaces"],
    );
    assert_contains(&rendered_errors("domain: *d\n"), &["this is not YAML", "x.yaml:1:9\n"]);
    assert_contains(
        &rendered_errors("domain: d\n---\ndomain: e\n"),
        &["more than one document", "x.yaml:3:1\n"],
    );
    assert_contains(&rendered_errors(""), &["x.yaml is empty"]);
    assert_contains(&rendered_errors("# only a comment\n"), &["x.yaml is empty"]);
}

#[test]
fn columns_are_right_after_non_ascii_text() {
    let text = "# größer als 🦀\r\ndomain: dömäne # ✓✓✓\r\ndescriptors:\r\n  - {key: ключ, valeu: x} # ß\r\n";
    assert_error(text, "4:17\n", "did you mean `value`?");
    assert_error(
        "domain: \u{1f980}\ndescriptors:\n  - key: \"\u{1f980}\"\n    vlaue: x\n",
        "4:5\n",
        "`value`",
    );
    assert_error("\u{feff}domain: ä\nx: y\n", "2:1\n", "there is no setting `x` here");
}

#[test]
fn all_errors_of_all_files_are_reported_at_once() {
    let directory = Directory::new()
        .with("1.yaml", "domain: d\ndescriptors: [{}, {key: k, rate_limit: {unit: x}}]\n")
        .with("2.yaml", "domain: d\n")
        .with("3.yaml", [0xff])
        .with("4.yaml", "[")
        .with("5.yaml", "domain: e\n");
    let errors = directory.read().unwrap_err();
    let rendered: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(rendered.len(), 4);
    assert_contains(&rendered[0], &["1.yaml: 3 errors"]);
    assert_contains(&rendered[1], &["2.yaml:1:9\n", "another file has the domain \"d\"", "1.yaml"]);
    assert_contains(&rendered[2], &["3.yaml: it is not UTF-8 after 0 bytes"]);
    assert_contains(&rendered[3], &["4.yaml:", "this is not YAML"]);
}

#[test]
fn a_file_that_expands_too_much_is_rejected() {
    let mut bomb = String::from("domain: d\ndescriptors:\n  - key: k0\n    descriptors: &a0 [{key: k}]\n");
    for n in 1..40 {
        let below = n - 1;
        bomb += &format!("  - key: k{n}\n    descriptors: &a{n}\n");
        bomb += &format!(
            "      - {{key: a, descriptors: *a{below}}}\n      - {{key: b, descriptors: *a{below}}}\n"
        );
    }
    assert_contains(&rendered_errors(&bomb), &["too large", "this alias makes it too large", "x.yaml:"]);
    assert_contains(
        &rendered_errors(&format!("domain: {}", "[".repeat(200))),
        &["nested too deeply", "x.yaml:1:"],
    );
    let steps: String = (0..300).map(|n| format!("{}a:\n", " ".repeat(n))).collect();
    assert_contains(&rendered_errors(&steps), &["nested too deeply"]);
    assert_contains(
        &rendered_errors("domain: d\ndescriptors: &d [{key: a, descriptors: *d}]\n"),
        &["inside its own anchor", ":2:40\n"],
    );
    assert_contains(&rendered_errors(&" ".repeat((4 << 20) + 1)), &["x.yaml: it is larger than 4 MiB"]);
}

#[test]
fn an_error_repeated_by_aliases_is_reported_once() {
    let text =
        "domain: d\ndescriptors:\n  - {key: a, rate_limit: &r {unit: x}}\n  - {key: b, rate_limit: *r}\n";
    assert_contains(&rendered_errors(text), &["x.yaml:3:36\n", "3 errors"]);
}

#[test]
fn a_path_without_files_is_an_error() {
    let read = |path: &std::path::Path| {
        Domains::read(path, &Backend::Memory(Box::default())).unwrap_err()[0].to_string()
    };
    let directory = Directory::new();
    assert!(read(&directory.0).contains("there is no file *.yaml or *.yml"));
    assert!(read(&directory.0.join("none.yaml")).contains("none.yaml: No such file"));
    assert!(Domains::text(&directory.0).contains("there is no file"));
}
