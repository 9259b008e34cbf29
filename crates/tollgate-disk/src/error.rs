//! The error of opening a directory.

use std::path::{Path, PathBuf};
use std::{fmt, io};

/// Why a directory cannot be opened. The message says what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The directory or a file in it cannot be read or written.
    Inaccessible {
        /// The directory or file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Another process uses the directory.
    InUse {
        /// The directory.
        dir: PathBuf,
        /// The id of that process, if it is known.
        process: Option<u32>,
    },
    /// Another version of tollgate, with another format, wrote the directory.
    OtherVersion {
        /// The directory.
        dir: PathBuf,
        /// The version of its format.
        version: u64,
    },
    /// The file is damaged.
    Damaged {
        /// The file.
        file: PathBuf,
        /// The damage that was found.
        reason: String,
    },
    /// The directory has no state, and [`open_existing`](crate::Builder::open_existing) needs some.
    Empty {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory has state, and [`create`](crate::Builder::create) needs a new one.
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
                "cannot read and write {}: {source}; give this user write permission, or name another directory",
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
            Self::OtherVersion { dir, version } => write!(
                f,
                "{} was written by another version of tollgate (format {version}; this version reads {}); use that version, or move the directory away to start with every budget full",
                dir.display(),
                crate::file::VERSION
            ),
            Self::Damaged { file, reason } => write!(
                f,
                "{} is damaged: {reason}; put back a copy of it, or move it away to start with every budget full",
                file.display()
            ),
            Self::Empty { dir } => {
                write!(f, "there is no state in {}; name the directory that a server uses", dir.display())
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
