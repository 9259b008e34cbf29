//! C7 after a crash: a process with streams on a directory is killed, and the budgets have what its
//! streams used.

use crate::common::Directory;
use tollgate_disk::{DiskStore, Durability};

#[test]
fn c7_killed_processes_on_one_directory_leave_what_their_streams_used() {
    let test = "streams::c7_killed_processes_on_one_directory_leave_what_their_streams_used";
    let start = || {
        let directory = Directory::new();
        let path = directory.path().display().to_string();
        (directory, path)
    };
    // Strict: what was answered is on the disk.
    let open = |path: &str| DiskStore::builder(path).durability(Durability::Strict).open().unwrap();
    tollgate_testkit::killed_streams(test, 1, start, open);
}
