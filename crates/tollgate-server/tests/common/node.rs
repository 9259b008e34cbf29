//! The npm packages of `tests/tools`, at the versions of its lockfile.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory with the packages, installed if they are missing or outdated. Of several
/// concurrent tests one installs them, and the others wait.
pub(crate) fn node_tools() -> PathBuf {
    let listed = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools");
    let tools = Path::new(env!("CARGO_TARGET_TMPDIR")).join("node-tools");
    let lock = File::create(tools.with_added_extension("lock")).unwrap();
    lock.lock().unwrap();
    let wanted = fs::read(listed.join("package-lock.json")).unwrap();
    if fs::read(tools.join("installed.json")).ok().as_ref() != Some(&wanted) {
        fs::create_dir_all(&tools).unwrap();
        for file in ["package.json", "package-lock.json"] {
            fs::copy(listed.join(file), tools.join(file)).unwrap();
        }
        let mut npm = Command::new("npm");
        npm.args(["ci", "--no-audit", "--no-fund", "--loglevel=error"]).current_dir(&tools);
        assert!(npm.status().unwrap().success(), "{npm:?}");
        fs::write(tools.join("installed.json"), wanted).unwrap();
    }
    tools
}
