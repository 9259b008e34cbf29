//! Abuse of a server does not affect other clients.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::common::{Server, TOKEN, TOLLGATE, directory, parse, tollgate};
use crate::wire::Wire;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

#[test]
fn administration_needs_the_token_and_the_token_is_never_shown() {
    let mut command = Command::new(TOLLGATE);
    let mut server = Server::logging(command.arg("serve").env("TOLLGATE_SERVER_LOG", "trace"));
    for (method, path) in [
        ("GET", "/v1/clients/a"),
        ("DELETE", "/v1/clients/a"),
        ("PUT", "/v1/clients/a/block"),
        ("DELETE", "/v1/clients/a/block"),
        ("PUT", "/v1/clients/a/limits"),
        ("DELETE", "/v1/clients/a/limits"),
        ("POST", "/v1/clients/a/penalise"),
        ("POST", "/v1/clients/a/refund"),
        ("POST", "/v1/backup"),
        ("GET", "/v1/blocks"),
        ("DELETE", "/v1/rules/per-client/state"),
        ("GET", "/v1/rules"),
        ("GET", "/v1/stats"),
        ("GET", "/v1/top"),
    ] {
        let longer = format!("Bearer {TOKEN}x");
        let shorter = format!("Bearer {}", &TOKEN[1..]);
        for guess in ["", "Bearer", "Bearer ", TOKEN, &format!("Basic {TOKEN}"), &longer, &shorter] {
            let answer = server.send(method, path, &[("authorization", guess)], "");
            assert_eq!(answer.status, 401, "{method} {path} with {guess:?}");
            assert_eq!(answer.header("www-authenticate"), Some("bearer"));
            assert!(!answer.body.contains(TOKEN) && answer.json()["code"] == "unauthorized");
        }
        assert_eq!(server.send(method, path, &[], "").status, 401, "{method} {path}");
        assert_ne!(server.admin(method, path, None).status, 401, "{method} {path}");
    }
    server.signal("TERM");
    let mut log = String::new();
    while !log.contains("\"stopped\"") {
        log += &server.log_line("");
    }
    assert!(log.contains("tollgate::access") && log.contains("/v1/clients/a"), "{log}");
    assert!(!log.contains(TOKEN), "{log}");
}

#[test]
fn an_empty_token_is_an_error() {
    let empty = Command::new(TOLLGATE).arg("serve").env("TOLLGATE_ADMIN_TOKEN", "").output().unwrap();
    assert_eq!(empty.status.code(), Some(2));
}

#[test]
fn a_removed_token_is_replaced_by_a_generated_one() {
    let directory = directory("security-token");
    let file = directory.join("tollgate.toml");
    fs::write(directory.join("token"), "the-first-admin-token").unwrap();
    fs::write(&file, "[server]\nadmin_token_file = \"token\"").unwrap();
    let mut command = Command::new(TOLLGATE);
    command.args(["serve", "--config", file.to_str().unwrap()]).env("XDG_RUNTIME_DIR", &directory);
    let mut server = Server::logging_without_token(&mut command);
    let rules = |server: &Server, token: &str| {
        server.send("GET", "/v1/rules", &[("authorization", &format!("Bearer {token}"))], "").status
    };
    assert_eq!(rules(&server, "the-first-admin-token"), 200);
    fs::write(directory.join("token"), "the-second-admin-token").unwrap();
    server.signal("HUP");
    server.log_line("is in effect");
    assert_eq!(
        (rules(&server, "the-first-admin-token"), rules(&server, "the-second-admin-token")),
        (401, 200)
    );
    fs::write(&file, "[server]\nheaders = \"x\"").unwrap();
    let line: serde_json::Value = serde_json::from_str(&server.log_line("\"file\"")).unwrap();
    let generated = line["file"].as_str().unwrap();
    let token = fs::read_to_string(generated).unwrap();
    assert_eq!((rules(&server, "the-second-admin-token"), rules(&server, token.trim())), (401, 200));
    fs::write(&file, "[server]\nadmin_token_file = \"token\"").unwrap();
    server.log_line("is in effect");
    server.log_line("is in effect");
    assert_eq!((rules(&server, "the-second-admin-token"), rules(&server, token.trim())), (200, 401));
    assert!(!fs::exists(generated).unwrap(), "a token that is void is in no file");
}

