//! Tells the program which compiler built it.

use std::process::Command;

fn main() {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let version =
        Command::new(rustc).arg("--version").output().map(|output| output.stdout).unwrap_or_default();
    println!("cargo::rustc-env=RUSTC_VERSION={}", String::from_utf8_lossy(&version).trim());
    println!("cargo::rerun-if-changed=build.rs");
}
