//! A directory with an npm package, installed if it is missing.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory with `package`, which includes a version. Concurrent tests wait for the one that
/// installs it.
pub(crate) fn node_with(package: &str) -> PathBuf {
    let tools = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("node-{package}"));
    let lock = File::create(tools.with_added_extension("lock")).unwrap();
    lock.lock().unwrap();
    if !tools.join("ready").exists() {
        fs::create_dir_all(&tools).unwrap();
        // Without this file npm installs into a parent directory that has one.
        fs::write(tools.join("package.json"), "{}").unwrap();
        let mut npm = Command::new("npm");
        npm.args(["install", "--no-audit", "--no-fund", "--loglevel=error", package]).current_dir(&tools);
        assert!(npm.status().unwrap().success(), "{npm:?}");
        fs::write(tools.join("ready"), "").unwrap();
    }
    tools
}
