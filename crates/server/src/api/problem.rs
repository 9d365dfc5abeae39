//! Errors as callers see them: `application/problem+json`, with a status and a stable word for each.

use std::error::Error;

use axum::{
    Json,
    extract::rejection::{BytesRejection, PathRejection, QueryRejection},
    http::{
        HeaderValue, StatusCode,
        header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER},
    },
    response::{IntoResponse, Response},
};
use leasehold_store::Error as StoreError;
use serde::Serialize;
use utoipa::ToSchema;

/// RFC 9457.
pub(super) const PROBLEM_JSON: &str = "application/problem+json";

/// What went wrong, in a word that programs can rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Code {
    MalformedJson,
    InvalidArgument,
    InvalidFilter,
    GroupRequired,
    Unauthenticated,
    ScopeMissing,
    ForeignHost,
    NoSuchPath,
    QueueNotFound,
    NotFound,
    MethodNotAllowed,
    RequestTimeout,
    Conflict,
    DedupConflict,
    NameConflict,
    LockLost,
    BodyTooLarge,
    MessageTooLarge,
    UnsupportedMediaType,
    Internal,
    SchemaVersion,
    Unavailable,
    Closed,
    Timeout,
}

impl Code {
    fn status(self) -> StatusCode {
        match self {
            Self::MalformedJson | Self::InvalidArgument | Self::InvalidFilter | Self::GroupRequired => {
                StatusCode::BAD_REQUEST
            }
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::ScopeMissing | Self::ForeignHost => StatusCode::FORBIDDEN,
            Self::NoSuchPath | Self::QueueNotFound | Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::Conflict | Self::DedupConflict | Self::NameConflict => StatusCode::CONFLICT,
            Self::LockLost => StatusCode::GONE,
            Self::BodyTooLarge | Self::MessageTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Internal | Self::SchemaVersion => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Unavailable | Self::Closed => StatusCode::SERVICE_UNAVAILABLE,
            Self::Timeout => StatusCode::GATEWAY_TIMEOUT,
        }
    }
}

/// An error, as RFC 9457 has it.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Problem {
    /// Always `about:blank`: `code` tells one kind from another.
    r#type: &'static str,
    /// The status in words.
    title: &'static str,
    /// The status again.
    status: u16,
    /// For people.
    detail: String,
    code: Code,
}

impl Problem {
    pub(super) fn new(code: Code, detail: impl Into<String>) -> Self {
        let status = code.status();
        Self {
            r#type: "about:blank",
            title: status.canonical_reason().unwrap_or_default(),
            status: status.as_u16(),
            detail: detail.into(),
            code,
        }
    }

    /// An argument is at fault; `detail` names it.
    pub(super) fn argument(detail: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, detail)
    }

    /// What [`crate::when::Clock`] says: the database's error, or a time that is at fault.
    pub(super) fn of_clock(error: anyhow::Error) -> Self {
        match error.downcast::<StoreError>() {
            Ok(error) => error.into(),
            Err(error) => Self::argument(error.to_string()),
        }
    }

    /// The same, with the place of what is at fault.
    pub(super) fn at(mut self, place: &str) -> Self {
        self.detail = format!("{place}: {}", self.detail);
        self
    }

    pub(super) fn code(&self) -> Code {
        self.code
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.code.status(), Json(&self)).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if self.code.status() == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let code = match &error {
            StoreError::InvalidArgument(_) => Code::InvalidArgument,
            StoreError::QueueNotFound(_) => Code::QueueNotFound,
            StoreError::Conflict(_) => Code::Conflict,
            StoreError::PayloadTooLarge(_) => Code::MessageTooLarge,
            StoreError::LockLost(_) => Code::LockLost,
            StoreError::DedupConflict(_) => Code::DedupConflict,
            StoreError::NameConflict(_) => Code::NameConflict,
            StoreError::GroupRequired(_) => Code::GroupRequired,
            StoreError::InvalidFilter(_) => Code::InvalidFilter,
            StoreError::NotFound(_) => Code::NotFound,
            StoreError::Closed(_) => Code::Closed,
            _ => return of_database(&error),
        };
        Self::new(code, error.to_string())
    }
}

