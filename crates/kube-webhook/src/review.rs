//! Admission requests and responses on the wire.

use std::fmt::Display;

use agentaflow_kube_core::gpu_workload::{BadSpec, BadTemplate};
use k8s_openapi::api::authentication::v1::UserInfo;
use serde::Deserialize;
use serde_json::{Value, json};

/// Admission review. Not `Debug`: a request contains a whole pod, which must not be logged.
#[derive(Deserialize)]
pub(super) struct Review {
    pub(super) request: Request,
}

/// Admission request.
#[derive(Default, Deserialize)]
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
    /// True if the spec changes; other changes (finalizers, labels) are not checked.
    pub(super) fn changes_spec(&self) -> bool {
        let leaves = !self.object["metadata"]["deletionTimestamp"].is_null();
        !leaves && (self.operation == "CREATE" || self.object["spec"] != self.old_object["spec"])
    }

    /// True if its namespace is empty or a valid name: it becomes part of URL paths.
    pub(super) fn is_of_a_namespace_or_none(&self) -> bool {
        let Self { namespace, .. } = self;
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        namespace.len() <= 63
            && namespace.bytes().all(plain)
            && !namespace.starts_with('-')
            && !namespace.ends_with('-')
    }

    /// True if an update changes the pod template. The schema has the same rule; the installed schema may be older.
    pub(super) fn changes_template(&self) -> bool {
        let [new, old] = [&self.object, &self.old_object].map(|one| &one["spec"]["podTemplate"]);
        self.operation != "CREATE" && new != old
    }
}

/// Admission response.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct AdmissionResult {
    /// Empty admits the object.
    pub(super) problems: Vec<Problem>,
    /// The user lacks permission.
    pub(super) forbidden: bool,
    /// Warnings for the user.
    pub(super) warnings: Vec<String>,
    pub(super) patch: Vec<Value>,
}

/// Reason for a rejection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    /// Path of the field, such as `spec.priority`.
    pub(super) field: Option<String>,
    /// Problem and suggestion, with the field.
    pub(super) message: String,
}

impl Problem {
    /// Problem of a field; the message starts with the field.
    pub(super) fn at(field: impl Into<String>, message: impl Display) -> Self {
        let field = field.into();
        Self { message: format!("{field}: {message}"), field: Some(field) }
    }
}

impl From<String> for Problem {
    fn from(message: String) -> Self {
        Self { field: None, message }
    }
}

impl From<BadSpec> for Problem {
    fn from(error: BadSpec) -> Self {
        Self { field: Some(error.field().to_owned()), message: error.to_string() }
    }
}

impl From<BadTemplate> for Problem {
    fn from(error: BadTemplate) -> Self {
        Self { field: Some(error.field()), message: error.to_string() }
    }
}

impl AdmissionResult {
    /// Rejection with one problem.
    pub(super) fn refuse(problem: impl Into<Problem>) -> Self {
        Self { problems: vec![problem.into()], ..Self::default() }
    }

    /// Rejection for lack of permission.
    pub(super) fn forbid(problem: impl Into<Problem>) -> Self {
        Self { forbidden: true, ..Self::refuse(problem) }
    }

    /// All problems in one line.
    pub(super) fn message(&self) -> String {
        let messages: Vec<&str> =
            self.problems.iter().map(|problem| problem.message.as_str()).collect();
        messages.join("; ")
    }

    /// Adds the findings of another check.
    pub(super) fn add(&mut self, other: Self) {
        self.problems.extend(other.problems);
        self.warnings.extend(other.warnings);
        self.patch.extend(other.patch);
        self.forbidden |= other.forbidden;
    }

