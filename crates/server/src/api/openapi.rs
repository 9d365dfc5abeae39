//! `/openapi.json`: gathered from the handlers, and completed with what holds for all of them.

use std::collections::BTreeMap;

use axum::body::Bytes;
use serde_json::{Value, json};
use utoipa::{
    IntoResponses, OpenApi,
    openapi::{ContentBuilder, Ref, RefOr, Response, ResponseBuilder},
};

use super::problem::{PROBLEM_JSON, Problem};

/// What the document says besides the operations.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Leasehold",
        description = "Requests, results and messages, for those who do not speak SQL.",
    ),
    components(schemas(Problem)),
    tags(
        (name = "produce", description = "Enqueue requests and send messages"),
        (name = "poll", description = "Take results off routes"),
        (name = "receive", description = "Receive messages and settle them"),
        (name = "admin", description = "Queues, topics and dead letters"),
    )
)]
pub(super) struct Document;

/// Answers that several operations give.
macro_rules! problems {
    ($($name:ident, $status:literal, $meaning:literal;)*) => { $(
        #[doc = $meaning]
        pub(super) struct $name;

        impl IntoResponses for $name {
            fn responses() -> BTreeMap<String, RefOr<Response>> {
                BTreeMap::from([($status.to_owned(), problem($meaning).into())])
            }
        }
    )* };
}

problems! {
    NotFound, "404", "There is no such thing; `code` says which";
    Conflict, "409", "It is there already, and is another";
    LockLost, "410", "The lock is lost: its token is wrong or spent, or it has lapsed. Nothing was changed";
    TooLarge, "413", "The body, or what it holds, is too large";
}

/// Any printable text.
const NAME_PATTERN: &str = "^[^\\u0000-\\u001F\\u007F-\\u009F]+$";
/// Canonical, padded.
const BASE64_PATTERN: &str =
    "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$";

fn problem(meaning: &str) -> Response {
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    ResponseBuilder::new().description(meaning).content(PROBLEM_JSON, content).build()
}

/// What any operation may answer, and what those with a body may besides.
const ALWAYS: [(&str, &str); 6] = [
    ("400", "Something about the call is wrong; `detail` names it"),
    ("401", "No token, or an unknown one"),
    ("403", "The token lacks the scope"),
    ("500", "Something went wrong in the server"),
    ("503", "The database cannot be reached, or the server stops; what was asked may have been done"),
    ("504", "The database did not answer in time; what was asked may have been done"),
];
const WITH_A_BODY: [(&str, &str); 2] =
    [("413", "The body is too large"), ("415", "The body is not said to be application/json")];

/// The document as it is served. `is_open`: no token is asked for.
pub(super) fn render(document: &utoipa::openapi::OpenApi, is_open: bool) -> serde_json::Result<Bytes> {
    let mut document = serde_json::to_value(document)?;
    document["info"]["version"] = env!("CARGO_PKG_VERSION").into();
    if let Some(info) = document["info"].as_object_mut() {
        info.remove("license");
        info.remove("contact");
    }
    for operation in members(&mut document["paths"]).flat_map(members) {
        complete(operation)?;
    }
    if !is_open {
        document["components"]["securitySchemes"] =
            json!({ "token": { "type": "http", "scheme": "bearer" } });
        document["security"] = json!([{ "token": [] }]);
    }
    choose_one_body(&mut document["components"]["schemas"]);
    serde_json::to_vec(&document).map(Bytes::from)
}

fn complete(operation: &mut Value) -> serde_json::Result<()> {
    let with_a_body = operation.get("requestBody").is_some();
    let more = if with_a_body { &WITH_A_BODY[..] } else { &[] };
    for (status, meaning) in ALWAYS.iter().chain(more) {
        let answer = serde_json::to_value(problem(meaning))?;
        let answers = operation["responses"].as_object_mut();
        answers.map(|answers| answers.entry(*status).or_insert(answer));
    }
    // Names are held to bounds by the database.
    for parameter in operation["parameters"].as_array_mut().into_iter().flatten() {
        let longest = match parameter["name"].as_str() {
            Some("queue" | "route" | "topic" | "name") => 255,
            Some("id") => 512,
            _ => continue,
        };
        parameter["schema"]["minLength"] = 1.into();
        parameter["schema"]["maxLength"] = longest.into();
        parameter["schema"]["pattern"] = NAME_PATTERN.into();
    }
    Ok(())
}

/// What must hold of a pair of fields of which one is given.
fn choose_one_body(schemas: &mut Value) {
    for (schema, payload, base64) in
        [("NewRequest", "payload", "payload_base64"), ("NewMessage", "body", "body_base64")]
    {
        let given = |field: &str, other: &str| json!({ "required": [field], "properties": { other: { "type": "null" } } });
        let schema = &mut schemas[schema];
        schema["properties"][base64]["pattern"] = BASE64_PATTERN.into();
        schema["oneOf"] = json!([given(payload, base64), given(base64, payload)]);
    }
}

fn members(value: &mut Value) -> impl Iterator<Item = &mut Value> {
    value.as_object_mut().into_iter().flat_map(|object| object.values_mut())
}
