//! Operations: the systemd unit, help, completions.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::Command;

use crate::common::{Server, TOLLGATE, directory, tollgate};

const UNIT: &str = include_str!("../../../../packaging/tollgate.service");

#[test]
fn systemd_verifies_the_unit_and_rates_it_hardened() {
    let directory = directory("operations-unit");
    let unit = directory.join("tollgate.service");
    // The installed path does not exist here.
    fs::write(&unit, UNIT.replace("/usr/bin/tollgate", TOLLGATE)).unwrap();
    let analyze = |arguments: &[&str]| {
        let output = Command::new("systemd-analyze").args(arguments).arg(&unit).output().unwrap();
        (output.status.success(), format!("{output:?}"))
    };
    let (verified, said) = analyze(&["verify", "--man=no", "--recursive-errors=no"]);
    assert!(verified, "{said}");
    assert!(!said.contains("tollgate.service:"), "no warning either: {said}");
    // The exposure is from 0 to 100, lower is better.
    let (hardened, said) = analyze(&["security", "--offline=true", "--threshold=15", "--no-pager"]);
    assert!(hardened, "{said}");
}

#[test]
fn systemd_is_notified_of_readiness_and_stop() {
    let socket = directory("operations-notify").join("notify");
    let systemd = UnixDatagram::bind(&socket).unwrap();
    let heard = || {
        let mut message = [0; 256];
        let length = systemd.recv(&mut message).unwrap();
        String::from_utf8_lossy(&message[..length]).trim().to_owned()
    };
    let mut server = Server::logging(Command::new(TOLLGATE).arg("serve").env("NOTIFY_SOCKET", &socket));
    assert_eq!(heard(), "READY=1");
    server.signal("TERM");
    assert_eq!(heard(), "STOPPING=1");
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn every_command_has_help_with_examples_and_every_shell_completions() {
    let text = |arguments: &[&str]| String::from_utf8(tollgate(arguments).stdout).unwrap();
    for command in ["serve", "check", "init", "validate", "completions"] {
        let help = text(&[command, "--help"]);
        assert!(help.contains("Examples:\n  ") && help.contains(&format!("tollgate {command}")), "{help}");
        assert!(text(&["--help"]).contains(&format!("\n  {command}")), "{command}");
    }
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = text(&["completions", shell]);
        assert!(script.contains("validate") && script.contains("config"), "{shell}: {script}");
    }
}

/// A second server on one machine learns of all its ports at once.
#[test]
fn every_port_that_is_taken_is_reported_at_once() {
    let first = Server::everywhere(&[]);
    let [http, grpc, resp] = ["http", "grpc", "resp"].map(|protocol| first.listens(protocol));
    let second = tollgate(&["serve", "--http", http, "--grpc", grpc, "--resp", resp]);
    let said = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(2), "{said}");
    for part in [http, grpc, resp, "--http 127.0.0.1:0 --grpc 127.0.0.1:0 --resp 127.0.0.1:0"] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    let second = tollgate(&["serve", "--http", http, "--grpc", "off", "--resp", "127.0.0.1:0"]);
    let said = String::from_utf8(second.stderr).unwrap();
    assert!(said.contains("--http 127.0.0.1:0") && !said.contains("--grpc"), "{said}");
}