/// What is not the caller's to know goes to the log, with the whole chain.
fn of_database(error: &StoreError) -> Problem {
    let logged = error as &dyn Error;
    let (code, detail) = match error {
        _ if error.refuses_data() => {
            // A NUL in a text, say, or a number that a column cannot hold.
            tracing::warn!(error = logged, "a call of the API was refused by the database");
            return Problem::argument("a value cannot be stored: a NUL in a text, or a number out of range");
        }
        StoreError::Unavailable { .. } | StoreError::Refused { .. } => {
            (Code::Unavailable, "the database cannot be reached; what was asked may have been done")
        }
        StoreError::Timeout { .. } => {
            (Code::Timeout, "the database did not answer in time; what was asked may have been done")
        }
        StoreError::ForeignSchema { .. } | StoreError::SchemaVersion { .. } => {
            (Code::SchemaVersion, "the database's schema and this server do not fit")
        }
        _ if error.may_pass() => {
            (Code::Unavailable, "the database gave it up for now, and nothing was done; ask again")
        }
        _ => (Code::Internal, "something went wrong here; the server's log has more"),
    };
    tracing::error!(error = logged, "a call of the API failed");
    Problem::new(code, detail)
}

impl From<BytesRejection> for Problem {
    fn from(rejection: BytesRejection) -> Self {
        match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => {
                Self::new(Code::BodyTooLarge, "the body is larger than max_body_bytes of [api]")
            }
            _ => Self::argument("the body could not be read to its end"),
        }
    }
}

impl From<PathRejection> for Problem {
    fn from(rejection: PathRejection) -> Self {
        Self::argument(format!("path: {}", rejection.body_text()))
    }
}

impl From<QueryRejection> for Problem {
    fn from(rejection: QueryRejection) -> Self {
        Self::argument(format!("query: {}", rejection.body_text()))
    }
}

/// Gives errors that did not come from a handler the form of all others.
pub(super) async fn reshape(response: Response) -> Response {
    let status = response.status();
    let is_error = status.is_client_error() || status.is_server_error();
    if !is_error || response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == PROBLEM_JSON) {
        return response;
    }
    let problem = match status {
        StatusCode::NOT_FOUND => Problem::new(Code::NoSuchPath, "there is nothing at this path"),
        StatusCode::METHOD_NOT_ALLOWED => Problem::new(
            Code::MethodNotAllowed,
            "the path does not take this method; Allow names those it takes",
        ),
        StatusCode::PAYLOAD_TOO_LARGE => Problem::new(Code::BodyTooLarge, "the body is too large"),
        status if status.is_client_error() => Problem::argument("the request is not understood"),
        _ => Problem::new(Code::Internal, "something went wrong here"),
    };
    let (mut parts, _) = response.into_parts();
    let (shape, body) = problem.into_response().into_parts();
    parts.status = shape.status;
    parts.headers.remove(CONTENT_LENGTH);
    parts.headers.extend(shape.headers);
    Response::from_parts(parts, body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_a_stable_word_and_says_its_status() {
        let problem = Problem::new(Code::LockLost, "the lock has lapsed");
        let json = serde_json::to_value(&problem).unwrap();
        let wanted = serde_json::json!({
            "type": "about:blank", "title": "Gone", "status": 410, "detail": "the lock has lapsed", "code": "lock_lost"
        });
        assert_eq!(json, wanted);
    }

    #[test]
    fn nothing_internal_is_shown() {
        let error = StoreError::Unavailable { operation: "send", source: "10.0.0.7 refused".into() };
        let problem = Problem::from(error);
        assert_eq!(problem.code(), Code::Unavailable);
        assert!(!problem.detail.contains("10.0.0.7"));
    }
}
