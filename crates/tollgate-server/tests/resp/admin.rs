//! The handshake and administration.

use super::*;

#[test]
fn the_handshake_commands_are_answered() {
    let server = Server::everywhere(&[]);
    for version in VERSIONS {
        let answers = session(
            &server,
            version,
            &[
                "PING",
                "PING \"hello you\"",
                "ECHO \"\"",
                "SELECT 0",
                "CLIENT GETNAME",
                "CLIENT SETNAME me",
                "CLIENT GETNAME",
                "CLIENT SETINFO LIB-NAME x",
                "CLIENT NO-EVICT ON",
                "COMMAND COUNT",
                "COMMAND INFO nonsense",
                "READONLY",
                "RESET",
                "CLIENT GETNAME",
                "HELLO 2 SETNAME you",
                "CLIENT GETNAME",
            ],
        );
        let hello = answers.iter().position(|line| line.contains("\"server\"")).unwrap();
        assert_eq!(
            answers[..hello],
            [
                "PONG",
                "\"hello you\"",
                "\"\"",
                "OK",
                "(nil)",
                "OK",
                "\"me\"",
                "OK",
                "OK",
                "(integer) 24",
                "1) (nil)",
                "OK",
                "RESET",
                "(nil)"
            ],
            "{version}"
        );
        assert!(answers[hello..].iter().any(|line| line.ends_with("\"tollgate\"")), "{answers:?}");
        assert_eq!(answers.last().unwrap(), "\"you\"");
        assert!(cli(&server, version, "INFO").contains("redis_version:7."));
        assert!(cli(&server, version, "INFO server").contains("tollgate_version:"));
        assert!(cli(&server, version, "CONFIG GET save").contains("\"save\""));
        assert!(cli(&server, version, "CONFIG GET *").contains("\"appendonly\""));
        assert!(cli(&server, version, "COMMAND").contains("\"cl.throttle\""));
        cli(&server, version, "COMMAND DOCS");
        let ids = [(); 2].map(|()| numbers(&cli(&server, version, "CLIENT ID"))[0]);
        assert!(ids[0] < ids[1], "{ids:?}");
    }
}

#[test]
fn administration_needs_auth_and_a_reset_restores_every_budget() {
    let server = Server::everywhere(&[]);
    let throttle = "CL.THROTTLE alice 0 1 3600";
    for version in VERSIONS {
        assert_eq!(numbers(&cli(&server, version, throttle))[0], 0);
        assert_eq!(numbers(&cli(&server, version, throttle))[0], 1);
        cli(&server, version, "TOLL.CHECK client alice COST 10");
        let auth = format!("AUTH {TOKEN}");
        let named = format!("AUTH anyone {TOKEN}");
        let answers = session(
            &server,
            version,
            &[
                "TOLL.RULES",
                "TOLL.RESET alice",
                "AUTH wrong",
                "TOLL.RESET alice",
                &auth,
                "TOLL.RESET bob",
                // A wrong token revokes the authentication.
                "AUTH wrong",
                "TOLL.RESET alice",
                &auth,
                // `RESET` revokes it too.
                "RESET",
                "TOLL.RESET alice",
                &named,
                "TOLL.RESET",
                "PING",
            ],
        );
        let starts = [
            "(error) NOAUTH Authentication required",
            "(error) NOAUTH ",
            "(error) WRONGPASS ",
            "(error) NOAUTH ",
            "OK",
            "OK",
            "(error) WRONGPASS ",
            "(error) NOAUTH ",
            "OK",
            "RESET",
            "(error) NOAUTH ",
            "OK",
            "(error) ERR wrong number of arguments for 'toll.reset' command",
            "PONG",
        ];
        assert_eq!(answers.len(), starts.len(), "{answers:?}");
        for (answer, start) in answers.iter().zip(starts) {
            assert!(answer.starts_with(start), "{answer}, not {start}");
            assert!(!answer.contains(TOKEN));
        }
        assert_eq!(numbers(&cli(&server, version, throttle))[0], 1, "nothing was reset yet");

        let admin = |command: &str| {
            let mut client = redis_cli(&server, version);
            client.args(["--no-auth-warning", "-a", TOKEN]).args(command.split(' '));
            said(&client.output().unwrap())
        };
        assert_eq!(admin("TOLL.RESET alice"), "OK");
        assert_eq!(numbers(&cli(&server, version, throttle))[0], 0);
        assert_eq!(server.get("/check/alice?cost=0").json()["remaining"], 10);
        assert_eq!(admin("TOLL.RESET alice"), "OK");
        let rules = admin("TOLL.RULES");
        for part in
            ["\"per-client\"", "\"match\"", "\"10/minute fixed\"", "\"on_store_error\"", "\"cl.throttle\""]
        {
            assert!(rules.contains(part), "no {part} in {rules}");
        }
    }
}

#[test]
fn c5_a_block_without_a_rule_keyed_by_client_is_an_error() {
    let file = directory("resp-no-client-rule").join("tollgate.toml");
    let rule = "[[rule]]\nname = \"by-path\"\nkey = [\"client\", \"path\"]\nlimit = \"2/h fixed\"\n";
    fs::write(&file, rule).unwrap();
    let server = Server::everywhere(&["--config", file.to_str().unwrap()]);
    let blocked = server.admin("PUT", "/v1/clients/alice/block", Some(&json!({"for": "1h"})));
    assert_eq!((blocked.status, &blocked.json()["code"]), (404, &json!("not_covered")));
    assert_eq!(server.admin("DELETE", "/v1/clients/alice", None).status, 404);
    let throttle = "CL.THROTTLE alice 0 1 3600";
    assert_eq!(numbers(&cli(&server, "-2", throttle))[0], 0);
    let bob = server.admin("PUT", "/v1/clients/bob/block", Some(&json!({"for": "1h"})));
    assert_eq!(bob.status, 404);
    assert_eq!(numbers(&cli(&server, "-2", "CL.THROTTLE bob 9 1 3600"))[0], 1, "CL.THROTTLE needs no rule");
    let auth = format!("AUTH {TOKEN}");
    assert_eq!(session(&server, "-2", &[&auth, "TOLL.RESET alice", throttle])[..2], ["OK", "OK"]);
}

#[test]
fn c5_a_block_applies_to_the_redis_protocol_too() {
    let server = Server::everywhere(&[]);
    let asks = || numbers(&cli(&server, "-2", "CL.THROTTLE alice 9 1 3600"));
    let check = || cli(&server, "-3", "TOLL.CHECK client alice");
    assert_eq!(asks()[..3], [0, 10, 9]);
    let blocked = server.admin("PUT", "/v1/clients/alice/block", Some(&json!({"for": "1h"})));
    assert_eq!(blocked.status, 200);
    assert_eq!(asks()[..3], [1, 10, 0]);
    assert!(check().contains("(false)"), "{}", check());
    assert_eq!(numbers(&cli(&server, "-2", "CL.THROTTLE bob 9 1 3600"))[0], 0);
    assert_eq!(server.admin("DELETE", "/v1/clients/alice/block", None).status, 204);
    assert_eq!(asks()[..3], [0, 10, 8]);
}
