//! Parsing limits.

use std::time::Duration;

use super::UNITS;
use crate::{Algorithm, Bucket, Error, Limit, MAX_COUNT, MAX_SPAN};

pub(super) const EXAMPLES: &str = "write it like \"10/minute\", \"100/s burst 200\", \"10/60s fixed\", \"60 refill 1/s\" or \"5 concurrent\"";

/// Words that may follow a count: `10 requests/s`, `10r/s`.
const REQUESTS: [&str; 5] = ["r", "req", "reqs", "request", "requests"];

#[derive(Clone, Copy)]
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    pub(super) column: usize,
    /// Whether no space separates it from the token before.
    joined: bool,
}

impl Token<'_> {
    pub(super) fn is_number(&self) -> bool {
        self.text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '.' | '_'))
    }
}

/// The tokens of a text, or the column of a character that is in none, and that character.
fn tokenize(text: &str) -> Result<Vec<Token<'_>>, (usize, char)> {
    let class = |c: char| match c {
        '0'..='9' | '_' | '.' | '-' => Some(0),
        'a'..='z' | 'A'..='Z' | 'µ' | 'μ' => Some(1),
        '/' => Some(2),
        _ => None,
    };
    let mut tokens: Vec<Token<'_>> = Vec::new();
    let mut chars = text.char_indices().enumerate().peekable();
    let mut joined = false;
    while let Some((index, (start, c))) = chars.next() {
        let column = index.saturating_add(1);
        if c.is_whitespace() {
            joined = false;
            continue;
        }
        // The name of a time zone is one token, such as `Etc/GMT+5`.
        let is_zone = tokens.last().is_some_and(|last| last.text == "at") && !joined;
        let Some(kind) = class(c).or(is_zone.then_some(0)) else { return Err((column, c)) };
        let mut end = start.saturating_add(c.len_utf8());
        let goes_on =
            |c: char| if is_zone { !c.is_whitespace() } else { kind != 2 && class(c) == Some(kind) };
        while let Some((_, (at, c))) = chars.next_if(|(_, (_, c))| goes_on(*c)) {
            end = at.saturating_add(c.len_utf8());
        }
        tokens.push(Token { text: text.get(start..end).unwrap_or_default(), column, joined });
        joined = true;
    }
    Ok(tokens)
}

/// A recursive-descent parser for limits and durations.
pub(super) struct Parser<'a> {
    /// What the text should be: `limit` or `duration`.
    what: &'static str,
    text: &'a str,
    tokens: Vec<Token<'a>>,
    next: usize,
    /// Whether only a count and a period have been read.
    plain: bool,
    /// Whether a time zone has been read.
    pub(super) has_zone: bool,
    /// Whether a debt has been read, which comes last.
    has_debt: bool,
}

impl<'a> Parser<'a> {
    /// A parser of `text`, which should be a `limit` or a `duration`. `hint` says what to write
    /// instead of a character that is in neither.
    pub(super) fn new(what: &'static str, text: &'a str, hint: &str) -> Result<Self, Error> {
        let (plain, has_zone, has_debt) = (false, false, false);
        let parser = Self { what, text, tokens: Vec::new(), next: 0, plain, has_zone, has_debt };
        match tokenize(text) {
            Ok(tokens) => Ok(Self { tokens, ..parser }),
            Err((column, c)) => Err(parser.error(column, format!("unexpected {:?}", c.to_string()), hint)),
        }
    }

    /// Returns an error with a hint if any token is left.
    pub(super) fn finish(&self, hint: impl Fn(&Self) -> String) -> Result<(), Error> {
        match self.peek() {
            None => Ok(()),
            Some(token) => Err(self.error_at(token, format!("unexpected {:?}", token.text), hint(self))),
        }
    }

    pub(super) fn limit(&mut self) -> Result<Limit, Error> {
        let limit = self.without_debt()?;
        let Some(token) = self.peek().filter(|token| token.text == "debt") else { return Ok(limit) };
        self.skip(1);
        self.has_debt = true;
        let debt = self.count_from(0)?;
        limit.with_debt(debt).map_err(|error| self.out_of_range(token.column, error))
    }

