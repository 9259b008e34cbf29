//! The configuration: its meaning, and the errors of invalid ones.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::common::{TOLLGATE, directory, tollgate};
use axum::http::Request;
use tollgate::OnFull;
use tollgate_http::{Head, PeerAddr};
use tollgate_server::config::{Config, Flags, Origin, STARTER};

fn written(name: &str, text: &str) -> PathBuf {
    let file = directory(&format!("config-{name}")).join("tollgate.toml");
    fs::write(&file, text).unwrap();
    file
}

fn load(name: &str, text: &str) -> Result<Config, String> {
    let origin = Origin { file: Some(written(name, text)), ..Origin::default() };
    origin.load().map_err(|errors| errors.to_string())
}

/// The starter with the settings behind `mark` uncommented.
fn uncommented(mark: &str, but: &[&str]) -> String {
    let uncomment = |line: &'static str| match line.strip_prefix(mark) {
        Some(text) if but.iter().any(|setting| text.starts_with(setting)) => line,
        Some(text) if text.starts_with('[') || text.split(' ').nth(1) == Some("=") => text,
        _ => line,
    };
    STARTER.lines().map(uncomment).collect::<Vec<_>>().join("\n")
}

/// The clients that are identified, and all other settings that a reload changes.
fn settings(config: &Config) -> (Vec<String>, String) {
    let clients =
        [("10.1.2.3:1", "203.0.113.9"), ("[2001:db8::1]:1", "2001:db8::2")].map(|(peer, client)| {
            let peer = PeerAddr(peer.parse().unwrap());
            let request = Request::builder().header("x-forwarded-for", client).extension(peer);
            let request = request.header("forwarded", "for=192.0.2.1").body(()).unwrap();
            config.settings.identity.identify(Head::from(&request)).unwrap().into_owned()
        });
    (clients.to_vec(), format!("{:?}", config.settings))
}

#[test]
fn the_starters_commented_defaults_are_the_defaults() {
    let (starter, nothing) = (load("starter", STARTER).unwrap(), load("nothing", "").unwrap());
    let all = load("uncommented", &uncommented("# ", &[])).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!((&all.fixed, settings(&all)), (&nothing.fixed, settings(&nothing)));
    assert_eq!((&starter.fixed, settings(&starter)), (&nothing.fixed, settings(&nothing)));
    assert_eq!(format!("{:?}", all.rules), format!("{:?}", starter.rules));
    assert_eq!(all.to_string(), starter.to_string());
}

#[test]
fn the_starters_commented_examples_are_valid() {
    let files = ["envoy_config", "admin_token_file", "[server.tls]", "cert", "key = \"", "client_ca"];
    let of_other_stores = ["data", "durability", "flush_interval", "url", "prefix", "remember_denials"];
    let but = [&files[..], &of_other_stores, &["trusted_hops"]].concat();
    let all = load("examples", &uncommented("## ", &but)).unwrap_or_else(|errors| panic!("{errors}"));
    let names: Vec<String> = all.rules.rules().iter().map(|rule| rule.name().to_string()).collect();
    assert_eq!(
        (names, all.rules.overrides().count()),
        (["per-client", "global", "login", "plan", "credits"].map(String::from).to_vec(), 1)
    );
    assert_eq!((all.fixed.workers, settings(&all).0[0].as_str()), (Some(4), "203.0.113.9"));
}

#[test]
fn the_starter_has_every_setting() {
    // The error of an unknown setting lists the known ones.
    for (section, text) in [
        ("server", "[server]\nzz = 1"),
        ("tls", "[server.tls]\nzz = 1"),
        ("store", "[store]\nzz = 1"),
        ("telemetry", "[telemetry]\nzz = 1"),
        ("rule", "[[rule]]\nname = \"r\"\nlimit = \"1/s\"\nzz = 1"),
        (
            "override",
            "[[override]]\nrule = \"per-client\"\nmatch = { client = \"c\" }\nlimit = \"1/s\"\nzz = 1",
        ),
    ] {
        let complaint = load(&format!("every-{section}"), text).unwrap_err();
        let known = complaint.split("known settings: ").nth(1).unwrap_or_else(|| panic!("{complaint}"));
        let later = ["data", "durability", "flush_interval", "url", "prefix"];
        for setting in known.lines().next().unwrap().split(", ").filter(|setting| !later.contains(setting)) {
            let has = STARTER.contains(&format!("{setting} = "))
                || STARTER.contains(&format!("[server.{setting}]"));
            assert!(has, "{section}: {setting}");
        }
    }
}

