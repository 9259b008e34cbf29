//! Per-client limits in a data directory: a JSON file that is replaced as a whole.
//!
//! A crash leaves the file before a change or the file after it. The file has the clients' names.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tollgate::{Error, Limit, Limits, Store as _};

use super::ClientLimit;
use crate::backend::Backend;

/// The name of the file.
const FILE: &str = "client-limits.json";

/// A per-client limit in the file.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    client: String,
    rule: String,
    limits: Vec<String>,
}

/// Reads the limits of a directory that `store` has locked.
///
/// # Errors
/// A sentence that says what to do.
pub(in crate::app) fn load(directory: &Path, store: &Backend) -> Result<Vec<ClientLimit>, String> {
    let path = directory.join(FILE);
    let cannot = |reason: &dyn std::fmt::Display| {
        let file = path.display();
        format!("cannot read {file}: {reason}; correct it, or move it away to drop all per-client limits")
    };
    let entries: Vec<Entry> = match fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| cannot(&error))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(cannot(&error)),
    };
    if entries.iter().any(|entry| entry.limits.is_empty()) {
        return Err(cannot(&"an entry has no limits"));
    }
    let parse = |text: &String| {
        let limit: Limit = text.parse()?;
        store.accepts(&limit).map(|()| limit)
    };
    let read = |Entry { client, rule, limits }| {
        let limits: Vec<Limit> = limits.iter().map(parse).collect::<Result<_, Error>>()?;
        Ok(ClientLimit::new(client, &rule, Limits::from(limits)))
    };
    entries.into_iter().map(read).collect::<Result<_, Error>>().map_err(|error| cannot(&error))
}

/// Replaces the file. The change survives a power cut.
pub(super) fn save(directory: &Path, limits: &[ClientLimit]) -> io::Result<()> {
    let entry = |ClientLimit { client, replacement }: &ClientLimit| Entry {
        client: client.clone(),
        rule: replacement.rule().to_string(),
        limits: replacement.limits().iter().map(Limit::to_string).collect(),
    };
    let text = serde_json::to_vec_pretty(&limits.iter().map(entry).collect::<Vec<_>>())?;
    let path = directory.join(FILE);
    let unfinished = path.with_added_extension("new");
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
    file.write_all(&text)?;
    file.sync_all()?;
    fs::rename(&unfinished, &path)?;
    File::open(directory)?.sync_all()
}
