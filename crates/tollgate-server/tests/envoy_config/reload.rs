use super::*;

#[test]
fn b11_a_changed_file_takes_effect_and_counts_are_kept() {
    let file = written("changed", EDGE);
    let (_server, envoy) = serve(&file);
    let [login, ann] = [[("path", "/login")], [("path", "/ann")]].map(|entries| descriptor(&entries));
    assert!(envoy.allows("edge", &hits(&login, 2)) && !envoy.allows("edge", &login));
    assert!(envoy.allows("edge", &hits(&ann, 4)));
    let new = EDGE
        .replace("unit: hour, requests_per_unit: 2", "unit: hour, requests_per_unit: 20")
        .replace("unit: hour, requests_per_unit: 5", "unit: hour, requests_per_unit: 3")
        .replace("value: /health\n", "value: /health\n    rate_limit: {unit: day, requests_per_unit: 11}\n")
        .replace("key: staff", "key: guests");
    replace(&file, &new);
    eventually("the new limit", || envoy.left("edge", &login) == Some(17));
    assert_eq!(envoy.left("edge", &ann), Some(0), "none left");
    assert_eq!(envoy.left("edge", &descriptor(&[("path", "/health")])), Some(11));
    let staff = envoy.status("edge", &descriptor(&[("staff", "x")]));
    assert_eq!((staff.code(), staff.limit_remaining), (Code::Ok, 0), "it has no limit any more");
    assert!(envoy.allows("edge", &hits(&login, 17)) && !envoy.allows("edge", &login));
    replace(&file, &new.replace("domain: edge", "domain: other"));
    eventually("it is another domain's", || envoy.left("edge", &login).is_none());
    assert_eq!(envoy.left("other", &login), Some(20), "whose counts are its own");
}

#[test]
fn no_request_fails_during_a_reload() {
    let file = written("changing", EDGE);
    let (server, envoy) = serve(&file);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let envoy = Envoy::of(&server);
                let both = [("path", "/x"), ("road", "/x")].map(|entry| hits(&descriptor(&[entry]), 0));
                while !over.load(Ordering::Relaxed) {
                    let answer = envoy.send(request("edge", &both));
                    over.fetch_or(answer.is_err(), Ordering::Relaxed);
                    assert_eq!(answer.unwrap().overall_code(), Code::Ok);
                }
            });
        }
        for turn in 0..200_u32 {
            // A different tree each time, so that rules come and go.
            let key = if turn % 2 == 0 { "road" } else { "path" };
            let text = EDGE.replace("key: path", &format!("key: {key}"));
            replace(
                &file,
                &text.replace("requests_per_unit: 7", &format!("requests_per_unit: {}", 100 + turn)),
            );
            server.signal("HUP");
            eventually("the new file", || {
                over.load(Ordering::Relaxed)
                    || envoy.left("edge", &descriptor(&[("tenant", "acme")])) == Some(100 + turn)
            });
        }
        over.store(true, Ordering::Relaxed);
    });
}

