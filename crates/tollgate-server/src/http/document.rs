//! `/openapi.json`: made from what stands at the handlers, so that it cannot say anything else.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use tollgate_http::{Denied, Numbers, Problem};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, InfoBuilder, LicenseBuilder, OpenApi, OpenApiBuilder, Ref, RefOr,
    Response, ResponseBuilder, Schema,
};
use utoipa::{IntoResponses, PartialSchema as _, ToSchema};

use super::check::Answer;
use super::problem::About;

/// The parts that belong to no handler.
pub(super) fn about() -> OpenApi {
    let token = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some("the admin token"));
    let components = ComponentsBuilder::new()
        .schemas_from_iter(schemas::<About>("Problem"))
        .schemas_from_iter(schemas::<Denied>(Numbers::DENIAL))
        .schemas_from_iter(schemas::<Denied<Answer>>(Answer::DENIAL))
        .security_scheme("admin", SecurityScheme::Http(token.build()));
    let license = LicenseBuilder::new().name(env!("CARGO_PKG_LICENSE")).build();
    let info = InfoBuilder::new()
        .title("tollgate")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some("Allow at most so many requests per client per time."))
        .license(Some(license));
    OpenApiBuilder::new().info(info).components(Some(components.build())).build()
}

/// A problem with such members, under a name of its own, and what it is made of.
fn schemas<M: ToSchema>(name: &str) -> Vec<(String, RefOr<Schema>)> {
    let mut schemas = Vec::new();
    Problem::<M>::schemas(&mut schemas);
    schemas.push((name.into(), Problem::<M>::schema()));
    schemas
}

/// What may be wrong with any request.
pub(super) struct CommonErrors;

/// What may be wrong with a request that needs the token.
pub(super) struct AdminErrors;

/// What may be wrong with a request that is to be counted, and what a denial with such numbers says.
pub(super) struct CheckErrors<N>(PhantomData<N>);

/// What may be wrong with a request that a proxy asks about, which chooses how a denial is answered.
pub(super) struct AuthErrors;

/// Numbers that a denial can have.
pub(super) trait Denying {
    /// What a denial with them is called.
    const DENIAL: &'static str;
}

impl Denying for Numbers {
    const DENIAL: &'static str = "Denial";
}

impl Denying for Answer {
    const DENIAL: &'static str = "DenialWithLimits";
}

const COMMON_ERRORS: [(u16, &str); 7] = [
    (400, "the request makes no sense, and which field of it"),
    (403, "a browser says that a page of another site asks"),
    (404, "there is no such thing"),
    (408, "the body did not arrive in time"),
    (413, "too large, or too many"),
    (415, "the body is not declared as application/json"),
    (503, "the store failed"),
];

impl IntoResponses for CommonErrors {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problems("Problem", &COMMON_ERRORS)
    }
}

impl IntoResponses for AdminErrors {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let mut all = CommonErrors::responses();
        all.append(&mut problems("Problem", &[(401, "the token is missing"), (507, "there is no room")]));
        all
    }
}

impl<N: Denying> IntoResponses for CheckErrors<N> {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let mut all = CommonErrors::responses();
        let denials = [(429, "no, and when to come back"), (503, "the store failed, and a rule denies then")];
        all.append(&mut problems(N::DENIAL, &denials));
        all
    }
}

impl IntoResponses for AuthErrors {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let mut all = problems("Problem", &[(400, "it cannot be told what is asked about")]);
        let denials =
            [("4XX", "no: 429 unless another status is chosen"), ("5XX", "no: 503 if the store failed")];
        all.append(&mut problems(Numbers::DENIAL, &denials));
        all
    }
}

fn problems<S: ToString>(schema: &str, kinds: &[(S, &str)]) -> BTreeMap<String, RefOr<Response>> {
    let response = |(status, description): &(S, &str)| {
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(schema))).build();
        let response =
            ResponseBuilder::new().description(*description).content("application/problem+json", content);
        (status.to_string(), RefOr::T(response.build()))
    };
    kinds.iter().map(response).collect()
}
