//! Trace context: the ids of a caller's span, and random ones.

use std::cell::Cell;
use std::hash::{BuildHasher as _, RandomState};

use axum::http::HeaderMap;

/// The header field of W3C Trace Context.
const TRACEPARENT: &str = "traceparent";

/// The caller's span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parent {
    pub(super) trace: u128,
    pub(super) span: u64,
    /// Whether the caller is sampled.
    pub(super) sampled: bool,
}

impl Parent {
    /// The caller's span, if a valid field names it.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        Self::parse(headers.get(TRACEPARENT)?.to_str().ok()?)
    }

    /// `00-TRACE-SPAN-FLAGS` in lower-case hexadecimal. A later version may append to it.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let version = hexadecimal(parts.next()?, 2)?;
        let trace = hexadecimal(parts.next()?, 32).filter(|trace| *trace != 0)?;
        let span = hexadecimal(parts.next()?, 16).filter(|span| *span != 0)?;
        let flags = hexadecimal(parts.next()?, 2)?;
        if version == 0xff || version == 0 && parts.next().is_some() {
            return None;
        }
        Some(Self { trace, span: u64::try_from(span).ok()?, sampled: flags & 1 == 1 })
    }
}

fn hexadecimal(text: &str, digits: usize) -> Option<u128> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let valid = text.len() == digits && text.bytes().all(is_digit);
    valid.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

/// Random numbers for ids and samples: a generator for each thread (SplitMix64), which needs no
/// secrecy.
pub(super) struct Random;

thread_local! {
    static STATE: Cell<u64> = Cell::new(RandomState::new().hash_one(()));
}

impl Random {
    pub(super) fn next() -> u64 {
        let state = STATE.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        STATE.set(state);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// The id of a new trace, which is not zero.
    pub(super) fn trace() -> u128 {
        (u128::from(Self::next()) << 64 | u128::from(Self::next())).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    #[test]
    fn a_callers_span_is_read_and_nonsense_is_not() {
        let parent = Parent {
            trace: 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c,
            span: 0xb7ad_6b71_6920_3331,
            sampled: true,
        };
        assert_eq!(Parent::parse(&format!("00-{TRACE}-{SPAN}-01")), Some(parent));
        assert_eq!(
            Parent::parse(&format!("00-{TRACE}-{SPAN}-00")),
            Some(Parent { sampled: false, ..parent })
        );
        assert_eq!(Parent::parse(&format!("42-{TRACE}-{SPAN}-03-more")), Some(parent));
        let zero = "0".repeat(32);
        for invalid in [
            String::new(),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{zero}-{SPAN}-01"),
            format!("00-{TRACE}-0000000000000000-01"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-+{}-{SPAN}-01", &TRACE[1..]),
            format!("00-{TRACE}-{SPAN}é-01"),
        ] {
            assert_eq!(Parent::parse(&invalid), None, "{invalid:?}");
        }
    }

    #[test]
    fn about_the_share_is_sampled() {
        let below = |share| (0..100_000).filter(|_| Random::next() < super::super::threshold(share)).count();
        assert_eq!([below(0.0), below(1.0)], [0, 100_000]);
        assert!((9_000..11_000).contains(&below(0.1)), "some seven standard deviations");
    }
}
