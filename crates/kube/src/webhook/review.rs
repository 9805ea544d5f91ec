//! The API server's questions and our answers, as they travel.

use k8s_openapi::api::authentication::v1::UserInfo;
use serde::Deserialize;
use serde_json::{Value, json};

/// A question with its envelope.
#[derive(Debug, Deserialize)]
pub(super) struct Review {
    pub(super) request: Request,
}

/// What somebody wants to do.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Request {
    pub(super) uid: String,
    #[serde(default)]
    pub(super) operation: String,
    #[serde(default)]
    pub(super) namespace: String,
    #[serde(default)]
    pub(super) user_info: UserInfo,
    #[serde(default)]
    pub(super) object: Value,
    #[serde(default)]
    pub(super) old_object: Value,
}

impl Request {
    /// Whether this changes what was asked for; everything else (finalizers, labels) is nobody's business here.
    pub(super) fn changes_spec(&self) -> bool {
        let leaves = !self.object["metadata"]["deletionTimestamp"].is_null();
        !leaves && (self.operation == "CREATE" || self.object["spec"] != self.old_object["spec"])
    }
}

/// Our answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Verdict {
    /// What is wrong, each with its field and what to write instead; empty lets it pass.
    pub(super) problems: Vec<String>,
    /// It is wrong to ask, whatever is written.
    pub(super) forbidden: bool,
    /// What the person who asks should know.
    pub(super) warnings: Vec<String>,
    /// JSON patch operations.
    pub(super) patch: Vec<Value>,
}

impl Verdict {
    /// A refusal for one reason.
    pub(super) fn refuse(problem: impl Into<String>) -> Self {
        Self { problems: vec![problem.into()], ..Self::default() }
    }

    /// A refusal because of who asks.
    pub(super) fn forbid(problem: impl Into<String>) -> Self {
        Self { forbidden: true, ..Self::refuse(problem) }
    }

    /// Adds what another check found.
    pub(super) fn add(&mut self, other: Self) {
        self.problems.extend(other.problems);
        self.warnings.extend(other.warnings);
        self.patch.extend(other.patch);
        self.forbidden |= other.forbidden;
    }

    /// The answer as it travels.
    pub(super) fn answer(self, uid: &str) -> Value {
        let mut response = json!({"uid": uid, "allowed": self.problems.is_empty()});
        if !self.problems.is_empty() {
            let (code, reason) = if self.forbidden { (403, "Forbidden") } else { (422, "Invalid") };
            let message = self.problems.join("; ");
            response["status"] = json!({
                "status": "Failure", "code": code, "reason": reason, "message": message,
            });
        } else if !self.patch.is_empty() {
            response["patchType"] = "JSONPatch".into();
            response["patch"] = encode(&Value::from(self.patch)).into();
        }
        if !self.warnings.is_empty() {
            response["warnings"] = self.warnings.into();
        }
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
    }
}

fn encode(value: &Value) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(value.to_string())
}
