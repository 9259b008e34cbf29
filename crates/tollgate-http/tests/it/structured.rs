//! The header fields, parsed by two other implementations of structured fields: PyPI's `http_sfv`
//! and the crate `sfv`.

use std::fmt::Write as _;
use std::process::{Command, Stdio};

use tollgate::{HOUR, Limit, Limiter, MINUTE, ManualClock, Request, Rule, RuleSet, Timestamp};
use tollgate_http::rate_limit_headers;

use crate::python::python_with;

/// Parses lines of a header field, and prints one member per line.
const READER: &str = "
import sys, http_sfv
for line in sys.stdin:
    fields = http_sfv.List()
    fields.parse(line.rstrip('\\n').encode())
    for member in fields:
        print(repr(member.value), sorted(member.params.items()))
";

#[test]
fn f2_another_parser_reads_the_same_numbers() {
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    let odd = r#"a "name" with \ and ; and , =1"#;
    let rules = RuleSet::new([
        Rule::new(odd, [Limit::fixed_window(10, MINUTE), Limit::per_day(999_999_999_999_999)])
            .key(["client"]),
        Rule::new("log", Limit::sliding_log(3, HOUR)).key(["client"]).warn_at(50),
    ]);
    let limiter = Limiter::builder(rules.unwrap()).clock(clock.clone()).build().unwrap();
    let (mut lines, mut expected) = (String::new(), String::new());
    for cost in [1, 2, 3, 0] {
        let decision = limiter.check(Request::client("a").cost(cost)).unwrap();
        let headers = rate_limit_headers(&decision);
        for name in ["ratelimit-policy", "ratelimit"] {
            writeln!(lines, "{}", headers[name].to_str().unwrap()).unwrap();
        }
        let names =
            [odd.to_owned(), format!("{odd}.2"), "log".to_owned()].map(|name| name.replace('\\', "\\\\"));
        let limits = [(10, 60), (999_999_999_999_999_u64, 86_400), (3, 3_600)];
        for (name, (quota, window)) in names.iter().zip(limits) {
            writeln!(expected, "'{name}' [('q', {quota}), ('w', {window})]").unwrap();
        }
        for (name, report) in names.iter().zip(decision.limits()) {
            let grows = report.outcome.grows_at.since(decision.now()).as_nanos().div_ceil(1_000_000_000);
            writeln!(expected, "'{name}' [('r', {}), ('t', {grows})]", report.outcome.remaining).unwrap();
        }
        // After the first request a third of the log is used. The third does not fit.
        if let 2 | 0 = cost {
            writeln!(lines, "{}", headers["ratelimit-warning"].to_str().unwrap()).unwrap();
            writeln!(expected, "'log' [('u', 100)]").unwrap();
        }
        assert_eq!(headers.contains_key("ratelimit-warning"), cost == 2 || cost == 0);
        clock.advance(MINUTE / 7);
    }
    for line in lines.lines() {
        let list: sfv::List = sfv::Parser::new(line).parse().unwrap();
        assert_eq!(list.len(), if line.contains("u=") { 1 } else { 3 }, "{line}");
    }
    let mut reader = Command::new(python_with("http_sfv==0.9.9").join("python"));
    let reader = reader.args(["-c", READER]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut reader = reader.spawn().unwrap();
    std::io::Write::write_all(&mut reader.stdin.take().unwrap(), lines.as_bytes()).unwrap();
    let read = reader.wait_with_output().unwrap();
    assert!(read.status.success());
    assert_eq!(String::from_utf8(read.stdout).unwrap(), expected);
}
