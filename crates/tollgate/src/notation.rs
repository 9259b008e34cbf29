//! Limits as people write them, both ways: see [`Limit`'s notation](Limit#notation).
//!
//! An error points at the column and says what to write instead. Displaying a limit and parsing it
//! again gives the same limit.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::{Algorithm, Bucket, Error, Limit, MAX_COUNT, MAX_SPAN};

/// Units from the longest to the shortest: nanoseconds, the short form, and what else is
/// understood.
const UNITS: [(u64, &str, &[&str]); 8] = [
    (604_800_000_000_000, "w", &["week", "weeks"]),
    (86_400_000_000_000, "d", &["day", "days"]),
    (3_600_000_000_000, "h", &["hour", "hours"]),
    (60_000_000_000, "m", &["minute", "minutes", "min"]),
    (1_000_000_000, "s", &["second", "seconds", "sec"]),
    (1_000_000, "ms", &["millisecond", "milliseconds"]),
    (1_000, "us", &["microsecond", "microseconds"]),
    (1, "ns", &["nanosecond", "nanoseconds"]),
];

const EXAMPLES: &str =
    "write it like \"10/minute\", \"100/s burst 200\", \"10/60s fixed\" or \"60 refill 1/s\"";

impl FromStr for Limit {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut parser = Parser { text, tokens: tokenize(text)?, next: 0 };
        let limit = parser.limit()?;
        match parser.peek() {
            None => Ok(limit),
            Some(token) => {
                Err(parser.error_at(token, format!("unexpected {:?}", token.text), parser.hint_after(&limit)))
            }
        }
    }
}

/// Reads a duration as configuration writes it: `100ms`, `30 s`, `minute`.
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(tollgate::parse_duration("100ms")?, Duration::from_millis(100));
/// # Ok::<(), tollgate::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidNotation`] points at the column.
pub fn parse_duration(text: &str) -> Result<Duration, Error> {
    let mut parser = Parser { text, tokens: tokenize(text)?, next: 0 };
    let span = parser.span()?;
    match parser.peek() {
        None => Ok(span),
        Some(token) => {
            Err(parser.error_at(token, format!("unexpected {:?}", token.text), "write a number and a unit"))
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counting = |count_denied| if count_denied { " counting denied" } else { "" };
        match self.algorithm() {
            Algorithm::FixedWindow { limit, period, aligned, count_denied } => {
                let aligned = if aligned { " aligned" } else { "" };
                write!(f, "{limit}/{} fixed{aligned}{}", Per(period), counting(count_denied))
            }
            Algorithm::SlidingWindow { limit, period, count_denied } => {
                write!(f, "{limit}/{} sliding{}", Per(period), counting(count_denied))
            }
            Algorithm::SlidingLog { limit, period } => write!(f, "{limit}/{} log", Per(period)),
            Algorithm::TokenBucket(Bucket { capacity, amount, interval, stepped: false }) => {
                write!(f, "{amount}/{}", Per(interval))?;
                if capacity == amount { Ok(()) } else { write!(f, " burst {capacity}") }
            }
            Algorithm::TokenBucket(bucket) => write!(f, "{}", Refilled(bucket)),
            Algorithm::Reserve { sustained, reserve } => {
                write!(f, "{} reserve {}", Refilled(sustained), Refilled(reserve))
            }
        }
    }
}

/// `100 refill 10 every 100ms`
struct Refilled(Bucket);

impl fmt::Display for Refilled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bucket { capacity, amount, interval, stepped } = self.0;
        match stepped {
            true => write!(f, "{capacity} refill {amount} every {}", Per(interval)),
            false => write!(f, "{capacity} refill {amount}/{}", Per(interval)),
        }
    }
}

/// A period in the longest unit that divides it: `90s`, `minute`.
struct Per(Duration);

