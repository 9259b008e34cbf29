//! `tollgate top`: the live view in a terminal.
//!
//! A thread reads the server's event stream, and reads it again after a failure. This thread draws
//! and takes keys. The terminal is restored however it ends.

use std::io::{self, BufRead, BufReader, IsTerminal as _, Read as _};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyEventKind};
use tollgate::{Clock as _, SECOND, SystemClock, block_on};

use super::Remote;
use crate::live::Snapshot;

mod state;
mod view;

use state::State;

/// The longest wait for a key before snapshots are looked at.
const POLL: Duration = Duration::from_millis(100);

/// The wait before a lost stream is opened again.
const RETRY: Duration = SECOND;

/// The longest line of the stream. A snapshot of as many rules as there can be has far less.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// The news that wait while the terminal is stopped. The server keeps none for a slow viewer.
const NEWS_MAX: usize = 2;

/// News of the stream.
enum News {
    Snapshot(Box<Snapshot>),
    Lost(String),
}

/// Shows the server until a key ends it.
///
/// # Errors
/// A sentence that says what to do: there is no terminal, or no server.
pub(crate) fn top(remote: Remote) -> Result<(), String> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err("this needs a terminal; `GET /v1/live` sends the same numbers to programs".into());
    }
    // A wrong token or address is an error now, not a page that never fills.
    let first = remote.stream("/v1/live")?;
    let mut state = State::new(remote.server());
    let (sender, news) = sync_channel(NEWS_MAX);
    thread::spawn(move || follow(&remote, first, &sender));
    let failed = |error: io::Error| format!("the terminal failed: {error}");
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let shown = show(&mut terminal, &mut state, &news);
    ratatui::restore();
    shown.map_err(failed)
}

fn show(terminal: &mut ratatui::DefaultTerminal, state: &mut State, news: &Receiver<News>) -> io::Result<()> {
    loop {
        terminal.draw(|frame| view::draw(frame, state))?;
        // Drawn again only after a key, a resize or news.
        let mut is_unchanged = true;
        while is_unchanged {
            if event::poll(POLL)? {
                is_unchanged = false;
                match event::read()? {
                    Event::Key(key) if key.kind == KeyEventKind::Press && state.press(key) => return Ok(()),
                    _ => {}
                }
            }
            for one in news.try_iter() {
                is_unchanged = false;
                match one {
                    News::Snapshot(snapshot) => state.update(*snapshot),
                    News::Lost(reason) => state.lost(reason),
                }
            }
        }
    }
}

/// Reads streams, one after another, until nobody listens.
fn follow(remote: &Remote, first: impl BufRead, news: &SyncSender<News>) {
    let mut ended = read(first, news);
    while let Some(reason) = ended {
        if news.send(News::Lost(reason)).is_err() {
            return;
        }
        block_on(SystemClock.sleep_until(SystemClock.now().saturating_add(RETRY)));
        ended = match remote.stream("/v1/live") {
            Ok(stream) => read(stream, news),
            Err(reason) => Some(reason),
        };
    }
}

/// Reads a stream to its end. `None` if nobody listens.
fn read(mut stream: impl BufRead, news: &SyncSender<News>) -> Option<String> {
    let mut line = Vec::new();
    loop {
        line.clear();
        match stream.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(0) => return Some("the server closed the stream".into()),
            Ok(_) if !line.ends_with(b"\n") => return Some("the stream ended within a line".into()),
            Ok(_) => {}
            Err(error) => return Some(format!("the stream broke: {error}")),
        }
        let Some(json) = line.strip_prefix(b"data: ") else { continue };
        match serde_json::from_slice(json) {
            Ok(snapshot) => news.send(News::Snapshot(Box::new(snapshot))).ok()?,
            Err(error) => return Some(format!("not a snapshot of this version: {error}")),
        }
    }
}

impl Remote {
    /// The server's URL.
    fn server(&self) -> &str {
        &self.server
    }

    /// Opens a stream.
    ///
    /// # Errors
    /// A sentence, if the server refuses it.
    fn stream(&self, path: &str) -> Result<impl BufRead + Send + use<>, String> {
        let mut response = self.open(path)?;
        let status = response.status().as_u16();
        if status != 200 {
            let body = response.body_mut().read_to_string().unwrap_or_default();
            return Err(self.refused(status, &body));
        }
        Ok(BufReader::new(response.into_body().into_reader()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_end_is_no_snapshot_and_not_kept() {
        let (sender, news) = sync_channel(NEWS_MAX);
        let endless = BufReader::new(io::repeat(b'x'));
        assert_eq!(read(endless, &sender).as_deref(), Some("the stream ended within a line"));
        assert_eq!(read(&b"event: snapshot\n"[..], &sender).as_deref(), Some("the server closed the stream"));
        assert!(read(&b"data: {}\n"[..], &sender).unwrap().starts_with("not a snapshot of this version"));
        assert!(news.try_recv().is_err());
    }
}
