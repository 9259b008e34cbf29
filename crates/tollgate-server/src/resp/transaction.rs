//! `MULTI` … `EXEC`: what libraries wrap a pipeline in unless they are told not to.
//!
//! What comes in between is kept, and done when `EXEC` comes, as a pipeline would be: in order, its
//! checks as one batch. Others are not kept waiting for it, which no check could tell.

use super::frame::Frame;
use super::handshake;
use super::reply::Replies;

/// The most commands of a transaction, and how many bytes they may be: whoever connects may have one.
const COMMANDS_MAX: usize = 1_024;
const BYTES_MAX: usize = 128 << 10;

/// What has long answers, and no place in a transaction: they would all be kept until the last.
const NOT_QUEUED: [&[u8]; 4] = [b"command", b"info", b"hello", b"toll.rules"];

/// What is not kept, but done at once.
const IMMEDIATE: [&[u8]; 6] = [b"multi", b"exec", b"discard", b"watch", b"reset", b"quit"];

/// The commands since `MULTI`, as they came.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) bytes: Vec<u8>,
    pub(super) commands: usize,
    /// Whether one of them was refused. Then none is done.
    pub(super) aborted: bool,
}

impl Queue {
    /// Keeps a command for later and says so, unless it is one that is done at once. Says whether that
    /// was all there was to do.
    pub(super) fn enqueue(&mut self, frame: &Frame, bytes: &[u8], replies: &mut Replies) -> bool {
        let name = frame.arguments(bytes).next().unwrap_or_default();
        if IMMEDIATE.iter().any(|known| name.eq_ignore_ascii_case(known)) {
            return false;
        }
        if !handshake::is_command(name) {
            // Who knows the name tells it best.
            self.aborted = true;
            return false;
        }
        let refusal = if NOT_QUEUED.iter().any(|known| name.eq_ignore_ascii_case(known)) {
            Some("this command has no place in a transaction".to_owned())
        } else if self.commands >= COMMANDS_MAX || self.bytes.len().saturating_add(bytes.len()) > BYTES_MAX {
            Some(format!(
                "a transaction has at most {COMMANDS_MAX} commands and {BYTES_MAX} bytes; \
                 send a pipeline without one"
            ))
        } else {
            None
        };
        if let Some(refusal) = refusal {
            self.aborted = true;
            replies.error("ERR", refusal);
            return true;
        }
        self.bytes.extend_from_slice(bytes);
        self.commands = self.commands.saturating_add(1);
        replies.simple("QUEUED");
        true
    }
}
