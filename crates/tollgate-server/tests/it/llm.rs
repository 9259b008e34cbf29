//! The programs of `examples/llm`, against a real server.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{Server, directory, tollgate};
use serde_json::json;

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/llm")
}

/// A program of the examples, and the server that it asks.
struct Chat {
    command: [&'static str; 2],
    server: Server,
}

impl Chat {
    fn new(interpreter: &'static str, program: &'static str) -> Self {
        let server = Server::with_config(&examples().join("tollgate.toml"));
        Self { command: [interpreter, program], server }
    }

    fn with(&self, arguments: &str) -> Command {
        let [interpreter, program] = self.command;
        let mut command = Command::new(interpreter);
        command.arg(examples().join(program)).args(arguments.split(' '));
        command.env("TOLLGATE", format!("http://{}", self.server.address));
        command
    }

    /// What the program says, and whether it was within its budget.
    fn said(&self, arguments: &str) -> (String, bool) {
        let output = self.with(arguments).output().unwrap();
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        (String::from_utf8(output.stdout).unwrap(), output.status.success())
    }

    fn left(&self, client: &str) -> u64 {
        self.server.get(&format!("/check/{client}?cost=0")).json()["remaining"].as_u64().unwrap()
    }

    fn runs_as_documented(&self) {
        let mut killed = self.with("stream dave 700 1000000").stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(killed.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "reserved 700, 9300 left\n");
        killed.kill().unwrap();
        killed.wait().unwrap();

        // Longer than its reservation, which it renews.
        let (stream, answered) = self.said("stream alice 600 400");
        assert_eq!(stream, "reserved 600, 9400 left\nused 400, 0 beyond the debt\n");
        assert!(answered);
        assert_eq!(self.left("alice"), 9_600);
        assert_eq!(self.said("call alice 25").0, "used 25, 9575 left, 0 owed\n");

        self.server.post("/v1/record", &json!({"attributes": {"client": "carol"}, "cost": 9_900}));
        let (stream, _) = self.said("stream carol 50 150");
        assert_eq!(stream, "reserved 50, 50 left\nused 150, 0 beyond the debt\n");
        for refused in ["stream carol 1 1", "call carol 1"] {
            let (denied, answered) = self.said(refused);
            assert!(denied.starts_with("over budget: 0 left, 50 owed, retry in ") && !answered, "{denied}");
        }
        assert_eq!(self.left("dave"), 9_300, "killed, it has used its estimate");
    }
}

/// The code blocks of the guide in one language.
fn blocks<'a>(guide: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    guide.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

#[test]
fn the_guide_shows_the_programs_as_they_are() {
    let read = |file: PathBuf| fs::read_to_string(file).unwrap();
    let guide = read(examples().join("../../docs/llm-budgets.md"));
    for (language, program) in [
        ("python", "python/chat.py"),
        ("js", "node/chat.mjs"),
        ("rust,ignore", "rust/src/main.rs"),
        ("toml", "tollgate.toml"),
    ] {
        let program = read(examples().join(program));
        assert!(program.contains(blocks(&guide, language)[0].trim_end()), "{language}");
    }
    let several = directory("guide").join("several.toml");
    fs::write(&several, blocks(&guide, "toml")[1]).unwrap();
    let validated = tollgate(&["validate", several.to_str().unwrap()]);
    assert!(validated.status.success(), "{validated:?}");
}

#[test]
fn c7_the_python_example_runs_as_documented() {
    Chat::new("python3", "python/chat.py").runs_as_documented();
}

#[test]
fn c7_the_node_example_runs_as_documented() {
    Chat::new("node", "node/chat.mjs").runs_as_documented();
}
