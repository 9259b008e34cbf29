//! Which files there are, and what stands in them.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::config::ConfigErrors;

/// A larger file is a mistake.
const BYTES_MAX: u64 = 4 << 20;

/// One file: its name, and its text or why there is none.
pub(super) type Source = (String, Result<String, String>);

/// A file, or all `*.yaml` and `*.yml` of a directory, in the order of their names. A directory
/// without any that has a directory `config` means that one: so the reference's runtime directories
/// look.
pub(super) fn sources(path: &Path) -> Result<Vec<Source>, ConfigErrors> {
    let told = |reason: String| ConfigErrors::sentence(path.display().to_string(), reason);
    let files = files(path).map_err(|error| told(format!("cannot read {}: {error}", path.display())))?;
    if files.is_empty() {
        return Err(told(format!("there is no file *.yaml or *.yml in {}", path.display())));
    }
    Ok(files.iter().map(|file| source(file)).collect())
}

/// Their paths.
pub(crate) fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let files = listed(path)?;
    let inner = path.join("config");
    if files.is_empty() && inner.is_dir() { listed(&inner) } else { Ok(files) }
}

/// Hidden ones are left out: editors and Kubernetes keep theirs there.
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
    // A pipe would keep us waiting.
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
