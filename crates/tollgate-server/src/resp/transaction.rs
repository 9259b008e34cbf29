//! `MULTI` … `EXEC`, in which libraries wrap a pipeline by default.
//!
//! The commands in between are queued, and `EXEC` executes them as a pipeline: in order, checks as
//! one batch. Other clients are not blocked meanwhile, which no check can observe.

use super::frame::Frame;
use super::handshake;
use super::reply::Replies;

/// The bounds of a transaction: any client may open one.
const COMMANDS_MAX: usize = 1_024;
const BYTES_MAX: usize = 128 << 10;

/// Commands with long replies, which are refused: all replies are kept until the last.
const NOT_QUEUED: [&[u8]; 4] = [b"command", b"info", b"hello", b"toll.rules"];

/// Commands that are executed at once, not queued.
const IMMEDIATE: [&[u8]; 6] = [b"multi", b"exec", b"discard", b"watch", b"reset", b"quit"];

/// The commands since `MULTI`, as received.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) bytes: Vec<u8>,
    pub(super) commands: usize,
    /// Whether a command was refused. Then none is executed.
    pub(super) aborted: bool,
}

impl Queue {
    /// Queues or refuses a command and replies. Returns false if the command is to be executed at
    /// once.
    pub(super) fn enqueue(&mut self, frame: &Frame, bytes: &[u8], replies: &mut Replies) -> bool {
        let name = frame.arguments(bytes).next().unwrap_or_default();
        if IMMEDIATE.iter().any(|known| name.eq_ignore_ascii_case(known)) {
            return false;
        }
        if !handshake::is_command(name) {
            // The unknown command is executed for its error reply.
            self.aborted = true;
            return false;
        }
        let refusal = if NOT_QUEUED.iter().any(|known| name.eq_ignore_ascii_case(known)) {
            Some("this command is not allowed in a transaction".to_owned())
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
