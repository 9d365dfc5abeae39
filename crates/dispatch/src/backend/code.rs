//! The error codes a result can carry.

use std::fmt;
use std::str::FromStr;

/// Why a request has no successful answer. The text form is what producers and pollers see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// The deadline passed before an answer came.
    DeadlineExceeded,
    /// Somebody cancelled the request.
    Cancelled,
    /// A gate dropped the request.
    GateDropped,
    /// A gate failed.
    GateError,
    /// The backend failed, or answered with a failure.
    BackendError,
    /// The request cannot be sent as it is.
    InvalidRequest,
    /// The request was dispatched as often as it may be.
    MaxDeliveriesExceeded,
    /// The answer is larger than allowed.
    ResultTooLarge,
}

impl ErrorCode {
    /// Every code.
    pub const ALL: [ErrorCode; 8] = [
        ErrorCode::DeadlineExceeded,
        ErrorCode::Cancelled,
        ErrorCode::GateDropped,
        ErrorCode::GateError,
        ErrorCode::BackendError,
        ErrorCode::InvalidRequest,
        ErrorCode::MaxDeliveriesExceeded,
        ErrorCode::ResultTooLarge,
    ];

    /// The code as it stands in a result row.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            ErrorCode::DeadlineExceeded => "DEADLINE_EXCEEDED",
            ErrorCode::Cancelled => "CANCELLED",
            ErrorCode::GateDropped => "GATE_DROPPED",
            ErrorCode::GateError => "GATE_ERROR",
            ErrorCode::BackendError => "BACKEND_ERROR",
            ErrorCode::InvalidRequest => "INVALID_REQUEST",
            ErrorCode::MaxDeliveriesExceeded => "MAX_DELIVERIES_EXCEEDED",
            ErrorCode::ResultTooLarge => "RESULT_TOO_LARGE",
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text that is no [`ErrorCode`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no error code")]
pub struct UnknownErrorCode(pub String);

impl FromStr for ErrorCode {
    type Err = UnknownErrorCode;

    /// Exact: neither case nor white space is forgiven.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|code| code.as_str() == text)
            .ok_or_else(|| UnknownErrorCode(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_round_trips_through_its_text() {
        for code in ErrorCode::ALL {
            assert_eq!(code.as_str().parse(), Ok(code));
        }
    }

    #[test]
    fn other_text_is_refused_and_named() {
        let error = "backend_error".parse::<ErrorCode>().unwrap_err();
        assert_eq!(error.to_string(), "\"backend_error\" is no error code");
    }
}