impl fmt::Display for Per {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = crate::time::nanos_of(self.0);
        for (unit, short, words) in UNITS {
            if nanos.checked_rem(unit) == Some(0) {
                return match nanos.checked_div(unit) {
                    Some(1) => f.write_str(words.first().unwrap_or(&short)),
                    Some(count) => write!(f, "{count}{short}"),
                    None => Ok(()),
                };
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
struct Token<'a> {
    text: &'a str,
    column: usize,
    /// Whether it stands right behind the one before, with no space.
    joined: bool,
}

impl Token<'_> {
    fn is_number(&self) -> bool {
        self.text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '.' | '_'))
    }
}

fn tokenize(text: &str) -> Result<Vec<Token<'_>>, Error> {
    let class = |c: char| match c {
        '0'..='9' | '_' | '.' | '-' => Some(0),
        'a'..='z' | 'A'..='Z' | 'µ' | 'μ' => Some(1),
        '/' => Some(2),
        _ => None,
    };
    let mut tokens: Vec<Token<'_>> = Vec::new();
    let mut chars = text.char_indices().enumerate().peekable();
    let mut joined = false;
    while let Some((place, (start, c))) = chars.next() {
        let column = place.saturating_add(1);
        if c.is_whitespace() {
            joined = false;
            continue;
        }
        let Some(kind) = class(c) else {
            let reason = format!("unexpected {:?}", c.to_string());
            return Err(Error::InvalidNotation { text: text.into(), column, reason, hint: EXAMPLES.into() });
        };
        let mut end = start.saturating_add(c.len_utf8());
        while let Some((_, (at, c))) = chars.next_if(|(_, (_, c))| kind != 2 && class(*c) == Some(kind)) {
            end = at.saturating_add(c.len_utf8());
        }
        tokens.push(Token { text: text.get(start..end).unwrap_or_default(), column, joined });
        joined = true;
    }
    Ok(tokens)
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Token<'a>>,
    next: usize,
}

impl<'a> Parser<'a> {
    fn limit(&mut self) -> Result<Limit, Error> {
        if let Some(token) = self.peek().filter(|token| !token.is_number()) {
            let preset = Limit::PRESETS.into_iter().find(|(name, _)| *name == token.text);
            self.next = self.next.saturating_add(1);
            return match preset {
                Some((_, limit)) => Ok(limit),
                None => {
                    let hint = suggestion(token.text, Limit::PRESETS.map(|(name, _)| name))
                        .unwrap_or_else(|| EXAMPLES.into());
                    Err(self.error_at(token, format!("unknown preset {:?}", token.text), hint))
                }
            };
        }
        let count = self.count()?;
        if self.word("refill") {
            return self.refilled(count);
        }
        self.per()?;
        let period = self.span()?;
        let algorithm = if self.word("fixed") {
            let aligned = self.word("aligned");
            Algorithm::FixedWindow { limit: count, period, aligned, count_denied: self.counting_denied()? }
        } else if self.word("sliding") {
            Algorithm::SlidingWindow { limit: count, period, count_denied: self.counting_denied()? }
        } else if self.word("log") {
            Algorithm::SlidingLog { limit: count, period }
        } else {
            let capacity = if self.word("burst") { self.count()? } else { count };
            Algorithm::TokenBucket(Bucket { capacity, amount: count, interval: period, stepped: false })
        };
        self.checked(algorithm)
    }

    /// After `100 refill`: a bucket, perhaps with a reserve.
    fn refilled(&mut self, capacity: u64) -> Result<Limit, Error> {
        let sustained = self.bucket(capacity)?;
        if !self.word("reserve") {
            return self.checked(Algorithm::TokenBucket(sustained));
        }
        let capacity = self.count()?;
        self.expect_word("refill")?;
        let reserve = self.bucket(capacity)?;
        self.checked(Algorithm::Reserve { sustained, reserve })
    }

