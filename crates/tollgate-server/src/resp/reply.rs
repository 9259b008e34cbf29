//! Encodes replies in RESP2 or RESP3.

use std::fmt::Display;

/// The protocol version that a client chose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Version {
    /// RESP2: strings, integers and arrays.
    #[default]
    Two,
    /// RESP3 adds maps, booleans and null.
    Three,
}

/// Encoded replies that are not sent yet.
#[derive(Debug, Default)]
pub(super) struct Replies {
    pub(super) bytes: Vec<u8>,
    pub(super) version: Version,
}

impl Replies {
    /// A simple string, such as `+OK`.
    pub(super) fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// An error on one line: a code for programs and a sentence for people.
    pub(super) fn error(&mut self, kind: &str, sentence: impl Display) {
        let text = format!("{kind} {sentence}");
        self.line(b'-', text.replace(['\r', '\n'], " ").as_bytes());
    }

    pub(super) fn integer(&mut self, number: i64) {
        self.line(b':', itoa::Buffer::new().format(number).as_bytes());
    }

    /// A count, which is below 10^15.
    pub(super) fn count(&mut self, count: u64) {
        self.integer(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// A count, or null.
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

    /// A multi-line text, which clients print verbatim.
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

    /// The head of an array; the elements follow.
    pub(super) fn array(&mut self, elements: usize) {
        self.head(b'*', elements);
    }

    /// The head of a map; keys and values follow alternately.
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
