//! Errors that the API returns: an HTTP status, a code and details for programs, and a human-readable message.

use std::fmt::Display;

use agentaflow_api::error::{
    Credential, ErrorBody, ErrorCode, ErrorDetails, ResourceKind, ResourceRef, TokenProblem,
};
use thiserror::Error;

/// Longest name that an error repeats, in characters.
const MOST_NAME: usize = 200;

/// A request that failed before any change was written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct ApiError {
    pub status: u16,
    pub code: ErrorCode,
    pub details: Box<ErrorDetails>,
    /// Human-readable message; no code depends on it. [`Self::into_body`] adds the capital letter.
    pub message: String,
}

impl ApiError {
    /// An error without details.
    pub fn new(status: u16, code: ErrorCode, message: impl Into<String>) -> Self {
        Self { status, code, details: Box::default(), message: message.into() }
    }

    /// 400: the request is not valid HTTP or JSON.
    pub fn malformed(message: impl Into<String>) -> Self {
        Self::new(400, ErrorCode::Malformed, message)
    }

    /// 401: no valid token.
    pub fn unauthenticated(message: impl Into<String>) -> Self {
        Self::new(401, ErrorCode::Unauthenticated, message)
    }

    /// 403: the token does not permit the call.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(403, ErrorCode::Forbidden, message)
    }

    /// 404: the object does not exist or is not visible to the caller.
    pub fn not_found(kind: ResourceKind, name: impl Display) -> Self {
        let name = name.to_string().chars().take(MOST_NAME).collect();
        let resource = ResourceRef { kind, name: Some(name) };
        let message = agentaflow_explain::error::not_found(&resource);
        Self::new(404, ErrorCode::NotFound, message).about(resource.kind, resource.name)
    }

    /// 404: the server has no object of this kind.
    pub fn absent(kind: ResourceKind, message: impl Into<String>) -> Self {
        Self::new(404, ErrorCode::NotFound, message).about(kind, None)
    }

    /// 409: the state of an object does not permit the change.
    pub fn conflict(code: ErrorCode, message: impl Into<String>) -> Self {
        Self::new(409, code, message)
    }

    /// 422: a value of this field is not valid.
    pub fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(422, ErrorCode::Invalid, message).at(field)
    }

    /// 422: the value of this field violates a rule; `problem` is a predicate such as `must be 1 or more`.
    pub fn violation(field: impl Into<String>, problem: impl Into<String>) -> Self {
        let mut error = Self::invalid(field, String::new());
        error.details.problem = Some(problem.into());
        error.render_violation()
    }

    /// 422: the values of two fields contradict each other; `problem` precedes the second field.
    pub fn contradiction(field: &str, problem: impl Into<String>, other: &str) -> Self {
        let mut error = Self::violation(field, problem);
        error.details.other_field = Some(other.to_owned());
        error.render_violation()
    }

    fn render_violation(mut self) -> Self {
        let message = agentaflow_explain::error::violation(&self.details, str::to_owned);
        self.message = message.unwrap_or_default();
        self
    }

    /// 422: this field names an object that does not exist.
    pub fn unknown_object(field: &str, kind: ResourceKind, name: impl Display) -> Self {
        let missing = Self::not_found(kind, name).at(field);
        Self { status: 422, code: ErrorCode::Invalid, ..missing }
    }

    /// 429: the rate limit is exceeded for this many seconds.
    pub fn too_many(message: impl Into<String>, retry_after: u64) -> Self {
        Self::new(429, ErrorCode::TooManyRequests, message).retry_after(retry_after)
    }

    /// 503: the server cannot store changes now, or is stopping.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(503, ErrorCode::Unavailable, message).retry_after(2)
    }

    /// Adds the field; an empty path means the body itself.
    #[must_use]
    pub fn at(mut self, field: impl Into<String>) -> Self {
        self.details.field = Some(field.into()).filter(|field| !field.is_empty());
        self
    }

    /// Adds the object that is missing or in conflict.
    #[must_use]
    pub fn about(mut self, kind: ResourceKind, name: Option<String>) -> Self {
        self.details.resource = Some(ResourceRef { kind, name });
        self
    }

    /// Adds the credential that the call requires.
    #[must_use]
    pub fn needs(mut self, credential: Credential) -> Self {
        self.details.needs = Some(credential);
        self
    }

    /// Adds the credential that the caller sent.
    #[must_use]
    pub fn sent(mut self, credential: Credential) -> Self {
        self.details.sent = Some(credential);
        self
    }

    /// Adds the defect of the token.
    #[must_use]
    pub fn token(mut self, problem: TokenProblem) -> Self {
        self.details.token = Some(problem);
        self
    }

    /// Adds the seconds after which a retry may succeed; also sent as `Retry-After`.
    #[must_use]
    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.details.retry_after_seconds = Some(seconds);
        self
    }

    /// Adds the limit that the request exceeds.
    #[must_use]
    pub fn limit(mut self, limit: u64) -> Self {
        self.details.limit = Some(limit);
        self
    }

    /// Body of the response. Its text starts with a capital letter.
    pub fn into_body(self) -> ErrorBody {
        ErrorBody {
            detail: agentaflow_explain::capitalised(&self.message),
            code: self.code,
            details: *self.details,
        }
    }
}
