//! HTTP: a path into a request, a decision into JSON.

use std::borrow::Cow;

use axum::Router;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{Method, StatusCode, Uri};
use axum::response::Response;
use axum::routing::get;
use percent_encoding::percent_decode_str;
use serde::Serialize;
use tollgate::{Decision, Error, Limiter, MAX_COUNT, Request};
use tollgate_http::{Headers, Numbers, Problem, denied, json};

/// Every path that the server answers.
pub(crate) fn router(limiter: Limiter) -> Router {
    Router::new()
        .route("/check/{client}", get(check))
        .route("/check/", get(check))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .with_state(limiter)
}

/// `GET /check/{client}[?cost=N]`
async fn check(State(limiter): State<Limiter>, uri: Uri, RawQuery(query): RawQuery) -> Response {
    let decision = client_of(uri.path()).and_then(|client| {
        let cost = cost_of(query.as_deref().unwrap_or_default())?;
        let request = Request::client(&client).cost(cost);
        limiter.check(request).map_err(|error| invalid(&error, "client"))
    });
    match decision {
        Ok(decision) => answer(&decision),
        Err(mistake) => mistake.into_response(),
    }
}

fn answer(decision: &Decision) -> Response {
    let headers = Headers::default();
    let response = if decision.allowed() {
        let mut response = json(StatusCode::OK, "application/json", &Numbers::from(decision));
        headers.write(decision, response.headers_mut());
        response
    } else {
        denied(decision, &headers)
    };
    response.map(Body::from)
}

/// What is wrong with a request: how, in which field, and what to send instead.
#[derive(Debug)]
struct Mistake {
    status: StatusCode,
    code: &'static str,
    field: &'static str,
    detail: Cow<'static, str>,
}

#[derive(Debug, Serialize)]
struct About {
    code: &'static str,
    field: &'static str,
}

impl Mistake {
    fn new(
        status: StatusCode,
        code: &'static str,
        field: &'static str,
        detail: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { status, code, field, detail: detail.into() }
    }

    fn into_response(self) -> Response {
        let Self { status, code, field, detail } = self;
        let problem = Problem::new(status, "about:blank", detail.into_owned(), About { code, field });
        problem.into_response().map(Body::from)
    }
}

fn client_of(path: &str) -> Result<Cow<'_, str>, Mistake> {
    let bad = |detail| Mistake::new(StatusCode::BAD_REQUEST, "invalid_key", "client", detail);
    let encoded = path.strip_prefix("/check/").unwrap_or_default();
    if encoded.is_empty() {
        return Err(bad("the client is missing; ask for /check/{client}"));
    }
    let two_digits =
        |rest: &str| rest.len() >= 2 && rest.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
    if !encoded.split('%').skip(1).all(two_digits) {
        return Err(bad(
            "the client has a % without two hexadecimal digits behind it; write % itself as %25",
        ));
    }
    percent_decode_str(encoded)
        .decode_utf8()
        .map_err(|_| bad("the client is not UTF-8 once it is percent-decoded; encode its UTF-8 bytes"))
}

fn cost_of(query: &str) -> Result<u64, Mistake> {
    let mut pairs = form_urlencoded::parse(query.as_bytes());
    let Some((_, cost)) = pairs.find(|(name, _)| name == "cost") else { return Ok(1) };
    let digits = !cost.is_empty() && cost.bytes().all(|byte| byte.is_ascii_digit());
    match cost.parse() {
        Ok(cost @ 0..=MAX_COUNT) if digits => Ok(cost),
        _ => {
            let detail = format!("the cost is not a whole number from 0 to {MAX_COUNT}");
            Err(Mistake::new(StatusCode::BAD_REQUEST, "invalid_cost", "cost", detail))
        }
    }
}

fn invalid(error: &Error, field: &'static str) -> Mistake {
    Mistake::new(StatusCode::BAD_REQUEST, error.code(), field, error.to_string())
}

async fn unknown_path(uri: Uri) -> Response {
    let detail = format!("there is nothing at {}; try /check/{{client}}", uri.path());
    Mistake::new(StatusCode::NOT_FOUND, "not_found", "path", detail).into_response()
}

async fn wrong_method(method: Method) -> Response {
    let detail = format!("{method} does nothing here; use GET");
    Mistake::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "method", detail).into_response()
}
