//! A job to submit, as a REST job or a Kubernetes object. The two forms convert to each other if the target has all fields.

use agentaflow_api::client::ClientError;
use agentaflow_api::job::JobCreate;
use agentaflow_kube_client::Failure;
use agentaflow_kube_client::convert::{self, Unfit};
use agentaflow_manifest::yaml::Document;
use anyhow::Result;
use serde_json::Value;

use crate::failure::{bad_file, usage};

#[derive(Clone, Debug)]
pub(crate) struct Submission {
    pub(crate) content: SubmissionContent,
    /// `None` for a job described by options.
    pub(crate) source: Option<SourceDocument>,
}

#[derive(Clone, Debug)]
pub(crate) enum SubmissionContent {
    Job(Box<JobCreate>),
    Object(Value),
}

/// A document of a file.
#[derive(Clone, Debug)]
pub(crate) struct SourceDocument {
    pub(crate) file: String,
    /// After every `--set`, with the positions of the file.
    pub(crate) document: Document,
    /// Overrides of `--set FIELD=VALUE`.
    pub(crate) set: Vec<(String, String)>,
}

impl Submission {
    pub(crate) fn name(&self) -> Option<&str> {
        match &self.content {
            SubmissionContent::Job(job) => job.spec.job_name.as_deref(),
            SubmissionContent::Object(object) => object["metadata"]["name"].as_str(),
        }
    }

    pub(crate) fn job(&self) -> Result<JobCreate> {
        match &self.content {
            SubmissionContent::Job(job) => Ok((**job).clone()),
            SubmissionContent::Object(object) => {
                let kind = object["kind"].as_str().unwrap_or("object");
                convert::job(object).map_err(|unfit| {
                    self.unsupported(&format!("{kind} cannot be submitted to a server"), &unfit)
                })
            }
        }
    }

    pub(crate) fn object(&self) -> Result<Value> {
        match &self.content {
            SubmissionContent::Object(object) => Ok(object.clone()),
            SubmissionContent::Job(job) => convert::object(job)
                .map_err(|unfit| self.unsupported("job cannot be submitted to a cluster", &unfit)),
        }
    }

    fn unsupported(&self, what: &str, unfit: &Unfit) -> anyhow::Error {
        let Some(source) = &self.source else {
            return usage(format!("this {what}: {unfit}"));
        };
        let steps = source.steps(&unfit.field);
        match source.setting(&steps) {
            Some(set) => usage(format!("{set}: this {what}: {unfit}")),
            None => bad_file(format!("{}: this {what}: {unfit}", source.line(&steps))),
        }
    }

    /// Adds the `--set` or the line that caused the rejection, if known.
    pub(crate) fn locate_error(&self, error: anyhow::Error) -> anyhow::Error {
        let location = self.source.as_ref().and_then(|source| {
            if let Some(ClientError::Refused { body, .. }) = error.downcast_ref() {
                return body.details.field.as_deref().map(|field| source.field_location(field));
            }
            let Some(Failure::Refused { fields, .. }) = error.downcast_ref() else { return None };
            source.object_location(fields)
        });
        let error = self.describe_violation(error);
        match location {
            Some(location) => error.context(location),
            None => error,
        }
    }

    /// Renders a violated rule with the names of options or of the short form.
    fn describe_violation(&self, error: anyhow::Error) -> anyhow::Error {
        let name = match (&self.content, &self.source) {
            (SubmissionContent::Object(_), _) => return error,
            (SubmissionContent::Job(_), Some(_)) => |field: &str| short_name(field).to_owned(),
            (SubmissionContent::Job(_), None) => option,
        };
        match error.downcast::<ClientError>() {
            Ok(ClientError::Refused { status, mut body }) => {
                if let Some(text) = agentaflow_explain::error::violation(&body.details, name) {
                    body.detail = text;
                }
                ClientError::Refused { status, body }.into()
            }
            Ok(other) => other.into(),
            Err(error) => error,
        }
    }
}

/// The option for a field of the API that has a short form.
fn option(field: &str) -> String {
    match short_name(field) {
        short if short == field => field.to_owned(),
        "estimated_duration" => "--estimate".to_owned(),
        short => format!("--{}", short.replace('_', "-")),
    }
}

impl SourceDocument {
    /// Path of a field of the API or of an object.
    fn steps<'a>(&self, field: &'a str) -> Vec<&'a str> {
        match steps(field).as_slice() {
            [field] => vec![in_short_form(field, &self.document.value)],
            steps => steps.to_vec(),
        }
    }

    /// The `--set` that set a field.
    fn setting(&self, steps: &[&str]) -> Option<String> {
        let short = self.document.value.get("kind").is_none();
        let set = self.set.iter().rev().find(|(field, _)| {
            let set: Vec<&str> = field.split('.').collect();
            // The API reports a nested field of the short form by its top-level field.
            steps.starts_with(&set) || (short && !steps.is_empty() && set.starts_with(steps))
        });
        set.map(|(field, value)| format!("--set {field}={value}"))
    }

    fn line(&self, steps: &[&str]) -> String {
        format!("`{}`: {}", self.file, self.document.position(steps))
    }

    /// Position of a field of the API.
    fn field_location(&self, field: &str) -> String {
        let steps = self.steps(field);
        self.setting(&steps).unwrap_or_else(|| match self.document.at(&steps) {
            Some(_) => self.line(&steps),
            None => self.line(&[]),
        })
    }

    /// Position of the first of these fields of a Kubernetes object that the file sets.
    fn object_location(&self, fields: &[String]) -> Option<String> {
        let short = self.document.value.get("kind").is_none();
        fields.iter().find_map(|field| {
            let steps = match field.as_str() {
                "metadata.name" if short => vec!["name"],
                field => steps(field),
            };
            self.setting(&steps).or_else(|| {
                // A missing field has the position of its closest parent.
                let known = (1..=steps.len()).rev().map(|depth| &steps[..depth]);
                let known = known.into_iter().find(|steps| self.document.at(steps).is_some())?;
                Some(self.line(known))
            })
        })
    }
}

