//! F5: a path is one path, however it is spelled and however it arrives.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::iter;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;

use crate::common::{Server, directory, eventually, tollgate};
use crate::proxy::{Proxy, free_port};
use crate::rls::{Envoy, descriptor};
use crate::wire::{Wire, command};
use serde_json::json;
use tollgate::Paths;
use tollgate_testkit::Random;

const SPELLED: [&str; 8] = [
    "/%6Cogin",
    "//login",
    "/./login",
    "/a/../login",
    "/login/",
    "/login;x=1",
    "/lo%67in?y",
    "/a/..;x/%2e/login",
];

/// One request an hour to `/login`, whoever asks.
const LOGIN: &str = r#"
    [[rule]]
    name = "login"
    match = { path = "/login" }
    limit = "1/hour fixed"
"#;

fn written(name: &str, setting: &str, rules: &str) -> PathBuf {
    let file = directory(&format!("paths-{name}")).join("tollgate.toml");
    fs::write(&file, format!("[server]\ntrusted_proxies = [\"127.0.0.1\"]\n{setting}\n{rules}")).unwrap();
    file
}

/// The status of a check of a path over each verb that takes attributes, or a proxy's headers.
fn statuses(server: &Server, path: &str) -> Vec<(&'static str, u16)> {
    let attributes = json!({"attributes": {"client": "a", "path": path}});
    let peek = json!({"attributes": {"client": "a", "path": path}, "peek": true});
    let batch = server.post("/v1/check/batch", &json!({"checks": [attributes]})).json();
    let batch = if batch["results"][0]["allowed"] == true { 200 } else { 429 };
    let forwarded = |name| server.send("GET", "/auth", &[(name, path)], "").status;
    let envoy = format!("/auth{path}");
    vec![
        ("check", server.post("/v1/check", &attributes).status),
        ("peek", server.post("/v1/check", &peek).status),
        ("batch", batch),
        ("reserve", server.post("/v1/reserve", &attributes).status),
        ("acquire", server.post("/v1/acquire", &attributes).status),
        ("Traefik, Caddy", forwarded("x-forwarded-uri")),
        ("nginx", forwarded("x-original-uri")),
        ("Envoy", server.send("GET", &envoy, &[], "").status),
    ]
}

#[test]
fn f5_no_spelling_of_a_path_evades_its_rule_over_any_verb() {
    let server = Server::with_config(&written("verbs", "", LOGIN));
    assert_eq!(server.send("GET", "/auth", &[("x-original-uri", "/login")], "").status, 200);
    for spelled in SPELLED {
        for (verb, status) in statuses(&server, spelled) {
            assert_eq!(status, 429, "{verb} of {spelled}");
        }
        let explained = server.admin(
            "POST",
            "/v1/explain",
            Some(&json!({"attributes": {"client": "a", "path": spelled}})),
        );
        let rules = &explained.json()["rules"][0];
        assert_eq!(rules["covers"], true, "{explained:?}");
    }
    for (verb, status) in statuses(&server, "/logins") {
        assert_eq!(status, 200, "{verb}");
    }
    let explained = json!({"attributes": {"path": "//logins/"}});
    let obstacle =
        server.admin("POST", "/v1/explain", Some(&explained)).json()["rules"][0]["obstacles"][0].clone();
    assert_eq!((&obstacle["value"], &obstacle["required"]), (&json!("/logins"), &json!(["/login"])));
    let long = format!("{}/login", "/.".repeat(2_000));
    assert_eq!(server.send("GET", "/auth", &[("x-original-uri", &long)], "").status, 429);
}

