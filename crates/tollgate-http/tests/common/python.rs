//! A Python environment with a package from PyPI, installed if it is missing.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;

/// The `bin` directory of the environment. `package` pins a version. Of several concurrent tests
/// one installs it, and the others wait.
pub(crate) fn python_with(package: &str) -> PathBuf {
    let tools = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("python-{package}"));
    let run = |command: &mut Command| assert!(command.status().unwrap().success(), "{command:?}");
    let lock = File::create(tools.with_added_extension("lock")).unwrap();
    lock.lock().unwrap();
    if !tools.join("ready").exists() {
        run(Command::new("python3").args(["-m", "venv"]).arg(&tools));
        run(Command::new(tools.join("bin/python")).args(["-m", "pip", "install", "--quiet", package]));
        std::fs::write(tools.join("ready"), "").unwrap();
    }
    tools.join("bin")
}
