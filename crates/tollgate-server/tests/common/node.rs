//! A directory in which Node finds a package of npm's, installed where it is missing.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// That directory: `package` names a version too, so that nothing changes by itself. Tests run at the
/// same time: one installs it, and the others wait.
pub(crate) fn node_with(package: &str) -> PathBuf {
    let tools = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("node-{package}"));
    let lock = File::create(tools.with_added_extension("lock")).unwrap();
    lock.lock().unwrap();
    if !tools.join("ready").exists() {
        fs::create_dir_all(&tools).unwrap();
        // Without one of its own, the package would go where the next directory up has one.
        fs::write(tools.join("package.json"), "{}").unwrap();
        let mut npm = Command::new("npm");
        npm.args(["install", "--no-audit", "--no-fund", "--loglevel=error", package]).current_dir(&tools);
        assert!(npm.status().unwrap().success(), "{npm:?}");
        fs::write(tools.join("ready"), "").unwrap();
    }
    tools
}
