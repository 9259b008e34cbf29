//! Text that others chose, such as a client's name, for terminals and logs: it can neither move the
//! cursor nor reverse a line.

/// A text with every character that does not print escaped.
pub(crate) fn printable(text: &str) -> String {
    escaped(text, |c| c.is_ascii_control() || c == '\\' || !c.is_ascii())
}

/// As [`printable`], for a log, whose formats escape control characters and backslashes themselves.
pub(crate) fn without_hidden(text: &str) -> String {
    escaped(text, |c| !c.is_ascii())
}

fn escaped(text: &str, may_hide: impl Fn(char) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if may_hide(c) {
            // After another character: an accent is escaped only where it begins a text.
            out.extend(format!("a{c}").escape_debug().skip(1));
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_prints_as_text() {
        for (name, printed) in [
            ("alice", "alice"),
            ("o'neill \"x\"", "o'neill \"x\""),
            ("zoë 日本 e\u{301}", "zoë 日本 e\u{301}"),
            ("\u{1b}[2J", "\\u{1b}[2J"),
            ("a\r\nb\t\u{7}", "a\\r\\nb\\t\\u{7}"),
            ("\u{202e}evil\u{85}", "\\u{202e}evil\\u{85}"),
            ("a\\n", "a\\\\n"),
        ] {
            assert_eq!(printable(name), printed);
        }
        assert_eq!(without_hidden("a\n\u{202e}\\ë"), "a\n\\u{202e}\\ë");
    }
}
