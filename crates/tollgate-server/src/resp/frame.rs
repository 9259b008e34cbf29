//! Bytes into frames: the end of a command and the ranges of its arguments.
//!
//! Nothing is copied and no byte is parsed twice: a [`Frame`] remembers its position, so a command
//! that arrives byte by byte costs no more than one that arrives whole. The parser asks for a
//! bounded number of bytes and never panics, whatever the input. It does not know what commands
//! mean.

use std::fmt;
use std::ops::Range;

/// The most arguments of a command.
pub(crate) const ARGUMENTS_MAX: usize = 512;

/// The longest argument, and the longest line.
pub(crate) const ARGUMENT_BYTES_MAX: usize = 64 << 10;

/// The longest command.
pub(crate) const FRAME_BYTES_MAX: usize = 1 << 20;

/// The longest length line: a sign, the digits of any 64-bit number, and the line end.
const LENGTH_LINE_MAX: usize = 24;

/// A violation of the protocol. The connection cannot continue: the start of the next command is
/// unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    /// An argument count that is not a number, or beyond [`ARGUMENTS_MAX`].
    Count,
    /// An argument length that is not a number, or beyond [`ARGUMENT_BYTES_MAX`].
    Length,
    /// A type byte other than `$` where an argument begins, such as a nested array's.
    Argument(u8),
    /// A missing line end.
    LineEnd,
    /// A line beyond [`ARGUMENT_BYTES_MAX`].
    LongLine,
    /// More than [`FRAME_BYTES_MAX`] in one command.
    LongCommand,
    /// A quoted word in an inline command.
    Quotes,
    /// An HTTP request line.
    Http,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count => write!(f, "invalid multibulk length; send at most {ARGUMENTS_MAX} arguments"),
            Self::Length => {
                write!(f, "invalid bulk length; an argument has at most {ARGUMENT_BYTES_MAX} bytes")
            }
            Self::Argument(found) => {
                write!(f, "expected '$', got '{}'; send a flat array of bulk strings", found.escape_ascii())
            }
            Self::LineEnd => f.write_str("expected a line end; lengths are counted in bytes"),
            Self::LongLine => {
                write!(f, "too big inline request; a line has at most {ARGUMENT_BYTES_MAX} bytes")
            }
            Self::LongCommand => write!(f, "a command has at most {FRAME_BYTES_MAX} bytes"),
            Self::Quotes => {
                f.write_str("quotes in an inline command are not supported; send an array of bulk strings")
            }
            Self::Http => f.write_str("this port serves the Redis protocol; HTTP has another port"),
        }
    }
}

/// A command being parsed.
#[derive(Debug, Default)]
pub(crate) struct Frame {
    /// The parser's position.
    at: usize,
    /// The number of missing arguments; `None` until it is known.
    missing: Option<usize>,
    arguments: Vec<Range<usize>>,
}

impl Frame {
    /// Continues parsing. `bytes` begin at the start of the command and extend those of the last
    /// call. Returns the command's length once it is complete.
    ///
    /// # Errors
    /// If the bytes violate the protocol.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Result<Option<usize>, Malformed> {
        let mut missing = match self.missing {
            Some(missing) => missing,
            None => match bytes.first() {
                None => return Ok(None),
                Some(b'*') => {
                    let Some((count, at)) = length(bytes, 1, Malformed::Count)? else { return Ok(None) };
                    self.at = at;
                    match usize::try_from(count) {
                        // An empty or null array has no reply.
                        Err(_) | Ok(0) => return Ok(Some(at)),
                        Ok(count @ 1..=ARGUMENTS_MAX) => count,
                        Ok(_) => return Err(Malformed::Count),
                    }
                }
                Some(_) => return self.read_line(bytes),
            },
        };
        while missing > 0 {
            self.missing = Some(missing);
            match bytes.get(self.at) {
                None => return self.unfinished(self.at),
                Some(b'$') => {}
                Some(other) => return Err(Malformed::Argument(*other)),
            }
            let Some((size, start)) = length(bytes, self.at.saturating_add(1), Malformed::Length)? else {
                return self.unfinished(self.at);
            };
            let size = usize::try_from(size).ok().filter(|size| *size <= ARGUMENT_BYTES_MAX);
            let end = start.saturating_add(size.ok_or(Malformed::Length)?);
            match bytes.get(end..end.saturating_add(2)) {
                None => return self.unfinished(end),
                Some(b"\r\n") => {}
                Some(_) => return Err(Malformed::LineEnd),
            }
            self.arguments.push(start..end);
            self.at = end.saturating_add(2);
            missing = missing.saturating_sub(1);
        }
        Ok(Some(self.at))
    }

    /// The arguments of a complete command, as slices of its bytes.
    pub(crate) fn arguments<'a>(&self, bytes: &'a [u8]) -> impl ExactSizeIterator<Item = &'a [u8]> {
        self.arguments.iter().map(|range| bytes.get(range.clone()).unwrap_or_default())
    }

    /// The number of arguments. Without any there is no reply.
    pub(crate) fn len(&self) -> usize {
        self.arguments.len()
    }

    /// Resets the parser for the next command.
    pub(crate) fn clear(&mut self) {
        self.at = 0;
        self.missing = None;
        self.arguments.clear();
    }

    /// Parses an inline command: words separated by spaces.
    fn read_line(&mut self, bytes: &[u8]) -> Result<Option<usize>, Malformed> {
        let new = bytes.get(self.at..).unwrap_or_default();
        let Some(length) = new.iter().position(|byte| *byte == b'\n') else {
            self.at = bytes.len();
            return if bytes.len() > ARGUMENT_BYTES_MAX { Err(Malformed::LongLine) } else { Ok(None) };
        };
        let end = self.at.saturating_add(length);
        let line = bytes.get(..end).unwrap_or_default();
        if line.len() > ARGUMENT_BYTES_MAX {
            return Err(Malformed::LongLine);
        }
        let mut start = 0_usize;
        for word in line.split(u8::is_ascii_whitespace) {
            let end = start.saturating_add(word.len());
            if !word.is_empty() {
                self.arguments.push(start..end);
            }
            start = end.saturating_add(1);
        }
        if self.arguments.len() > ARGUMENTS_MAX {
            return Err(Malformed::Count);
        }
        if self.arguments(bytes).any(|word| matches!(word.first(), Some(b'"' | b'\''))) {
            return Err(Malformed::Quotes);
        }
        if self.arguments(bytes).last().is_some_and(|word| word.starts_with(b"HTTP/")) {
            return Err(Malformed::Http);
        }
        Ok(Some(end.saturating_add(1)))
    }

    /// Asks for more bytes, unless the command is too long.
    fn unfinished(&self, end: usize) -> Result<Option<usize>, Malformed> {
        if end > FRAME_BYTES_MAX { Err(Malformed::LongCommand) } else { Ok(None) }
    }
}