#[test]
fn clients_are_hashed_in_logs_if_so_configured() {
    for hashed in [true, false] {
        let mut command = Command::new(TOLLGATE);
        command.arg("serve").env("TOLLGATE_SERVER_LOG", "info,tollgate::access=debug");
        let mut server =
            Server::logging(command.env("TOLLGATE_SERVER_HASH_KEYS_IN_LOGS", hashed.to_string()));
        server.get("/check/alice@example.org");
        server.admin("DELETE", "/v1/clients/alice@example.org", None);
        let lines = server.log_line("answered") + &server.log_line("was reset");
        assert_ne!(lines.contains("alice@example.org"), hashed, "{lines}");
        let long = "x".repeat(500);
        server.admin("DELETE", &format!("/v1/clients/{long}"), None);
        assert!(!server.log_line("was reset").contains(&"x".repeat(65)));
    }
}

#[test]
fn slow_silent_oversized_and_malformed_requests_do_not_affect_others() {
    let file = directory("security-slow").join("tollgate.toml");
    fs::write(
        &file,
        "[server]\ntimeout = \"300ms\"\n[[rule]]\nname = \"r\"\nkey = [\"client\"]\nlimit = \"9/hour\"",
    )
    .unwrap();
    let server = Server::with_config(&file);
    let connect = || TcpStream::connect(&server.address).unwrap();
    let rest = |mut stream: TcpStream| {
        let mut read = Vec::new();
        let _ = stream.read_to_end(&mut read);
        parse(&String::from_utf8_lossy(&read))
    };
    // None of these says more. Each read below ends only because the server hangs up.
    let silent = connect();
    let mut half_a_head = connect();
    write!(half_a_head, "GET /check/a HTTP/1.1\r\nhost: x\r\nx-slow: ").unwrap();
    let mut half_a_body = connect();
    write!(half_a_body, "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{{").unwrap();
    let mut idle = connect();
    write!(idle, "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    assert_eq!(server.get("/check/a").status, 200);
    assert_eq!(rest(silent).status, 0);
    assert_ne!(rest(half_a_head).status, 200);
    assert_eq!(rest(half_a_body).status, 408);
    assert_eq!(rest(idle).status, 200);

    // A client that never reads is dropped once the buffers are full.
    let mut deaf = connect();
    while deaf.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").is_ok() {}
    assert_eq!(server.get("/check/b").status, 200);

    let large = "x".repeat(40 << 10);
    assert_eq!(server.send("GET", "/check/a", &[("x-large", &large)], "").status, 431);
    let many: Vec<(String, String)> = (0..200).map(|i| (format!("x-{i}"), "y".into())).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(server.send("GET", "/check/a", &many, "").status, 431);
    assert_eq!(
        server.raw("POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 1048577\r\n\r\n").status,
        413
    );
    let chunk = format!("{:x}\r\n{large}\r\n", large.len()).repeat(27);
    let chunked = format!(
        "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n{chunk}0\r\n\r\n"
    );
    assert_eq!(server.raw(&chunked).status, 413, "a length that was not announced");
    for garbage in [
        "\u{0}\u{1}\u{2}\r\n\r\n",
        "GET\r\n\r\n",
        "GET /check/a HTTP/1.1\r\nhost: x\r\ncontent-length: x\r\n\r\n",
        "GET /check/a HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        "GET /check/a HTTP/9.9\r\nhost: x\r\n\r\n",
        "*2\r\n$4\r\nPING\r\n",
    ] {
        assert_ne!(server.raw(garbage).status / 100, 2, "{garbage:?}");
    }
    assert_eq!(server.get("/check/a").json()["remaining"], 7, "and none of that cost anything");
}

#[test]
fn a_request_has_one_host_as_rfc_9112_requires() {
    let server = Server::start(&["--limit", "100/hour"]);
    let ask = |version: &str, hosts: &[&str], path: &str| {
        let fields: String = hosts.iter().map(|host| format!("Host:{host}\r\n")).collect();
        server.raw(&format!("GET {path} HTTP/{version}\r\n{fields}connection: close\r\n\r\n"))
    };
    let (none, two): (&[&str], &[&str]) = (&[], &["a", "a"]);
    for path in ["/check/a", "/healthz", "http://a/check/a"] {
        for hosts in [none, two, &["a b"], &["a/b"], &["u@a"], &["a:b"], &["a, b"], &["[::1"], &["a\u{e4}"]] {
            let answer = ask("1.1", hosts, path);
            assert_eq!(answer.status, 400, "{path} {hosts:?}");
            let body = answer.json();
            assert_eq!((&body["code"], &body["field"]), (&"invalid_host".into(), &"host".into()), "{body}");
        }
        assert_eq!((ask("1.0", two, path).status, ask("1.0", &["a b"], path).status), (400, 400), "{path}");
        for hosts in [&["a"], &[" a.example:80"], &[" [::1]:80"], &[""]] {
            assert_eq!(ask("1.1", hosts, path).status, 200, "{path} {hosts:?}");
        }
        assert_eq!((ask("1.0", none, path).status, ask("1.0", &["a"], path).status), (200, 200), "{path}");
    }
    assert_eq!(server.get("/check/a").json()["remaining"], 100 - 13, "a rejected request costs nothing");
}

/// A CA that issues certificates and keys in PEM.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }

    fn pem(&self) -> String {
        self.0.as_ref().pem()
    }
}