/// Splits `spec.containers[0].image` into its steps.
fn steps(field: &str) -> Vec<&str> {
    field.split(['.', '[', ']']).filter(|step| !step.is_empty()).collect()
}

/// API fields and their different names in the short form.
const SHORT_NAMES: [(&str, &str); 13] = [
    ("job_name", "name"),
    ("docker_image", "image"),
    ("docker_tag", "image"),
    ("gpu_count", "gpus"),
    ("gpu_memory_required", "gpu_memory"),
    ("gpu_fraction", "fraction"),
    ("mig_profile", "mig"),
    ("cpu_cores_required", "cpu"),
    ("memory_required", "memory"),
    ("shm_size", "shm"),
    ("timeout_seconds", "timeout"),
    ("estimated_duration_seconds", "estimated_duration"),
    ("max_retries", "retries"),
];

/// Name of an API field in the short form.
fn short_name(field: &str) -> &str {
    SHORT_NAMES.iter().find(|(long, _)| *long == field).map_or(field, |(_, short)| *short)
}

/// The short-form name of an API field, if the document uses it.
fn in_short_form<'a>(field: &'a str, document: &Value) -> &'a str {
    let short = short_name(field);
    if document.get(short).is_some() { short } else { field }
}

#[cfg(test)]
mod tests {
    use agentaflow_api::error::{ErrorBody, ErrorCode, ErrorDetails};

    use super::*;
    use agentaflow_manifest::yaml::Limits;
    use serde_json::json;

    #[test]
    fn api_fields_map_to_short_form_fields() {
        assert_eq!(steps("spec.containers[0].image"), ["spec", "containers", "0", "image"]);
        let short = json!({"fraction": 0.5, "shm": "1G"});
        for (field, written) in [
            ("gpu_fraction", "fraction"),
            ("shm_size", "shm"),
            ("timeout_seconds", "timeout_seconds"),
        ] {
            assert_eq!(in_short_form(field, &short), written);
        }
    }

    #[test]
    fn a_rejection_uses_the_field_names_of_its_source() {
        let rejection = || {
            let details = ErrorDetails {
                field: Some("gpu_memory_required".to_owned()),
                problem: Some("exceeds".to_owned()),
                other_field: Some("estimated_duration_seconds".to_owned()),
                ..ErrorDetails::default()
            };
            let body = ErrorBody { details, ..ErrorBody::new(ErrorCode::Invalid, "x") };
            anyhow::Error::from(ClientError::Refused { status: 422, body: Box::new(body) })
        };
        let content = SubmissionContent::Job(Box::default());
        let mut submission = Submission { content, source: None };
        let text = submission.locate_error(rejection()).to_string();
        assert_eq!(text, "`--gpu-memory` exceeds `--estimate`");
        let document = agentaflow_manifest::yaml::read_text("command: x\n", &Limits::default());
        let document = document.unwrap().remove(0);
        submission.source =
            Some(SourceDocument { file: "x".to_owned(), document, set: Vec::new() });
        let text = format!("{:#}", submission.locate_error(rejection()));
        assert_eq!(text, "`x`: line 1, column 1: `gpu_memory` exceeds `estimated_duration`");
    }

    #[test]
    fn a_rejection_names_its_set_option_or_line() {
        let text = "name: t\nimage: x\npriority: 3\n";
        let mut document =
            agentaflow_manifest::yaml::read_text(text, &Limits::default()).unwrap().remove(0);
        document.value["fraction"] = json!(7);
        document.value["env"] = json!({"A-B": "1"});
        document.value["queue"] = json!("nope");
        let set = [("fraction", "7"), ("env.A-B", "1"), ("queue", "nope")];
        let set = set.map(|(field, value)| (field.to_owned(), value.to_owned())).to_vec();
        let source = SourceDocument { file: "t.yaml".to_owned(), document, set };
        for (field, location) in [
            ("gpu_fraction", "--set fraction=7"),
            ("env", "--set env.A-B=1"),
            ("queue", "--set queue=nope"),
            ("priority", "`t.yaml`: line 3, column 1"),
            ("command", "`t.yaml`: line 1, column 1"),
        ] {
            assert_eq!(source.field_location(field), location, "{field}");
        }
        for (field, location) in
            [("metadata.name", Some("`t.yaml`: line 1, column 1")), ("spec.gangSize", None)]
        {
            assert_eq!(source.object_location(&[field.to_owned()]).as_deref(), location, "{field}");
        }
    }

    #[test]
    fn a_rejected_object_has_the_position_of_its_field() {
        let text =
            "kind: Job\nspec:\n  template:\n    spec:\n      containers:\n      - image: x\n";
        let mut documents = agentaflow_manifest::yaml::read_text(text, &Limits::default()).unwrap();
        let document = documents.remove(0);
        let source = SourceDocument { file: "j.yaml".to_owned(), document, set: Vec::new() };
        for (field, location) in [
            ("spec.template.spec.containers[0].image", Some("`j.yaml`: line 6, column 9")),
            ("spec.template.spec.restartPolicy", Some("`j.yaml`: line 4, column 5")),
            ("status", None),
        ] {
            assert_eq!(source.object_location(&[field.to_owned()]).as_deref(), location, "{field}");
        }
    }
}