    fn without_debt(&mut self) -> Result<Limit, Error> {
        if let Some(token) = self.peek().filter(|token| !token.is_number()) {
            let preset = Limit::PRESETS.into_iter().find(|(name, _)| *name == token.text);
            self.skip(1);
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
        if self.word("concurrent") {
            let _ = REQUESTS.iter().any(|word| self.word(word));
            return self.checked(Algorithm::Concurrent { limit: count });
        }
        self.per()?;
        if let Some(calendar) = self.calendar_window(count)? {
            return self.checked(calendar);
        }
        let period = self.span()?;
        let algorithm = if self.word("fixed") {
            let aligned = self.word("aligned");
            Algorithm::FixedWindow { limit: count, period, aligned, count_denied: self.counting_denied()? }
        } else if self.word("sliding") {
            Algorithm::SlidingWindow { limit: count, period, count_denied: self.counting_denied()? }
        } else if self.word("log") {
            Algorithm::SlidingLog { limit: count, period }
        } else {
            self.plain = !self.word("burst");
            let capacity = if self.plain { count } else { self.count()? };
            Algorithm::TokenBucket(Bucket { capacity, amount: count, interval: period, stepped: false })
        };
        self.checked(algorithm)
    }

    /// The part after `100 refill`: a bucket, perhaps with a reserve.
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

    /// The part after `refill`: `10/s`, smooth, or `10 every 100ms`, stepped.
    fn bucket(&mut self, capacity: u64) -> Result<Bucket, Error> {
        let amount = self.count()?;
        let stepped = self.word("every");
        if !stepped {
            self.per()?;
        }
        Ok(Bucket { capacity, amount, interval: self.span()?, stepped })
    }

    pub(super) fn counting_denied(&mut self) -> Result<bool, Error> {
        if !self.word("counting") {
            return Ok(false);
        }
        self.expect_word("denied")?;
        Ok(true)
    }

    /// A count: `10`, `1_000`, `10k`.
    fn count(&mut self) -> Result<u64, Error> {
        self.count_from(1)
    }

    fn count_from(&mut self, least: u64) -> Result<u64, Error> {
        let range = &format!("write a whole number from {least} to {MAX_COUNT}");
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
            self.skip(1);
        }
        match digits.checked_mul(scale) {
            Some(count) if (least..=MAX_COUNT).contains(&count) => Ok(count),
            _ => Err(self.error_at(token, "a count is out of range", range)),
        }
    }

    /// A span of time: `60s`, `60 s`, `minute`, `1h30m`.
    pub(super) fn span(&mut self) -> Result<Duration, Error> {
        let range = "write a period from 1ns to 100 years, such as 60s, 100ms or minute";
        let Some(first) = self.peek() else { return Err(self.error_at_end("a period is missing", range)) };
        let (mut sum, mut longer) = (Some(0_u64), u64::MAX);
        loop {
            let part = self.peek().unwrap_or(first);
            let count = if part.is_number() { self.digits(range)? } else { 1 };
            let unit = self.unit(range)?;
            if unit >= longer {
                return Err(self.error_at(part, "a unit is not shorter than the one before", "write 1h30m"));
            }
            longer = unit;
            sum = sum.zip(count.checked_mul(unit)).and_then(|(sum, part)| sum.checked_add(part));
            if !self.peek().is_some_and(|next| next.joined && next.is_number()) {
                break;
            }
        }
        match sum.map(Duration::from_nanos) {
            Some(span) if !span.is_zero() && span <= MAX_SPAN => Ok(span),
            _ => Err(self.error_at(first, "a period is out of range", range)),
        }
    }