/// Parses a length line. Returns the number and the start of the next line; `None` if the line is
/// incomplete.
fn length(bytes: &[u8], start: usize, invalid: Malformed) -> Result<Option<(i64, usize)>, Malformed> {
    let line = bytes.get(start..).unwrap_or_default();
    let digit = |byte: u8| i64::from(byte.wrapping_sub(b'0'));
    // Nearly all lengths have one digit or two.
    match line {
        [ones @ b'0'..=b'9', b'\r', b'\n', ..] => {
            return Ok(Some((digit(*ones), start.saturating_add(3))));
        }
        [tens @ b'0'..=b'9', ones @ b'0'..=b'9', b'\r', b'\n', ..] => {
            let number = digit(*tens).saturating_mul(10).saturating_add(digit(*ones));
            return Ok(Some((number, start.saturating_add(4))));
        }
        _ => {}
    }
    let mut number: i64 = 0;
    for (index, byte) in line.iter().take(LENGTH_LINE_MAX).enumerate() {
        match byte {
            b'0'..=b'9' => {
                let more = number.checked_mul(10).and_then(|number| number.checked_add(digit(*byte)));
                number = more.ok_or(invalid)?;
            }
            // A minus sign: any negative length means null.
            b'-' if index == 0 => number = 0,
            b'\r' if index > 0 => {
                let negative = line.first() == Some(&b'-');
                if negative && index == 1 {
                    return Err(invalid);
                }
                let number = if negative { number.checked_neg().ok_or(invalid)? } else { number };
                return match line.get(index.saturating_add(1)) {
                    None => Ok(None),
                    Some(b'\n') => Ok(Some((number, start.saturating_add(index).saturating_add(2)))),
                    Some(_) => Err(Malformed::LineEnd),
                };
            }
            _ => return Err(invalid),
        }
    }
    if line.len() >= LENGTH_LINE_MAX { Err(invalid) } else { Ok(None) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Parses all commands in `bytes`, and the violation that ends them.
    fn all(bytes: &[u8]) -> (Vec<Vec<Vec<u8>>>, Option<Malformed>) {
        let (mut commands, mut start, mut frame) = (Vec::new(), 0, Frame::default());
        loop {
            match frame.read(&bytes[start..]) {
                Ok(None) => return (commands, None),
                Err(malformed) => return (commands, Some(malformed)),
                Ok(Some(length)) => {
                    commands.push(frame.arguments(&bytes[start..]).map(<[u8]>::to_vec).collect());
                    start += length;
                    frame.clear();
                }
            }
        }
    }

    /// Parses `bytes` one byte at a time.
    fn in_pieces(bytes: &[u8]) -> (Vec<Vec<Vec<u8>>>, Option<Malformed>) {
        let (mut commands, mut start, mut frame) = (Vec::new(), 0, Frame::default());
        for end in 1..=bytes.len() {
            match frame.read(&bytes[start..end]) {
                Ok(None) => {}
                Err(malformed) => return (commands, Some(malformed)),
                Ok(Some(length)) => {
                    assert_eq!(start + length, end, "not a byte more than it needs");
                    commands.push(frame.arguments(&bytes[start..end]).map(<[u8]>::to_vec).collect());
                    start = end;
                    frame.clear();
                }
            }
        }
        (commands, None)
    }

    fn encoded(commands: &[Vec<Vec<u8>>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for command in commands {
            bytes.extend(format!("*{}\r\n", command.len()).bytes());
            for argument in command {
                bytes.extend(format!("${}\r\n", argument.len()).bytes());
                bytes.extend(argument);
                bytes.extend(b"\r\n");
            }
        }
        bytes
    }

    fn malformed(bytes: &[u8]) -> Malformed {
        let (_, ended) = all(bytes);
        assert_eq!(in_pieces(bytes).1, ended);
        ended.unwrap_or_else(|| panic!("{:?} was accepted", bytes.escape_ascii().to_string()))
    }

    #[test]
    fn a_protocol_violation_is_reported_without_waiting_for_more_bytes() {
        assert_eq!(malformed(b"*4294967296\r\n"), Malformed::Count);
        assert_eq!(malformed(b"*513\r\n"), Malformed::Count);
        assert_eq!(malformed(b"*x\r\n"), Malformed::Count);
        assert_eq!(malformed(b"*\r\n"), Malformed::Count);
        assert_eq!(malformed(b"*-\r\n"), Malformed::Count);
        assert_eq!(malformed(&[b"*".as_slice(), &[b'1'; 40]].concat()), Malformed::Count);
        assert_eq!(malformed(b"*1\r\n$4294967296\r\n"), Malformed::Length);
        assert_eq!(malformed(b"*1\r\n$65537\r\n"), Malformed::Length);
        assert_eq!(malformed(b"*1\r\n$-1\r\n"), Malformed::Length);
        assert_eq!(malformed(&b"*1\r\n".repeat(10_000)), Malformed::Argument(b'*'));
        assert_eq!(malformed(b"*1\r\n:1\r\n"), Malformed::Argument(b':'));
        assert_eq!(malformed(b"*1\r\n$4\r\nPINGxx"), Malformed::LineEnd);
        assert_eq!(malformed(b"*1\rx"), Malformed::LineEnd);
        assert_eq!(malformed(&[b'a'; ARGUMENT_BYTES_MAX + 2]), Malformed::LongLine);
        assert_eq!(malformed(b"GET / HTTP/1.1\r\n"), Malformed::Http);
        assert_eq!(malformed(b"TOLL.CHECK client \"a b\"\r\n"), Malformed::Quotes);
        let long = encoded(&[vec![vec![b'x'; ARGUMENT_BYTES_MAX]; 32]]);
        assert_eq!(all(&long[..long.len() - 1]).1, Some(Malformed::LongCommand));
    }

    #[test]
    fn commands_at_the_bounds_are_accepted() {
        let large = vec![vec![vec![b'x'; ARGUMENT_BYTES_MAX]], vec![b"a".to_vec(); ARGUMENTS_MAX]];
        assert_eq!(all(&encoded(&large)), (large, None));
    }

    #[test]
    fn inline_commands_work_and_empty_ones_are_skipped() {
        let (commands, ended) =
            all(b"PING\r\n\r\n  cl.throttle  a 1 2 3 \n*0\r\n*-1\r\n*2\r\n$4\r\nECHO\r\n$0\r\n\r\n");
        let commands: Vec<Vec<String>> = commands
            .into_iter()
            .map(|words| words.into_iter().map(|word| String::from_utf8(word).unwrap()).collect())
            .collect();
        let none: Vec<&str> = Vec::new();
        assert_eq!(ended, None);
        assert_eq!(
            commands,
            [
                vec!["PING"],
                none.clone(),
                vec!["cl.throttle", "a", "1", "2", "3"],
                none.clone(),
                none,
                vec!["ECHO", ""]
            ]
        );
    }

    proptest! {
        #[test]
        fn encoded_commands_are_parsed_whole_and_byte_by_byte(
            commands in proptest::collection::vec(
                proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 1..8), 0..6)
        ) {
            let bytes = encoded(&commands);
            prop_assert_eq!(all(&bytes), (commands.clone(), None));
            prop_assert_eq!(in_pieces(&bytes), (commands, None));
        }

        #[test]
        fn any_bytes_parse_alike_whole_and_byte_by_byte(
            bytes in proptest::collection::vec(
                prop_oneof![
                    Just(b"*1\r\n".to_vec()), Just(b"*2\r\n".to_vec()), Just(b"$1\r\n".to_vec()), Just(b"$0\r\n".to_vec()),
                    Just(b"a\r\n".to_vec()), Just(b"\r\n".to_vec()), Just(b"*-1\r\n".to_vec()),
                    proptest::collection::vec(any::<u8>(), 1..4),
                ], 0..24)
        ) {
            let bytes = bytes.concat();
            prop_assert_eq!(all(&bytes), in_pieces(&bytes));
        }
    }
}
