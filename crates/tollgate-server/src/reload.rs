//! When to read the configuration again: on SIGHUP, and when the file changes.

use std::io;
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecursiveMode, Watcher as _};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::time::timeout;
use tracing::warn;

use crate::app::App;

/// How long a file must have been left alone before it is read: editors write in several steps.
const QUIET: Duration = Duration::from_millis(50);

/// How often that may be waited for: something else in the directory may change all the time.
const QUIET_TIMES_MAX: usize = 20;

/// Reads the configuration again from now on whenever that is due.
///
/// # Errors
/// What keeps signals from being noticed.
pub(crate) fn start(app: &Arc<App>) -> io::Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    let on_hangup = Arc::clone(app);
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            reload(&on_hangup).await;
        }
    });
    if let Err(error) = watch(app) {
        warn!(%error, "the configuration is not watched, so changes to it wait for SIGHUP");
    }
    Ok(())
}

/// Directories are watched, not files: editors, and Kubernetes, put another file in a file's place.
fn watch(app: &Arc<App>) -> notify::Result<()> {
    let mut directories: Vec<PathBuf> = app.watched().flat_map(directories).collect();
    directories.dedup();
    if directories.is_empty() {
        return Ok(());
    }
    let changed = Arc::new(Notify::new());
    let told = Arc::clone(&changed);
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
        if event.map_or(true, |event| is_change(&event)) {
            told.notify_one();
        }
    })?;
    for directory in directories {
        watcher.watch(&directory, RecursiveMode::NonRecursive)?;
    }
    // What changed before it was watched is noticed now.
    changed.notify_one();
    let app = Arc::clone(app);
    tokio::spawn(async move {
        let _watching = watcher;
        loop {
            changed.notified().await;
            for _ in 0..QUIET_TIMES_MAX {
                if timeout(QUIET, changed.notified()).await.is_err() {
                    break;
                }
            }
            // Others' files change too. An empty one is about to be written.
            if !app.watched().any(half_written) && app.has_changed() {
                reload(&app).await;
            }
        }
    });
    Ok(())
}

/// Where to look for changes of a file, or of a directory of files.
fn directories(path: &Path) -> Vec<PathBuf> {
    if path.is_dir() {
        let inner = Some(path.join("config")).filter(|inner| inner.is_dir());
        return iter::once(path.to_owned()).chain(inner).collect();
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    vec![parent.unwrap_or(Path::new(".")).to_owned()]
}

/// Whether a file, or one in a directory of files, is empty.
fn half_written(path: &Path) -> bool {
    let empty = |path: &Path| path.metadata().is_ok_and(|file| file.is_file() && file.len() == 0);
    let inside =
        directories(path).into_iter().filter(|_| path.is_dir()).filter_map(|path| path.read_dir().ok());
    empty(path) || inside.flatten().flatten().any(|file| empty(&file.path()))
}

/// Whether something was written, and not just read: by us, that is.
fn is_change(event: &Event) -> bool {
    !matches!(event.kind, EventKind::Access(kind) if kind != AccessKind::Close(AccessMode::Write))
}

async fn reload(app: &Arc<App>) {
    let app = Arc::clone(app);
    // What came of it has been logged and counted.
    let _ = tokio::task::spawn_blocking(move || app.reload()).await;
}
