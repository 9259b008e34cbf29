//! The rules in force, for administrators.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use tollgate::{Limit, Override, Rule};
use utoipa::ToSchema;

use super::document::Guarded;
use super::ok;
use crate::app::App;
use crate::config::policy_name;

/// The rules in force.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Rules {
    rules: Vec<RuleAnswer>,
    overrides: Vec<OverrideAnswer>,
}

/// A rule.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct RuleAnswer {
    name: &'static str,
    /// What a request must have to be covered.
    r#match: BTreeMap<String, String>,
    /// What it counts by; one budget for all if by nothing.
    key: Vec<String>,
    /// Empty if they come with each request.
    limits: Vec<String>,
    cost: u64,
    shadow: bool,
    /// Whether it covers only requests that name it, as Envoy's descriptors and `CL.THROTTLE` do.
    on_demand: bool,
    /// `open`, `closed` or `local`.
    on_store_error: &'static str,
}

/// Other limits for some.
#[derive(Debug, Serialize, ToSchema)]
struct OverrideAnswer {
    rule: &'static str,
    r#match: BTreeMap<String, String>,
    limits: Vec<String>,
}

/// The rules in force
#[utoipa::path(
    get,
    path = "/v1/rules",
    tag = "administration",
    security(("admin" = [])),
    responses(
        (status = 200, description = "in order", body = Rules),
        Guarded,
    )
)]
pub(super) async fn rules(State(app): State<Arc<App>>) -> Response {
    let rules = app.limiter.rules();
    let overrides = rules.overrides().map(OverrideAnswer::from).collect();
    ok(&Rules { rules: rules.rules().iter().map(RuleAnswer::from).collect(), overrides })
}

impl From<&Rule> for RuleAnswer {
    fn from(rule: &Rule) -> Self {
        Self {
            name: rule.name().as_str(),
            r#match: rule.matches().map(|(name, value)| (name.to_owned(), value)).collect(),
            key: rule.key_attributes().to_vec(),
            limits: rule.limits().iter().map(Limit::to_string).collect(),
            cost: rule.unit_cost(),
            shadow: rule.is_shadow(),
            on_demand: rule.is_on_demand(),
            on_store_error: policy_name(rule.failure_policy()),
        }
    }
}

impl From<&Override> for OverrideAnswer {
    fn from(other: &Override) -> Self {
        Self {
            rule: other.rule().as_str(),
            r#match: other.matches().map(|(name, value)| (name.to_owned(), value)).collect(),
            limits: other.limits().iter().map(Limit::to_string).collect(),
        }
    }
}
