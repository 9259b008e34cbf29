//! Lines of bounded length.

use std::io::{self, BufRead};

use memchr::memchr;

/// The longest line that is read. A longer one is skipped, and no memory is spent on it.
pub(super) const LINE_BYTES_MAX: usize = 256 * 1024;

/// Reads lines.
pub(super) struct Lines<R> {
    reader: R,
    line: Vec<u8>,
}

/// A line without its line break.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    Whole(&'a [u8]),
    /// A line that is longer than [`LINE_BYTES_MAX`], and its beginning.
    TooLong(&'a [u8]),
}

impl<R: BufRead> Lines<R> {
    pub(super) const fn new(reader: R) -> Self {
        Self { reader, line: Vec::new() }
    }

    /// The next line, or `None` at the end.
    ///
    /// # Errors
    /// The error of the reader, such as a truncated archive. Lines before it have been returned.
    pub(super) fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        self.line.clear();
        let (mut is_too_long, mut is_empty) = (false, true);
        loop {
            let available = match self.reader.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                available => available?,
            };
            if available.is_empty() && is_empty {
                return Ok(None);
            }
            is_empty = false;
            let end = memchr(b'\n', available);
            let part = available.get(..end.unwrap_or(available.len())).unwrap_or_default();
            let room = LINE_BYTES_MAX - self.line.len();
            self.line.extend_from_slice(part.get(..room).unwrap_or(part));
            is_too_long |= part.len() > room;
            let (at_end, used) = (available.is_empty(), part.len() + usize::from(end.is_some()));
            self.reader.consume(used);
            if end.is_some() || at_end {
                break;
            }
        }
        if is_too_long {
            return Ok(Some(Line::TooLong(self.line.get(..80).unwrap_or_default())));
        }
        Ok(Some(Line::Whole(self.line.strip_suffix(b"\r").unwrap_or(&self.line))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_ends_at_a_line_break_or_at_the_end() {
        let mut lines = Lines::new(io::BufReader::with_capacity(3, &b"one\r\n\ntwo words"[..]));
        for expected in [&b"one"[..], b"", b"two words"] {
            assert_eq!(lines.next().unwrap(), Some(Line::Whole(expected)));
        }
        assert_eq!(lines.next().unwrap(), None);
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped_and_takes_no_memory() {
        let long = io::Read::take(io::repeat(b'x'), 100_000_000);
        let mut lines = Lines::new(io::BufReader::new(io::Read::chain(long, &b"\nnext\n"[..])));
        assert!(matches!(lines.next().unwrap(), Some(Line::TooLong(start)) if start.len() == 80));
        assert!(lines.line.capacity() <= 2 * LINE_BYTES_MAX);
        assert_eq!(lines.next().unwrap(), Some(Line::Whole(b"next")));
        let exact = [vec![b'y'; LINE_BYTES_MAX], b"\n".to_vec()].concat();
        assert!(matches!(Lines::new(&exact[..]).next().unwrap(), Some(Line::Whole(_))));
    }
}
