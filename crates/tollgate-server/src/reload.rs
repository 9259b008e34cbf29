//! When to read the configuration again: on SIGHUP, and when the file changes.

use std::io;
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
pub(crate) fn start(app: &Arc<App>, file: Option<PathBuf>) -> io::Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    let on_hangup = Arc::clone(app);
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            reload(&on_hangup).await;
        }
    });
    if let Some(error) = file.and_then(|file| watch(app, file).err()) {
        warn!(%error, "the configuration is not watched, so changes to it wait for SIGHUP");
    }
    Ok(())
}

/// The directory is watched, not the file: editors, and Kubernetes, put another file in its place.
fn watch(app: &Arc<App>, file: PathBuf) -> notify::Result<()> {
    let changed = Arc::new(Notify::new());
    let told = Arc::clone(&changed);
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
        if event.map_or(true, |event| is_change(&event)) {
            told.notify_one();
        }
    })?;
    let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    watcher.watch(directory, RecursiveMode::NonRecursive)?;
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
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            if !text.trim().is_empty() && !app.has_read(&text) {
                reload(&app).await;
            }
        }
    });
    Ok(())
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
