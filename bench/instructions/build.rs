//! Tells the program which compiler it was built by.

use std::process::Command;

fn main() {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let output = Command::new(rustc).arg("--version").output().expect("a compiler");
    println!("cargo::rustc-env=COMPILER={}", String::from_utf8_lossy(&output.stdout).trim());
}