#[test]
fn d3_an_error_has_its_position_and_a_fix() {
    let cases = [
        ("[server]\nhtpp = \"off\"", "2:1", "did you mean `http`?"),
        ("[servr]\n", "1:2", "did you mean `server`?"),
        ("[server]\nheaders = \"xx\"", "2:11", "one of standard, trio, x, x-epoch, off"),
        ("[server]\nhttp = \"localhost\"", "2:8", "127.0.0.1:8080"),
        (
            "[server]\nhttp = \"off\"\ngrpc = \"off\"\nresp = \"off\"",
            "2:8",
            "give one of http, grpc and resp",
        ),
        ("[server]\ngrpc = \"80810\"", "2:8", "127.0.0.1:8080"),
        ("[[rule]]\nname = \"cl.throttle\"\nlimit = \"1/s\"", "2:8", "choose another name"),
        ("[server]\ntimeout = \"10 parsecs\"", "2:15", "unknown unit \"parsecs\""),
        ("[server]\ntimeout = 10", "2:11", "such as \"100ms\""),
        ("[server]\ntrusted_proxies = [\"10.0.0.0/8\", \"10.0.0.0/99\"]", "2:34", "such as \"10.0.0.0/8\""),
        ("[server]\ntrusted_proxies = [\"::1\"]\ntrusted_hops = 1", "3:16", "remove `trusted_proxies`"),
        ("[server]\nipv6_prefix = 129", "2:15", "1 to 128"),
        ("[server]\nadmin_token_file = \"none\"", "2:20", "cannot read"),
        ("[server]\nadmin_token = \"secret\"", "2:1", "did you mean `admin_token_file`?"),
        ("[server.tls]\ncert = \"c.pem\"", "2:8", "add `key`"),
        ("[server.tls]\n", "1:1", "add `cert` and `key`"),
        ("[server.tls]\nclient_ca = \"c.pem\"", "2:13", "add `cert` and `key`"),
        ("[server]\nworkers = 0", "2:11", "from 1 to 1024"),
        ("[server]\nworkers = 100_000", "2:11", "from 1 to 1024"),
        ("[server]\nlog = \"nonsense=loud\"", "2:7", "info"),
        ("[server]\nlog = \"inof\"", "2:7", "\"inof\" is not a level"),
        ("[server]\nlog = \"info,\"", "2:7", "\"\" is not a level"),
        ("[server]\nlog = \"info,[http]=debug\"", "2:7", "is not a level"),
        ("[store]\nkind = \"disk\"", "2:8", "data = \"/var/lib/tollgate\""),
        ("[store]\nkind = \"disk\"\ndata = \"d\"\nflush_interval = \"1us\"", "4:18", "100ms is usual"),
        ("[store]\ndurability = \"strict\"", "2:14", "set that kind, or remove this setting"),
        ("[store]\nkind = \"disk\"\ndata = \"d\"\ndurability = \"loose\"", "4:14", "relaxed"),
        ("[store]\nkind = \"redis\"", "2:8", "url = \"redis://127.0.0.1:6379\""),
        ("[store]\nkind = \"redis\"\nurl = \"http://h\"", "3:7", "redis+cluster://"),
        ("[store]\nkind = \"redis\"\nurl = \"redis://h\"\nprefix = \"a{b\"", "4:10", "braces"),
        (
            "[store]\nkind = \"redis\"\nurl = \"redis://h\"\n[[rule]]\nname = \"r\"\nlimit = \"1/1500ns fixed\"",
            "6:9",
            "microseconds",
        ),
        ("[store]\nkind = \"rediss\"", "2:8", "did you mean \"redis\"?"),
        ("[store]\nurl = \"redis://127.0.0.1\"", "2:7", "set that kind, or remove this setting"),
        ("[store]\nmax_keys = 0", "2:12", "at least 1"),
        ("[store]\nmax_keys = -5", "2:12", "write a whole number"),
        ("[store]\nlocal_share = 1.5", "2:15", "at most 1"),
        ("[store]\nmax_holds = 0", "2:13", "at least 1"),
        ("[store]\nholds_per_caller = 0.0", "2:20", "more than 0"),
        ("[store]\nsweep_interval = \"0s\"", "2:19", "out of range"),
        ("[[rule]]\nname = \"a\"\nlimit = \"10/minuet\"", "3:13", "did you mean \"minute\"?"),
        ("[[rule]]\nname = \"a\"\nlimit = [\"10/s\", \"10/s fixt\"]", "3:24", "fixed"),
        ("[[rule]]\nname = \"a\"\nlimit = 10", "3:9", "write a limit in quotes"),
        ("[[rule]]\nname = \"a\"\nlimit = []", "3:9", "give it one"),
        ("[[rule]]\nname = \"a\"", "1:1", "`limit = "),
        ("[[rule]]\nlimit = \"1/s\"", "1:1", "add `name = "),
        ("[[rule]]\nname = \"naïve\"\nlimit = \"1/s\"", "2:8", "printable ASCII"),
        ("[[rule]]\nname = \"a\"\nlimit = \"1/s\"\ncost = 0", "4:8", "out of range"),
        ("[[rule]]\nname = \"a\"\nlimit = \"1/s\"\nkey = [\"x\", \"x\"]", "4:7", "name it once"),
        ("[[rule]]\nname = \"a\"\nlimit = \"1/s\"\nmatch = \"/login\"", "4:9", "match = {"),
        ("[[rule]]\nname = \"a\"\nlimit = \"100000/day log\"", "3:9", "log_ceiling"),
        (
            "[[rule]]\nname = \"a\"\nlimit = \"1/s\"\n[[rule]]\nname = \"a\"\nlimit = \"2/s\"",
            "5:8",
            "rename one",
        ),
        ("[rule]\nname = \"a\"", "1:1", "two brackets"),
        (
            "[[override]]\nrule = \"per-clint\"\nmatch = { client = \"x\" }\nlimit = \"1/s\"",
            "2:8",
            "did you mean \"per-client\"?",
        ),
        ("[[override]]\nrule = \"per-client\"\nlimit = \"1/s\"", "1:1", "say which requests"),
        ("[server\n", "1:8", "unclosed table"),
    ];
    for (index, (text, position, said)) in cases.iter().enumerate() {
        let complaint =
            load(&format!("wrong-{index}"), text).err().unwrap_or_else(|| panic!("{text} is right"));
        assert!(complaint.contains(&format!("tollgate.toml:{position}\n")), "{text}: {complaint}");
        assert!(complaint.contains(said), "{text}: {complaint}");
    }
}

