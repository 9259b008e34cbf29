//! The picture that the README shows: nanoseconds per check, of one client, of a million, and
//! without a key. Every group has its own scale.

use std::fmt::Write as _;

use crate::table::Table;

const WIDTH: f64 = 800.0;
const LEFT: f64 = 262.0;
const BAR: f64 = 20.0;

pub fn draw(times: &Table) -> String {
    let groups = [
        ("no key", "no key, admitted"),
        ("one client, u64 key", "1 keys, u64, admitted"),
        ("a million clients, u64 keys", "1000000 keys, u64, admitted"),
        ("a million clients, 20-byte string keys", "1000000 keys, 20-byte string, admitted"),
    ];
    let mut body = String::new();
    let mut y = 54.0;
    for (title, case) in groups {
        let rows: Vec<_> = times
            .0
            .iter()
            .filter(|row| row.case == case && row.threads == 1 && !row.contender.contains("three"))
            .collect();
        let slowest = rows.iter().map(|row| row.nanos).fold(1.0, f64::max);
        let scale = (WIDTH - LEFT - 90.0) / slowest;
        let _ = writeln!(body, "<text x=\"12\" y=\"{y:.0}\" class=\"group\">{title}</text>");
        y += 10.0;
        for row in rows {
            let class = match row.contender.as_str() {
                name if name.starts_with("tollgate") => "own",
                name if name.starts_with("floor") => "floor",
                _ => "rival",
            };
            let length = row.nanos * scale;
            let middle = y + BAR * 0.7;
            let _ = writeln!(
                body,
                "<text x=\"{:.0}\" y=\"{middle:.0}\" class=\"name\">{}</text>\
                 <rect x=\"{LEFT}\" y=\"{y:.0}\" width=\"{length:.0}\" height=\"{:.0}\" class=\"{class}\"/>\
                 <text x=\"{:.0}\" y=\"{middle:.0}\" class=\"value\">{:.0} ns</text>",
                LEFT - 8.0,
                row.contender
                    .trim_start_matches("floor: ")
                    .replace("CAS on an indexed array", "indexed array"),
                BAR - 4.0,
                LEFT + length + 6.0,
                row.nanos,
            );
            y += BAR;
        }
        y += 26.0;
    }
    let height = y;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" font-family=\"system-ui, sans-serif\" font-size=\"12\">\n\
         <style>text{{fill:#1f2328}}.title{{font-size:15px;font-weight:600}}.group{{font-weight:600}}.name{{text-anchor:end}}.value{{fill:#57606a}}\
         .own{{fill:#0969da}}.rival{{fill:#9aa4af}}.floor{{fill:#d8dee4}}\
         @media(prefers-color-scheme:dark){{text{{fill:#e6edf3}}.value{{fill:#8d96a0}}.own{{fill:#4493f8}}.rival{{fill:#6e7681}}.floor{{fill:#3d444d}}}}</style>\n\
         <text x=\"12\" y=\"24\" class=\"title\">Nanoseconds per check, one thread (shorter is better; pale: floors, not limiters)</text>\n{body}</svg>\n"
    )
}
