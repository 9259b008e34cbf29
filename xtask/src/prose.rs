//! Checks that prose is wrapped: comments in Rust and text in Markdown, at 100 columns.
//!
//! Code, tables, and lines of one long word, such as a link, are left alone.

use std::fs;
use std::path::{Path, PathBuf};

const COLUMNS: usize = 100;

/// Directories that hold nothing of ours. `pb` is generated.
const SKIPPED: [&str; 5] = ["target", "node_modules", ".git", "venv", "pb"];

/// What `cargo xtask bench` writes.
const GENERATED: &str = "RESULTS.md";

/// Checks all files below `root`.
///
/// # Errors
/// A list of the lines that are too long.
pub(crate) fn check(root: &Path) -> Result<(), String> {
    let mut long = Vec::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries =
            fs::read_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() && !SKIPPED.contains(&name.as_str()) {
                directories.push(path);
            } else if name != GENERATED && (name.ends_with(".rs") || name.ends_with(".md")) {
                long.extend(long_lines(&path));
            }
        }
    }
    long.sort();
    match long.as_slice() {
        [] => Ok(()),
        lines => Err(format!("wrap these at {COLUMNS} columns:\n{}", lines.join("\n"))),
    }
}

fn long_lines(path: &PathBuf) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let is_rust = path.extension().is_some_and(|extension| extension == "rs");
    let mut in_code = false;
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let content = line.trim_start();
        let comment = ["///", "//!", "//"].iter().find_map(|mark| content.strip_prefix(mark));
        let prose = if is_rust { comment } else { Some(content) };
        let Some(prose) = prose.map(str::trim_start) else {
            in_code = false;
            continue;
        };
        in_code ^= prose.starts_with("```");
        let words = prose.split_whitespace().filter(|word| word.len() > 3).count();
        if !in_code && !prose.starts_with('|') && words > 2 && line.chars().count() > COLUMNS {
            found.push(format!("{}:{number}", path.display()));
        }
    }
    found
}
