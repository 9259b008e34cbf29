//! Batches: several requests, each decided separately.
//!
//! An answer has a member for every limit that covers a check, so it can be a thousand times as
//! large as its request. It is sent in parts: the checks of a part are decided once the part before
//! it was taken. So a peer that does not read costs its request and one part. The checks that it
//! never came to are not decided.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::stream::unfold;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tollgate::{Decision, RequestBuf};
use tollgate_http::Problem;
use utoipa::ToSchema;

use super::{Answer, Check, decide, refused};
use crate::app::App;
use crate::buffers::Held;
use crate::caller::Sender;
use crate::connection::Answering;
use crate::http::document::CommonErrors;
use crate::http::problem::{About, ApiError, JsonBytes, parse};

/// The most checks in a batch.
const CHECKS_MAX: usize = 10_000;

/// The most checks of a part, which are decided before other tasks get a turn.
const PART_CHECKS_MAX: usize = 512;

/// The usual size of a part. One check under many rules may need more.
const PART_BYTES: usize = 128 << 10;

/// The bytes of a result, beside those of its limits.
const RESULT_BYTES: usize = 192;

/// The bytes of a limit in a result.
const LIMIT_BYTES: usize = 192;

/// Several requests, each decided separately.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Batch<'a> {
    /// At most 10000. Each is parsed separately, so an error in one does not reject the others.
    #[serde(borrow)]
    #[schema(value_type = Vec<Check>)]
    checks: Vec<&'a RawValue>,
}

/// Decisions of a batch.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Answers {
    /// In the order of the checks.
    results: Vec<BatchAnswer>,
}

/// One result of a batch.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
enum BatchAnswer {
    /// A decision.
    Decided(Answer),
    /// An invalid check, or a failure of the store.
    Refused {
        /// The error, as for a single check.
        #[schema(inline)]
        error: Problem<About>,
    },
}

impl From<Result<Decision, ApiError>> for BatchAnswer {
    fn from(decision: Result<Decision, ApiError>) -> Self {
        match decision {
            Ok(decision) => Self::Decided(Answer::from(&decision)),
            Err(error) => Self::Refused { error: error.into_problem() },
        }
    }
}

/// Check several requests
///
/// The requests are decided in order and separately: neither a denial nor an error affects the
/// others. A long answer is sent in parts, and its later checks are decided as its earlier parts
/// are read.
#[utoipa::path(
    post,
    path = "/v1/check/batch",
    tag = "checks",
    request_body = Batch<'_>,
    responses(
        (status = 200, description = "the result of each", body = Answers),
        CommonErrors,
    )
)]
pub(in crate::http) async fn batch(
    State(app): State<Arc<App>>,
    Extension(sender): Extension<Sender>,
    Extension(answering): Extension<Answering>,
    JsonBytes { bytes, mut held }: JsonBytes,
) -> Result<Response, ApiError> {
    let checks = positions(&bytes)?;
    if checks.len() > CHECKS_MAX {
        let detail = format!("there are {} checks; send at most {CHECKS_MAX} at a time", checks.len());
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "checks", detail));
    }
    let limits: usize =
        app.limiter.with_rules(|rules| rules.rules().iter().map(|rule| rule.limits().len()).sum());
    let result_bytes = limits.saturating_mul(LIMIT_BYTES).saturating_add(RESULT_BYTES);
    let part_checks = (PART_BYTES / result_bytes).clamp(1, PART_CHECKS_MAX);
    if checks.len() > part_checks && !held.grow(part_checks.saturating_mul(result_bytes)) {
        return Err(ApiError::too_much());
    }
    let mut parts = Parts { app, sender, bytes, checks, part_checks, decided: 0, _held: held };
    let first = parts.next().await;
    if parts.is_complete() {
        return Ok(json(first));
    }
    let busy = answering.busy();
    let rest = unfold((Some(first), parts, busy), move |(first, mut parts, busy)| {
        let answering = answering.clone();
        async move {
            answering.count();
            let part = match first {
                Some(first) => first,
                None if parts.is_complete() => return None,
                None => {
                    tokio::task::yield_now().await;
                    parts.next().await
                }
            };
            Some((Ok::<_, io::Error>(Bytes::from(part)), (None, parts, busy)))
        }
    });
    Ok(json(Body::from_stream(rest)))
}

