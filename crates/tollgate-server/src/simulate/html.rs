//! The report as one HTML page, without external requests.

use super::report::Report;

/// The page, with a place for the report's JSON.
const PAGE: &str = include_str!("page.html");
const PLACE: &str = "{\"report\":null}";

/// The page of a report.
///
/// # Errors
/// A sentence, if the report cannot be written as JSON.
pub(super) fn page(report: &Report) -> Result<String, String> {
    let json = serde_json::to_string(report).map_err(|error| error.to_string())?;
    // Within a script element only `<` could end it or begin another.
    Ok(PAGE.replacen(PLACE, &json.replace('<', "\\u003c"), 1))
}