#[test]
fn settings_with_several_spellings() {
    let text = "[server]\nstop_delay = \"5s\"\n[store]\nlocal_share = 1\nmax_keys = 0x10\nclock = \"coarse\"";
    let config = load("ways", text).unwrap();
    assert_eq!(config.fixed.stop_delay, Duration::from_secs(5));
    assert_eq!((config.fixed.store.local_share, config.fixed.store.max_keys), (1.0, 16));
    assert!(config.fixed.store.coarse_clock);
}

#[test]
fn all_errors_are_reported_at_once_in_the_order_of_the_file() {
    let text = "[server]\nhttp = 1\n[[rule]]\nname = \"a\"\nlimit = \"1/x\"\n[[rule]]\nname = \"a\"\nlimit = \"2/x\"\n[other]";
    let complaint = load("all", text).unwrap_err();
    let parts = ["tollgate.toml:2:8", ":5:12", ":7:8", ":8:12", ":9:2", "5 errors"];
    let found: Vec<_> = parts.iter().map(|part| complaint.find(part)).collect();
    assert!(found.iter().all(Option::is_some) && found.is_sorted(), "{found:?} in {complaint}");
}

#[test]
fn the_environment_overrides_the_file_and_flags_override_both() {
    let file = written(
        "order",
        "[server]\nhttp = \"127.0.0.1:1\"\nworkers = 1\ntimeout = \"1s\"\n[store]\nmax_keys = 1\non_full = \"deny\"",
    );
    let environment = [
        ("TOLLGATE_SERVER_HTTP", "127.0.0.1:2"),
        ("TOLLGATE_SERVER_TIMEOUT", "2s"),
        ("TOLLGATE_STORE_ON_FULL", "pool"),
        ("TOLLGATE_SERVER_TRUSTED_PROXIES", "10.0.0.0/8, ::1"),
        ("TOLLGATE_STORE_MAXKEYS", "9"),
        ("TOLLGATE_PORT_8080_TCP_ADDR", "10.1.2.3"),
    ];
    let environment: HashMap<String, String> =
        environment.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    let flags =
        Flags { http: Some("127.0.0.1:3".into()), limit: Some("7/s".parse().unwrap()), ..Flags::default() };
    let config = Origin { file: Some(file.clone()), environment: environment.clone(), flags }.load().unwrap();
    assert_eq!((config.fixed.addresses.http.as_str(), config.fixed.workers), ("127.0.0.1:3", Some(1)));
    assert_eq!(config.fixed.timeout, Duration::from_secs(2));
    assert_eq!((config.fixed.store.max_keys, config.fixed.store.on_full), (1, OnFull::Pool));
    assert_eq!(config.rules.rules()[0].limits()[0].to_string(), "7/second");
    assert_eq!(config.warnings.len(), 1, "variables of Kubernetes are ignored: {:?}", config.warnings);
    assert!(config.warnings[0].contains("did you mean TOLLGATE_STORE_MAX_KEYS?"), "{:?}", config.warnings);

    let wrong = HashMap::from([("TOLLGATE_SERVER_TIMEOUT".into(), "2 sec onds".into())]);
    let origin = Origin { file: Some(file), environment: wrong, flags: Flags::default() };
    let complaint = origin.load().unwrap_err().to_string();
    assert!(complaint.starts_with("TOLLGATE_SERVER_TIMEOUT=2 sec onds: "), "{complaint}");
}

