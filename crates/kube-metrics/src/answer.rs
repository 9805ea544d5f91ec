//! Responses in the form of the Kubernetes API.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};

use super::router::{GROUP, VERSION};

/// Failed request, as a `Status` object.
#[derive(Debug)]
pub(super) struct Failure {
    code: StatusCode,
    reason: &'static str,
    message: String,
}

impl Failure {
    pub(super) fn not_found(what: impl Into<String>) -> Self {
        let message = format!("{} not found", what.into());
        Self { code: StatusCode::NOT_FOUND, reason: "NotFound", message }
    }

    pub(super) fn forbidden(message: impl Into<String>) -> Self {
        Self { code: StatusCode::FORBIDDEN, reason: "Forbidden", message: message.into() }
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self { code: StatusCode::BAD_REQUEST, reason: "BadRequest", message: message.into() }
    }
}

/// The API server refused a request of this process, or did not answer.
impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 400 => Self::bad_request(status.message),
            error => {
                tracing::warn!(%error, "cannot answer a request for metrics");
                let code = StatusCode::SERVICE_UNAVAILABLE;
                Self { code, reason: "ServiceUnavailable", message: error.to_string() }
            }
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code.as_u16(),
        });
        (self.code, Json(status)).into_response()
    }
}

/// A value of an object.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MetricValue {
    pub(super) described_object: Value,
    pub(super) metric: Value,
    pub(super) timestamp: jiff::Timestamp,
    /// A quantity.
    pub(super) value: String,
}

pub(super) fn list(items: &[MetricValue]) -> Json<Value> {
    Json(json!({
        "kind": "MetricValueList", "apiVersion": format!("{GROUP}/{VERSION}"), "metadata": {}, "items": items,
    }))
}
