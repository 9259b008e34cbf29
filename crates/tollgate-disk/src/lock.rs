//! The lock of a directory: one process at a time may use it.
//!
//! The lock is the operating system's, on a file, so it ends with the process, even after SIGKILL.
//! The file contains the id of the process that holds the lock.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use crate::OpenError;

/// A held lock. Dropping it releases the directory.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    pub(crate) fn take(dir: &Path) -> Result<Self, OpenError> {
        let path = dir.join("lock");
        let inaccessible = || OpenError::inaccessible(&path);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(&path).map_err(inaccessible())?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let process = file.read_to_string(&mut holder).ok().and_then(|_| holder.trim().parse().ok());
                return Err(OpenError::InUse { dir: dir.to_owned(), process });
            }
            Err(TryLockError::Error(error)) => return Err(inaccessible()(error)),
        }
        // On a full disk the process id may be missing; the lock holds nevertheless.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Self { _file: file })
    }
}
