//! Errors of the API: a code, details as data, and a message.
//!
//! Clients decide on [`ErrorBody::code`] and [`ErrorBody::details`]. [`ErrorBody::detail`] is human-readable text and
//! may change with any release.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::wire::wire_enum;

/// Body of every response with a status of 400 or above.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// Human-readable message: the cause, and a remedy if one exists.
    pub detail: String,
    /// Error code for programs.
    pub code: ErrorCode,
    /// Facts behind the message.
    #[serde(default, skip_serializing_if = "ErrorDetails::is_empty")]
    pub details: ErrorDetails,
}

impl ErrorBody {
    /// An error without details.
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self { detail: detail.into(), code, details: ErrorDetails::default() }
    }
}

wire_enum! {
    pub enum ErrorCode else Unknown {
        /// 400: the request is not valid HTTP or JSON.
        Malformed = "malformed",
        /// 400: the body exceeds the size limit.
        TooLarge = "too_large",
        /// 400: the path exists and does not support the method.
        MethodNotAllowed = "method_not_allowed",
        /// 401: no token, or a token that is not valid.
        Unauthenticated = "unauthenticated",
        /// 403: the token is valid and does not permit the call.
        Forbidden = "forbidden",
        /// 404: the object does not exist or is not visible to the caller.
        NotFound = "not_found",
        /// 409: an object with the same key exists.
        Exists = "exists",
        /// 409: the name is in use.
        NameTaken = "name_taken",
        /// 409: the node is registered by another agent.
        NodeTaken = "node_taken",
        /// 403: an admin must approve the registration (`agentaflow node approve`).
        ApprovalRequired = "approval_required",
        /// 409: the agent's name belongs to another node.
        AgentTaken = "agent_taken",
        /// 409: the node has live jobs.
        NodeBusy = "node_busy",
        /// 409: the job is not assigned to this node.
        NotAssigned = "not_assigned",
        /// 409: the job has ended.
        AlreadyOver = "already_over",
        /// 409: the job's status does not permit the change.
        IllegalTransition = "illegal_transition",
        /// 409: the idempotency key was used with another body.
        IdempotencyKeyReused = "idempotency_key_reused",
        /// 409: the queue has jobs or child queues.
        QueueInUse = "queue_in_use",
        /// 409: the change would remove the last admin.
        LastAdmin = "last_admin",
        /// 409: the caller authenticated with a key, which has no session.
        NotASession = "not_a_session",
        /// 409: the key is revoked or expired.
        KeyEnded = "key_ended",
        /// 409: the user has the maximum number of keys.
        TooManyKeys = "too_many_keys",
        /// 409: the server's key file holds the maximum number of keys.
        KeyFileFull = "key_file_full",
        /// 422: a value is not valid; `details.field` names the field.
        Invalid = "invalid",
        /// 429: the rate limit is exceeded; `details.retry_after_seconds` gives the delay.
        TooManyRequests = "too_many_requests",
        /// 500: a defect of the server.
        Internal = "internal",
        /// 503: the server cannot store changes now, or is stopping.
        Unavailable = "unavailable",
        /// The response does not come from an agentaflow server, or its code is newer than this client.
        Unknown = "unknown",
    }
}

/// Facts behind an error. Absent fields do not apply.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ErrorDetails {
    /// Path of the field that is not valid: `gpu_count`, `volumes[0].target`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Rule that the value of `field` violates, as a predicate: `must be 1 or more`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Second field of the rule; follows `problem` in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_field: Option<String>,
    /// Object that is missing, in use or in conflict.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<ResourceRef>,
    /// Credential that the call requires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needs: Option<Credential>,
    /// Credential that the caller sent, where the server recognised one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent: Option<Credential>,
    /// Defect of the token that the caller sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenProblem>,
    /// Seconds after which the same request may succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<u64>,
    /// Limit that the request exceeds, in the unit of the field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Values that the server accepts instead.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allowed: Vec<String>,
}

impl ErrorDetails {
    /// Returns true if no field applies.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// An object of the API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ResourceRef {
    /// Type of the object.
    pub kind: ResourceKind,
    /// Name or number, as the caller gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

wire_enum! {
    /// Type of an object of the API.
    pub enum ResourceKind else Unknown {
        Job = "job",
        Node = "node",
        Agent = "agent",
        Queue = "queue",
        User = "user",
        /// An API key or registration token.
        Key = "key",
        /// A task of a job, by its index.
        Task = "task",
        /// A registration of a node that awaits approval.
        Registration = "registration",
        /// A silence of alerts.
        Silence = "silence",
        /// A sink of alerts.
        Sink = "sink",
        /// The certificate of the server.
        Certificate = "certificate",
        /// A path of the API.
        Path = "path",
        /// A type that this version does not know.
        Unknown = "unknown",
    }
}

wire_enum! {
    pub enum Credential else Unknown {
        /// Access token or API key of a user.
        User = "user",
        /// Key of a node or agent, or a registration token.
        Worker = "worker",
        Registration = "registration",
        /// A kind that this version does not know.
        Unknown = "unknown",
    }
}

wire_enum! {
    /// Defect of a token.
    pub enum TokenProblem else Unrecognised {
        /// No token was sent.
        Missing = "missing",
        /// The `Authorization` header is not `Bearer <token>`.
        Header = "header",
        /// No credential with this token exists.
        Unrecognised = "unrecognised",
        /// The token has expired.
        Expired = "expired",
        Revoked = "revoked",
        /// The user of the token is deactivated.
        Inactive = "inactive",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_of_a_newer_server_reads_as_unknown() {
        let text = r#"{"detail": "x", "code": "brand_new", "details": {"field": "a"}}"#;
        let body: ErrorBody = serde_json::from_str(text).unwrap();
        assert_eq!(body.code, ErrorCode::Unknown);
        assert_eq!(body.details.field.as_deref(), Some("a"));
    }

    #[test]
    fn absent_details_are_not_written() {
        let body = ErrorBody::new(ErrorCode::NotFound, "x");
        assert_eq!(serde_json::to_string(&body).unwrap(), r#"{"detail":"x","code":"not_found"}"#);
    }
}