    /// After `refill`: `10/s`, smooth, or `10 every 100ms`, stepped.
    fn bucket(&mut self, capacity: u64) -> Result<Bucket, Error> {
        let amount = self.count()?;
        let stepped = self.word("every");
        if !stepped {
            self.per()?;
        }
        Ok(Bucket { capacity, amount, interval: self.span()?, stepped })
    }

    fn counting_denied(&mut self) -> Result<bool, Error> {
        if !self.word("counting") {
            return Ok(false);
        }
        self.expect_word("denied")?;
        Ok(true)
    }

    /// A count: `10`, `1_000`, `10k`.
    fn count(&mut self) -> Result<u64, Error> {
        let range = "write a whole number from 1 to 999999999999999";
        let Some(token) = self.peek() else { return Err(self.error_at_end("a count is missing", range)) };
        let digits = self.digits(range)?;
        let scale = match self.peek() {
            Some(suffix) if suffix.joined => match suffix.text {
                "k" | "K" => 1_000,
                "M" => 1_000_000,
                "G" => 1_000_000_000,
                "T" => 1_000_000_000_000,
                _ => 1,
            },
            _ => 1,
        };
        if scale > 1 {
            self.next = self.next.saturating_add(1);
        }
        match digits.checked_mul(scale) {
            Some(count @ 1..=MAX_COUNT) => Ok(count),
            _ => Err(self.error_at(token, "a count is out of range", range)),
        }
    }

    /// A span of time: `60s`, `60 s`, `minute`.
    fn span(&mut self) -> Result<Duration, Error> {
        let range = "write a period from 1ns to 100 years, such as 60s, 100ms or minute";
        let Some(first) = self.peek() else { return Err(self.error_at_end("a period is missing", range)) };
        let count = if first.is_number() { self.digits(range)? } else { 1 };
        let Some(word) = self.peek() else { return Err(self.error_at_end("a unit is missing", range)) };
        let unit = UNITS.iter().find(|(_, short, words)| {
            *short == word.text
                || words.contains(&word.text)
                || (*short == "us" && matches!(word.text, "µs" | "μs"))
        });
        let Some((nanos, ..)) = unit else {
            let known = UNITS.iter().flat_map(|(_, short, words)| words.iter().copied().chain([*short]));
            let hint = suggestion(word.text, known).unwrap_or_else(|| "units are ns us ms s m h d w".into());
            return Err(self.error_at(word, format!("unknown unit {:?}", word.text), hint));
        };
        self.next = self.next.saturating_add(1);
        match count.checked_mul(*nanos).map(Duration::from_nanos) {
            Some(span) if !span.is_zero() && span <= MAX_SPAN => Ok(span),
            _ => Err(self.error_at(first, "a period is out of range", range)),
        }
    }

    fn digits(&mut self, hint: &str) -> Result<u64, Error> {
        let Some(token) = self.peek() else { return Err(self.error_at_end("a number is missing", hint)) };
        let digits = token.text.replace('_', "");
        let reason = if digits.starts_with('-') {
            format!("negative number {:?}", token.text)
        } else if digits.contains('.') {
            format!("fractional number {:?}", token.text)
        } else if !digits.bytes().all(|b| b.is_ascii_digit()) || digits.is_empty() {
            format!("{:?} is not a number", token.text)
        } else {
            self.next = self.next.saturating_add(1);
            return Ok(digits.parse().unwrap_or(u64::MAX));
        };
        Err(self.error_at(token, reason, hint))
    }

    /// `/` or `per`.
    fn per(&mut self) -> Result<(), Error> {
        if self.word("/") || self.word("per") {
            return Ok(());
        }
        match self.peek() {
            Some(token) => Err(self.error_at(token, format!("unexpected {:?}", token.text), EXAMPLES)),
            None => Err(self.error_at_end("the period is missing", EXAMPLES)),
        }
    }

    fn word(&mut self, word: &str) -> bool {
        let found = self.peek().is_some_and(|token| token.text == word);
        if found {
            self.next = self.next.saturating_add(1);
        }
        found
    }

