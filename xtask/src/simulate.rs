//! `cargo xtask bench --simulate`: 10 million lines under three candidates and for suggestions,
//! beside what only reads them.

use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::{cargo, in_workspace, root, run};

const LINES: &str = "10000000";

/// The directory of the generated log, which has 1.3 GB.
const DIRECTORY: &str = "target/simulate";

/// The longest that each may take on two cores.
const THREE_MAX: Duration = Duration::from_secs(60);
const SUGGEST_MAX: Duration = Duration::from_secs(120);

pub(crate) fn bench() -> Result<(), String> {
    let server = ["build", "--profile", "dist", "--package", "tollgate-server", "--bin", "tollgate"];
    cargo("the server", &[&server[..], &["--example", "traffic"]].concat())?;
    let directory = root().join(DIRECTORY);
    fs::create_dir_all(&directory).map_err(|error| format!("cannot create {DIRECTORY}: {error}"))?;
    let log = directory.join("access.log");
    if !log.exists() {
        let file = File::create(&log).map_err(|error| format!("cannot write the log: {error}"))?;
        let mut traffic = in_workspace("target/dist/examples/traffic");
        run("generating the log", traffic.arg(LINES).stdout(file))?;
        run("compressing it", in_workspace("gzip").args(["--keep", "--fast"]).arg(&log))?;
    }
    let simulate = format!("target/dist/tollgate simulate {DIRECTORY}/access.log");
    let three =
        format!("{simulate} --limit '10/s burst 20' --limit '100/min sliding' --limit '60/min fixed'");
    eprintln!("| {LINES} lines of the combined format | seconds |\n|---|---|");
    time("wc -l", &format!("wc -l {DIRECTORY}/access.log"), None)?;
    time("zcat \\| wc -l", &format!("zcat {DIRECTORY}/access.log.gz | wc -l"), None)?;
    time("parsed, nothing decided", &simulate, None)?;
    time("three candidates", &three, Some(THREE_MAX))?;
    time("three candidates, from .gz", &three.replace("access.log", "access.log.gz"), None)?;
    time("--suggest", &format!("{simulate} --suggest"), Some(SUGGEST_MAX))
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn time(name: &str, command: &str, most: Option<Duration>) -> Result<(), String> {
    let begun = Instant::now();
    let mut shell: Command = in_workspace("sh");
    run(name, shell.args(["-c", command]).stdout(Stdio::null()))?;
    let took = begun.elapsed();
    eprintln!("| {name} | {:.1} |", took.as_secs_f64());
    match most {
        Some(most) if took > most => Err(format!("{name} took {took:?}, more than {most:?}")),
        _ => Ok(()),
    }
}
