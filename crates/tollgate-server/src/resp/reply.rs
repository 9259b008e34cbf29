//! Replies into bytes, in version 2 or 3 of the protocol.

use std::fmt::Display;

/// Which version of the protocol a client has chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Version {
    /// Everything is a string, a number or an array.
    #[default]
    Two,
    /// There are maps, truth values and nothing, too.
    Three,
}

/// Replies that wait to be sent.
#[derive(Debug, Default)]
pub(super) struct Replies {
    pub(super) bytes: Vec<u8>,
    pub(super) version: Version,
}

impl Replies {
    /// `+OK` and alike.
    pub(super) fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// An error: a word that programs look at, and a sentence for people, on one line.
    pub(super) fn error(&mut self, kind: &str, sentence: impl Display) {
        let text = format!("{kind} {sentence}");
        self.line(b'-', text.replace(['\r', '\n'], " ").as_bytes());
    }

    pub(super) fn integer(&mut self, number: i64) {
        self.line(b':', itoa::Buffer::new().format(number).as_bytes());
    }

    /// A count: those here are below 10^15.
    pub(super) fn count(&mut self, count: u64) {
        self.integer(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// A count, or nothing.
    pub(super) fn count_or_null(&mut self, count: Option<u64>) {
        match count {
            Some(count) => self.count(count),
            None => self.null(),
        }
    }

    pub(super) fn bulk(&mut self, bytes: &[u8]) {
        self.head(b'$', bytes.len());
        self.bytes.extend_from_slice(bytes);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// A text of several lines. Clients show it as it is.
    pub(super) fn text(&mut self, text: &str) {
        match self.version {
            Version::Two => self.bulk(text.as_bytes()),
            Version::Three => {
                self.head(b'=', text.len().saturating_add(4));
                self.bytes.extend_from_slice(b"txt:");
                self.bytes.extend_from_slice(text.as_bytes());
                self.bytes.extend_from_slice(b"\r\n");
            }
        }
    }

    pub(super) fn null(&mut self) {
        self.bytes.extend_from_slice(match self.version {
            Version::Two => b"$-1\r\n",
            Version::Three => b"_\r\n",
        });
    }

    pub(super) fn boolean(&mut self, value: bool) {
        match self.version {
            Version::Two => self.integer(value.into()),
            Version::Three => self.bytes.extend_from_slice(if value { b"#t\r\n" } else { b"#f\r\n" }),
        }
    }

    /// An array, of which the elements follow.
    pub(super) fn array(&mut self, elements: usize) {
        self.head(b'*', elements);
    }

    /// A map, of which the keys and values follow in turn.
    pub(super) fn map(&mut self, pairs: usize) {
        match self.version {
            Version::Two => self.head(b'*', pairs.saturating_mul(2)),
            Version::Three => self.head(b'%', pairs),
        }
    }

    fn head(&mut self, kind: u8, number: usize) {
        self.line(kind, itoa::Buffer::new().format(number).as_bytes());
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(text);
        self.bytes.extend_from_slice(b"\r\n");
    }
}