/// Two configurations differ in their rules, their domains and their settings. Each answer is the
/// answer of one of them.
#[test]
fn b11_a_request_sees_one_configuration_during_reloads() {
    let directory = directory("envoy-config-whole");
    let config = directory.join("tollgate.toml");
    let yaml = |path: &str, domain: &str, limits: &[(&str, &str)]| {
        let descriptor = |(key, limit): &(&str, &str)| format!("  - key: {key}\n    rate_limit: {limit}\n");
        let descriptors: String = limits.iter().map(descriptor).collect();
        fs::create_dir_all(directory.join(path)).unwrap();
        let text = format!("domain: {domain}\ndescriptors:\n{descriptors}");
        fs::write(directory.join(path).join(format!("{domain}.yaml")), text).unwrap();
    };
    let [first, second] = [1_000, 2_000].map(|count| format!("{{unit: hour, requests_per_unit: {count}}}"));
    yaml("first", "edge", &[("road", "{unlimited: true}"), ("staff", &first)]);
    yaml("second", "edge", &[("road", &second), ("staff", &second)]);
    yaml("second", "moved", &[("staff", &second)]);
    // One rename replaces all of it.
    let texts = [("first", "x", "moved"), ("second", "trio", "elsewhere")].map(|(path, headers, domain)| {
        let rule = format!("name = \"r\"\nmatch = {{ domain = \"{domain}\" }}\nlimit = \"1000/h\"");
        format!("[server]\nenvoy_config = \"{path}\"\nheaders = \"{headers}\"\n[[rule]]\n{rule}\n")
    });
    fs::write(&config, &texts[0]).unwrap();
    let server = Server::everywhere(&["--config", config.to_str().unwrap()]);
    let [road, staff] = ["road", "staff"].map(|key| hits(&descriptor(&[(key, "x")]), 0));
    let seen = |envoy: &Envoy| {
        let count = |status| limit(status).map(|(count, ..)| count);
        let edge = envoy.ask("edge", &[road.clone(), staff.clone()]);
        let moved = envoy.ask("moved", std::slice::from_ref(&staff));
        let is_trio = |answer| !fields(answer, "ratelimit-limit").is_empty();
        let edge = (count(&edge.statuses[0]), count(&edge.statuses[1]), is_trio(&edge));
        (edge, (count(&moved.statuses[0]), is_trio(&moved)))
    };
    let edges = [(None, Some(1_000), false), (Some(2_000), Some(2_000), true)];
    let moves = [(Some(1_000), false), (Some(2_000), true)];
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let envoy = Envoy::of(&server);
                while !over.load(Ordering::Relaxed) {
                    let (edge, moved) = seen(&envoy);
                    let whole = edges.contains(&edge) && moves.contains(&moved);
                    over.fetch_or(!whole, Ordering::Relaxed);
                    assert!(whole, "{edge:?} {moved:?}");
                }
            });
        }
        let envoy = Envoy::of(&server);
        for turn in 1..=100_usize {
            replace(&config, &texts[turn % 2]);
            server.signal("HUP");
            eventually("the other configuration", || {
                over.load(Ordering::Relaxed) || seen(&envoy) == (edges[turn % 2], moves[turn % 2])
            });
        }
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn an_invalid_file_changes_nothing_and_its_error_has_a_position() {
    let file = written("broken", EDGE);
    let (mut server, envoy) = serve_logging(&file);
    let login = descriptor(&[("path", "/login")]);
    assert!(envoy.allows("edge", &login));
    let broken = EDGE.replace("unit: hour, requests_per_unit: 2", "unit: huor, requests_per_unit: 20");
    replace(&file, &broken);
    let line: Value = serde_json::from_str(&server.log_line("not in effect")).unwrap();
    let message = line["message"].as_str().unwrap();
    assert_eq!(line["level"], "ERROR");
    assert!(message.contains(&format!("{}:8:24", file.display())), "{message}");
    assert!(message.contains("did you mean `hour`?"), "{message}");
    assert_eq!(envoy.left("edge", &login), Some(1));
    assert_eq!(server.metric("tollgate_config_stale"), 1.0);
    replace(&file, "domain: edge\ndescriptors: [\n");
    let line = server.log_line("not in effect");
    assert!(line.contains(&format!("{}:2:16", file.display())), "{line}");
    assert_eq!(envoy.left("edge", &login), Some(1));
    replace(&file, &EDGE.replace("requests_per_unit: 2}", "requests_per_unit: 20}"));
    server.log_line("is in effect");
    assert_eq!(envoy.left("edge", &login), Some(19));
    assert_eq!(server.metric("tollgate_config_stale"), 0.0);
    fs::remove_file(&file).unwrap();
    let line = server.log_line("not in effect");
    assert!(line.contains("cannot read"), "{line}");
    assert_eq!(envoy.left("edge", &login), Some(19));
}