#[test]
fn f5_every_spelling_draws_on_the_budget_of_its_path() {
    let by_path = "[[rule]]\nname = \"by-path\"\nkey = [\"path\"]\nlimit = \"1/hour fixed\"";
    let file = written("key", "", by_path);
    let arguments = ["--config", file.to_str().unwrap()];
    let server = Server::everywhere(&arguments);
    assert_eq!(server.post("/v1/check", &json!({"attributes": {"path": "/login"}})).status, 200);
    for spelled in SPELLED {
        let attributes = json!({"attributes": {"path": spelled}});
        assert_eq!(server.post("/v1/check", &attributes).status, 429, "{spelled}");
    }
    let envoy = Envoy::of(&server);
    let long = format!("{}/login", "/.".repeat(2_000));
    for spelled in SPELLED.into_iter().chain([long.as_str()]) {
        let mut wire = Wire::connect(&server);
        wire.send(command(["TOLL.CHECK", "path", spelled]));
        let answer = [(); 4].map(|()| wire.line());
        assert_eq!(answer[1..], ["$7", "allowed", ":0"], "{spelled}");
        assert!(!envoy.allows("any", &descriptor(&[("path", spelled)])), "{spelled}");
    }
    let recorded = json!({"attributes": {"path": "/page"}, "cost": 1});
    assert_eq!(server.post("/v1/record", &recorded).status, 200);
    assert_eq!(server.post("/v1/check", &json!({"attributes": {"path": "//page/"}})).status, 429);
}

#[test]
fn f5_case_is_folded_and_paths_are_raw_where_that_is_set_and_a_reload_changes_it() {
    let file = written("settings", "path = \"raw\"", LOGIN);
    let server = Server::with_config(&file);
    let ask = |path: &str| server.send("GET", "/auth", &[("x-original-uri", path)], "").status;
    assert_eq!([ask("/login"), ask("/login"), ask("//login"), ask("/login/")], [200, 429, 200, 200]);
    let explained = tollgate(&["validate", file.to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&explained.stdout).contains("Rules see paths as clients spell them."));
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("raw", "case-insensitive").replace("/login", "/Login")).unwrap();
    eventually("the file is reloaded", || ask("//LOG%69N") == 429);
    assert_eq!([ask("/login"), ask("/logins")], [429, 200]);
    fs::write(&file, text.replace("raw", "normalised")).unwrap();
    let refused = tollgate(&["validate", file.to_str().unwrap()]);
    let refused = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.contains("did you mean \"normalized\"?"), "{refused}");
}

/// A domain of the rate limit service's YAML compares values as the reference does.
#[test]
fn f5_the_paths_of_a_yaml_domain_are_values_as_any_other() {
    let file = directory("paths-yaml").join("ratelimit.yaml");
    let text =
        "domain: edge\ndescriptors:\n  - key: path\n    rate_limit: {unit: hour, requests_per_unit: 1}\n";
    fs::write(&file, text).unwrap();
    let server = Server::everywhere(&["--envoy-config", file.to_str().unwrap()]);
    let envoy = Envoy::of(&server);
    for path in ["/login", "/login/", "/login?x"] {
        assert!(envoy.allows("edge", &descriptor(&[("path", path)])), "{path}");
        assert!(!envoy.allows("edge", &descriptor(&[("path", path)])), "{path}");
    }
}

/// A random spelling of a random path, without what nginx answers with 400: a `..` above the root,
/// a `%` that encodes nothing, and `%00`.
fn spelling(random: &mut Random) -> String {
    const SEGMENTS: [&str; 12] = [
        "login",
        "v1",
        "users:batch",
        "caf\u{e9}",
        "@me",
        "a%20b",
        "x%2Fy",
        "x%2fy",
        "100%25",
        "~a+b*",
        "p%3Bq",
        "{a|b}",
    ];
    const SEPARATORS: [&str; 9] =
        ["/", "/", "/", "//", "/./", "/%2e/", "/x/../", "/x/%2E./", "/y/z/.././../"];
    const ENDS: [&str; 8] = ["", "", "", "/", "/.", "//", "/x/..", "/%2e"];
    const QUERIES: [&str; 5] = ["", "", "?a=/../b;c", "?", "#top"];
    let mut path = String::new();
    for _ in 0..=random.below(3) {
        path += pick(random, &SEPARATORS);
        let mut characters = pick(random, &SEGMENTS).chars();
        while let Some(character) = characters.next() {
            if character == '%' {
                path.extend(iter::once(character).chain(characters.by_ref().take(2)));
            } else if random.below(4) > 0 {
                path.push(character);
            } else {
                let is_lower = random.below(2) == 0;
                for byte in character.encode_utf8(&mut [0; 4]).bytes() {
                    path += &if is_lower { format!("%{byte:02x}") } else { format!("%{byte:02X}") };
                }
            }
        }
        path += pick(random, &["", "", "", ";p", ";p=1;q="]);
    }
    path + pick(random, &ENDS) + pick(random, &QUERIES)
}