    fn expect_word(&mut self, word: &str) -> Result<(), Error> {
        if self.word(word) {
            return Ok(());
        }
        let hint = format!("write {word:?} there");
        match self.peek() {
            Some(token) => Err(self.error_at(token, format!("unexpected {:?}", token.text), hint)),
            None => Err(self.error_at_end(format!("{word:?} is missing"), hint)),
        }
    }

    fn checked(&self, algorithm: Algorithm) -> Result<Limit, Error> {
        Limit::new(algorithm).map_err(|error| match error {
            Error::InvalidLimit { field, value, reason } => Error::InvalidNotation {
                text: self.text.into(),
                column: 1,
                reason: format!("{field} {value} is out of range"),
                hint: format!("it must be {reason}"),
            },
            other => other,
        })
    }

    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.next).copied()
    }

    fn hint_after(&self, limit: &Limit) -> String {
        let known: &[&str] = match limit.algorithm() {
            Algorithm::FixedWindow { .. } => &["aligned", "counting denied"],
            Algorithm::SlidingWindow { .. } => &["counting denied"],
            Algorithm::TokenBucket(_) => &["fixed", "sliding", "log", "burst", "reserve"],
            _ => &[],
        };
        let word = self.peek().map_or("", |token| token.text);
        suggestion(word, known.iter().copied()).unwrap_or_else(|| match known {
            [] => "nothing may follow there".into(),
            known => format!("only {} may follow there", known.join(", ")),
        })
    }

    fn error_at(&self, token: Token<'_>, reason: impl Into<String>, hint: impl Into<String>) -> Error {
        let (text, column) = (self.text.into(), token.column);
        Error::InvalidNotation { text, column, reason: reason.into(), hint: hint.into() }
    }

    fn error_at_end(&self, reason: impl Into<String>, hint: impl Into<String>) -> Error {
        let column = self.text.chars().count().saturating_add(1);
        Error::InvalidNotation { text: self.text.into(), column, reason: reason.into(), hint: hint.into() }
    }
}

/// `did you mean "minute"?`, if one of the known words is close enough.
fn suggestion<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let closest = known.into_iter().map(|known| (distance(word, known), known)).min()?;
    let close_enough = closest.0 <= 2 && closest.0 < word.len();
    close_enough.then(|| format!("did you mean {:?}?", closest.1))
}

/// Edit distance.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = i;
        for (j, y) in b.bytes().enumerate() {
            let [left, above] = row.get_mut(j..=j.saturating_add(1)).unwrap_or_default() else { continue };
            if j == 0 {
                *left = i.saturating_add(1);
            }
            let swapped = diagonal.saturating_add(usize::from(x != y));
            diagonal = *above;
            *above = swapped.min(diagonal.saturating_add(1)).min(left.saturating_add(1));
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(feature = "serde")]
mod serde_form {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

    use crate::Limit;