    /// Admission response as JSON.
    pub(super) fn answer(self, uid: &str) -> Value {
        let mut response = json!({"uid": uid, "allowed": self.problems.is_empty()});
        if !self.problems.is_empty() {
            let (code, reason) = if self.forbidden { (403, "Forbidden") } else { (422, "Invalid") };
            let causes: Vec<Value> = self
                .problems
                .iter()
                .filter_map(|Problem { field, message }| {
                    let field = field.as_ref()?;
                    Some(json!({"reason": "FieldValueInvalid", "field": field, "message": message}))
                })
                .collect();
            response["status"] = json!({
                "status": "Failure", "code": code, "reason": reason, "message": self.message(),
                "details": {"causes": causes},
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

#[cfg(test)]
mod tests {
    use base64::Engine as _;

    use super::*;

    fn review(request: &Value) -> Request {
        let text = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request,
        });
        let review: Review = serde_json::from_str(&text.to_string()).unwrap();
        review.request
    }

    #[test]
    fn a_question_is_read_as_the_api_server_writes_it() {
        let request = review(&json!({
            "uid": "0c9a", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "namespace": "team",
            "operation": "CREATE", "object": {"metadata": {}}, "oldObject": null, "dryRun": false,
            "userInfo": {"username": "alice", "groups": ["dev"], "extra": {"a": ["b"]}},
        }));
        assert_eq!((request.uid.as_str(), request.namespace.as_str()), ("0c9a", "team"));
        assert_eq!(request.user_info.username.as_deref(), Some("alice"));
        assert!(request.changes_spec());
    }

    #[test]
    fn changes_outside_the_spec_and_of_deleted_objects_are_accepted() {
        let object = |priority: u8, metadata: Value| json!({"metadata": metadata, "spec": {"priority": priority}});
        for (new, changes) in [
            (object(5, json!({"finalizers": []})), false),
            (object(6, json!({})), true),
            (object(6, json!({"deletionTimestamp": "2026-01-01T00:00:00Z"})), false),
        ] {
            let old = object(5, json!({}));
            let request = review(&json!({
                "uid": "u", "operation": "UPDATE", "object": new, "oldObject": old, "userInfo": {},
            }));
            assert_eq!(request.changes_spec(), changes, "{new}");
        }
    }

    #[test]
    fn a_namespace_that_cannot_be_one_is_noticed() {
        let long = "a".repeat(63);
        for (namespace, fine) in [
            ("team", true),
            ("", true),
            (&*long, true),
            (&*format!("{long}a"), false),
            ("kube-system", true),
            ("-team", false),
            ("team-", false),
            ("Team", false),
            ("a/../b", false),
            ("a?b", false),
        ] {
            let request = Request { namespace: namespace.to_owned(), ..Request::default() };
            assert_eq!(request.is_of_a_namespace_or_none(), fine, "{namespace}");
        }
    }

    #[test]
    fn a_template_that_becomes_another_one_is_noticed() {
        let object = |image: &str, priority: u8| {
            let template = json!({"spec": {"containers": [{"name": "main", "image": image}]}});
            json!({"spec": {"priority": priority, "podTemplate": template}})
        };
        for (operation, new, changes) in [
            ("UPDATE", object("a", 7), false),
            ("UPDATE", object("b", 5), true),
            ("UPDATE", json!({"spec": {"priority": 5}}), true),
            ("CREATE", object("b", 5), false),
        ] {
            let old = object("a", 5);
            let request = review(&json!({
                "uid": "u", "operation": operation, "object": new, "oldObject": old, "userInfo": {},
            }));
            assert_eq!(request.changes_template(), changes, "{operation} {new}");
        }
    }

    #[test]
    fn an_answer_carries_the_patch_or_the_refusal() {
        let patch =
            vec![json!({"op": "add", "path": "/spec/schedulerName", "value": "agentaflow"})];
        let allowed =
            AdmissionResult { patch: patch.clone(), ..AdmissionResult::default() }.answer("u");
        assert_eq!(allowed["response"]["uid"], "u");
        assert_eq!(allowed["response"]["patchType"], "JSONPatch");
        let sent = allowed["response"]["patch"].as_str().unwrap();
        let sent = base64::engine::general_purpose::STANDARD.decode(sent).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&sent).unwrap(), Value::from(patch));

        let mut refused = AdmissionResult::refuse("one".to_owned());
        refused.add(AdmissionResult::refuse(Problem::at("spec.weight", "two")));
        let refused = refused.answer("u");
        assert_eq!(refused["response"]["allowed"], false);
        assert_eq!(refused["response"]["status"]["message"], "one; spec.weight: two");
        assert_eq!(
            refused["response"]["status"]["details"]["causes"],
            json!([{"reason": "FieldValueInvalid", "field": "spec.weight", "message": "spec.weight: two"}])
        );
        assert_eq!(refused["response"]["status"]["code"], 422);
        assert_eq!(
            AdmissionResult::forbid("no".to_owned()).answer("u")["response"]["status"]["code"],
            403
        );
    }
}
