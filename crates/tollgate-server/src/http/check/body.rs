//! The body of a check: attributes and costs.

use std::collections::BTreeMap;

use serde::Deserialize;
use tollgate::{Error, MAX_COUNT, MAX_VALUE_BYTES, RequestBuf};
use utoipa::ToSchema;
use utoipa::openapi::{Object, ObjectBuilder, Type};

use crate::http::members::{texts, whole, wholes};
use crate::http::problem::ApiError;
use crate::value::attribute_value;

/// The most attributes of a request.
const ATTRIBUTES_MAX: usize = 64;

/// The most costs of a request.
const COSTS_MAX: usize = 64;

/// A request to check.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct Check {
    /// Attributes such as `client`, `path` or `plan`: at most 64, each value of 1 to 1024 bytes.
    #[serde(deserialize_with = "texts")]
    #[schema(schema_with = attributes)]
    pub(in crate::http) attributes: BTreeMap<String, String>,
    /// The cost in units. 0 charges nothing.
    #[serde(default = "one", deserialize_with = "whole")]
    #[schema(minimum = 0, maximum = 999_999_999_999_999_i64)]
    cost: u64,
    /// The costs of rules by name, in place of `cost`.
    #[serde(default, deserialize_with = "wholes")]
    #[schema(schema_with = costs)]
    costs: BTreeMap<String, u64>,
    /// Whether to peek: decide and change nothing.
    #[serde(default)]
    pub(super) peek: bool,
}

/// The schema of attributes.
pub(in crate::http) fn attributes() -> Object {
    let value = ObjectBuilder::new().schema_type(Type::String).min_length(Some(1));
    ObjectBuilder::new()
        .schema_type(Type::Object)
        .additional_properties(Some(value))
        .max_properties(Some(ATTRIBUTES_MAX))
        .description(Some(
            "attributes of the request: at most 64, each value of 1 to 1024 bytes. Rules see `path` normalised, unless \
             the configuration says otherwise",
        ))
        .examples([serde_json::json!({"client": "alice", "path": "/login"})])
        .build()
}

/// The schema of costs by rule.
fn costs() -> Object {
    let cost = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0_u64)).maximum(Some(MAX_COUNT));
    ObjectBuilder::new()
        .schema_type(Type::Object)
        .additional_properties(Some(cost))
        .max_properties(Some(COSTS_MAX))
        .description(Some("costs of rules by name, in place of `cost`: at most 64"))
        .examples([serde_json::json!({"tokens": 1500})])
        .build()
}

pub(in crate::http) const fn one() -> u64 {
    1
}

impl Check {
    pub(in crate::http) const fn new(attributes: BTreeMap<String, String>, cost: u64) -> Self {
        Self { attributes, cost, costs: BTreeMap::new(), peek: false }
    }

    /// The request to the limiter.
    pub(in crate::http) fn request(&self) -> RequestBuf<'_> {
        let attributes = self.attributes.iter();
        let attributes = attributes.map(|(name, value)| (name, attribute_value(name, value.as_bytes())));
        let request = attributes.collect::<RequestBuf<'_>>().cost(self.cost);
        request.costs(self.costs.iter().map(|(rule, cost)| (rule, *cost)))
    }

    /// Checks the bounds that do not depend on the rules.
    pub(in crate::http) fn validated(&self) -> Result<(), ApiError> {
        let bad = |field: String, detail: String| Err(ApiError::bad("invalid_key", field, detail));
        if self.attributes.len() > ATTRIBUTES_MAX {
            let detail =
                format!("there are {} attributes; send at most {ATTRIBUTES_MAX}", self.attributes.len());
            return bad("attributes".into(), detail);
        }
        for (name, value) in &self.attributes {
            if !(1..=MAX_VALUE_BYTES).contains(&value.len()) {
                let detail = format!("the value has {} bytes; send 1 to {MAX_VALUE_BYTES}", value.len());
                return bad(format!("attributes.{name}"), detail);
            }
        }
        if self.costs.len() > COSTS_MAX {
            let detail = format!("there are {} costs; send at most {COSTS_MAX}", self.costs.len());
            return Err(ApiError::bad("invalid_cost", "costs", detail));
        }
        let mut costs = self.costs.iter().map(|(rule, cost)| (format!("costs.{rule}"), *cost));
        let costs = costs.find(|(_, cost)| *cost > MAX_COUNT);
        match costs.or_else(|| (self.cost > MAX_COUNT).then(|| ("cost".into(), self.cost))) {
            Some((field, value)) => Err(ApiError::of(&Error::InvalidCost { value }).at(field)),
            None => Ok(()),
        }
    }
}
