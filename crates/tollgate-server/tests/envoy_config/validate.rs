use tollgate_server::config::{Flags, Origin};

use super::*;

#[test]
fn d3_validate_explains_a_file_or_shows_its_errors() {
    let file = written("validate", EDGE);
    let name = file.to_str().unwrap();
    let output = tollgate(&["validate", name]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    for words in [
        "ratelimit.yaml is valid.",
        "\"edge.path_/login\"",
        "2 per hour, in windows that start with the first request",
        "\"edge.tenant_acme.user\"",
        "Each user has a budget of its own",
        "\"edge.odd\"",
        "up to 6 at once",
        "Shadow rule",
    ] {
        assert!(said.contains(words), "{words} is not in {said}");
    }
    fs::write(&file, EDGE.replace("value: /health\n", "valeu: /health\n")).unwrap();
    let output = tollgate(&["validate", name]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains(&format!("{name}:13:5")), "{said}");
    assert!(said.contains("did you mean `value`?"), "{said}");
}

#[test]
fn d3_validate_lists_descriptors_without_a_rule() {
    let file = written("validate-banned", EDGE);
    let said = String::from_utf8(tollgate(&["validate", file.to_str().unwrap()]).stdout).unwrap();
    for word in ["banned", "staff"] {
        assert!(said.contains(word), "{word} is not in {said}");
    }
}

#[test]
fn d3_a_tab_is_shown_with_a_fix() {
    let file = written("tab", "domain: edge\ndescriptors:\n\t- key: path\n");
    let said = String::from_utf8(tollgate(&["validate", file.to_str().unwrap()]).stderr).unwrap();
    assert!(said.contains("ratelimit.yaml:3:1\n") && said.contains("indent with spaces"), "{said}");
}

#[test]
fn d3_yaml_as_the_configuration_names_the_right_flag() {
    let file = written("misplaced", EDGE);
    let output = tollgate(&["serve", "--config", file.to_str().unwrap()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), said.matches("with --envoy-config").count()), (Some(2), 1), "{said}");
    assert!(!said.contains(" errors"), "{said}");
}

#[test]
fn limits_without_a_grpc_listener_are_a_warning() {
    let flags = Flags { envoy_config: Some(written("unasked", EDGE)), ..Flags::default() };
    let warnings = |grpc: Option<&str>| {
        let flags = Flags { grpc: grpc.map(str::to_owned), ..flags.clone() };
        Origin { flags, ..Origin::default() }.load().unwrap().warnings
    };
    assert_eq!(warnings(None), [""; 0]);
    assert!(matches!(&warnings(Some("off"))[..], [only] if only.starts_with("gRPC is off")));
}

#[test]
fn d3_a_server_does_not_start_with_an_invalid_file() {
    let file = written("start", &EDGE.replace("unit: 90s", "unit: 90 sheep"));
    let name = file.to_str().unwrap();
    let output = tollgate(&["serve", "--http", "127.0.0.1:0", "--envoy-config", name]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{said}");
    assert!(said.contains(&format!("{name}:48:24")), "{said}");
    let missing = tollgate(&["serve", "--http", "127.0.0.1:0", "--envoy-config", "no-such-file.yaml"]);
    let said = String::from_utf8(missing.stderr).unwrap();
    assert_eq!(missing.status.code(), Some(2), "{said}");
    assert!(said.contains("no-such-file.yaml"), "{said}");
}
