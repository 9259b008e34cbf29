//! Logs of AWS load balancers. Application: `https TIME NAME CLIENT:PORT TARGET:PORT …`. Classic:
//! the same without the type in front.

use super::tokens::{tokens, unescaped};
use super::{Unreadable, of_request_line, present};
use crate::simulate::field::{Field, Values};

const TOKENS: usize = 14;

pub(super) fn has(field: &Field) -> bool {
    match field {
        Field::Time | Field::Address | Field::Method | Field::Path | Field::Host | Field::Bytes => true,
        Field::Header(name) => name == "user-agent",
        Field::User | Field::Named(_) => false,
    }
}

pub(super) fn read<'a>(line: &'a str, wanted: &[Field], values: &mut Values<'a>) -> Result<(), Unreadable> {
    let is_classic = line.starts_with(|first: char| first.is_ascii_digit());
    let tokens = tokens(line, TOKENS).filter(|tokens| tokens.len() >= TOKENS - usize::from(is_classic));
    let Some(tokens) = tokens else {
        return Err("it is not a line of an AWS load balancer".into());
    };
    let token = |index: usize| tokens.get(index - usize::from(is_classic)).copied().unwrap_or_default();
    for field in wanted {
        values.push(match field {
            Field::Time => present(token(1)),
            Field::Address => present(token(3)),
            Field::Bytes => present(token(11)),
            Field::Method | Field::Path | Field::Host => of_request_line(token(12), field).map(unescaped),
            Field::Header(name) if name == "user-agent" => present(token(13)).map(unescaped),
            Field::Header(_) | Field::User | Field::Named(_) => None,
        });
    }
    Ok(())
}
