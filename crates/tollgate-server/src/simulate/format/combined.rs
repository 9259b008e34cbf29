//! nginx's and Apache's common and combined formats:
//! `192.0.2.1 - alice [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.1" 200 2326 "referer" "agent"`.

use std::borrow::Cow;

use super::tokens::{tokens, unescaped};
use super::{Unreadable, of_request_line, present};
use crate::simulate::field::{Field, Values};

const TOKENS: usize = 9;

pub(super) fn has(field: &Field) -> bool {
    match field {
        Field::Time | Field::Address | Field::User | Field::Method | Field::Path | Field::Bytes => true,
        Field::Header(name) => matches!(name.as_str(), "referer" | "user-agent"),
        Field::Host | Field::Named(_) => false,
    }
}

pub(super) fn read<'a>(line: &'a str, wanted: &[Field], values: &mut Values<'a>) -> Result<(), Unreadable> {
    let tokens = tokens(line, TOKENS).filter(|tokens| tokens.len() >= 7);
    let Some(tokens) = tokens else {
        return Err("it is not a line of the common or combined format".into());
    };
    let token = |index: usize| tokens.get(index).copied().unwrap_or_default();
    for field in wanted {
        values.push(match field {
            Field::Address => present(token(0)),
            Field::User => present(token(2)),
            Field::Time => present(token(3)),
            Field::Method | Field::Path => of_request_line(token(4), field).map(unescaped),
            Field::Bytes => Some(present(token(6)).unwrap_or(Cow::Borrowed("0"))),
            Field::Header(name) if name == "referer" => present(token(7)).map(unescaped),
            Field::Header(name) if name == "user-agent" => present(token(8)).map(unescaped),
            Field::Header(_) | Field::Host | Field::Named(_) => None,
        });
    }
    Ok(())
}
