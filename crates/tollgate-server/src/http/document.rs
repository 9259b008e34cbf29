//! `/openapi.json`, generated from the handlers' annotations.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use tollgate_http::{Denied, Numbers, Problem};
use utoipa::openapi::schema::AnyOfBuilder;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, InfoBuilder, LicenseBuilder, OpenApi, OpenApiBuilder, Ref, RefOr,
    Response, ResponseBuilder, Schema, Server,
};
use utoipa::{IntoResponses, PartialSchema as _, ToSchema};

use super::check::Answer;
use super::problem::About;

/// The parts of the document that belong to no handler.
pub(super) fn about() -> OpenApi {
    let token = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some("the admin token"));
    let components = ComponentsBuilder::new()
        .schemas_from_iter(schemas::<About>("Problem"))
        .schemas_from_iter(schemas::<Denied>(Numbers::DENIAL))
        .schemas_from_iter(schemas::<Denied<Answer>>(Answer::DENIAL))
        .security_scheme("admin", SecurityScheme::Http(token.build()));
    let license = env!("CARGO_PKG_LICENSE");
    let license = LicenseBuilder::new().name(license).identifier(Some(license)).build();
    let info = InfoBuilder::new()
        .title("tollgate")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "Rate limiting for Rust services and for any stack: exact, fast; in memory, on disk or in Redis.",
        ))
        .license(Some(license));
    OpenApiBuilder::new()
        .info(info)
        // Relative to the document: the server that sends it.
        .servers(Some([Server::new("/")]))
        // No token, except where an operation says otherwise.
        .security(Some([SecurityRequirement::default()]))
        .components(Some(components.build()))
        .build()
}

/// Corrects the output of the annotations.
pub(super) fn finished(mut document: OpenApi) -> OpenApi {
    // Both methods of `/auth` have the same handler, whose name is the operation id.
    let auth = document.paths.paths.get_mut("/auth");
    if let Some(post) = auth.and_then(|methods| methods.post.as_mut()) {
        post.operation_id = Some("told_by_headers_of_post".into());
    }
    // Problems contain its members, and nothing refers to it.
    if let Some(components) = &mut document.components {
        components.schemas.remove("About");
    }
    document
}

/// The schema of a problem with the members `M`, named `name`, and its parts.
fn schemas<M: ToSchema>(name: &str) -> Vec<(String, RefOr<Schema>)> {
    let mut schemas = Vec::new();
    Problem::<M>::schemas(&mut schemas);
    schemas.push((name.into(), Problem::<M>::schema()));
    schemas
}

/// The errors of any request.
pub(super) struct CommonErrors;

/// The errors of a request that may need room in the store.
pub(super) struct FullErrors;

/// The error of a request that cannot fail otherwise.
pub(super) struct HostError;

/// The errors of an administrative request.
pub(super) struct AdminErrors;

/// The errors of the reset of a rule.
pub(super) struct ClearErrors;

/// The errors of a check, and its denials with numbers of the type `N`.
pub(super) struct CheckErrors<N>(PhantomData<N>);

/// The errors of `/auth`, whose denials have a configurable status.
pub(super) struct AuthErrors;

/// The numbers of a denial.
pub(super) trait Denying {
    /// The schema name of a denial with these numbers.
    const DENIAL: &'static str;
}

impl Denying for Numbers {
    const DENIAL: &'static str = "Denial";
}

impl Denying for Answer {
    const DENIAL: &'static str = "DenialWithLimits";
}

const COMMON_ERRORS: [(u16, &str); 7] = [
    (400, "an invalid request, with the field at fault"),
    (403, "a cross-site request of a browser"),
    (404, "not found"),
    (408, "the body did not arrive in time"),
    (413, "too large, or too many"),
    (415, "the body is not declared as application/json"),
    (503, "the store failed, or the request was refused as overloaded"),
];

impl IntoResponses for CommonErrors {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problems("Problem", &COMMON_ERRORS)
    }
}

impl IntoResponses for FullErrors {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let mut all = CommonErrors::responses();
        all.append(&mut problems("Problem", &[(507, "the store is full")]));
        all
    }
}

impl IntoResponses for HostError {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problems("Problem", &[(400, "the Host field is missing, ambiguous or invalid")])
    }
}

impl IntoResponses for AdminErrors {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let mut all = CommonErrors::responses();
        all.append(&mut problems(
            "Problem",
            &[(401, "the admin token is missing or wrong"), (507, "the store is full")],
        ));
        all
    }
}

impl IntoResponses for ClearErrors {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let mut all = AdminErrors::responses();
        all.append(&mut problems("Problem", &[(409, "a rule is being reset, and one is at a time")]));
        all
    }
}

impl<N: Denying> IntoResponses for CheckErrors<N> {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let mut all = CommonErrors::responses();
        all.append(&mut problems(N::DENIAL, &[(429, "denied, with the time to retry")]));
        let overloaded = "denied because the store failed or is full; or refused as overloaded";
        all.insert("503".into(), denial_or_problem(N::DENIAL, overloaded));
        all
    }
}

impl IntoResponses for AuthErrors {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let mut all = problems("Problem", &[(400, "the original request is ambiguous or invalid")]);
        let denied = [("4XX", "denied: 429 unless another status is chosen")];
        all.append(&mut problems(Numbers::DENIAL, &denied));
        let overloaded = "denied: 503 if the store failed; or refused as overloaded";
        all.insert("5XX".into(), denial_or_problem(Numbers::DENIAL, overloaded));
        all
    }
}

fn problems<S: ToString>(schema: &str, kinds: &[(S, &str)]) -> BTreeMap<String, RefOr<Response>> {
    let response = |(status, description): &(S, &str)| {
        (status.to_string(), problem(Ref::from_schema_name(schema), description))
    };
    kinds.iter().map(response).collect()
}

/// A denial, or the problem of a request that was not decided.
fn denial_or_problem(denial: &str, description: &str) -> RefOr<Response> {
    let either = AnyOfBuilder::new().item(Ref::from_schema_name(denial));
    problem(Schema::AnyOf(either.item(Ref::from_schema_name("Problem")).build()), description)
}

fn problem(schema: impl Into<RefOr<Schema>>, description: &str) -> RefOr<Response> {
    let content = ContentBuilder::new().schema(Some(schema)).build();
    let response =
        ResponseBuilder::new().description(description).content("application/problem+json", content);
    RefOr::T(response.build())
}
