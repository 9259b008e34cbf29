//! How rules see a path: one spelling for all that an application serves as one page.
//!
//! A client chooses how it spells a path. Without this, `/%6Cogin`, `//login` and `/login;x=1` pass
//! by a rule on `/login`, and each has a budget of its own where the path is part of the key.

use std::borrow::Cow;

/// The attribute that is a path.
pub(super) const PATH: &str = "path";

/// How rules see the attribute `path`. A setting of a [`RuleSet`](crate::RuleSet::with_paths).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Paths {
    /// Normalised: see [`normalize`](Self::normalize).
    #[default]
    Normalized,
    /// Normalised, and in lower case: for applications that serve `/Login` and `/login` as one
    /// page.
    CaseInsensitive,
    /// As the client spelled it: for applications to which each spelling is another page.
    Raw,
}

impl Paths {
    /// The path as rules see it. Under [`Raw`](Self::Raw) it is unchanged, and so is a text that
    /// does not begin with `/`. Otherwise:
    ///
    /// * The query and the fragment are dropped.
    /// * Of each segment, the parameters (from the first `;` on) are dropped.
    /// * An encoded character that may occur in a segment as it is, or that is not ASCII, is
    ///   decoded: `%6C` is `l`. Any other character is encoded, in upper case. So each character
    ///   has one spelling, and `%2F` stays what it is.
    /// * `.` and `..` are resolved. Empty segments are dropped, and a slash at the end with them.
    ///
    /// Bytes that are not UTF-8 stay encoded. A `%` that begins no encoded byte becomes `%25`.
    /// Normalising twice changes nothing more. A path that is normal is not copied, and a normal
    /// form has at most three times as many bytes.
    ///
    /// ```
    /// use tollgate::Paths;
    ///
    /// for spelled in ["/%6Cogin", "//login", "/a/../login/", "/login;x=1", "/lo%67in?y"] {
    ///     assert_eq!(Paths::Normalized.normalize(spelled), "/login");
    /// }
    /// assert_eq!(Paths::Normalized.normalize("/a%2fb/"), "/a%2Fb");
    /// assert_eq!(Paths::CaseInsensitive.normalize("/Login"), "/login");
    /// assert_eq!(Paths::Raw.normalize("//login"), "//login");
    /// ```
    #[must_use]
    pub fn normalize(self, path: &str) -> Cow<'_, str> {
        if self == Self::Raw || !path.starts_with('/') || self.is_normal(path) {
            return Cow::Borrowed(path);
        }
        let mut normal = String::with_capacity(path.len());
        for segment in without_query(path).split('/') {
            self.push_segment(&mut normal, segment);
        }
        if normal.is_empty() {
            normal.push('/');
        }
        Cow::Owned(normal)
    }

    /// The beginning of a path as a pattern has it. Its last segment may go on, so it is only
    /// decoded and encoded.
    pub(super) fn normalize_stem(self, stem: &str) -> String {
        if self == Self::Raw || !stem.starts_with('/') {
            return stem.to_owned();
        }
        let stem = without_query(stem);
        let (whole, last) = stem.rsplit_once('/').unwrap_or_default();
        let mut normal = String::with_capacity(stem.len());
        for segment in whole.split('/') {
            self.push_segment(&mut normal, segment);
        }
        normal.push('/');
        let (last, cut) = without_parameters(last).split_at(cut_off(without_parameters(last)));
        self.push_text(&mut normal, last);
        normal.push_str(cut);
        normal
    }

    /// Appends `/` and a segment; removes the last segment if this one is `..`.
    fn push_segment(self, normal: &mut String, segment: &str) {
        let start = normal.len();
        normal.push('/');
        self.push_text(normal, without_parameters(segment));
        match normal.get(start..) {
            Some("/" | "/.") => normal.truncate(start),
            Some("/..") => {
                normal.truncate(start);
                normal.truncate(normal.rfind('/').unwrap_or(0));
            }
            _ => {}
        }
    }

    /// Appends a text, each character in its one spelling.
    fn push_text(self, normal: &mut String, text: &str) {
        let mut rest = text;
        while let Some((part, length)) = Part::first(rest) {
            match part {
                Part::Character(one) if self == Self::CaseInsensitive => normal.extend(one.to_lowercase()),
                Part::Character(one) => normal.push(one),
                Part::Encoded(byte) => encode(normal, byte),
            }
            rest = rest.get(length..).unwrap_or_default();
        }
    }

    /// Whether normalising would change nothing.
    #[inline]
    fn is_normal(self, path: &str) -> bool {
        self.is_plain(path) || self.has_normal_segments(path)
    }

    /// Whether a path is normal, at a glance: nothing in it is encoded, and no segment begins with
    /// a dot. Nearly every path is. There is no branch for each byte, which would take twice as
    /// long.
    #[inline]
    fn is_plain(self, path: &str) -> bool {
        let (mut found, mut before) = (0, 0);
        for byte in path.bytes() {
            let class = CLASSES.get(usize::from(byte)).copied().unwrap_or(UNUSUAL);
            let misplaced = if class & before == 0 { 0 } else { UNUSUAL };
            found |= class | misplaced;
            before = if byte == b'/' { BOUNDARY } else { 0 };
        }
        let wrong = if self == Self::CaseInsensitive { UNUSUAL | UPPER } else { UNUSUAL };
        found & wrong == 0 && (before == 0 || path.len() == 1)
    }

    #[cold]
    fn has_normal_segments(self, path: &str) -> bool {
        let is_normal = |segment: &str| !matches!(segment, "" | "." | "..") && self.is_normal_text(segment);
        path.split('/').skip(1).all(is_normal)
    }

    /// Whether each character of a segment is in its one spelling.
    fn is_normal_text(self, text: &str) -> bool {
        let folds = self == Self::CaseInsensitive;
        let mut rest = text;
        while let Some((part, length)) = Part::first(rest) {
            let spelled = rest.get(..length).unwrap_or_default().as_bytes();
            let is_normal = match part {
                Part::Character(one) => {
                    spelled.len() == one.len_utf8() && !(folds && one.to_lowercase().ne([one]))
                }
                Part::Encoded(_) => {
                    matches!(spelled, [b'%', digits @ ..] if !digits.iter().any(u8::is_ascii_lowercase))
                        && length == ENCODED
                }
            };
            if !is_normal {
                return false;
            }
            rest = rest.get(length..).unwrap_or_default();
        }
        true
    }
}

