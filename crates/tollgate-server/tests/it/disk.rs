//! `tollgate serve --data`: counts survive restarts, crashes and full disks. `dump` and `restore`.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::common::{Server, TOLLGATE, directory, eventually, tollgate};
use serde_json::{Value, json};

fn serve(data: &Path, durability: &str, flush_interval: &str) -> Server {
    let mut command = Command::new(TOLLGATE);
    command.args(["serve", "--limit", "10/h fixed", "--data"]).arg(data);
    command.env("TOLLGATE_STORE_DURABILITY", durability).env("TOLLGATE_STORE_FLUSH_INTERVAL", flush_interval);
    Server::logging(&mut command)
}

fn remaining(server: &Server, client: &str, cost: u64) -> Value {
    server.get(&format!("/check/{client}?cost={cost}")).json()["remaining"].clone()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn restore(data: &Path, dump: &[u8]) -> Output {
    let mut restore = Command::new(TOLLGATE);
    restore.args(["restore", "--data"]).arg(data);
    let mut restore =
        restore.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A `restore` that rejects its input may not read all of it.
    let _ = restore.stdin.take().unwrap().write_all(dump);
    restore.wait_with_output().unwrap()
}

#[test]
fn strict_counts_survive_sigkill() {
    let data = directory("disk-strict").join("made/by/the/server");
    for round in 0..3 {
        let mut server = serve(&data, "strict", "60s");
        assert_eq!(remaining(&server, "alice", 2), 8 - 2 * round);
        assert_eq!(remaining(&server, "bob", 0), 10);
        server.process.kill().unwrap();
        server.exit_code();
    }
}

#[test]
fn relaxed_counts_survive_sigterm_even_if_nothing_was_written_before() {
    let data = directory("disk-relaxed");
    for round in 0..3 {
        let mut server = serve(&data, "relaxed", "60s");
        assert_eq!(remaining(&server, "alice", 2), 8 - 2 * round);
        assert!(server.metric("tollgate_disk_writes_total") < 0.5);
        server.signal("TERM");
        assert_eq!(server.exit_code(), Some(0));
    }
}

#[test]
fn relaxed_counts_survive_sigkill_once_they_are_written() {
    let data = directory("disk-written");
    let mut server = serve(&data, "relaxed", "10ms");
    assert_eq!(remaining(&server, "alice", 3), 7);
    eventually("the change is written", || server.metric("tollgate_disk_writes_total") > 0.5);
    let stats = server.admin("GET", "/v1/stats", None).json();
    assert_eq!(
        (&stats["store"], &stats["liveKeys"], &stats["storeDown"]),
        (&json!("disk"), &json!(1), &Value::Null)
    );
    assert!(stats["diskBytes"].as_u64().unwrap() > 0 && server.metric("tollgate_disk_up") > 0.5);
    server.process.kill().unwrap();
    server.exit_code();
    assert_eq!(remaining(&serve(&data, "relaxed", "10ms"), "alice", 1), 6);
}

#[test]
fn a_second_server_is_refused_and_names_the_process_that_has_the_directory() {
    let data = directory("disk-twice");
    let server = serve(&data, "relaxed", "1s");
    let refused = tollgate(&["serve", "--http", "127.0.0.1:0", "--data", data.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(2));
    let message = stderr(&refused);
    assert!(message.contains(&format!("in use by process {}", server.process.id())), "{message}");
    let message = stderr(&tollgate(&["dump", "--data", data.to_str().unwrap()]));
    assert!(message.contains("stop that one first"), "{message}");
    assert_eq!(server.get("/check/alice").status, 200);
}

#[test]
fn a_damaged_file_is_reported_in_one_sentence_with_a_fix() {
    let data = directory("disk-damaged");
    let mut server = serve(&data, "strict", "1s");
    assert_eq!(remaining(&server, "alice", 3), 7);
    server.signal("TERM");
    assert_eq!(server.exit_code(), Some(0));
    let whole = fs::read(data.join("state.redb")).unwrap();
    let mut refusals = 0;
    for offset in (0..whole.len()).step_by(1 + whole.len() / 60) {
        let mut torn = whole.clone();
        torn[offset..whole.len().min(offset + 700)].fill(0x5a);
        fs::write(data.join("state.redb"), torn).unwrap();
        let dumped = tollgate(&["dump", "--data", data.to_str().unwrap()]);
        let message = stderr(&dumped);
        assert!(
            ["panic", "bug in tollgate", "unreachable code", "assertion"]
                .iter()
                .all(|word| !message.contains(word)),
            "{offset}: {message}"
        );
        if dumped.status.success() {
            assert!(
                String::from_utf8_lossy(&dumped.stdout).contains("\"3\""),
                "{offset}: nothing is missing"
            );
        } else {
            assert!(
                message.contains("is damaged: ") && message.contains("put back a copy"),
                "{offset}: {message}"
            );
            assert_eq!((dumped.status.code(), message.lines().count()), (Some(2), 1), "{message}");
            refusals += 1;
        }
    }
    assert!(refusals > 3, "{refusals}");
    OpenOptions::new().write(true).truncate(true).open(data.join("state.redb")).unwrap();
    let refused = tollgate(&["serve", "--http", "127.0.0.1:0", "--data", data.to_str().unwrap()]);
    assert!(stderr(&refused).contains("it is empty"), "{}", stderr(&refused));
}

#[test]
fn a_dump_moves_the_state_of_a_directory() {
    let (old, new) = (directory("disk-old"), directory("disk-new").join("data"));
    let mut server = serve(&old, "strict", "1s");
    assert_eq!(remaining(&server, "alice", 3), 7);
    let blocked = server.admin("PUT", "/v1/clients/bob/block", Some(&json!({ "for": "1h" })));
    assert_eq!(blocked.status, 200, "{}", blocked.body);
    server.signal("TERM");
    server.exit_code();
    let dump = tollgate(&["dump", "--data", old.to_str().unwrap()]);
    assert!(dump.status.success(), "{}", stderr(&dump));
    let lines: Vec<Value> = String::from_utf8(dump.stdout.clone())
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!((lines.len(), &lines[0]["version"], &lines[3]["end"]), (4, &json!(3), &json!(2)));

    let restored = restore(&new, &dump.stdout);
    assert!(restored.status.success(), "{}", stderr(&restored));
    let server = serve(&new, "relaxed", "1s");
    assert_eq!(remaining(&server, "alice", 1), 6);
    assert_eq!(server.get("/check/bob").status, 429);
    drop(server);

    let message = stderr(&restore(&new, &dump.stdout));
    assert!(message.contains("has state already"), "{message}");
    let message = stderr(&restore(&old.join("other"), &dump.stdout[..dump.stdout.len() - 10]));
    assert!(message.contains("cut short"), "{message}");
    assert!(!old.join("other").exists(), "a truncated dump creates nothing");
    let message = stderr(&tollgate(&["dump", "--data", old.join("other").to_str().unwrap()]));
    assert!(message.contains("there is no state in"), "{message}");
}

#[test]
fn loading_shows_its_progress_on_a_terminal() {
    let (old, data) = (directory("disk-loading"), directory("disk-loaded").join("data"));
    let mut server = serve(&old, "relaxed", "1s");
    for batch in 0..10 {
        let check = |client| json!({ "attributes": { "client": format!("{batch}-{client}") } });
        let checks: Vec<Value> = (0..10_000).map(check).collect();
        assert_eq!(server.post("/v1/check/batch", &json!({ "checks": checks })).status, 200);
    }
    server.signal("TERM");
    server.exit_code();

    // `script` provides a terminal.
    let dump = old.join("dump");
    let command = format!("{TOLLGATE} dump --data {} 2>&1 >{}", old.display(), dump.display());
    let shown = Command::new("script").args(["-qec", &command, "/dev/null"]).output().unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("loading [") && shown.contains('%'), "{shown:?}");

    let restored = restore(&data, &fs::read(dump).unwrap());
    assert!(restored.status.success(), "{}", stderr(&restored));
    assert!(String::from_utf8_lossy(&restored.stdout).contains("restored 100000 keys to"));
    let mut server = serve(&data, "relaxed", "1s");
    server.log_line("the state is loaded");
    assert_eq!(server.admin("GET", "/v1/stats", None).json()["liveKeys"], 100_000);
}

#[test]
fn a_full_disk_follows_the_policy_and_recovers() {
    let data = directory("disk-full");
    let config = data.join("tollgate.toml");
    let rule = |policy: &str| {
        format!(
            "[[rule]]\nname = \"{policy}\"\nmatch = {{ path = \"/{policy}\" }}\nkey = [\"client\"]\nlimit = \"8/h fixed\"\n\
             on_store_error = \"{policy}\"\n"
        )
    };
    let store = format!(
        "[store]\nkind = \"disk\"\ndata = \"{}/small\"\ndurability = \"strict\"\ndeadline = \"5s\"\n",
        data.display()
    );
    fs::write(&config, format!("{store}{}{}", rule("open"), rule("closed"))).unwrap();
    fs::create_dir(data.join("small")).unwrap();
    let mount = r#"mount -t tmpfs -o size=8m tmpfs "$0/small" && head -c 4000000 /dev/zero > "$0/small/filler" && exec "$@""#;
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", mount]).arg(&data).args([TOLLGATE, "serve", "--config"]).arg(&config);
    let mut server = Server::logging(&mut command);

    let check = |client: &str, policy: &str| json!({ "attributes": { "client": client, "path": format!("/{policy}") } });
    let ask = |client: &str, policy: &str| server.post("/v1/check", &check(client, policy));
    assert_eq!(ask("alice", "closed").json()["remaining"], 7);
    // New keys fill the disk.
    let mut newcomers = 0_u64;
    while server.get("/readyz").status == 200 {
        let batch: Vec<Value> =
            (0..1_000).map(|client| check(&format!("{newcomers}-{client}"), "open")).collect();
        assert_eq!(server.post("/v1/check/batch", &json!({ "checks": batch })).status, 200);
        newcomers += 1;
        assert!(newcomers < 1_000, "it is never full");
    }
    // The rest is filled too, so that retries fail.
    let inside = |file: &str| format!("/proc/{}/root{}/small/{file}", server.process.id(), data.display());
    let mut rest = fs::File::create(inside("rest")).unwrap();
    while rest.write_all(&[0; 4096]).is_ok() {}
    drop(rest);
    eventually("the disk has failed", || ask("alice", "closed").status == 503);
    let open = ask("alice", "open").json();
    assert_eq!((&open["allowed"], &open["degraded"]), (&json!(true), &json!(true)));
    assert!(server.metric("tollgate_disk_up") < 0.5);
    assert!(!server.admin("GET", "/v1/stats", None).json()["storeDown"].is_null());

    fs::remove_file(inside("filler")).unwrap();
    eventually("there is room again", || server.get("/readyz").status == 200);
    // Degraded decisions were counted in memory.
    assert!(ask("alice", "closed").json()["remaining"].as_u64().unwrap() < 6);
    assert!(server.log_line("the disk failed").contains("once a second"));
    server.log_line("the disk has recovered");
    server.signal("TERM");
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn validate_says_what_a_crash_loses() {
    let file = directory("disk-words").join("tollgate.toml");
    let words = |durability: &str| {
        fs::write(
            &file,
            format!("[store]\nkind = \"disk\"\ndata = \"state\"\ndurability = \"{durability}\"\n"),
        )
        .unwrap();
        String::from_utf8(tollgate(&["validate", file.to_str().unwrap()]).stdout).unwrap()
    };
    assert!(words("relaxed").contains("every 100ms; a crash loses those since the last write"));
    assert!(words("strict").contains("a crash loses nothing"));
    assert!(!file.with_file_name("state").exists(), "validate creates nothing");
    drop(Server::with_config(&file));
    assert!(file.with_file_name("state").exists(), "it is beside the file that names it");
}
