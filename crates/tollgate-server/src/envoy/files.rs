//! Finds and reads the YAML files.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::config::ConfigErrors;

/// The largest file.
const BYTES_MAX: u64 = 4 << 20;

/// A file: its name, and its text or the reason why it cannot be read.
pub(super) type Source = (String, Result<String, String>);

/// The files at `path`, sorted by name. A directory without YAML files but with a subdirectory
/// `config`, as the reference's runtime directories are, means that subdirectory.
pub(super) fn sources(path: &Path) -> Result<Vec<Source>, ConfigErrors> {
    let failed = |reason: String| ConfigErrors::sentence(path.display().to_string(), reason);
    let files = files(path).map_err(|error| failed(format!("cannot read {}: {error}", path.display())))?;
    if files.is_empty() {
        return Err(failed(format!("there is no file *.yaml or *.yml in {}", path.display())));
    }
    Ok(files.iter().map(|file| source(file)).collect())
}

/// The paths of the files at `path`.
pub(crate) fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let files = listed(path)?;
    let inner = path.join("config");
    if files.is_empty() && inner.is_dir() { listed(&inner) } else { Ok(files) }
}

/// The YAML files of a directory, without hidden ones, which editors and Kubernetes create.
fn listed(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        let yaml = path.extension().is_some_and(|end| end == "yaml" || end == "yml");
        if yaml && !hidden && !path.is_dir() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn source(path: &Path) -> Source {
    let name = path.display().to_string();
    let text = text(path).map_err(|reason| format!("cannot read {name}: {reason}"));
    (name, text)
}

fn text(path: &Path) -> Result<String, String> {
    // Reading a pipe would block.
    if !fs::metadata(path).map_err(|error| error.to_string())?.is_file() {
        return Err("it is not a file".into());
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    file.take(BYTES_MAX.saturating_add(1)).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() > usize::try_from(BYTES_MAX).unwrap_or(usize::MAX) {
        return Err(format!("it is larger than {} MiB", BYTES_MAX >> 20));
    }
    String::from_utf8(bytes)
        .map_err(|error| format!("it is not UTF-8 after {} bytes", error.utf8_error().valid_up_to()))
}
