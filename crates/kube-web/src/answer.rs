//! Errors as responses, in the form of the REST API.

use agentaflow_api::error::{ErrorBody, ErrorCode};
use agentaflow_kube_client::Failure;
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

/// Error of a request.
#[derive(Debug)]
pub(crate) struct Problem(StatusCode, Box<ErrorBody>);

impl Problem {
    fn new(status: StatusCode, code: ErrorCode, detail: impl Into<String>) -> Self {
        Self(status, Box::new(ErrorBody::new(code, detail)))
    }

    pub(crate) fn malformed(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, ErrorCode::Malformed, detail)
    }

    pub(crate) fn unauthenticated(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, ErrorCode::Unauthenticated, detail)
    }

    pub(crate) fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, ErrorCode::Forbidden, detail)
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, ErrorCode::NotFound, detail)
    }

    pub(crate) fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::Unavailable, detail)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        (self.0, Json(self.1)).into_response()
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        let detail = failure.to_string();
        match failure {
            Failure::NotFound(_) => Self::not_found(detail),
            Failure::Forbidden(_) => Self::forbidden(detail),
            Failure::Refused { .. } | Failure::Unsupported(_) => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, ErrorCode::Invalid, detail)
            }
            Failure::Unreachable(_) | Failure::Other(_) => Self::unavailable(detail),
        }
    }
}

/// A review that the API server did not answer.
impl From<kube::Error> for Problem {
    fn from(error: kube::Error) -> Self {
        tracing::warn!(%error, "the API server answers no review");
        let detail = "The scheduler cannot ask the API server for your rights at the moment";
        Self::unavailable(detail)
    }
}