#[test]
fn each_file_of_a_directory_is_a_domain() {
    let directory = directory("envoy-config-directory");
    let domain = |name: &str, count: u32| {
        let limit = format!("rate_limit: {{unit: hour, requests_per_unit: {count}}}");
        format!("domain: {name}\ndescriptors:\n  - key: path\n    {limit}\n")
    };
    fs::write(directory.join("edge.yaml"), domain("edge", 2)).unwrap();
    fs::write(directory.join("inside.yml"), domain("inside", 3)).unwrap();
    fs::write(directory.join("notes.txt"), "not a file of limits").unwrap();
    fs::write(directory.join(".gitkeep"), "").unwrap();
    let (mut server, envoy) = serve_logging(&directory);
    let path = descriptor(&[("path", "/")]);
    let status = envoy.status("edge", &path);
    assert_eq!((limit(&status), left(&status)), (Some((2, Unit::Hour, "edge.path")), Some(1)));
    assert_eq!(envoy.left("inside", &path), Some(3), "b5: each domain has its own");

    fs::write(directory.join("third.yaml"), domain("third", 4)).unwrap();
    server.log_line("is in effect");
    assert_eq!(envoy.left("third", &path), Some(4));
    assert_eq!(envoy.left("edge", &path), Some(1));
    fs::write(directory.join("third.yaml"), domain("edge", 4)).unwrap();
    let line = server.log_line("not in effect");
    assert!(line.contains("third.yaml:1:9") && line.contains("edge.yaml"), "{line}");
    assert_eq!(envoy.left("third", &path), Some(4));
    fs::remove_file(directory.join("third.yaml")).unwrap();
    server.log_line("is in effect");
    assert_eq!(envoy.left("third", &path), None);
    assert_eq!(envoy.left("edge", &path), Some(1));
}

#[test]
fn an_emptied_file_is_an_error() {
    let file = written("emptied", EDGE);
    let (mut server, envoy) = serve_logging(&file);
    fs::write(&file, "").unwrap();
    server.log_line("not in effect");
    assert_eq!(server.metric("tollgate_config_stale"), 1.0);
    assert_eq!(envoy.left("edge", &descriptor(&[("path", "/login")])), Some(2));
}

#[test]
fn a_domain_that_lost_its_limits_is_an_error() {
    let file = written("lost", EDGE);
    let (mut server, envoy) = serve_logging(&file);
    for cut in ["domain: edge\n", "domain: edge\ndescriptors:\n  - key: path\n"] {
        fs::write(&file, cut).unwrap();
        let line = server.log_line("in effect");
        assert!(line.contains("has no limit any more"), "{line}");
        assert_eq!(server.metric("tollgate_config_stale"), 1.0);
        assert_eq!(envoy.left("edge", &descriptor(&[("path", "/login")])), Some(2));
    }
}

#[test]
fn a_changed_path_takes_effect_and_is_watched() {
    let [one, other] = ["one-path", "other-path"].map(|name| written(name, EDGE));
    let config = one.with_file_name("tollgate.toml");
    let name = |file: &Path| format!("[server]\nenvoy_config = {:?}\n", file.to_str().unwrap());
    fs::write(&config, name(&one)).unwrap();
    let server = Server::everywhere(&["--config", config.to_str().unwrap()]);
    let envoy = Envoy::of(&server);
    let login = descriptor(&[("path", "/login")]);
    assert_eq!(envoy.left("edge", &login), Some(2));
    let more = |count: u32| {
        EDGE.replace(
            "unit: hour, requests_per_unit: 2}",
            &format!("unit: hour, requests_per_unit: {count}}}"),
        )
    };
    fs::write(&other, more(20)).unwrap();
    replace(&config, &name(&other));
    eventually("the other path's limit", || envoy.left("edge", &login) == Some(20));
    replace(&other, &more(30));
    eventually("the change there", || envoy.left("edge", &login) == Some(30));
}
