//! CSV with a header. A quoted field has its quotes doubled, and no line breaks.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::json::plain_names;
use super::{Unreadable, present};
use crate::simulate::field::{Field, FieldName, Values};

/// The columns of the wanted fields.
#[derive(Debug)]
pub(crate) struct Columns {
    /// The number of columns.
    width: usize,
    wanted: Vec<(Field, Option<usize>)>,
}

impl Columns {
    /// Finds the wanted fields in the header.
    pub(super) fn read(header: &str, wanted: &[Field], names: &[FieldName]) -> Self {
        let header = header.strip_prefix('\u{feff}').unwrap_or(header);
        let columns = split(header).unwrap_or_default();
        let column = |name: &str| columns.iter().position(|column| column.trim().eq_ignore_ascii_case(name));
        let find = |field: &Field| match names.iter().find(|named| named.field == *field) {
            Some(named) => column(&named.name),
            None => plain_names(field).iter().find_map(|name| column(name)),
        };
        let wanted = wanted.iter().map(|field| (field.clone(), find(field))).collect();
        Self { width: columns.len(), wanted }
    }

    pub(super) fn has(&self, field: &Field) -> bool {
        self.wanted.iter().any(|(wanted, column)| wanted == field && column.is_some())
    }

    pub(super) fn read_line<'a>(&self, line: &'a str, values: &mut Values<'a>) -> Result<(), Unreadable> {
        let columns = split(line).ok_or("a quote is not closed")?;
        if columns.len() != self.width {
            return Err(format!("it has {} columns, and the header has {}", columns.len(), self.width).into());
        }
        for (_, column) in &self.wanted {
            let value = column.and_then(|column| columns.get(column));
            values.push(value.filter(|value| present(value).is_some()).cloned());
        }
        Ok(())
    }
}

type Cells<'a> = SmallVec<[Cow<'a, str>; 16]>;

fn split(line: &str) -> Option<Cells<'_>> {
    let (mut cells, mut rest) = (Cells::new(), line);
    loop {
        let cell;
        (cell, rest) = match rest.strip_prefix('"') {
            Some(text) => quoted(text)?,
            None => {
                let end = rest.find(',').unwrap_or(rest.len());
                (Cow::Borrowed(rest.get(..end)?), rest.get(end..)?)
            }
        };
        cells.push(cell);
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => return rest.is_empty().then_some(cells),
        }
    }
}

fn quoted(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let mut from = 0;
    loop {
        let at = from + text.get(from..)?.find('"')?;
        let rest = text.get(at + 1..)?;
        if !rest.starts_with('"') {
            let cell = text.get(..at)?;
            let cell = if from > 0 { Cow::Owned(cell.replace("\"\"", "\"")) } else { Cow::Borrowed(cell) };
            return Some((cell, rest));
        }
        from = at + 2;
    }
}