/// The class of a byte that no normal path has as it is.
const UNUSUAL: u8 = 1;
/// The class of a capital letter.
const UPPER: u8 = 2;
/// The class of a slash, and of a dot: neither may follow a slash at a glance.
const BOUNDARY: u8 = 4;

#[expect(clippy::as_conversions, reason = "widening, in a const")]
const CLASSES: [u8; 256] = {
    let mut classes = [UNUSUAL; 256];
    let mut byte = 0_u8;
    while byte < 128 {
        classes[byte as usize] = match byte {
            b'/' | b'.' => BOUNDARY,
            b'A'..=b'Z' => UPPER,
            byte if is_literal(byte) => 0,
            _ => UNUSUAL,
        };
        byte += 1;
    }
    classes
};

/// The length of an encoded byte.
const ENCODED: usize = 3;

/// A character of a path, as its one spelling has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// As it is.
    Character(char),
    /// A byte, encoded.
    Encoded(u8),
}

impl Part {
    /// The first character of a text, and the length of its spelling there.
    #[inline]
    fn first(text: &str) -> Option<(Self, usize)> {
        let first = text.chars().next()?;
        Some(match u8::try_from(first) {
            Ok(b'%') => Self::encoded(text),
            Ok(byte) if byte.is_ascii() && !is_literal(byte) => (Self::Encoded(byte), 1),
            _ => (Self::Character(first), first.len_utf8()),
        })
    }

    /// The character that a text begins with, which is encoded.
    #[cold]
    fn encoded(text: &str) -> (Self, usize) {
        let Some(byte) = encoded_byte(text) else { return (Self::Encoded(b'%'), 1) };
        if byte.is_ascii() {
            let one = if is_literal(byte) { Self::Character(byte.into()) } else { Self::Encoded(byte) };
            return (one, ENCODED);
        }
        // A character has at most four bytes; all of them are encoded.
        let mut bytes = [0; 4];
        let mut rest = text;
        for slot in &mut bytes {
            let Some(next) = encoded_byte(rest) else { break };
            *slot = next;
            rest = rest.get(ENCODED..).unwrap_or_default();
        }
        for length in 2..=4_usize {
            let decoded = bytes.get(..length).and_then(|bytes| std::str::from_utf8(bytes).ok());
            if let Some(one) = decoded.and_then(|decoded| decoded.chars().next()) {
                return (Self::Character(one), length.saturating_mul(ENCODED));
            }
        }
        (Self::Encoded(byte), ENCODED)
    }
}

/// The byte that a text begins with in the form `%6C`.
fn encoded_byte(text: &str) -> Option<u8> {
    let [b'%', high, low, ..] = text.as_bytes() else { return None };
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(*high)? << 4 | digit(*low)?)
}

/// Where a text ends, or an encoded byte begins of which the rest is cut off.
fn cut_off(text: &str) -> usize {
    let is_cut = |at: &usize| {
        text.get(*at..)
            .is_some_and(|end| matches!(end.as_bytes(), [_] | [_, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F']))
    };
    text.rfind('%').filter(is_cut).unwrap_or(text.len())
}

/// Whether a segment may have an ASCII character as it is: `pchar` of RFC 3986. A `;` would begin
/// parameters.
const fn is_literal(byte: u8) -> bool {
    matches!(byte, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'!' | b'$' | b'&'
        | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b'=' | b':' | b'@')
}

fn encode(normal: &mut String, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let digit = |index: u8| DIGITS.get(usize::from(index)).map_or('0', |digit| char::from(*digit));
    normal.extend(['%', digit(byte >> 4), digit(byte & 15)]);
}

fn without_query(path: &str) -> &str {
    path.split(['?', '#']).next().unwrap_or_default()
}

fn without_parameters(segment: &str) -> &str {
    segment.split(';').next().unwrap_or_default()
}

#[cfg(test)]
mod tests;
