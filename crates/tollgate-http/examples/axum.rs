//! An API with a global limit, a limit per user, and plans.
//!
//!     cargo run -p tollgate-http --example axum
//!     curl -i localhost:3000/ -H "x-user: alice"
//!     curl -i localhost:3000/ -H "x-user: bob" -H "x-plan: gold"

use std::net::SocketAddr;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::get;
use tollgate::{Limit, Limiter, Override, Rule, RuleSet};
use tollgate_http::{Head, Identity, RateLimitLayer};

/// The signed-in user, a request extension that the session layer inserts.
#[derive(Clone)]
struct User {
    name: String,
    plan: String,
}

/// A stand-in for your authentication. (It trusts the header; yours must not.)
async fn authenticate(mut request: Request, next: Next) -> Response {
    if let Some(name) = header(&request, "x-user") {
        let plan = header(&request, "x-plan").unwrap_or_else(|| "free".into());
        request.extensions_mut().insert(User { name, plan });
    }
    next.run(request).await
}

fn header(request: &Request, name: &str) -> Option<String> {
    request.headers().get(name)?.to_str().ok().map(str::to_owned)
}

fn limiter() -> Result<Limiter, tollgate::Error> {
    let rules = RuleSet::new([
        Rule::new("everyone", Limit::per_second(1_000)),
        Rule::new("per-user", Limit::per_minute(3)).key(["client"]),
    ])?;
    let rules =
        rules.with_overrides([Override::new("per-user", Limit::per_minute(30)).matching("plan", "gold")])?;
    Limiter::builder(rules).build()
}

/// The application. Layers run in reverse order: authentication, then the rate limit.
pub(crate) fn app() -> Result<Router, tollgate::Error> {
    let plan = |head: Head<'_>| head.extensions.get::<User>().map(|user| user.plan.clone());
    let identity = Identity::extension(|user: &User| user.name.clone()).or(Identity::peer());
    let limit = RateLimitLayer::new(limiter()?).identity(identity).attribute("plan", plan);
    let router = Router::new().route("/", get(|| async { "hello\n" }));
    Ok(router.layer(limit).layer(middleware::from_fn(authenticate)))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    // With the peer's address; otherwise all clients without a user would share one budget.
    axum::serve(listener, app()?.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
