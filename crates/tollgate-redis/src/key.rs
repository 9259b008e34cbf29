//! The name of a budget in Redis: `tollgate:{alice}:per-client:0`, or
//! `tollgate:{alice}[path=/login]:per-client:0` for the budget of an override that matches on a path.
//!
//! Printable, so that an operator can read it, and injective, so that no client can spell another's.
//! The braces are the hash tag: a Cluster keeps all budgets of one subject in one slot, where one
//! script decides them together. Budgets of everyone have the subject `*`, which no client can
//! spell, and share a slot too.

use std::fmt::Write as _;

use tollgate::{Budget, Key};

/// How many slots a Cluster has.
pub(crate) const SLOTS: u16 = 16_384;

/// The name of `key`, and its slot.
pub(crate) fn name_of(prefix: &str, key: &Key<'_>) -> (String, u16) {
    let mut name = String::with_capacity(prefix.len() + 64);
    name.push_str(prefix);
    name.push_str(":{");
    let tag_start = name.len();
    for (value, index) in key.values().zip(0..) {
        if index > 0 {
            name.push(',');
        }
        value.iter().for_each(|byte| push_byte(&mut name, *byte));
    }
    if name.len() == tag_start {
        name.push('*');
    }
    // In range: the name has only grown since `tag_start` was its length.
    let slot = slot_of(&name.as_bytes()[tag_start..]);
    name.push('}');
    match key.budget() {
        // A rule whose limits come with requests has no other budget by that name.
        Budget::Rule | Budget::InlineTime => {}
        budget => {
            let _ = write!(name, "[{budget}]");
        }
    }
    let _ = write!(name, ":{}:{}", key.rule().as_str(), key.index());
    (name, slot)
}

/// The rule of a budget's name, if it begins with `prefix`, and the value that it is counted by, if that
/// is one.
pub(crate) fn read_name<'a>(prefix: &str, name: &'a str) -> Option<(&'a str, Option<String>)> {
    let (subject, rest) = name.strip_prefix(prefix)?.strip_prefix(":{")?.split_once('}')?;
    let (rest, _index) = rest.rsplit_once(':')?;
    let rule = match rest.strip_prefix(':') {
        Some(rule) => rule,
        None => rest.strip_prefix('[')?.rsplit_once("]:")?.1,
    };
    let value = (subject != "*" && !subject.contains(',')).then(|| unescaped(subject)).flatten();
    Some((rule, value))
}

fn unescaped(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

/// A byte as it is if it is printable and means nothing here, and escaped otherwise.
fn push_byte(name: &mut String, byte: u8) {
    match byte {
        b'{' | b'}' | b'%' | b',' | b'*' => {
            let _ = write!(name, "%{byte:02X}");
        }
        0x21..=0x7e => name.push(char::from(byte)),
        _ => {
            let _ = write!(name, "%{byte:02X}");
        }
    }
}

/// The slot of a hash tag: CRC-16/XMODEM, as the Cluster specification has it.
pub(crate) fn slot_of(tag: &[u8]) -> u16 {
    let crc = tag.iter().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % SLOTS
}

/// A name with this slot, for asking its node something.
pub(crate) fn name_in(prefix: &str, slot: u16) -> String {
    let tag = (0_u32..).map(|number| format!("probe-{number}")).find(|tag| slot_of(tag.as_bytes()) == slot);
    format!("{prefix}:{{{}}}", tag.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b5_no_client_can_spell_anothers_budget() {
        let mut name = String::new();
        "a},*b%{é\n ".bytes().for_each(|byte| push_byte(&mut name, byte));
        assert_eq!(name, "a%7D%2C%2Ab%25%7B%C3%A9%0A%20");
    }

    #[test]
    fn a_name_says_whose_it_is_and_of_which_rule() {
        let read = |name| read_name("t", name);
        let of = |rule, value: &str| Some((rule, Some(value.to_owned())));
        assert_eq!(read("t:{alice}:per-client:0"), of("per-client", "alice"));
        assert_eq!(read("t:{a%7D%2C%C3%A9}[path=/x:y]:a:b:12"), of("a:b", "a},é"));
        assert_eq!(read("t:{*}:all:0"), Some(("all", None)));
        assert_eq!(read("t:{a,b}:two:0"), Some(("two", None)));
        for other in ["tt:{a}:r:0", "t:a:r:0", "t:{a}", "t:{a}r:0", ""] {
            assert_eq!(read(other), None, "{other}");
        }
    }

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(slot_of(b"123456789"), 0x31c3);
        assert_eq!(slot_of(b"foo"), 12_182);
        for slot in [0, 1, 9_999, SLOTS - 1] {
            let name = name_in("t", slot);
            let tag = name.strip_prefix("t:{").and_then(|rest| rest.strip_suffix('}')).unwrap();
            assert_eq!(slot_of(tag.as_bytes()), slot);
        }
    }
}
