//! The fields of a log line, by the names that people use for them.

use std::borrow::Cow;
use std::convert::Infallible;
use std::str::FromStr;

/// A field of a log line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    /// When the request arrived, or was answered.
    Time,
    /// The address of the client.
    Address,
    /// The name of the authenticated user.
    User,
    Method,
    /// The path, with its query.
    Path,
    Host,
    /// The size of the response.
    Bytes,
    /// A header of the request, in lower case.
    Header(String),
    /// Any other field: a key of JSON, or a column of CSV.
    Named(String),
}

impl Field {
    /// The name, as an argument spells it.
    pub(super) fn name(&self) -> Cow<'_, str> {
        match self {
            Self::Time => "time".into(),
            Self::Address => "address".into(),
            Self::User => "user".into(),
            Self::Method => "method".into(),
            Self::Path => "path".into(),
            Self::Host => "host".into(),
            Self::Bytes => "bytes".into(),
            Self::Header(name) => format!("header:{name}").into(),
            Self::Named(name) => name.into(),
        }
    }
}

impl FromStr for Field {
    type Err = Infallible;

    fn from_str(name: &str) -> Result<Self, Infallible> {
        Ok(match name {
            "time" => Self::Time,
            "address" => Self::Address,
            "user" => Self::User,
            "method" => Self::Method,
            "path" => Self::Path,
            "host" => Self::Host,
            "bytes" => Self::Bytes,
            _ => match name.strip_prefix("header:") {
                Some(header) => Self::Header(header.to_ascii_lowercase()),
                None => Self::Named(name.into()),
            },
        })
    }
}

/// `time=ts`: the name that a JSON or CSV log has for a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldName {
    pub(super) field: Field,
    pub(super) name: String,
}

impl FromStr for FieldName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((field, name)) =
            text.split_once('=').filter(|(field, name)| !field.is_empty() && !name.is_empty())
        else {
            return Err(format!("{text:?} names no field; write it as time=ts"));
        };
        let Ok(field) = field.parse();
        Ok(Self { field, name: name.into() })
    }
}

/// The fields to extract from each line, and their values in a line.
pub(super) type Values<'a> = smallvec::SmallVec<[Option<Cow<'a, str>>; 8]>;