fn write_pair(directory: &Path, (certificate, key): (String, String)) {
    fs::write(directory.join("server.pem"), certificate).unwrap();
    fs::write(directory.join("server.key"), key).unwrap();
}

#[test]
fn tls_certificates_are_reloaded() {
    let directory = directory("security-tls");
    let (old, new) = (Authority::new(), Authority::new());
    write_pair(&directory, old.issue("localhost"));
    fs::write(directory.join("old-ca.pem"), old.pem()).unwrap();
    fs::write(directory.join("new-ca.pem"), new.pem()).unwrap();
    let file = directory.join("tollgate.toml");
    fs::write(&file, "[server.tls]\ncert = \"server.pem\"\nkey = \"server.key\"").unwrap();
    let words = String::from_utf8(tollgate(&["validate", file.to_str().unwrap()]).stdout).unwrap();
    let urls = "https://127.0.0.1:8080, grpcs://127.0.0.1:8081, rediss://127.0.0.1:6380";
    assert!(words.contains(urls), "{words}");
    let mut command = Command::new(TOLLGATE);
    let mut server = Server::logging(command.args(["serve", "--config", file.to_str().unwrap()]));
    let url = format!("https://localhost:{}", server.address.rsplit(':').next().unwrap());
    let check = |authority: &str| {
        let authority = directory.join(authority);
        tollgate(&["check", "a", "--server", &url, "--cacert", authority.to_str().unwrap()]).status.code()
    };
    assert_eq!((check("old-ca.pem"), check("new-ca.pem")), (Some(0), Some(2)));
    assert_eq!(server.get("/check/a").status, 0, "no cleartext");
    let stranger = directory.join("new-ca.pem");
    let refused = tollgate(&["check", "a", "--server", &url, "--cacert", stranger.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("--cacert") && !said.contains("is a server running"), "{said}");

    // A certificate without its key changes nothing.
    fs::write(directory.join("server.pem"), new.issue("localhost").0).unwrap();
    server.signal("HUP");
    assert!(server.log_line("not in effect").contains("do not match"));
    assert_eq!(check("old-ca.pem"), Some(0));
    write_pair(&directory, new.issue("localhost"));
    server.signal("HUP");
    server.log_line("is in effect");
    assert_eq!((check("old-ca.pem"), check("new-ca.pem")), (Some(2), Some(0)));
}

#[test]
fn mutual_tls_admits_only_clients_with_a_certificate() {
    let directory = directory("security-mutual");
    let (authority, stranger) = (Authority::new(), Authority::new());
    write_pair(&directory, authority.issue("localhost"));
    fs::write(directory.join("clients.pem"), authority.pem()).unwrap();
    let file = directory.join("tollgate.toml");
    fs::write(
        &file,
        "[server.tls]\ncert = \"server.pem\"\nkey = \"server.key\"\nclient_ca = \"clients.pem\"",
    )
    .unwrap();
    let server = Server::with_config(&file);
    let url = format!("https://localhost:{}/check/a", server.address.rsplit(':').next().unwrap());
    let ask = |client: Option<(String, String)>| {
        let root = Certificate::from_pem(authority.pem().as_bytes()).unwrap();
        let mut tls = TlsConfig::builder().root_certs(RootCerts::Specific(Arc::new(vec![root])));
        if let Some((certificate, key)) = client {
            let chain = [Certificate::from_pem(certificate.as_bytes()).unwrap()];
            let key = PrivateKey::from_pem(key.as_bytes()).unwrap();
            tls = tls.client_cert(Some(ClientCert::new_with_certs(&chain, key)));
        }
        let agent = ureq::Agent::config_builder().tls_config(tls.build()).build().new_agent();
        agent.get(&url).call().map(|response| response.status().as_u16())
    };
    assert_eq!(ask(Some(authority.issue("client"))).unwrap(), 200);
    assert!(ask(None).is_err() && ask(Some(stranger.issue("client"))).is_err());
    assert_eq!(ask(Some(authority.issue("another"))).unwrap(), 200);
}

/// Guesses are reported, and cannot flood the log.
#[test]
fn wrong_tokens_are_counted_and_logged_at_most_once_a_second() {
    let mut command = Command::new(TOLLGATE);
    let mut server = Server::logging(command.arg("serve"));
    let guesses = 200;
    for _ in 0..guesses {
        assert_eq!(server.send("GET", "/v1/rules", &[("authorization", "Bearer guess")], "").status, 401);
    }
    assert_eq!(server.get("/v1/rules").status, 401, "which is no guess");
    assert_eq!(server.metric("tollgate_failed_authentications_total"), f64::from(guesses));
    let line: serde_json::Value = serde_json::from_str(&server.log_line("wrong admin token")).unwrap();
    let told = (line["level"].as_str(), line["peer"].as_str(), line["protocol"].as_str());
    assert_eq!(told, (Some("WARN"), Some("127.0.0.1"), Some("http")));
    assert_eq!(line["attempts"], 1);
    server.signal("TERM");
    let (mut log, mut lines) = (String::new(), 1);
    while !log.contains("\"stopped\"") {
        log = server.log_line("");
        lines += usize::from(log.contains("wrong admin token"));
    }
    assert!(lines < 50, "{lines} lines for {guesses} guesses");
}

/// A changed token revokes the connections that authenticated with the old one.
#[test]
fn a_changed_token_revokes_authenticated_connections() {
    let directory = directory("security-session");
    let file = directory.join("tollgate.toml");
    let (first, second) = ("the-first-admin-token", "the-second-admin-token");
    fs::write(directory.join("token"), first).unwrap();
    fs::write(&file, "[server]\nadmin_token_file = \"token\"").unwrap();
    // The shell drops the helper's flags, which turn RESP off.
    let script =
        r#"exec "$TOLLGATE" serve --config "$FILE" --http 127.0.0.1:0 --grpc off --resp 127.0.0.1:0"#;
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).env("TOLLGATE", TOLLGATE).env("FILE", &file);
    let mut server = Server::logging_without_token(&mut shell);
    let mut wire = Wire::connect(&server);
    let mut ask = |command: &str| wire.ask(command);
    assert_eq!(ask(&format!("AUTH {first}")), "+OK");
    assert_eq!(ask("TOLL.RESET a"), "+OK");
    fs::write(directory.join("token"), second).unwrap();
    server.signal("HUP");
    server.log_line("is in effect");
    assert!(ask("TOLL.RESET a").starts_with("-NOAUTH"));
    assert!(ask(&format!("AUTH {first}")).starts_with("-WRONGPASS"));
    assert_eq!(server.metric("tollgate_failed_authentications_total"), 1.0);
    let line = server.log_line("wrong admin token");
    assert!(line.contains("resp") && line.contains("127.0.0.1"), "{line}");
    assert_eq!(ask(&format!("AUTH {second}")), "+OK");
    assert_eq!(ask("TOLL.RESET a"), "+OK");
}
