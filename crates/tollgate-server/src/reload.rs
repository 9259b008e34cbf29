//! When to read the configuration again: on SIGHUP, and when the file changes.

use std::collections::HashSet;
use std::io;
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecursiveMode, Watcher};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::time::timeout;
use tracing::warn;

use crate::app::App;
use crate::envoy;

/// How long a file must have been left alone before it is read: editors write in several steps.
const QUIET: Duration = Duration::from_millis(50);

/// How often that may be waited for: something else in the directory may change all the time, and
/// an empty file may stay one.
const QUIET_TIMES_MAX: usize = 20;

/// Reads the configuration again from now on whenever that is due.
///
/// # Errors
/// What keeps signals from being noticed.
pub(crate) fn start(app: &Arc<App>) -> io::Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    let changed = Arc::new(Notify::new());
    let (on_hangup, told) = (Arc::clone(app), Arc::clone(&changed));
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            reload(&on_hangup).await;
            told.notify_one();
        }
    });
    if let Err(error) = watch(app, changed) {
        warn!(%error, "the configuration is not watched, so changes to it wait for SIGHUP");
    }
    Ok(())
}

/// Directories are watched, not files: editors, and Kubernetes, put another file in a file's place.
fn watch(app: &Arc<App>, changed: Arc<Notify>) -> notify::Result<()> {
    if app.watched_paths().next().is_none() {
        return Ok(());
    }
    let told = Arc::clone(&changed);
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
        if event.map_or(true, |event| is_change(&event)) {
            told.notify_one();
        }
    })?;
    let mut watched = HashSet::new();
    watch_all(app, &mut watcher, &mut watched)?;
    // What changed before it was watched is noticed now.
    changed.notify_one();
    let app = Arc::clone(app);
    tokio::spawn(async move {
        loop {
            changed.notified().await;
            for _ in 0..QUIET_TIMES_MAX {
                let quiet = timeout(QUIET, changed.notified()).await.is_err();
                if quiet && !app.watched_paths().any(|path| half_written(&path)) {
                    break;
                }
            }
            // Others' files change too.
            if app.config_changed() {
                reload(&app).await;
            }
            // It may say, now or since a signal came, that there are files elsewhere.
            if let Err(error) = watch_all(&app, &mut watcher, &mut watched) {
                warn!(%error, "not all of the configuration is watched, so changes wait for SIGHUP");
            }
        }
    });
    Ok(())
}

/// Watches what is not watched yet.
fn watch_all(app: &App, watcher: &mut impl Watcher, watched: &mut HashSet<PathBuf>) -> notify::Result<()> {
    for directory in app.watched_paths().flat_map(|path| directories(&path)) {
        if !watched.contains(&directory) {
            watcher.watch(&directory, RecursiveMode::NonRecursive)?;
            watched.insert(directory);
        }
    }
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

/// Whether a file, or one that is read of a directory, is empty: it may be about to be written.
fn half_written(path: &Path) -> bool {
    let empty = |path: PathBuf| path.metadata().is_ok_and(|file| file.is_file() && file.len() == 0);
    envoy::files(path).is_ok_and(|files| files.into_iter().any(empty))
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
