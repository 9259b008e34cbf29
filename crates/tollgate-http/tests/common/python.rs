//! A Python with a package of PyPI's, installed where it is missing.

use std::path::PathBuf;
use std::process::Command;

/// The directory of such a Python's programs: `package` names a version too, so that nothing changes
/// by itself. Only one test may ask for each package: tests run at the same time.
pub(crate) fn python_with(package: &str) -> PathBuf {
    let tools = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("python-{package}"));
    let run = |command: &mut Command| assert!(command.status().unwrap().success(), "{command:?}");
    if !tools.join("ready").exists() {
        run(Command::new("python3").args(["-m", "venv"]).arg(&tools));
        run(Command::new(tools.join("bin/python")).args(["-m", "pip", "install", "--quiet", package]));
        std::fs::write(tools.join("ready"), "").unwrap();
    }
    tools.join("bin")
}
