//! Administration of the rules in force.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use percent_encoding::percent_decode_str;
use serde::Serialize;
use tollgate::{Error, Limit, Override, Rule};
use utoipa::ToSchema;

use super::document::{AdminErrors, ClearErrors};
use super::ok;
use super::problem::ApiError;
use crate::app::{App, ClearError};
use crate::config::policy_name;
use crate::connection::Answering;

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
    /// The attributes that a request must have, and the values of which it must have one.
    r#match: BTreeMap<String, OneOrSeveral>,
    /// The key attributes; empty for one shared budget.
    key: Vec<String>,
    /// The limits; empty if requests carry them.
    limits: Vec<String>,
    cost: u64,
    shadow: bool,
    /// Whether the cost of a check that it denies is recorded.
    record_denied: bool,
    /// The percentage of a limit from which admitted requests are warned.
    #[serde(skip_serializing_if = "Option::is_none")]
    warn: Option<u8>,
    /// Whether only requests that select it are covered, as by Envoy's descriptors and
    /// `CL.THROTTLE`, or that overflow into it.
    on_demand: bool,
    /// The rule that covers what this one does not have of a cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    overflow: Option<&'static str>,
    /// `open`, `closed` or `local`.
    on_store_error: &'static str,
}

/// One value, or a list of them.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
enum OneOrSeveral {
    One(String),
    Several(Vec<String>),
}

/// An override of a rule's limits.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct OverrideAnswer {
    rule: &'static str,
    r#match: BTreeMap<String, OneOrSeveral>,
    limits: Vec<String>,
}

/// The rules in force
#[utoipa::path(
    get,
    path = "/v1/rules",
    tag = "administration",
    security(("admin" = [])),
    responses(
        (status = 200, description = "the rules in order", body = Rules),
        AdminErrors,
    )
)]
pub(super) async fn rules(State(app): State<Arc<App>>) -> Response {
    let rules = app.limiter.rules();
    let overrides = rules.overrides().map(OverrideAnswer::from).collect();
    ok(&Rules { rules: rules.rules().iter().map(RuleAnswer::from).collect(), overrides })
}

/// The number of keys reset.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Cleared {
    /// The keys of the rule.
    keys: u64,
}

/// Reset a rule
///
/// Removes the usage, blocks and reservations of every client. `cl.throttle` and `envoy.override`
/// are the rules of inline limits. With Redis it looks at every key and leaves Redis time for
/// checks, so it takes long: some 25 seconds for each million keys. If the connection is closed
/// meanwhile, the rest of the state stays.
#[utoipa::path(
    delete,
    path = "/v1/rules/{rule}/state",
    tag = "administration",
    security(("admin" = [])),
    params(("rule" = String, Path, description = "rule name, percent-encoded", min_length = 1)),
    responses(
        (status = 200, description = "reset", body = Cleared),
        ClearErrors,
    )
)]
pub(super) async fn clear(
    State(app): State<Arc<App>>,
    Extension(answering): Extension<Answering>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let path = uri.path().strip_prefix("/v1/rules/").and_then(|rest| rest.strip_suffix("/state"));
    let rule = percent_decode_str(path.unwrap_or_default()).decode_utf8_lossy();
    let is_known = app.limiter.with_rules(|rules| rules.rules().iter().any(|known| *known.name() == *rule));
    if !is_known {
        return Err(ApiError::of(&Error::UnknownRule { rule: rule.into() }));
    }
    // It may take longer than the timeout.
    let keys = app.clear(&rule, || answering.count()).await.map_err(|error| match error {
        ClearError::Store(error) => ApiError::for_administrator(&error.into()),
        ClearError::Busy { rule } => {
            let detail = format!(
                "the rule {rule:?} is being reset, and one rule is reset at a time; try again when the log \
                 says that it was reset"
            );
            ApiError::new(StatusCode::CONFLICT, "reset_running", "rule", detail)
        }
    })?;
    Ok(ok(&Cleared { keys }))
}

fn conditions<'a>(matches: impl Iterator<Item = (&'a str, Vec<String>)>) -> BTreeMap<String, OneOrSeveral> {
    let values = |values: Vec<String>| match <[String; 1]>::try_from(values) {
        Ok([one]) => OneOrSeveral::One(one),
        Err(several) => OneOrSeveral::Several(several),
    };
    matches.map(|(name, listed)| (name.to_owned(), values(listed))).collect()
}

impl From<&Rule> for RuleAnswer {
    fn from(rule: &Rule) -> Self {
        Self {
            name: rule.name().as_str(),
            r#match: conditions(rule.matches()),
            key: rule.key_attributes().to_vec(),
            limits: rule.limits().iter().map(Limit::to_string).collect(),
            cost: rule.unit_cost(),
            shadow: rule.is_shadow(),
            record_denied: rule.records_denied(),
            warn: rule.warns_at(),
            on_demand: rule.is_on_demand(),
            overflow: rule.overflow_rule().map(|rule| rule.as_str()),
            on_store_error: policy_name(rule.failure_policy()),
        }
    }
}

impl From<&Override> for OverrideAnswer {
    fn from(other: &Override) -> Self {
        Self {
            rule: other.rule().as_str(),
            r#match: conditions(other.matches()),
            limits: other.limits().iter().map(Limit::to_string).collect(),
        }
    }
}
