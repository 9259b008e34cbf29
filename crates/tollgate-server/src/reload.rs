//! Reloads the configuration on SIGHUP and when a file changes.

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

/// How long files must be unchanged before a reload: editors write in several steps.
const SETTLE: Duration = Duration::from_millis(50);

/// The most such waits: unrelated files in the directory may change all the time, and an empty file
/// may stay empty.
const SETTLE_WAITS_MAX: usize = 20;

/// Starts the tasks that reload the configuration.
///
/// # Errors
/// If the signal handler cannot be installed.
pub(crate) fn start(app: &Arc<App>) -> io::Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    let changed = Arc::new(Notify::new());
    let (on_hangup, notify) = (Arc::clone(app), Arc::clone(&changed));
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            reload(&on_hangup).await;
            notify.notify_one();
        }
    });
    if let Err(error) = watch(app, changed) {
        warn!(%error, "the configuration cannot be watched; send SIGHUP to reload it");
    }
    Ok(())
}

/// Watches directories, not files: editors and Kubernetes replace files.
fn watch(app: &Arc<App>, changed: Arc<Notify>) -> notify::Result<()> {
    if app.watched_paths().next().is_none() {
        return Ok(());
    }
    let notify = Arc::clone(&changed);
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
        if event.map_or(true, |event| is_change(&event)) {
            notify.notify_one();
        }
    })?;
    let mut watched = HashSet::new();
    watch_all(app, &mut watcher, &mut watched)?;
    // Changes before the watch began are noticed now.
    changed.notify_one();
    let app = Arc::clone(app);
    tokio::spawn(async move {
        loop {
            changed.notified().await;
            for _ in 0..SETTLE_WAITS_MAX {
                let settled = timeout(SETTLE, changed.notified()).await.is_err();
                if settled && !app.watched_paths().any(|path| half_written(&path)) {
                    break;
                }
            }
            // Unrelated files in the directory change too.
            if app.config_changed() {
                reload(&app).await;
            }
            // A reload may have added paths. They may have changed before the watch began.
            match watch_all(&app, &mut watcher, &mut watched) {
                Ok(0) => {}
                Ok(_) => changed.notify_one(),
                Err(error) => {
                    warn!(%error, "part of the configuration cannot be watched; send SIGHUP to reload it")
                }
            }
        }
    });
    Ok(())
}

/// Watches the directories that are not watched yet, and returns how many those were.
fn watch_all(app: &App, watcher: &mut impl Watcher, watched: &mut HashSet<PathBuf>) -> notify::Result<usize> {
    let before = watched.len();
    for directory in app.watched_paths().flat_map(|path| directories(&path)) {
        if !watched.contains(&directory) {
            watcher.watch(&directory, RecursiveMode::NonRecursive)?;
            watched.insert(directory);
        }
    }
    Ok(watched.len().saturating_sub(before))
}

/// The directories to watch for a file, or for a directory of files.
fn directories(path: &Path) -> Vec<PathBuf> {
    if path.is_dir() {
        let inner = Some(path.join("config")).filter(|inner| inner.is_dir());
        return iter::once(path.to_owned()).chain(inner).collect();
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    vec![parent.unwrap_or(Path::new(".")).to_owned()]
}

/// Whether a configuration file is empty: it may be about to be written.
fn half_written(path: &Path) -> bool {
    let empty = |path: PathBuf| path.metadata().is_ok_and(|file| file.is_file() && file.len() == 0);
    envoy::files(path).is_ok_and(|files| files.into_iter().any(empty))
}

/// Whether an event is a change: reading the files causes events too.
fn is_change(event: &Event) -> bool {
    !matches!(event.kind, EventKind::Access(kind) if kind != AccessKind::Close(AccessMode::Write))
}

async fn reload(app: &Arc<App>) {
    let app = Arc::clone(app);
    // The result has been logged and counted.
    let _ = tokio::task::spawn_blocking(move || app.reload()).await;
}
