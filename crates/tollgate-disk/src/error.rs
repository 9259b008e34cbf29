//! Why a directory cannot be used.

use std::path::{Path, PathBuf};
use std::{fmt, io};

/// Why a directory cannot be used. The message says what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// It cannot be read or written.
    Inaccessible {
        /// What.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another process has it.
    InUse {
        /// The directory.
        dir: PathBuf,
        /// Which, if it says so.
        process: Option<u32>,
    },
    /// A newer tollgate wrote it.
    Newer {
        /// The directory.
        dir: PathBuf,
        /// The version of its format.
        version: u64,
    },
    /// It is not what was written.
    Damaged {
        /// The file.
        file: PathBuf,
        /// What was found.
        reason: String,
    },
    /// It has no state, and was to have some.
    Empty {
        /// The directory.
        dir: PathBuf,
    },
    /// It has state, and was to be new.
    NotEmpty {
        /// The directory.
        dir: PathBuf,
    },
}

impl OpenError {
    pub(crate) fn inaccessible(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        |source| Self::Inaccessible { path, source }
    }

    pub(crate) fn damaged(file: &Path, reason: impl fmt::Display) -> Self {
        Self::Damaged { file: file.to_owned(), reason: reason.to_string() }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inaccessible { path, source } => write!(
                f,
                "cannot read and write {}: {source}; make it a place that this user may write to, or name another directory",
                path.display()
            ),
            Self::InUse { dir, process } => {
                write!(f, "{} is in use by ", dir.display())?;
                match process {
                    Some(process) => write!(f, "process {process}")?,
                    None => f.write_str("another process")?,
                }
                f.write_str("; stop that one first, or name another directory")
            }
            Self::Newer { dir, version } => write!(
                f,
                "{} was written by a newer tollgate (format {version}, and this one knows {}); use that one, or move the state with its `tollgate dump`",
                dir.display(),
                crate::file::VERSION
            ),
            Self::Damaged { file, reason } => write!(
                f,
                "{} is damaged: {reason}; put back a copy of it, or move it away to start with every budget full",
                file.display()
            ),
            Self::Empty { dir } => {
                write!(
                    f,
                    "there is no state in {}; name the directory that a server was given",
                    dir.display()
                )
            }
            Self::NotEmpty { dir } => {
                write!(f, "{} has state already; name a new directory, or move it away", dir.display())
            }
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Inaccessible { source, .. } => Some(source),
            _ => None,
        }
    }
}