    impl Serialize for Limit {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_str(self)
        }
    }

    impl<'de> Deserialize<'de> for Limit {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let text = String::deserialize(deserializer)?;
            text.parse().map_err(de::Error::custom)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HOUR, MINUTE, SECOND};

    fn parsed(text: &str) -> Limit {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    fn complaint(text: &str) -> String {
        text.parse::<Limit>().unwrap_err().to_string()
    }

    #[test]
    fn every_line_of_the_notation_means_what_it_says() {
        let step = Duration::from_millis(100);
        assert_eq!(parsed("10/minute"), Limit::per_minute(10));
        assert_eq!(parsed("100/s burst 200"), Limit::per_second(100).burst(200));
        assert_eq!(parsed("60 refill 1/s"), Limit::per_second(1).burst(60));
        assert_eq!(parsed("100 refill 10 every 100ms"), Limit::token_bucket(100, 10, step).stepped());
        let reserve = Limit::token_bucket(100, 10, step).stepped().reserve(50, 5, SECOND);
        assert_eq!(parsed("100 refill 10 every 100ms reserve 50 refill 5/s"), reserve);
        assert_eq!(parsed("10/60s fixed"), Limit::fixed_window(10, MINUTE));
        assert_eq!(parsed("10/60s fixed aligned"), Limit::fixed_window(10, MINUTE).aligned());
        assert_eq!(parsed("50/hour sliding"), Limit::sliding_window(50, HOUR));
        assert_eq!(parsed("100/min log"), Limit::sliding_log(100, MINUTE));
        assert_eq!(parsed("10/60s fixed counting denied"), Limit::fixed_window(10, MINUTE).counting_denied());
        assert_eq!(parsed("api"), Limit::API);
        assert_eq!(parsed("login"), Limit::LOGIN);
        assert_eq!(parsed("websocket"), Limit::WEBSOCKET);
        assert_eq!(parsed("background"), Limit::BACKGROUND);
    }

    #[test]
    fn the_same_limit_may_be_written_in_several_ways() {
        for text in
            ["10/60s", "10 per 60 s", " 10 / 60 seconds", "10/m", "10 per minute", "10/1min", "1_0/60s"]
        {
            assert_eq!(parsed(text), Limit::per_minute(10), "{text}");
        }
        assert_eq!(parsed("10k/day"), parsed("10_000 per d"));
        assert_eq!(parsed("1T/day"), Limit::per_day(1_000_000_000_000));
        assert_eq!(parsed("5/2 weeks"), Limit::per(5, 14 * crate::DAY));
    }

    #[test]
    fn an_error_points_at_the_column_and_says_what_to_write() {
        let minuet = "limit \"10/minuet\": unknown unit \"minuet\" at column 4; did you mean \"minute\"?";
        assert_eq!(complaint("10/minuet"), minuet);
        for (text, part) in [
            ("", "a count is missing at column 1"),
            ("10", "the period is missing at column 3"),
            ("10/", "a period is missing at column 4"),
            ("10/60", "a unit is missing at column 6"),
            ("0/s", "a count is out of range at column 1"),
            ("-1/s", "negative number \"-1\" at column 1"),
            ("1.5/s", "fractional number \"1.5\" at column 1"),
            ("1000000000000000/s", "a count is out of range at column 1"),
            ("99999999999999999999999/s", "a count is out of range at column 1"),
            ("1/0s", "a period is out of range at column 3"),
            ("1/200 d fixd", "unexpected \"fixd\" at column 9; did you mean \"fixed\"?"),
            ("1/9999999w", "a period is out of range at column 3"),
            ("10/s log counting denied", "unexpected \"counting\" at column 10; nothing may follow there"),
            ("10/s fixed counting", "\"denied\" is missing at column 20"),
            ("10/s, please", "unexpected \",\" at column 5"),
            ("logn", "unknown preset \"logn\" at column 1; did you mean \"login\"?"),
            ("1/week burst 999999999999999", "out of range at column 1; it must be small enough"),
            ("10 refill 1/s reserve 5", "\"refill\" is missing at column 24"),
        ] {
            let complaint = complaint(text);
            assert!(complaint.contains(part), "{text:?}: {complaint}");
        }
    }

    #[test]
    fn a_limit_displays_in_the_longest_unit_that_divides_it() {
        for text in
            ["10/minute fixed", "90/90s", "1/second burst 60", "5/2w log", "100 refill 10 every 100ms"]
        {
            assert_eq!(parsed(text).to_string(), text);
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn serde_reads_and_writes_the_notation() {
        let json = serde_json::to_string(&Limit::per_second(5)).unwrap();
        assert_eq!(json, "\"5/second\"");
        assert_eq!(serde_json::from_str::<Limit>(&json).unwrap(), Limit::per_second(5));
        assert!(
            serde_json::from_str::<Limit>("\"5/fortnight\"").unwrap_err().to_string().contains("column 3")
        );
    }
}