/// Loads a file with these variables.
fn load_with(name: &str, text: &str, variables: &[(&str, &str)]) -> Result<Config, String> {
    let environment = variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    let origin = Origin { file: Some(written(name, text)), environment, ..Origin::default() };
    origin.load().map_err(|errors| errors.to_string())
}

#[test]
fn an_unread_variable_that_resembles_a_setting_is_a_warning() {
    let warning = |variable: &str| load_with("misspelt", "", &[(variable, "1")]).unwrap().warnings;
    for (variable, meant) in [
        ("TOLLGATE_HTTP", "did you mean TOLLGATE_SERVER_HTTP?"),
        ("TOLLGATE_LOG", "did you mean TOLLGATE_SERVER_LOG?"),
        ("TOLLGATE_MAX_KEYS", "did you mean TOLLGATE_STORE_MAX_KEYS?"),
        ("TOLLGATE_TLS_CERT", "did you mean TOLLGATE_SERVER_TLS_CERT?"),
        ("TOLLGATE_LIMIT", "--limit"),
    ] {
        let warnings = warning(variable);
        assert!(warnings.len() == 1 && warnings[0].contains(meant), "{variable}: {warnings:?}");
    }
    for of_kubernetes in [
        "TOLLGATE_SERVICE_HOST",
        "TOLLGATE_SERVICE_PORT_HTTP",
        "TOLLGATE_PORT",
        "TOLLGATE_PORT_8080_TCP_PROTO",
    ] {
        assert_eq!(warning(of_kubernetes), [""; 0], "{of_kubernetes}");
    }
}

#[test]
fn a_location_in_the_environment_implies_the_kind_of_store() {
    let url = ("TOLLGATE_STORE_URL", "redis://127.0.0.1:7");
    let data = ("TOLLGATE_STORE_DATA", "/nowhere/tollgate");
    let store = |text, variables: &[_]| {
        load_with("implied", text, variables).map(|config| config.fixed.store.to_string())
    };
    assert!(store("", &[url]).unwrap().contains("redis://127.0.0.1:7"));
    assert!(store("", &[data]).unwrap().contains("/nowhere/tollgate"));
    assert!(store("[store]\nkind = \"redis\"", &[url]).is_ok());
    let both = [url, data, ("TOLLGATE_STORE_KIND", "redis")];
    for (text, variables, said) in [
        ("[store]\nkind = \"memory\"", &[url][..], "TOLLGATE_STORE_URL is for kind = \"redis\""),
        ("[store]\nkind = \"redis\"\nurl = \"redis://h\"", &[data], "set TOLLGATE_STORE_KIND=disk"),
        ("", &[url, data], "TOLLGATE_STORE_URL is for kind = \"redis\""),
        ("", &both, "TOLLGATE_STORE_DATA is for kind = \"disk\""),
        ("", &[("TOLLGATE_STORE_PREFIX", "p")], "TOLLGATE_STORE_PREFIX is for kind = \"redis\""),
        ("", &[("TOLLGATE_STORE_URL", "http://h")], "TOLLGATE_STORE_URL: invalid Redis settings"),
    ] {
        let complaint = store(text, variables).unwrap_err();
        assert!(complaint.contains(said), "{text} {variables:?}: {complaint}");
    }
}

