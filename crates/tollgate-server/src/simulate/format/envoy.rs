//! Envoy's default format: `[2016-04-15T20:17:00.310Z] "POST /v1 HTTP/2" 204 - 154 0 226 100
//! "192.0.2.1" "agent" "request id" "authority" "upstream"`.

use super::tokens::{tokens, unescaped};
use super::{Unreadable, of_request_line, present};
use crate::simulate::field::{Field, Values};

const TOKENS: usize = 13;

pub(super) fn has(field: &Field) -> bool {
    match field {
        Field::Time | Field::Address | Field::Method | Field::Path | Field::Host | Field::Bytes => true,
        Field::Header(name) => matches!(name.as_str(), "user-agent" | "x-forwarded-for" | "x-request-id"),
        Field::User | Field::Named(_) => false,
    }
}

pub(super) fn read<'a>(line: &'a str, wanted: &[Field], values: &mut Values<'a>) -> Result<(), Unreadable> {
    let tokens = tokens(line, TOKENS).filter(|tokens| line.starts_with('[') && tokens.len() >= 12);
    let Some(tokens) = tokens else {
        return Err("it is not a line of Envoy's default format".into());
    };
    let token = |index: usize| tokens.get(index).copied().unwrap_or_default();
    for field in wanted {
        values.push(match field {
            Field::Time => present(token(0)),
            // The nearest proxy appends the address of its peer. The rest is the client's to write.
            Field::Address => present(token(8)).and_then(|_| present(token(8).rsplit(',').next()?.trim())),
            Field::Method | Field::Path => of_request_line(token(1), field).map(unescaped),
            Field::Host => present(token(11)),
            Field::Bytes => present(token(5)),
            Field::Header(name) => match name.as_str() {
                "x-forwarded-for" => present(token(8)).map(unescaped),
                "user-agent" => present(token(9)).map(unescaped),
                "x-request-id" => present(token(10)).map(unescaped),
                _ => None,
            },
            Field::User | Field::Named(_) => None,
        });
    }
    Ok(())
}
