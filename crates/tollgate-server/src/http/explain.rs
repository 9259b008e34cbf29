//! `POST /v1/explain`: why a request is admitted or denied.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use tollgate::{AsRequest as _, Coverage, Decision, Error, Obstacle, Request};
use tollgate_http::Numbers;
use utoipa::ToSchema;

use super::check::{Check, LimitAnswer};
use super::document::AdminErrors;
use super::ok;
use super::problem::{ApiError, Json};
use super::rules::OverrideAnswer;
use crate::app::App;
use crate::moment::Moment;

/// A decision, and how it came about.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Explanation {
    #[serde(flatten)]
    numbers: Numbers,
    /// When the request would be admitted. Absent if it is admitted now, or never.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<Moment>,
    /// Every rule, in order.
    rules: Vec<RuleExplanation>,
}

/// What a rule says about a request.
#[derive(Debug, Serialize, ToSchema)]
struct RuleExplanation {
    rule: &'static str,
    /// Whether the rule covers the request by itself.
    covers: bool,
    /// The rule that covers what this one does not have of the cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    overflow: Option<&'static str>,
    /// Whether the rule is a shadow, which never denies.
    shadow: bool,
    /// The units that the rule charges for the request, together with its overflow.
    cost: u64,
    /// The attributes that the rule counts by, with the request's values.
    key: BTreeMap<String, Option<String>>,
    /// Why the rule does not cover the request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    obstacles: Vec<ObstacleAnswer>,
    /// The override whose limits apply.
    #[serde(rename = "override", skip_serializing_if = "Option::is_none")]
    replacement: Option<OverrideAnswer>,
    /// The outcome of each limit of the rule, as the request would find it. A rule that does not
    /// cover the request has outcomes if another overflows into it.
    limits: Vec<LimitAnswer>,
}

/// Why a rule does not cover a request.
#[derive(Debug, Serialize, ToSchema)]
struct ObstacleAnswer {
    /// `mismatch`: the attribute has another value or is absent. `missing_key`: the request lacks
    /// an attribute of the key. `on_demand`: the rule covers only requests that select it.
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    attribute: Option<String>,
    /// The request's value, as the rules see it.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    /// The values of which the rule requires one. A `*` at the end stands for any text.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    required: Vec<String>,
}

/// Explain a decision
///
/// Says of every rule whether it covers the request, and if not because of which attribute; which
/// override applies, what each limit says, and when the request would be admitted. Takes the body
/// of `POST /v1/check`. Changes nothing and is not counted.
#[utoipa::path(
    post,
    path = "/v1/explain",
    tag = "administration",
    security(("admin" = [])),
    request_body = Check,
    responses(
        (status = 200, description = "the decision, explained", body = Explanation),
        AdminErrors,
    )
)]
pub(super) async fn explain(
    State(app): State<Arc<App>>,
    Json(check): Json<Check>,
) -> Result<Response, ApiError> {
    check.validated()?;
    let request = check.request();
    // The rules that are explained are those that decide, whatever a reload does meanwhile.
    let snapshot = app.limiter.snapshot();
    let explained = snapshot.scope(async {
        let decision = app.timed(app.limiter.peek(&request)).await?;
        let explain = |request: Request<'_>| {
            app.limiter.with_rules(|rules| {
                rules.seeing(&request, |request| {
                    let rule = |coverage: Coverage<'_>| RuleExplanation::new(request, &decision, &coverage);
                    rules.explain(request).map(rule).collect()
                })
            })
        };
        Ok::<_, Error>(((&request).with_request(explain), decision))
    });
    let (rules, decision) = explained.await.map_err(|error| ApiError::for_administrator(&error))?;
    let wait = decision.retry_after().filter(|wait| !wait.is_zero());
    Ok(ok(&Explanation {
        numbers: Numbers::from(&decision),
        retry: wait.map(|wait| Moment::new(decision.now().saturating_add(wait), decision.now())),
        rules,
    }))
}

impl RuleExplanation {
    fn new(request: &Request<'_>, decision: &Decision, coverage: &Coverage<'_>) -> Self {
        let Coverage { rule, obstacles, replacement } = coverage;
        let value = |name: &str| request.get(name).map(ToOwned::to_owned);
        let limits = decision.limits();
        let limits = limits.iter().filter(|report| report.rule == rule.name());
        Self {
            rule: rule.name().as_str(),
            covers: coverage.covers(),
            overflow: rule.overflow_rule().map(|rule| rule.as_str()),
            shadow: rule.is_shadow(),
            cost: if coverage.covers() { request.units().saturating_mul(rule.unit_cost()) } else { 0 },
            key: rule.key_attributes().iter().map(|name| (name.clone(), value(name))).collect(),
            obstacles: obstacles.iter().map(|obstacle| ObstacleAnswer::new(request, obstacle)).collect(),
            replacement: replacement.map(OverrideAnswer::from),
            limits: limits.map(LimitAnswer::from).collect(),
        }
    }
}

impl ObstacleAnswer {
    fn new(request: &Request<'_>, obstacle: &Obstacle<'_>) -> Self {
        let (kind, attribute, required) = match obstacle {
            Obstacle::Mismatch { attribute, required } => ("mismatch", Some(*attribute), required.clone()),
            Obstacle::MissingKey { attribute } => ("missing_key", Some(*attribute), Vec::new()),
            _ => ("on_demand", None, Vec::new()),
        };
        let value = attribute.and_then(|name| request.get(name)).map(ToOwned::to_owned);
        Self { kind, attribute: attribute.map(ToOwned::to_owned), value, required }
    }
}