fn pick<'a>(random: &mut Random, choices: &[&'a str]) -> &'a str {
    choices[usize::try_from(random.below(choices.len() as u64)).unwrap()]
}

/// The bytes of a path with everything decoded but a slash.
fn decoded(path: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = path.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind.get(..2).filter(|digits| *first == b'%' && *digits != b"2F");
        match digits.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).unwrap(), 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[2..];
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    bytes
}

/// nginx's `$uri` for targets, over one connection.
fn uris(port: u16, targets: &[String]) -> Vec<Vec<u8>> {
    let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", port)).unwrap());
    let mut uris = Vec::new();
    for target in targets {
        let request = format!("GET {target} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        stream.get_mut().write_all(request.as_bytes()).unwrap();
        let (mut line, mut length) = (String::new(), 0);
        while line != "\r\n" {
            line.clear();
            assert!(stream.read_line(&mut line).unwrap() > 0, "nginx closed after {target}");
            assert!(!line.starts_with("HTTP/") || line.contains(" 200 "), "{target}: {line}");
            if let Some(value) = line.to_lowercase().strip_prefix("content-length: ") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut uri = vec![0; length];
        stream.read_exact(&mut uri).unwrap();
        uris.push(uri);
    }
    uris
}

/// nginx normalises the paths that its locations see. What we normalise is the same, with three
/// differences, which are stated here.
#[test]
fn f5_two_thousand_spellings_are_what_nginx_makes_of_them() {
    let port = free_port();
    let home = directory("paths-nginx");
    let config = home.join("nginx.conf");
    let text = format!(
        "daemon off; pid nginx.pid; error_log stderr;\nevents {{}}\nhttp {{ access_log off; default_type text/plain;\n\
         client_body_temp_path a; proxy_temp_path b; fastcgi_temp_path c; uwsgi_temp_path d; scgi_temp_path e;\n\
         server {{ listen 127.0.0.1:{port}; keepalive_requests 100000; location / {{ return 200 $uri; }} }} }}\n"
    );
    fs::write(&config, text).unwrap();
    let _nginx = Proxy::start(Command::new("nginx").arg("-p").arg(&home).arg("-c").arg(&config), port);
    let mut random = Random(45);
    let spellings: Vec<String> = (0..2_000).map(|_| spelling(&mut random)).collect();
    let without_parameters = |spelling: &String| {
        let (path, query) = spelling.split_at(spelling.find(['?', '#']).unwrap_or(spelling.len()));
        let segments: Vec<&str> = path.split('/').map(|segment| segment.split(';').next().unwrap()).collect();
        segments.join("/") + query
    };
    let asked: Vec<String> = spellings
        .iter()
        // To nginx, parameters are a part of a segment.
        .map(without_parameters)
        // nginx decodes %2F, to a slash that separates nothing. This stays %2F.
        .map(|target| target.replace("%2F", "%252F").replace("%2f", "%252F"))
        .collect();
    for ((spelled, asked), mut uri) in spellings.iter().zip(&asked).zip(uris(port, &asked)) {
        // nginx keeps the slash at the end.
        if uri.len() > 1 && uri.ends_with(b"/") {
            uri.pop();
        }
        let ours = Paths::Normalized.normalize(spelled);
        let shown = String::from_utf8_lossy(&uri);
        assert_eq!(decoded(&ours), uri, "{spelled}, asked as {asked}, is {ours} to us and {shown} to nginx");
    }
}