#[test]
fn files_are_relative_to_the_configuration_and_a_short_token_is_rejected() {
    let file = written("token", "[server]\nadmin_token_file = \"token\"");
    let origin = Origin { file: Some(file.clone()), ..Origin::default() };
    fs::write(file.with_file_name("token"), "0123456789abcdef\n").unwrap();
    assert!(origin.load().unwrap().settings.admin_token.unwrap().is(b"0123456789abcdef"));
    fs::write(file.with_file_name("token"), "sesame\n").unwrap();
    let complaint = origin.load().unwrap_err().to_string();
    assert!(complaint.contains(":2:20") && complaint.contains("at least 16"), "{complaint}");
    assert!(!complaint.contains("sesame"), "the token is not shown: {complaint}");
}

#[test]
fn validate_explains_a_configuration() {
    let text = r#"
        [[rule]]
        name = "global"
        limit = ["5000/s", "1000000/month at Europe/Berlin"]
        [[rule]]
        name = "login"
        match = { path = "/login*" }
        key = ["client"]
        limit = ["login", "100/day fixed aligned counting denied"]
        cost = 2
        shadow = true
        warn = "80%"
        [[override]]
        rule = "login"
        match = { client = "partner-7" }
        limit = "100 refill 10 every 100ms reserve 50 refill 5/s"
    "#;
    let file = written("words", text);
    let output = tollgate(&["validate", file.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let words = String::from_utf8(output.stdout).unwrap();
    for line in [
        "tollgate.toml is valid.",
        "Listens on http://127.0.0.1:8080, grpc://127.0.0.1:8081, redis://127.0.0.1:6380, at most 10000 connections each.",
        "Rule \"global\" covers every request.",
        "  All of them share one budget:",
        "    up to 5000 at once, 5000 more per second (5000/second)",
        "    1000000 per month of the calendar in Europe/Berlin (1000000/month at Europe/Berlin)",
        "Rule \"login\" covers requests that have a client and whose path begins with \"/login\".",
        "  Each client has a budget of its own:",
        "    up to 5 at once, 1 more per 10s (1/10s burst 5)",
        "    100 per day, in windows that start on the clock, and attempts count even when they are denied (100/day fixed aligned counting denied)",
        "  Where client is \"partner-7\", instead of all 2 limits:",
        "    up to 100 at once, 10 more every 100ms; beyond that a reserve: up to 50 at once, 5 more per second (100 refill 10 every 100ms reserve 50 refill 5/second)",
        "  A request costs 2 times as much as it says.",
        "  From 80 % of a limit on, admitted requests are warned.",
        "  Shadow rule: it is charged and counted, and never denies.",
    ] {
        assert!(words.lines().any(|said| said.ends_with(line)), "no {line:?} in {words}");
    }
}

#[test]
fn init_and_validate_have_the_same_default_file() {
    let directory = directory("config-unnamed");
    for (command, said) in [("init", "wrote tollgate.toml"), ("validate", "tollgate.toml is valid.")] {
        let output = Command::new(TOLLGATE).arg(command).current_dir(&directory).output().unwrap();
        assert!(String::from_utf8_lossy(&output.stdout).starts_with(said), "{output:?}");
    }
}

#[test]
fn init_writes_the_starter_and_never_overwrites_a_file() {
    let file = directory("config-init").join("new.toml");
    let name = file.to_str().unwrap();
    assert!(tollgate(&["init", name]).status.success());
    assert_eq!(fs::read_to_string(&file).unwrap(), STARTER);
    fs::write(&file, "mine").unwrap();
    let again = tollgate(&["init", name]);
    assert_eq!(again.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&again.stderr).contains("already exists"), "{again:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    assert_eq!(String::from_utf8(tollgate(&["init", "-"]).stdout).unwrap(), STARTER);
}
