//! The progress of loading: a bar on a terminal, otherwise a log line every second.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tollgate::{Clock as _, SECOND, Timestamp};
use tollgate_disk::Progress;
use tracing::info;

use crate::app::STOPWATCH;

/// Reports progress. (A bar draws nothing where there is no terminal.)
pub(crate) fn progress_reporter() -> impl Fn(Progress) + Send + Sync + 'static {
    let style = ProgressStyle::with_template("{msg} [{bar:40}] {percent}%");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(100).with_style(style);
    let (last_percent, began) = (AtomicU64::new(0), STOPWATCH.now());
    let last = Mutex::new(began);
    move |progress| {
        let (activity, percent, ended) = match progress {
            Progress::Nothing => {
                info!("the data directory is empty: every budget is full");
                return;
            }
            Progress::Checking { share } => ("checking after a crash", percent(share), false),
            Progress::Loading { done, of } => ("loading", done.saturating_mul(100) / of.max(1), done == of),
            _ => return,
        };
        if last_percent.swap(percent, Ordering::Relaxed) == percent && !ended {
            return;
        }
        if bar.is_hidden() {
            if ended {
                info!(took = ?STOPWATCH.now().since(began), "the state is loaded");
            } else if is_due(&last) {
                info!(percent, "{activity}");
            }
            return;
        }
        bar.set_message(activity);
        bar.set_position(percent);
        if ended {
            bar.finish_and_clear();
        }
    }
}

/// Whether a second has passed since the last line.
fn is_due(last: &Mutex<Timestamp>) -> bool {
    const BETWEEN: Duration = SECOND;
    let now = STOPWATCH.now();
    let Ok(mut last) = last.lock() else { return false };
    let due = now.since(*last) >= BETWEEN;
    if due {
        *last = now;
    }
    due
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::as_conversions,
    reason = "0 to 100"
)]
fn percent(share: f64) -> u64 {
    (share.clamp(0.0, 1.0) * 100.0) as u64
}
