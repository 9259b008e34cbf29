//! JSON, one object a line: Caddy's, Traefik's, or any other, with the fields named by option or by
//! the names that are usual.

use std::borrow::Cow;

use serde::de::DeserializeSeed as _;

use super::{Unreadable, present};
use crate::simulate::field::{Field, FieldName, Values};

mod walk;

use walk::Walk;

/// Whose JSON it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flavour {
    Plain,
    Caddy,
    Traefik,
}

/// Where the wanted fields are in an object.
#[derive(Debug)]
pub(crate) struct Document {
    flavour: Flavour,
    /// The number of wanted fields.
    width: usize,
    paths: Vec<Path>,
}

/// One place of a field.
#[derive(Debug)]
struct Path {
    slot: usize,
    /// Of several places that an object has, the lowest rank is read.
    rank: usize,
    whole: String,
    keys: Vec<String>,
}

impl Flavour {
    /// Recognises Caddy's and Traefik's JSON by the fields that only they have.
    pub(super) fn detect(sample: &[String]) -> Self {
        let any = |keys: &[&str]| sample.iter().any(|line| keys.iter().all(|key| line.contains(key)));
        if any(&["\"ClientHost\"", "\"RequestPath\""]) {
            Self::Traefik
        } else if any(&["\"request\"", "\"remote_ip\"", "\"ts\""]) {
            Self::Caddy
        } else {
            Self::Plain
        }
    }

    fn names(self, field: &Field) -> Vec<String> {
        let names: &[&str] = match (self, field) {
            (Self::Plain, field) => return plain_names(field),
            (_, Field::Named(name)) => return vec![name.clone()],
            (Self::Caddy, Field::Header(name)) => return vec![format!("request.headers.{name}")],
            (Self::Traefik, Field::Header(name)) => return vec![format!("request_{name}")],
            (Self::Caddy, Field::Time) => &["ts"],
            (Self::Caddy, Field::Address) => &["request.client_ip", "request.remote_ip"],
            (Self::Caddy, Field::User) => &["user_id"],
            (Self::Caddy, Field::Method) => &["request.method"],
            (Self::Caddy, Field::Path) => &["request.uri"],
            (Self::Caddy, Field::Host) => &["request.host"],
            (Self::Caddy, Field::Bytes) => &["size"],
            (Self::Traefik, Field::Time) => &["StartUTC", "StartLocal", "time"],
            (Self::Traefik, Field::Address) => &["ClientHost"],
            (Self::Traefik, Field::User) => &["ClientUsername"],
            (Self::Traefik, Field::Method) => &["RequestMethod"],
            (Self::Traefik, Field::Path) => &["RequestPath"],
            (Self::Traefik, Field::Host) => &["RequestHost"],
            (Self::Traefik, Field::Bytes) => &["DownstreamContentSize"],
        };
        names.iter().map(|name| (*name).to_owned()).collect()
    }
}

/// The usual names of a field in JSON and CSV.
pub(super) fn plain_names(field: &Field) -> Vec<String> {
    let names: &[&str] = match field {
        Field::Time => &["time", "timestamp", "@timestamp", "ts", "datetime", "date", "time_iso8601", "msec"],
        Field::Address => {
            &["address", "remote_addr", "client_ip", "remote_ip", "ip", "clientip", "client_addr", "client"]
        }
        Field::User => &["user", "remote_user", "username", "user_id"],
        Field::Method => &["method", "request_method", "http_method", "verb"],
        Field::Path => &["path", "uri", "request_uri", "url"],
        Field::Host => &["host", "http_host", "server_name"],
        Field::Bytes => &["bytes", "body_bytes_sent", "bytes_sent", "size"],
        Field::Header(name) => return vec![name.clone(), format!("http_{}", name.replace('-', "_"))],
        Field::Named(name) => return vec![name.clone()],
    };
    names.iter().map(|name| (*name).to_owned()).collect()
}

impl Document {
    pub(super) fn new(flavour: Flavour, wanted: &[Field], names: &[FieldName]) -> Self {
        let mut paths = Vec::new();
        for (slot, field) in wanted.iter().enumerate() {
            let places = match names.iter().find(|named| named.field == *field) {
                Some(named) => vec![named.name.clone()],
                None => flavour.names(field),
            };
            paths.extend(places.into_iter().enumerate().map(|(rank, whole)| Path {
                slot,
                rank,
                keys: whole.split('.').map(str::to_owned).collect(),
                whole,
            }));
        }
        Self { flavour, width: wanted.len(), paths }
    }

    pub(super) const fn name(&self) -> &'static str {
        match self.flavour {
            Flavour::Plain => "json",
            Flavour::Caddy => "caddy",
            Flavour::Traefik => "traefik",
        }
    }

    pub(super) fn read<'a>(&self, line: &'a str, values: &mut Values<'a>) -> Result<(), Unreadable> {
        let mut found = walk::Found::new(self.width);
        let mut deserializer = serde_json::Deserializer::from_str(line);
        let walked = Walk::new(&self.paths, &mut found).deserialize(&mut deserializer);
        walked
            .and_then(|()| deserializer.end())
            .map_err(|error| Cow::from(format!("it is not JSON: {error}")))?;
        values.extend(found.into_values().map(|value| value.filter(|value| present(value).is_some())));
        Ok(())
    }
}
