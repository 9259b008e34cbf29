//! Formats of access logs: detected from the first lines, then read field by field.
//!
//! A format reads every line by itself. It promises the values of fields, not that a line is well
//! formed in parts that nobody asked for.

use std::borrow::Cow;

use super::field::{Field, FieldName, Values};
use super::options::FormatChoice;
use super::time::parse_time;

mod aws;
mod combined;
mod csv;
mod envoy;
mod json;
mod tokens;

use csv::Columns;
use json::Document;

/// The lines from which a format is detected.
pub(super) const SAMPLE_LINES: usize = 20;

/// A format, ready to read fields.
#[derive(Debug)]
pub(super) enum Format {
    Combined,
    Envoy,
    Aws,
    Json(Document),
    Csv(Columns),
}

/// A reason why a line cannot be read.
pub(super) type Unreadable = Cow<'static, str>;

impl Format {
    /// Detects the format of a file from its first lines.
    ///
    /// # Errors
    /// A sentence that says what to do.
    pub(super) fn detect(
        choice: FormatChoice,
        sample: &[String],
        wanted: &[Field],
        names: &[FieldName],
    ) -> Result<Self, String> {
        let first = sample.first().map_or("", String::as_str);
        let json = |flavour| Self::Json(Document::new(flavour, wanted, names));
        let format = match choice {
            FormatChoice::Combined => Self::Combined,
            FormatChoice::Envoy => Self::Envoy,
            FormatChoice::Aws => Self::Aws,
            FormatChoice::Json => json(json::Flavour::Plain),
            FormatChoice::Caddy => json(json::Flavour::Caddy),
            FormatChoice::Traefik => json(json::Flavour::Traefik),
            FormatChoice::Csv => Self::Csv(Columns::read(first, wanted, names)),
            FormatChoice::Auto if sample.iter().any(|line| line.starts_with('{')) => {
                json(json::Flavour::detect(sample))
            }
            FormatChoice::Auto => {
                let candidates =
                    [Self::Combined, Self::Envoy, Self::Aws, Self::Csv(Columns::read(first, wanted, names))];
                let readable = |format: &Self| {
                    sample.iter().filter(|line| format.time_of(line, wanted).is_some()).count()
                };
                let best = candidates.into_iter().max_by_key(readable);
                best.filter(|format| readable(format) > 0).ok_or_else(|| unknown(first))?
            }
        };
        match (&format, names.first()) {
            (Self::Json(_) | Self::Csv(_), _) | (_, None) => Ok(format),
            (_, Some(FieldName { field, name })) => Err(format!(
                "--field {}={name} is for JSON and CSV logs, and this log has the format {}; remove it",
                field.name(),
                format.name(),
            )),
        }
    }

    /// The name, as `--format` spells it.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Combined => "combined",
            Self::Envoy => "envoy",
            Self::Aws => "aws",
            Self::Json(document) => document.name(),
            Self::Csv(_) => "csv",
        }
    }

    /// Whether the first line names columns and is no request.
    pub(super) const fn has_header(&self) -> bool {
        matches!(self, Self::Csv(_))
    }

    /// Reads the wanted fields of a line, in their order. A field that the line does not have is
    /// `None`.
    pub(super) fn read<'a>(
        &self,
        line: &'a str,
        wanted: &[Field],
        values: &mut Values<'a>,
    ) -> Result<(), Unreadable> {
        values.clear();
        match self {
            Self::Combined => combined::read(line, wanted, values),
            Self::Envoy => envoy::read(line, wanted, values),
            Self::Aws => aws::read(line, wanted, values),
            Self::Json(document) => document.read(line, values),
            Self::Csv(columns) => columns.read_line(line, values),
        }
    }

    /// Whether the format can have a field at all.
    pub(super) fn has(&self, field: &Field) -> bool {
        match self {
            Self::Combined => combined::has(field),
            Self::Envoy => envoy::has(field),
            Self::Aws => aws::has(field),
            Self::Json(_) => true,
            Self::Csv(columns) => columns.has(field),
        }
    }

    fn time_of(&self, line: &str, wanted: &[Field]) -> Option<()> {
        let mut values = Values::new();
        self.read(line, wanted, &mut values).ok()?;
        let index = wanted.iter().position(|field| *field == Field::Time)?;
        parse_time(values.get(index)?.as_deref()?).map(|_| ())
    }
}

fn unknown(first: &str) -> String {
    let line: String = first.chars().filter(|letter| !letter.is_control()).take(80).collect();
    format!(
        "its format is unknown, because no time was found in its first lines ({line:?}); pass --format, or \
         for JSON and CSV the name of the time field, such as --field time=ts"
    )
}

/// `-` stands for a value that there is not.
fn present(value: &str) -> Option<Cow<'_, str>> {
    (value != "-" && !value.is_empty()).then_some(Cow::Borrowed(value))
}

/// The method or the path of a request line, `GET /path HTTP/1.1`. A proxy's path may be a URL.
fn of_request_line<'a>(request: &'a str, field: &Field) -> Option<Cow<'a, str>> {
    let mut words = request.split(' ');
    let (method, target) = (words.next()?, words.next()?);
    let (host, path) = match target.split_once("://").map(|(_, rest)| rest) {
        Some(rest) => rest.find('/').map_or((rest, "/"), |slash| rest.split_at(slash)),
        None => ("", target),
    };
    match field {
        Field::Method => present(method),
        Field::Path => present(path),
        Field::Host => present(host),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
