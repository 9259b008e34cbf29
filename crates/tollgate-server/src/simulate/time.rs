//! Timestamps in logs: the common log format's, RFC 3339, and seconds or fractions since the epoch.

use tollgate::Timestamp;

/// The most digits of a number that is in seconds, in milliseconds and in microseconds. Longer ones
/// are in nanoseconds.
const SECONDS_DIGITS: usize = 11;
const MILLIS_DIGITS: usize = 14;
const MICROS_DIGITS: usize = 17;

const NANOS: u64 = 1_000_000_000;

/// Parses a timestamp in any of the layouts.
pub(super) fn parse_time(text: &str) -> Option<Timestamp> {
    let bytes = text.as_bytes();
    let nanos = match bytes.get(2)? {
        b'/' => common(bytes)?,
        _ if bytes.get(4) == Some(&b'-') => rfc3339(bytes)?,
        _ => epoch(bytes)?,
    };
    let time = Timestamp::from_nanos(nanos);
    // The last moment of the clock is where times beyond it saturate.
    (time < Timestamp::MAX).then_some(time)
}

/// `10/Oct/2000:13:55:36 -0700`
fn common(bytes: &[u8]) -> Option<u64> {
    const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
    let name = bytes.get(3..6)?;
    let month = MONTHS.chunks(3).position(|month| month == name)?;
    let days = days(digits(bytes.get(7..11)?)?, u64::try_from(month).ok()? + 1, digits(bytes.get(..2)?)?)?;
    let clock = clock(bytes.get(12..20)?)?;
    if bytes.get(11) != Some(&b':') || bytes.get(6) != Some(&b'/') || bytes.get(20) != Some(&b' ') {
        return None;
    }
    shifted(days * 86_400 + clock, bytes.get(21..)?)?.checked_mul(NANOS)
}

/// `2000-10-10T13:55:36.123Z`, with a space for the `T`, and in UTC if there is no offset.
fn rfc3339(bytes: &[u8]) -> Option<u64> {
    if bytes.get(7) != Some(&b'-') || !matches!(bytes.get(10), Some(b'T' | b't' | b' ')) {
        return None;
    }
    let days = days(digits(bytes.get(..4)?)?, digits(bytes.get(5..7)?)?, digits(bytes.get(8..10)?)?)?;
    let clock = clock(bytes.get(11..19)?)?;
    let (fraction, offset) = match bytes.get(19) {
        Some(b'.' | b',') => fraction(bytes.get(20..)?)?,
        _ => (0, bytes.get(19..)?),
    };
    let seconds = match offset {
        [] | [b'Z' | b'z'] => days * 86_400 + clock,
        offset => shifted(days * 86_400 + clock, offset)?,
    };
    seconds.checked_mul(NANOS)?.checked_add(fraction)
}

/// A number since the epoch, in the unit that its length suggests.
fn epoch(bytes: &[u8]) -> Option<u64> {
    let length = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (whole, rest) = bytes.split_at(length);
    let whole = digits(whole)?;
    let unit = if length <= SECONDS_DIGITS {
        NANOS
    } else if length <= MILLIS_DIGITS {
        1_000_000
    } else if length <= MICROS_DIGITS {
        1_000
    } else {
        1
    };
    let part = match rest {
        [] => 0,
        [b'.', part @ ..] => match fraction(part)? {
            (part, []) => part / (NANOS / unit),
            _ => return None,
        },
        _ => return None,
    };
    whole.checked_mul(unit)?.checked_add(part)
}

/// Nanoseconds of the digits after a decimal point, and what follows them.
fn fraction(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let length = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (part, rest) = bytes.split_at(length);
    let nanos = (0..9)
        .fold(0, |nanos, place| nanos * 10 + part.get(place).map_or(0, |digit| u64::from(digit - b'0')));
    (length > 0).then_some((nanos, rest))
}

/// Local seconds as seconds in UTC, by the offset `+0200`, `-07:00` or `Z`.
fn shifted(seconds: u64, offset: &[u8]) -> Option<u64> {
    let (sign, rest) = offset.split_first()?;
    let (hours, minutes) = match rest {
        [hours @ .., b':', m1, m2] if hours.len() == 2 => (digits(hours)?, digits(&[*m1, *m2])?),
        [h1, h2, m1, m2] => (digits(&[*h1, *h2])?, digits(&[*m1, *m2])?),
        _ => return None,
    };
    if hours > 23 || minutes > 59 {
        return None;
    }
    let offset = hours * 3_600 + minutes * 60;
    match sign {
        b'+' => seconds.checked_sub(offset),
        b'-' => seconds.checked_add(offset),
        _ => None,
    }
}

/// `13:55:36` as seconds.
fn clock(bytes: &[u8]) -> Option<u64> {
    let (hour, minute, second) =
        (digits(bytes.get(..2)?)?, digits(bytes.get(3..5)?)?, digits(bytes.get(6..8)?)?);
    // A leap second is the second after it.
    let valid = bytes.get(2) == Some(&b':') && bytes.get(5) == Some(&b':');
    (valid && hour < 24 && minute < 60 && second <= 60).then_some(hour * 3_600 + minute * 60 + second)
}

/// Days from 1970-01-01 to a date.
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || year < 1970 {
        return None;
    }
    // Years begin in March here, so that a leap day is the last day of its year.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    days.checked_sub(719_468)
}

fn digits(bytes: &[u8]) -> Option<u64> {
    if bytes.is_empty() {
        return None;
    }
    bytes.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layout_names_the_same_moment() {
        let expected = Timestamp::from_secs(971_211_336);
        for text in [
            "10/Oct/2000:13:55:36 -0700",
            "10/Oct/2000:20:55:36 +0000",
            "2000-10-10T20:55:36Z",
            "2000-10-10T20:55:36",
            "2000-10-10 22:55:36+02:00",
            "2000-10-10T20:55:36.000-0000",
            "971211336",
            "971211336.000",
            "971211336000",
            "971211336000000",
            "971211336000000000",
        ] {
            assert_eq!(parse_time(text), Some(expected), "{text}");
        }
        let fine = Some(Timestamp::from_nanos(971_211_336_123_456_700));
        for text in ["2000-10-10T20:55:36.1234567Z", "971211336.1234567", "971211336123.4567"] {
            assert_eq!(parse_time(text), fine, "{text}");
        }
        assert_eq!(parse_time("29/Feb/2024:00:00:00 +0000"), Some(Timestamp::from_secs(1_709_164_800)));
        assert_eq!(parse_time("2100-03-01T00:00:00Z"), Some(Timestamp::from_secs(4_107_542_400)));
    }

    #[test]
    fn a_text_that_is_no_time_is_none() {
        for text in [
            "",
            "-",
            "GET",
            "10/Oct/2000",
            "10/Okt/2000:13:55:36 -0700",
            "32/Oct/2000:13:55:36 -0700",
            "10/Oct/2000:24:55:36 -0700",
            "2000-13-10T20:55:36Z",
            "2000-10-10T20:55:36.Z",
            "2000-10-10T20:55:36é",
            "1969-12-31T00:00:00Z",
            "99999999999999999999",
            "9999-12-31T00:00:00Z",
            "97121133.6.1",
            "97121133x",
        ] {
            assert_eq!(parse_time(text), None, "{text}");
        }
    }
}
