//! The page in a real browser: Debian's chromium, headless, from `file://`.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::common::directory;
use super::node::node_tools;
use super::{line, report, small_log, write};

#[test]
fn the_page_shows_the_numbers_of_the_report_and_names_are_text() {
    let directory = directory("simulate-page");
    let mut lines: String = small_log().concat();
    lines += &line("<script>alert(1)</script>", 61, "/").repeat(9);
    let log = write(&directory, "access.log", lines);
    let page = directory.join("report.html");
    let arguments =
        ["--limit", "2/min fixed", "--limit", "5/min", "--suggest", "--html", page.to_str().unwrap()];
    let report = report(&[&log], &arguments);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/simulate_page.cjs");
    let ran = Command::new("node")
        .arg(script)
        .arg(&page)
        .arg(&directory)
        .env("NODE_PATH", node_tools().join("node_modules"))
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let seen: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(seen["problems"], serde_json::json!([]), "console errors, dialogs and requests");
    for (row, candidate) in
        seen["summary"].as_array().unwrap().iter().zip(report["candidates"].as_array().unwrap())
    {
        for (cell, field) in [(0, "limit"), (1, "admitted"), (2, "denied"), (4, "clientsTouched")] {
            let expected =
                candidate[field].as_str().map_or_else(|| candidate[field].to_string(), str::to_owned);
            assert_eq!(row[cell].as_str().unwrap().replace('\u{202f}', ""), expected, "{field}");
        }
    }
    let candidates = report["candidates"].as_array().unwrap().len();
    assert_eq!(
        (seen["summary"].as_array().unwrap().len(), &seen["charts"]),
        (candidates, &candidates.into())
    );
    let picked = seen["picked"].as_str().unwrap();
    assert!(picked.starts_with("<script>alert(1)</script>: 9 requests"), "{picked}");
    assert_ne!(seen["zoomed"], seen["whole"], "+ on a focused chart zooms");
    assert_eq!(seen["unzoomed"], seen["whole"]);
    assert_ne!(seen["dragged"], seen["whole"], "a drag over a chart zooms");
    assert_ne!(seen["dragged"], seen["zoomed"]);
    assert_eq!(seen["undragged"], seen["whole"]);
    assert_ne!(seen["light"], seen["dark"]);
    assert!(seen["pdfBytes"].as_u64().unwrap() > 10_000, "{seen}");
}
