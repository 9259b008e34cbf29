//! The parts of a client's name: texts, numbers, addresses and tuples of them.

use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smallvec::SmallVec;

/// A client's name, or a part of it.
pub trait KeyPart {
    /// Calls `f` with the text. Different values of one type have different texts.
    fn with_text<R>(&self, f: impl FnOnce(&str) -> R) -> R;

    /// The number whose decimal digits are the text, if there is one: avoids formatting it.
    #[inline]
    fn number(&self) -> Option<u64> {
        None
    }
}

impl KeyPart for &str {
    #[inline]
    fn with_text<R>(&self, f: impl FnOnce(&str) -> R) -> R {
        f(self)
    }
}

impl KeyPart for &String {
    #[inline]
    fn with_text<R>(&self, f: impl FnOnce(&str) -> R) -> R {
        f(self)
    }
}

macro_rules! number_key_part {
    ($($number:ty),*) => {$(
        impl KeyPart for $number {
            #[inline]
            fn with_text<R>(&self, f: impl FnOnce(&str) -> R) -> R {
                f(itoa::Buffer::new().format(*self))
            }

            #[inline]
            fn number(&self) -> Option<u64> {
                (*self).try_into().ok()
            }
        }
    )*};
}

number_key_part!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize);

macro_rules! display_key_part {
    ($($value:ty),*) => {$(
        impl KeyPart for $value {
            fn with_text<R>(&self, f: impl FnOnce(&str) -> R) -> R {
                let mut text = Text::new();
                // Writing to memory does not fail.
                let _ = write!(text, "{self}");
                f(text.as_str())
            }
        }
    )*};
}

display_key_part!(IpAddr, Ipv4Addr, Ipv6Addr);

macro_rules! tuple_key_part {
    ($($part:ident),*) => {
        impl<$($part: KeyPart),*> KeyPart for ($($part,)*) {
            fn with_text<R>(&self, f: impl FnOnce(&str) -> R) -> R {
                #[expect(non_snake_case, reason = "named after their types")]
                let ($($part,)*) = self;
                let mut text = Text::new();
                $($part.with_text(|part| text.push_part(part));)*
                f(text.as_str())
            }
        }
    };
}

tuple_key_part!(A, B);
tuple_key_part!(A, B, C);
tuple_key_part!(A, B, C, D);

/// A text, on the stack while it is short.
struct Text(SmallVec<[u8; 64]>);

impl Text {
    fn new() -> Self {
        Self(SmallVec::new())
    }

    /// Appends a part after a colon. A colon or a backslash inside it is escaped, so that different
    /// tuples never have the same text.
    fn push_part(&mut self, part: &str) {
        if !self.0.is_empty() {
            self.0.push(b':');
        }
        if part.is_empty() {
            self.0.extend_from_slice(b"\\0");
        }
        for byte in part.bytes() {
            if matches!(byte, b':' | b'\\') {
                self.0.push(b'\\');
            }
            self.0.push(byte);
        }
    }

    fn as_str(&self) -> &str {
        // Only whole texts and ASCII bytes between them were written.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(part: impl KeyPart) -> String {
        part.with_text(str::to_owned)
    }

    #[test]
    fn b5_different_tuples_have_different_texts() {
        let alike =
            [("a", "b:c"), ("a:b", "c"), ("a\\", ":b"), ("a", "\\:b"), ("", "a"), ("a", ""), ("\\0", "a")]
                .map(text);
        for (i, one) in alike.iter().enumerate() {
            assert!(alike[i + 1..].iter().all(|other| other != one), "{alike:?}");
        }
    }

    #[test]
    fn a_number_is_written_in_decimal_and_an_address_in_its_usual_form() {
        assert_eq!(text(u64::MAX), "18446744073709551615");
        assert_eq!(text(-7_i32), "-7");
        assert_eq!(text(Ipv6Addr::LOCALHOST), "::1");
        assert_eq!(text((1, "a", Ipv4Addr::LOCALHOST)), "1:a:127.0.0.1");
    }
}
