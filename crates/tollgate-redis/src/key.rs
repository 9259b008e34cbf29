//! The name of a budget in Redis: `tollgate:{alice}:per-client:0`, or
//! `tollgate:{alice}[path=/login]:per-client:0` for the budget of an override that matches on a
//! path.
//!
//! A name is printable, so that an operator can read it, and injective, so that no client can spell
//! the name of another's budget. The braces are the hash tag: a Cluster keeps all budgets with the
//! same key values in one slot, where one script decides them together. Budgets that all clients
//! share have the tag `*`, which no client can spell, and are in one slot too.

use std::fmt::Write as _;
use std::sync::LazyLock;

use tollgate::{Budget, Key};

/// Number of slots of a Cluster.
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
    // In range: the name has only grown since `tag_start`.
    let slot = slot_of(&name.as_bytes()[tag_start..]);
    name.push('}');
    match key.budget() {
        // A rule with inline limits has no other budget of this name.
        Budget::Rule | Budget::InlineTime => {}
        budget => {
            let _ = write!(name, "[{budget}]");
        }
    }
    let _ = write!(name, ":{}:{}", key.rule().as_str(), key.index());
    (name, slot)
}

/// The names of the keys in which the holds of a row are.
pub(crate) fn hold_names(name: &str) -> [String; 2] {
    [format!("{name}:holds"), format!("{name}:due")]
}

/// Parses the name of a row under `prefix`: its rule, and the value that it is keyed by, if that is
/// exactly one.
pub(crate) fn parse_name<'a>(prefix: &str, name: &'a str) -> Option<(&'a str, Option<String>)> {
    let (tag, rest) = name.strip_prefix(prefix)?.strip_prefix(":{")?.split_once('}')?;
    let (rest, index) = rest.rsplit_once(':')?;
    index.parse::<u16>().ok()?;
    let rule = match rest.strip_prefix(':') {
        Some(rule) => rule,
        None => rest.strip_prefix('[')?.rsplit_once("]:")?.1,
    };
    let value = (tag != "*" && !tag.contains(',')).then(|| percent_decoded(tag)).flatten();
    Some((rule, value))
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

/// Appends a byte: percent-encoded if it is a delimiter or not printable.
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

/// The slot of a hash tag, by the Cluster specification: CRC-16/XMODEM modulo the number of slots.
pub(crate) fn slot_of(tag: &[u8]) -> u16 {
    let crc = tag.iter().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % SLOTS
}

/// A key for probes, in this slot of a Cluster.
pub(crate) fn probe_key(prefix: &str, slot: Option<u16>) -> String {
    format!("{prefix}:{{{}}}", slot.map_or_else(|| "probe".to_owned(), tag_in))
}

/// The name of the index of blocks. A Cluster has one in every slot, beside the rows there.
pub(crate) fn blocks_key(prefix: &str, slot: Option<u16>) -> String {
    match slot {
        None => format!("{prefix}:blocks"),
        Some(slot) => format!("{prefix}:blocks:{{{}}}", tag_in(slot)),
    }
}

/// Digits in a slot's tag. Each is a bit, and any slot can be made out of so many.
const TAG_BITS: usize = 16;

/// A tag: `slot-` and binary digits.
fn tag_of(ones: usize) -> String {
    format!("slot-{ones:0TAG_BITS$b}")
}

/// The slot of the tag without ones.
static ZERO: LazyLock<u16> = LazyLock::new(|| slot_of(tag_of(0).as_bytes()));

/// Pairs of a change of the slot and the digits that make it, each change with a leading bit that
/// no later pair has.
static BASIS: LazyLock<Vec<(u16, usize)>> = LazyLock::new(|| {
    let mut basis = Vec::with_capacity(TAG_BITS);
    for digit in 0..TAG_BITS {
        let change = reduced(&basis, slot_of(tag_of(1 << digit).as_bytes()) ^ *ZERO, 1 << digit);
        if change.0 != 0 {
            basis.push(change);
        }
    }
    basis
});

/// A hash tag in this slot. CRC is linear, so each digit that is 1 changes the slot's bits in a way
/// of its own, and the digits are found by elimination. (A search among numbers takes a hundred
/// thousand steps for some slots.)
fn tag_in(slot: u16) -> String {
    let (rest, ones) = reduced(&BASIS, slot ^ *ZERO, 0);
    assert_eq!(rest, 0, "{TAG_BITS} digits make every slot");
    tag_of(ones)
}

/// Removes the leading bits of the basis from a change.
fn reduced(basis: &[(u16, usize)], mut change: u16, mut digits: usize) -> (u16, usize) {
    for (other, others) in basis {
        let leading = 1 << other.ilog2();
        if change & leading != 0 {
            change ^= other;
            digits ^= others;
        }
    }
    (change, digits)
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
    fn a_name_parses_to_its_rule_and_value() {
        let parse = |name| parse_name("t", name);
        let of = |rule, value: &str| Some((rule, Some(value.to_owned())));
        assert_eq!(parse("t:{alice}:per-client:0"), of("per-client", "alice"));
        assert_eq!(parse("t:{a%7D%2C%C3%A9}[path=/x:y]:a:b:12"), of("a:b", "a},é"));
        assert_eq!(parse("t:{*}:all:0"), Some(("all", None)));
        assert_eq!(parse("t:{a,b}:two:0"), Some(("two", None)));
        for other in ["tt:{a}:r:0", "t:a:r:0", "t:{a}", "t:{a}r:0", "", "t:{a}:r:0:holds", "t:{a}:r:0:due"] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(slot_of(b"123456789"), 0x31c3);
        assert_eq!(slot_of(b"foo"), 12_182);
    }

    #[test]
    fn a_probe_and_an_index_of_blocks_have_a_key_in_every_slot() {
        for slot in 0..SLOTS {
            for (name, before) in
                [(probe_key("t", Some(slot)), "t:{"), (blocks_key("t", Some(slot)), "t:blocks:{")]
            {
                let tag = name.strip_prefix(before).and_then(|rest| rest.strip_suffix('}')).unwrap();
                assert_eq!(slot_of(tag.as_bytes()), slot);
                assert_eq!(parse_name("t", &name), None, "{name}");
            }
        }
        assert_eq!([probe_key("t", None), blocks_key("t", None)], ["t:{probe}", "t:blocks"]);
    }
}
