//! The progress of a pass: a bar on a terminal, and nothing elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use indicatif::{ProgressBar, ProgressStyle};
use tollgate::{Clock as _, Timestamp};

use super::input::Input;
use super::report::grouped;
use crate::app::STOPWATCH;

/// The bar of one pass.
#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
    began: Timestamp,
    bytes_read: Arc<AtomicU64>,
}

impl Progress {
    /// A bar over the bytes of all logs, or a spinner if their size is unknown.
    pub(super) fn new(activity: &str, logs: &[Input]) -> Self {
        let sizes: Option<Vec<u64>> =
            logs.iter().map(|log| Some(log.stored_bytes).filter(|bytes| *bytes > 0)).collect();
        let bar = match sizes {
            Some(sizes) => ProgressBar::new(sizes.iter().sum()),
            None => ProgressBar::no_length(),
        };
        let template = match bar.length() {
            Some(_) => "{prefix} [{bar:32}] {percent}%  {msg}  {eta} left",
            None => "{prefix} {spinner} {msg}",
        };
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = bar.with_style(style).with_prefix(activity.to_owned());
        Self { bar, began: STOPWATCH.now(), bytes_read: Arc::default() }
    }

    pub(super) const fn bytes_read(&self) -> &Arc<AtomicU64> {
        &self.bytes_read
    }

    /// Shows how many requests have been read, and at which rate.
    pub(super) fn report(&self, requests: u64) {
        if self.bar.is_hidden() {
            return;
        }
        let millis = STOPWATCH.now().since(self.began).as_millis().max(1);
        let rate = u128::from(requests) * 1_000 / millis;
        let rate = grouped(u64::try_from(rate).unwrap_or(u64::MAX));
        self.bar.set_message(format!("{} requests, {rate}/s", grouped(requests)));
        self.bar.set_position(self.bytes_read.load(Ordering::Relaxed));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
