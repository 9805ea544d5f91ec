//! How the server says no: a status, a word for programs and a sentence for people.

use thiserror::Error;

/// A request that is not carried out. Nothing was written for it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{detail}")]
pub struct Refusal {
    /// The HTTP status.
    pub status: u16,
    /// One word for programs.
    pub code: &'static str,
    /// What was wrong and what to do.
    pub detail: String,
    /// The field that was wrong.
    pub field: Option<String>,
    /// Seconds after which it is worth another try.
    pub retry_after: Option<u64>,
}

impl Refusal {
    fn new(status: u16, code: &'static str, detail: impl Into<String>) -> Self {
        Self { status, code, detail: detail.into(), field: None, retry_after: None }
    }

    /// 400: not even a request of the right form.
    pub fn malformed(detail: impl Into<String>) -> Self {
        Self::new(400, "malformed", detail)
    }

    /// 401: who are you?
    pub fn unauthenticated(detail: impl Into<String>) -> Self {
        Self::new(401, "unauthenticated", detail)
    }

    /// 403: you may not.
    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(403, "forbidden", detail)
    }

    /// 404: there is no such thing, or you may not know of it.
    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(404, "not_found", detail)
    }

    /// 409: not in this state.
    pub fn conflict(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(409, code, detail)
    }

    /// 422: the form is right, a value is not.
    pub fn invalid(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..Self::new(422, "invalid", detail) }
    }

    /// 429: too fast.
    pub fn too_many(detail: impl Into<String>, retry_after: u64) -> Self {
        Self { retry_after: Some(retry_after), ..Self::new(429, "too_many_requests", detail) }
    }

    /// 503: the server cannot keep its promises now (disk full, database gone, stopping).
    pub fn unavailable(detail: impl Into<String>) -> Self {
        Self { retry_after: Some(2), ..Self::new(503, "unavailable", detail) }
    }
}