    /// A unit of time, in nanoseconds: `s`, `minutes`, `Hour`.
    fn unit(&mut self, hint: &str) -> Result<u64, Error> {
        let Some(word) = self.peek() else { return Err(self.error_at_end("a unit is missing", hint)) };
        let unit = UNITS.iter().find(|(_, short, words)| {
            *short == word.text
                || words.iter().any(|long| long.eq_ignore_ascii_case(word.text))
                || (*short == "us" && matches!(word.text, "µs" | "μs"))
        });
        let Some((nanos, ..)) = unit else {
            let calendar: &[&str] = if self.what == "limit" { &["month", "year"] } else { &[] };
            let known = UNITS.iter().flat_map(|(_, short, words)| words.iter().copied().chain([*short]));
            let known = known.chain(calendar.iter().copied());
            let hint = suggestion(word.text, known).unwrap_or_else(|| "units are ns us ms s m h d w".into());
            return Err(self.error_at(word, format!("unknown unit {:?}", word.text), hint));
        };
        self.skip(1);
        Ok(*nanos)
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
            self.skip(1);
            return Ok(digits.parse().unwrap_or(u64::MAX));
        };
        Err(self.error_at(token, reason, hint))
    }

    /// `/` or `per`, perhaps after `requests`.
    fn per(&mut self) -> Result<(), Error> {
        let _ = REQUESTS.iter().any(|word| self.word(word));
        if self.word("/") || self.word("per") {
            return Ok(());
        }
        match self.peek() {
            Some(token) => {
                let hint =
                    suggestion(token.text, ["concurrent", "refill"]).unwrap_or_else(|| EXAMPLES.into());
                Err(self.error_at(token, format!("unexpected {:?}", token.text), hint))
            }
            None => Err(self.error_at_end("the period is missing", EXAMPLES)),
        }
    }

    pub(super) fn word(&mut self, word: &str) -> bool {
        let found = self.peek().is_some_and(|token| token.text == word);
        if found {
            self.skip(1);
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
        Limit::new(algorithm).map_err(|error| self.out_of_range(1, error))
    }

    fn out_of_range(&self, column: usize, error: Error) -> Error {
        match error {
            Error::InvalidLimit { field, value, reason } => {
                self.error(column, format!("{field} {value} is out of range"), format!("it must be {reason}"))
            }
            other => other,
        }
    }

    pub(super) fn peek(&self) -> Option<Token<'a>> {
        self.peek_at(0)
    }

    /// The token after `index` others.
    pub(super) fn peek_at(&self, index: usize) -> Option<Token<'a>> {
        self.tokens.get(self.next.saturating_add(index)).copied()
    }

    pub(super) fn skip(&mut self, tokens: usize) {
        self.next = self.next.saturating_add(tokens);
    }

    pub(super) fn hint_after(&self, limit: &Limit) -> String {
        let known: &[&str] = match limit.algorithm() {
            _ if self.has_debt || limit.is_concurrent() => &[],
            Algorithm::FixedWindow { .. } => &["aligned", "counting denied", "debt"],
            Algorithm::CalendarWindow { .. } if !self.has_zone => &["at", "counting denied", "debt"],
            Algorithm::SlidingWindow { .. } | Algorithm::CalendarWindow { .. } => {
                &["counting denied", "debt"]
            }
            Algorithm::TokenBucket(_) if self.plain => &["fixed", "sliding", "log", "burst", "debt"],
            _ => &["debt"],
        };
        let word = self.peek().map_or("", |token| token.text);
        if word == "at" {
            return "write one hour, day, week, month or year before it".into();
        }
        if word == "aligned" && known.contains(&"fixed") {
            return "write \"fixed aligned\"".into();
        }
        suggestion(word, known.iter().copied()).unwrap_or_else(|| match known {
            [] => "nothing may follow there".into(),
            known => format!("at most {} may follow there", known.join(", ")),
        })
    }

    pub(super) fn error_at(
        &self,
        token: Token<'_>,
        reason: impl Into<String>,
        hint: impl Into<String>,
    ) -> Error {
        self.error(token.column, reason, hint)
    }

    pub(super) fn error_at_end(&self, reason: impl Into<String>, hint: impl Into<String>) -> Error {
        self.error(self.text.chars().count().saturating_add(1), reason, hint)
    }

    pub(super) fn error(&self, column: usize, reason: impl Into<String>, hint: impl Into<String>) -> Error {
        let (what, text) = (self.what, self.text.into());
        Error::InvalidNotation { what, text, column, reason: reason.into(), hint: hint.into() }
    }
}

/// `did you mean "minute"?`, if one of the known words is close enough.
pub(super) fn suggestion<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    // The word itself is known in another context, so it is no suggestion.
    let others = known.into_iter().filter(|known| *known != word);
    let closest = others.map(|known| (strsim::levenshtein(word, known), known)).min()?;
    let close_enough = closest.0 <= 2 && closest.0 < word.len();
    close_enough.then(|| format!("did you mean {:?}?", closest.1))
}
