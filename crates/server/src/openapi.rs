//! The specification, generated from the routes themselves, and a page to read it.

mod constraints;
mod examples;
mod viewer;

use std::collections::BTreeMap;

use axum::{
    response::{IntoResponse, Response},
    routing::get,
};
use http::header;
use leasehold_api::{Problem, paths};
use serde_json::Value;
use utoipa::{
    OpenApi as _, ToSchema as _,
    openapi::{
        OpenApi, Ref, RefOr, Required, ResponseBuilder, Schema,
        content::ContentBuilder,
        path::Operation,
        request_body::RequestBody,
        security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
    },
};
use utoipa_axum::router::OpenApiRouter;

use crate::{
    App,
    metrics::Metrics,
    routes::{self, v3::SessionOptions},
};

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Leasehold",
        description = "Who owns a piece of work right now, until when and under which fencing token. Paths are accepted with and without a trailing slash."
    ),
    servers((url = "/", description = "The server that this page came from")),
    components(schemas(Problem))
)]
struct Base;

/// What any request with a credential may be answered with, beside its own answers.
const COMMON: [(&str, &str); 5] = [
    ("401", "A valid API key is needed"),
    ("403", "This API key may not do that"),
    ("429", "Too many requests"),
    ("500", "Something is wrong on the server"),
    ("503", "The store cannot be reached, or the server is busy"),
];
/// And a request with a body or parameters.
const WITH_INPUT: [(&str, &str); 3] = [
    ("400", "The request is not valid: errors names each field"),
    ("413", "The body is too large"),
    ("415", "Only application/json is accepted"),
];

/// The specification of every route.
pub fn openapi() -> Value {
    let sessions = routes::v3::router(SessionOptions::default(), &Metrics::new())
        .expect("the default settings are valid");
    let (_, api) = with_spec(routes::all().merge(sessions));
    api
}

/// The routes, with one more that serves their specification.
pub(crate) fn with_spec(routes: OpenApiRouter<App>) -> (axum::Router<App>, Value) {
    let (router, api) = OpenApiRouter::with_openapi(Base::openapi())
        .merge(routes)
        .split_for_parts();
    let api = finished(api);
    // Written once: it does not change while the server runs.
    let text = api.to_string();
    let serve = move || async move { document(text) };
    (
        router
            .route(paths::OPENAPI, get(serve))
            .merge(viewer::router()),
        api,
    )
}

fn document(text: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// Adds what holds for every operation (the security scheme and the problems), and what is known about
/// values.
fn finished(mut api: OpenApi) -> Value {
    let scheme = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("An API key with the scopes that the operation names"))
        .build();
    let components = api.components.get_or_insert_default();
    components.add_security_scheme("bearer", SecurityScheme::Http(scheme));
    for item in api.paths.paths.values_mut() {
        let operations = [
            &mut item.get,
            &mut item.put,
            &mut item.post,
            &mut item.delete,
        ];
        for operation in operations.into_iter().flatten() {
            name(operation);
            document_problems(operation);
            if let Some(RefOr::T(body)) = &mut operation.request_body
                && may_be_absent(body, &components.schemas)
            {
                body.required = Some(Required::False);
            }
        }
    }
    let mut api = serde_json::to_value(api).unwrap_or_default();
    // A server that was built with fewer routes has no place for some of it.
    let _ = constraints::state(&mut api);
    examples::attach(&mut api);
    // A camera's grant is a lease, too.
    if let Some(Value::Object(granted)) = api["components"]["schemas"].get_mut("Granted")
        && let Some(forms) = granted.remove("oneOf")
    {
        granted.insert("anyOf".to_owned(), forms);
    }
    api
}

/// Names an operation by its resource and its verb (`leases_acquire`), since generated clients need one
/// name each, and lets the summary describe the answer where nothing else does.
fn name(operation: &mut Operation) {
    let tag = operation.tags.iter().flatten().next().cloned();
    operation.operation_id = match (tag, operation.operation_id.take()) {
        (Some(tag), Some(verb)) => Some(format!("{tag}_{verb}")),
        (_, verb) => verb,
    };
    let summary = operation.summary.clone().unwrap_or_default();
    for response in operation.responses.responses.values_mut() {
        if let RefOr::T(response) = response
            && response.description.is_empty()
        {
            response.description.clone_from(&summary);
        }
    }
}

/// An empty body counts as an object without fields, so a body without required ones can be left out.
fn may_be_absent(body: &RequestBody, schemas: &BTreeMap<String, RefOr<Schema>>) -> bool {
    body.content.values().all(|content| {
        let RefOr::T(content) = content else {
            return false;
        };
        let schema = match &content.schema {
            Some(RefOr::Ref(named)) => {
                let name = named.ref_location.rsplit('/').next().unwrap_or_default();
                schemas.get(name)
            }
            other => other.as_ref(),
        };
        matches!(schema, Some(RefOr::T(Schema::Object(object))) if object.required.is_empty())
    })
}

fn document_problems(operation: &mut Operation) {
    let takes_input = operation.request_body.is_some()
        || operation
            .parameters
            .as_ref()
            .is_some_and(|parameters| !parameters.is_empty());
    let mut statuses: Vec<(&str, &str)> = Vec::new();
    if operation.security.is_some() {
        statuses.extend(COMMON);
    } else {
        statuses.extend(
            COMMON
                .iter()
                .filter(|(status, _)| matches!(*status, "403" | "500" | "503")),
        );
    }
    if takes_input {
        statuses.extend(WITH_INPUT);
    }
    for (status, description) in statuses {
        let response = ResponseBuilder::new().description(description).build();
        operation
            .responses
            .responses
            .entry(status.to_owned())
            .or_insert(RefOr::T(response));
    }
    // Every error has the same shape.
    let problem = RefOr::Ref(Ref::from_schema_name(Problem::name()));
    for (status, response) in &mut operation.responses.responses {
        if let RefOr::T(response) = response
            && status.as_str() >= "400"
        {
            let content = ContentBuilder::new().schema(Some(problem.clone())).build();
            response.content.insert(
                leasehold_api::problem::MEDIA_TYPE.to_owned(),
                RefOr::T(content),
            );
        }
    }
}
