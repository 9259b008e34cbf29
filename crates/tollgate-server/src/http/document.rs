//! `/openapi.json`: made from what stands at the handlers, so that it cannot say anything else.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use tollgate_http::{Denied, Problem};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, InfoBuilder, LicenseBuilder, OpenApi, OpenApiBuilder, Ref, RefOr,
    Response, ResponseBuilder,
};
use utoipa::{IntoResponses, ToSchema};

use super::check::Answer;
use super::problem::About;

/// The parts that belong to no handler.
pub(super) fn about() -> OpenApi {
    let mut schemas = Vec::new();
    add::<Problem<About>>(&mut schemas);
    add::<Problem<Denied>>(&mut schemas);
    add::<Problem<Denied<Answer>>>(&mut schemas);
    let token = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some("the admin token"));
    let components = ComponentsBuilder::new()
        .schemas_from_iter(schemas)
        .security_scheme("admin", SecurityScheme::Http(token.build()));
    let license = LicenseBuilder::new().name(env!("CARGO_PKG_LICENSE")).build();
    let info = InfoBuilder::new()
        .title("tollgate")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some("Allow at most so many requests per client per time."))
        .license(Some(license));
    OpenApiBuilder::new().info(info).components(Some(components.build())).build()
}

fn add<S: ToSchema>(schemas: &mut Vec<(String, RefOr<utoipa::openapi::Schema>)>) {
    S::schemas(schemas);
    schemas.push((S::name().into_owned(), S::schema()));
}

/// What may be wrong with any request.
pub(super) struct Mistaken;

/// What may be wrong with a request that needs the token.
pub(super) struct Guarded;

/// What may be wrong with a request that is to be counted, and what a denial says.
pub(super) struct Refused<D>(PhantomData<D>);

const MISTAKES: [(u16, &str); 5] = [
    (400, "the request makes no sense, and which field of it"),
    (404, "there is no such thing"),
    (408, "the body did not arrive in time"),
    (413, "too large, or too many"),
    (503, "the store failed"),
];

impl IntoResponses for Mistaken {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problems::<Problem<About>>(&MISTAKES)
    }
}

impl IntoResponses for Guarded {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let mut all = Mistaken::responses();
        all.append(&mut problems::<Problem<About>>(&[
            (401, "the token is missing"),
            (507, "there is no room"),
        ]));
        all
    }
}

impl<D> IntoResponses for Refused<D>
where
    Problem<D>: ToSchema,
{
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let mut all = Mistaken::responses();
        let denials = [(429, "no, and when to come back"), (503, "the store failed, and a rule denies then")];
        all.append(&mut problems::<Problem<D>>(&denials));
        all
    }
}

fn problems<S: ToSchema>(kinds: &[(u16, &str)]) -> BTreeMap<String, RefOr<Response>> {
    let schema = Ref::from_schema_name(S::name());
    let response = |(status, description): &(u16, &str)| {
        let content = ContentBuilder::new().schema(Some(schema.clone())).build();
        let response =
            ResponseBuilder::new().description(*description).content("application/problem+json", content);
        (status.to_string(), RefOr::T(response.build()))
    };
    kinds.iter().map(response).collect()
}
