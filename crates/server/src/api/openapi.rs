//! `/openapi.json`: gathered from the handlers, and completed with what holds for all of them.

use std::collections::BTreeMap;

use axum::body::Bytes;
use serde_json::{Value, json};
use utoipa::{
    IntoResponses, OpenApi,
    openapi::{ContentBuilder, Ref, RefOr, Response, ResponseBuilder},
};

use super::{
    content::NAME_PATTERN,
    problem::{PROBLEM_JSON, Problem},
};

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
const WITH_A_BODY: [(&str, &str); 3] = [
    ("408", "The body did not arrive in time"),
    ("413", "The body is too large"),
    ("415", "The body is not said to be application/json"),
];

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
    link_settling(&mut document["paths"]);
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
    let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
    for parameter in parameters.into_iter().flatten() {
        if let Some("queue" | "route" | "topic" | "name") = parameter["name"].as_str() {
            parameter["schema"]["minLength"] = 1.into();
            parameter["schema"]["maxLength"] = 255.into();
            parameter["schema"]["pattern"] = NAME_PATTERN.into();
        }
    }
    Ok(())
}

/// What is received is settled with what came with it.
fn link_settling(paths: &mut Value) {
    let links = ["complete", "abandon", "reject", "defer", "renew"].map(|verb| {
        let lock = json!({ "seq": "$response.body#/messages/0/seq",
            "lock_token": "$response.body#/messages/0/lock_token" });
        let queue = json!({ "queue": "$request.path.queue" });
        (verb.to_owned(), json!({ "operationId": verb, "parameters": queue, "requestBody": lock }))
    });
    let links = Value::Object(links.into_iter().collect());
    paths["/v1/queues/{queue}/receive"]["post"]["responses"]["200"]["links"] = links;
}

/// What must hold of a pair of fields of which one is given. No field and a null one are the same, but for a payload,
/// which may be any JSON.
fn choose_one_body(schemas: &mut Value) {
    let text = || json!({ "type": "string", "pattern": BASE64_PATTERN });
    let bytes = |field: &str| json!({ "required": [field], "properties": { field: text() } });
    let absent = json!({ "type": "null" });
    schemas["NewRequest"]["oneOf"] = json!([
        { "required": ["payload"], "properties": { "payload_base64": absent } },
        { "allOf": [bytes("payload_base64"), { "not": { "required": ["payload"] } }] },
    ]);
    schemas["NewMessage"]["oneOf"] = json!([
        { "required": ["body"], "properties": { "body": { "type": "string" }, "body_base64": absent } },
        { "allOf": [bytes("body_base64"), { "properties": { "body": absent } }] },
    ]);
    schemas["Complete"]["anyOf"] = json!([
        { "properties": { "body_base64": absent } },
        { "allOf": [bytes("body_base64"), { "properties": { "body": absent } }] },
    ]);
}

fn members(value: &mut Value) -> impl Iterator<Item = &mut Value> {
    value.as_object_mut().into_iter().flat_map(|object| object.values_mut())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::api;

    #[test]
    fn every_operation_has_a_name_of_its_own_and_says_what_it_may_answer() {
        let (_, document) = api::operations(&api::Access::default()).split_for_parts();
        let document: Value = serde_json::from_slice(&render(&document, false).unwrap()).unwrap();
        let mut names = BTreeSet::new();
        for (path, operations) in document["paths"].as_object().unwrap() {
            for (method, operation) in operations.as_object().unwrap() {
                let name = operation["operationId"].as_str().unwrap();
                assert!(names.insert(name.to_owned()), "{name} is there twice");
                assert!(operation["summary"].is_string(), "{method} {path}");
                for (status, answer) in operation["responses"].as_object().unwrap() {
                    let is_problem = answer["content"].get(PROBLEM_JSON).is_some();
                    assert_eq!(status.as_str() >= "400", is_problem, "{method} {path}: {status}");
                    assert!(
                        answer["description"].as_str().is_some_and(|text| !text.is_empty()),
                        "{path}: {status}"
                    );
                }
                for status in ["400", "401", "403", "500", "503", "504"] {
                    assert!(operation["responses"].get(status).is_some(), "{method} {path}: {status}");
                }
            }
        }
        assert_eq!(names.len(), 31, "{names:?}");
        for link in document["paths"]["/v1/queues/{queue}/receive"]["post"]["responses"]["200"]["links"]
            .as_object()
            .unwrap()
            .keys()
        {
            assert!(names.contains(link), "{link}");
        }
    }
}
