//! Splits a line into words, `"quoted"` texts and `[bracketed]` texts.

use std::borrow::Cow;

use memchr::memchr2;
use smallvec::SmallVec;

/// The tokens of a line, without their quotes and brackets.
pub(super) type Tokens<'a> = SmallVec<[&'a str; 16]>;

/// Splits a line into at most `most` tokens. `None` if a quote or a bracket is not closed.
pub(super) fn tokens(line: &str, most: usize) -> Option<Tokens<'_>> {
    let (mut tokens, mut rest) = (Tokens::new(), line);
    while tokens.len() < most {
        rest = rest.trim_start_matches(' ');
        let token;
        (token, rest) = match rest.as_bytes().first() {
            None => break,
            Some(b'"') => quoted(rest.get(1..)?)?,
            Some(b'[') => rest.get(1..)?.split_once(']')?,
            Some(_) => rest.split_once(' ').unwrap_or((rest, "")),
        };
        tokens.push(token);
    }
    Some(tokens)
}

/// The text up to the closing quote, and what follows it. A backslash escapes a quote.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let (bytes, mut from) = (text.as_bytes(), 0);
    loop {
        let at = from + memchr2(b'"', b'\\', bytes.get(from..)?)?;
        if bytes.get(at) == Some(&b'"') {
            return Some((text.get(..at)?, text.get(at + 1..)?));
        }
        from = at + 2;
    }
}

/// A quoted text without its escapes: `\"`, `\\` and nginx's `\xHH`.
pub(super) fn unescaped(text: Cow<'_, str>) -> Cow<'_, str> {
    if !text.contains('\\') {
        return text;
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        match (byte, after) {
            (b'\\', [b'x', high, low, tail @ ..]) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                bytes.push(nibble(*high) << 4 | nibble(*low));
                rest = tail;
            }
            (b'\\', [escaped @ (b'"' | b'\\'), tail @ ..]) => {
                bytes.push(*escaped);
                rest = tail;
            }
            _ => bytes.push(*byte),
        }
    }
    Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
}

const fn nibble(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        digit => (digit | 0x20) - b'a' + 10,
    }
}