fn json(body: impl Into<Body>) -> Response {
    ([(CONTENT_TYPE, "application/json")], body.into()).into_response()
}

/// The positions of the checks in a body.
fn positions(body: &[u8]) -> Result<Vec<Range<u32>>, ApiError> {
    let Batch { checks } = parse(body)?;
    let position = |check: &RawValue| {
        let start = check.get().as_ptr().addr() - body.as_ptr().addr();
        let offset = |offset| u32::try_from(offset).expect("a body has at most a mebibyte");
        offset(start)..offset(start + check.get().len())
    };
    Ok(checks.into_iter().map(position).collect())
}

/// An answer that is decided and written part by part.
struct Parts {
    app: Arc<App>,
    sender: Sender,
    bytes: Vec<u8>,
    checks: Vec<Range<u32>>,
    /// The checks of a part.
    part_checks: usize,
    /// The checks decided so far.
    decided: usize,
    _held: Held,
}

impl Parts {
    const fn is_complete(&self) -> bool {
        self.decided == self.checks.len()
    }

    /// Decides the checks of the next part and writes their results.
    async fn next(&mut self) -> Vec<u8> {
        let begin = self.decided;
        let end = self.checks.len().min(begin.saturating_add(self.part_checks));
        let mut part = Part { app: &self.app, sender: &self.sender, bytes: Vec::new(), index: begin };
        if begin == 0 {
            part.bytes.extend_from_slice(b"{\"results\":[");
        }
        let mut checks = (begin..end).map(|index| self.check(index)).peekable();
        while let Some(check) = checks.next() {
            let mut takes = match check {
                Ok(check) if !check.peek => vec![check],
                Ok(peek) => {
                    let decision = decide(&self.app, &peek, &self.sender).await;
                    part.push(decision);
                    continue;
                }
                Err(error) => {
                    part.push(Err(error));
                    continue;
                }
            };
            // Consecutive checks are decided together.
            while let Some(Ok(check)) = checks.next_if(|next| next.as_ref().is_ok_and(|check| !check.peek)) {
                takes.push(check);
            }
            let requests: Vec<RequestBuf<'_>> =
                takes.iter().map(|check| check.request().caller(self.sender.caller)).collect();
            let requests: Vec<&RequestBuf<'_>> = requests.iter().collect();
            let each = |decision: Result<Decision, _>| part.push(decision.map_err(|error| refused(&error)));
            self.app.check_many(&requests, each).await;
        }
        let mut bytes = part.bytes;
        if end == self.checks.len() {
            bytes.extend_from_slice(b"]}");
        }
        self.decided = end;
        bytes
    }

    fn check(&self, index: usize) -> Result<Check, ApiError> {
        let Range { start, end } = self.checks[index];
        let check: Check = parse(&self.bytes[start as usize..end as usize])?;
        check.validated()?;
        Ok(check)
    }
}

/// A part of an answer.
struct Part<'a> {
    app: &'a App,
    sender: &'a Sender,
    bytes: Vec<u8>,
    /// The index of the next check.
    index: usize,
}

impl Part<'_> {
    /// Appends the result of the next check.
    fn push(&mut self, decision: Result<Decision, ApiError>) {
        if self.index > 0 {
            self.bytes.push(b',');
        }
        let decision = decision.map_err(|error| {
            if error.is_overloaded() {
                self.app.refused_as_overloaded(self.sender);
            }
            error.within(&format!("checks[{}]", self.index))
        });
        let written = serde_json::to_writer(&mut self.bytes, &BatchAnswer::from(decision));
        written.expect("a vector takes every byte, and no map here has keys that are not strings");
        self.index = self.index.saturating_add(1);
    }
}
