//! What a call gives: its path, its query and its JSON, each refused with a [`Problem`] that names what is wrong.

use std::{fmt, marker::PhantomData, ops::RangeInclusive, time::Duration};

use axum::{
    body::{Bytes, HttpBody},
    extract::{FromRequest, FromRequestParts, Request},
    http::{header::CONTENT_TYPE, request::Parts},
};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, MapAccess, Visitor, value::MapAccessDeserializer},
};

use super::{
    LONGEST_WAIT,
    content::Wait,
    problem::{Code, Problem},
};

/// The path's parameters, decoded.
pub(super) struct Path<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        Ok(Self(axum::extract::Path::from_request_parts(parts, state).await?.0))
    }
}

/// The query's parameters.
pub(super) struct Query<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        Ok(Self(axum::extract::Query::from_request_parts(parts, state).await?.0))
    }
}

/// What a body is held to, as an extension of the request.
#[derive(Clone, Copy)]
pub(super) struct Arrival {
    pub(super) time: Duration,
    pub(super) max_bytes: usize,
}

/// The body: a JSON object.
///
/// Its type must be said: a page in a browser can send other types to a server that did not invite it.
pub(super) struct Json<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        if !kind.is_some_and(is_json) {
            return Err(Problem::new(Code::UnsupportedMediaType, "Content-Type must be application/json"));
        }
        let unbounded = Arrival { time: Duration::MAX, max_bytes: usize::MAX };
        let Arrival { time, max_bytes } = *request.extensions().get().unwrap_or(&unbounded);
        // As announced: it need not be sent to be refused.
        if request.body().size_hint().lower() > max_bytes as u64 {
            return Err(Problem::new(Code::BodyTooLarge, "the body is larger than max_body_bytes of [api]"));
        }
        let bytes =
            tokio::time::timeout(time, Bytes::from_request(request, state)).await.map_err(|_| {
                Problem::new(Code::RequestTimeout, "the body did not arrive within read_timeout of [api]")
            })??;
        read(&bytes).map(Self)
    }
}

fn is_json(kind: &str) -> bool {
    kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let malformed = |error: &serde_json::Error| Problem::new(Code::MalformedJson, error.to_string());
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let Object(value) = serde_path_to_error::deserialize(&mut json).map_err(|error| match error.inner() {
        inner if !inner.is_data() => malformed(inner),
        inner if error.path().iter().len() == 0 => Problem::argument(inner.to_string()),
        _ => Problem::argument(error.to_string()),
    })?;
    json.end().map_err(|error| malformed(&error))?;
    Ok(value)
}

/// A JSON object and nothing else: a derived `Deserialize` also takes an array of the fields' values.
#[derive(Clone, Debug)]
pub(super) struct Object<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData)).map(Self)
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}

/// Holds a value to its bounds, or says which they are.
pub(super) fn within<N: PartialOrd + fmt::Display>(
    name: &str,
    value: N,
    bounds: RangeInclusive<N>,
) -> Result<N, Problem> {
    if bounds.contains(&value) {
        return Ok(value);
    }
    let (from, to) = bounds.into_inner();
    Err(Problem::argument(format!("{name} must be {from} to {to}, not {value}")))
}

/// How long to wait for something to come.
pub(super) fn check_wait(wait: Wait) -> Result<Duration, Problem> {
    if wait.0 > LONGEST_WAIT {
        return Err(Problem::argument(format!("wait must be 0s to {}s", LONGEST_WAIT.as_secs())));
    }
    Ok(wait.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Call {
        #[serde(default)]
        #[allow(dead_code, reason = "only its reading matters")]
        max: u32,
        #[serde(default)]
        inner: Vec<Object<Call>>,
    }

    #[test]
    fn only_objects_of_known_fields_are_taken() {
        let code = |text: &str| read::<Call>(text.as_bytes()).err().map(|problem| problem.code());
        assert_eq!(code("{}"), None);
        assert_eq!(read::<Call>(b"{\"inner\": [{}, {\"max\": 1}]}").unwrap().inner.len(), 2);
        for wrong in
            ["[]", "null", "1", "{\"min\": 1}", "{\"max\": -1}", "{\"max\": \"1\"}", "{\"inner\": [[]]}"]
        {
            assert_eq!(code(wrong), Some(Code::InvalidArgument), "{wrong}");
        }
        for malformed in ["", "{", "{\"max\": }", "{} {}", "\u{feff}{}"] {
            assert_eq!(code(malformed), Some(Code::MalformedJson), "{malformed}");
        }
    }

    #[test]
    fn the_place_of_what_is_wrong_is_said() {
        let detail = |text: &str| {
            let problem = serde_json::to_value(read::<Call>(text.as_bytes()).unwrap_err()).unwrap();
            problem["detail"].as_str().unwrap().to_owned()
        };
        let said = detail("{\"inner\": [{}, {\"max\": \"1\"}]}");
        assert!(said.starts_with("inner[1].max: invalid type: string \"1\", expected u32"), "{said}");
        let said = detail("[]");
        assert!(said.starts_with("invalid type: sequence, expected an object"), "{said}");
    }

    #[test]
    fn bounds_are_said_with_their_name() {
        assert_eq!(within("max", 256, 1..=256).unwrap(), 256);
        let problem = serde_json::to_value(within("max", 0, 1..=256).unwrap_err()).unwrap();
        assert_eq!(problem["detail"], "max must be 1 to 256, not 0");
    }

    #[test]
    fn json_is_told_by_its_media_type() {
        assert!(is_json("application/json") && is_json("Application/JSON; charset=utf-8"));
        assert!(!is_json("text/plain") && !is_json("application/jsonp") && !is_json(""));
    }
}
