//! Bad input is a sentence that says what to do, or a line that is counted.

use std::fs;

use super::common::directory;
use super::{line, report, simulate, small_log, write};

#[test]
fn a_log_that_cannot_be_read_at_all_is_a_sentence_that_says_what_to_do() {
    let directory = directory("simulate-bad");
    let empty = write(&directory, "empty.log", "");
    let blank = write(&directory, "blank.log", "\n\n");
    let prose = write(&directory, "prose.log", "hello\nworld\n");
    let timeless = write(&directory, "timeless.jsonl", "{\"ip\":\"192.0.2.1\"}\n");
    let combined = write(&directory, "access.log", small_log().concat());
    let cases: [(&std::path::Path, &[&str], &str); 8] = [
        (&empty, &[], "has no lines"),
        (&blank, &[], "has no lines"),
        (&directory, &[], "is a directory; name the logs in it"),
        (&directory.join("missing.log"), &[], "check its path and permissions"),
        (&prose, &[], "--field time=ts"),
        (&timeless, &[], "it has no time"),
        (&combined, &["--key", "host"], "choose another --key"),
        (&combined, &["--cost", "tokens"], "choose another --cost"),
    ];
    for (log, arguments, part) in cases {
        let ran = simulate(&[log], arguments);
        let said = String::from_utf8(ran.stderr).unwrap();
        assert_eq!(ran.status.code(), Some(2), "{log:?}: {said}");
        assert!(said.starts_with("tollgate: ") && said.contains(part), "{log:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn an_unreadable_line_is_counted_and_shown_and_many_are_a_warning() {
    let directory = directory("simulate-unreadable");
    let mut lines: Vec<String> = (0..1_000).map(|second| line("192.0.2.1", second, "/")).collect();
    lines.insert(500, "garbage\u{1b}[31m\n".into());
    lines.insert(700, line("192.0.2.1", 0, "/back/in/time"));
    lines.insert(800, format!("{}\n", "x".repeat(100_000_000)));
    let few = write(&directory, "few.log", lines.concat());
    let report = report(&[&few], &["--limit", "100/min"]);
    assert_eq!((&report["traffic"]["requests"], &report["log"]["unreadable"]), (&1_000.into(), &3.into()));
    let examples = &report["log"]["examples"];
    assert_eq!((&examples[0]["line"], &examples[0]["text"]), (&501.into(), &"garbage [31m".into()));
    let why = |index: usize| examples[index]["why"].as_str().unwrap();
    assert!(why(1).contains("before an earlier line's; sort the log"), "{}", why(1));
    assert!(why(2).contains("longer than"), "{}", why(2));
    assert_eq!(report["warnings"].as_array().unwrap().len(), 0, "{}", report["warnings"]);
    fs::remove_file(few).unwrap();
    let many: String = (0..100)
        .map(|second| line("192.0.2.1", second, "/") + if second < 7 { "no\n" } else { "" })
        .collect();
    let many = write(&directory, "many.log", many);
    let ran = simulate(&[&many], &["--limit", "100/min"]);
    let text = String::from_utf8(ran.stdout).unwrap();
    assert!(text.contains("warning: 7 of 107 lines (6.5 %) cannot be read"), "{text}");
    assert_eq!(text.matches("it is not a line of").count(), 5, "the first five: {text}");
}

#[test]
fn lines_a_little_late_are_taken_as_they_come() {
    let directory = directory("simulate-late");
    let late = [0, 50, 10, 55].map(|second| line("192.0.2.1", second, "/")).concat();
    let report = report(&[&write(&directory, "late.log", late)], &["--limit", "1/s"]);
    assert_eq!(report["log"]["unreadable"], 0);
    assert_eq!(report["candidates"][0]["denied"], 1, "the late line is decided at the newest time");
}

#[test]
fn a_truncated_archive_is_reported_up_to_where_it_ends() {
    let directory = directory("simulate-truncated");
    let lines: String =
        (0..5_000).map(|second| line(&format!("192.0.2.{}", second * 7 % 251), second, "/")).collect();
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut gz, lines.as_bytes()).unwrap();
    let gz = gz.finish().unwrap();
    let zst =
        ruzstd::encoding::compress_to_vec(lines.as_bytes(), ruzstd::encoding::CompressionLevel::Fastest);
    for (name, bytes) in [("half.log.gz", gz), ("half.log.zst", zst)] {
        let log = write(&directory, name, &bytes[..bytes.len() * 9 / 10]);
        let report = report(&[&log], &["--limit", "100/min"]);
        let requests = report["traffic"]["requests"].as_u64().unwrap();
        assert!((1..5_000).contains(&requests), "{name}: {requests}");
        let warning = report["warnings"][0].as_str().unwrap();
        assert!(
            warning.contains("cannot be read beyond line") && warning.contains("copy it again"),
            "{warning}"
        );
    }
}
