//! Work that is handed in: written as our API takes it, or as a Kubernetes object. Each can be turned into the other
//! as far as both can say it.

use agentaflow_api::client::ClientError;
use agentaflow_api::job::JobCreate;
use agentaflow_kube_client::Failure;
use agentaflow_kube_client::convert::{self, Unfit};
use agentaflow_manifest::yaml::Document;
use anyhow::Result;
use serde_json::Value;

use crate::failure::{bad_file, usage};

/// Work that is handed in.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) said: Said,
    /// Where it is written, if it is.
    pub(crate) written: Option<Written>,
}

/// What is to be done.
#[derive(Clone, Debug)]
pub(crate) enum Said {
    /// As our API takes it.
    Job(Box<JobCreate>),
    /// A Kubernetes object.
    Object(Value),
}

/// A document of a file.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub(crate) file: String,
    /// As it is after every `--set`; the lines are the file's.
    pub(crate) document: Document,
    /// What was changed by `--set FIELD=VALUE`.
    pub(crate) set: Vec<(String, String)>,
}

impl Work {
    /// What it is called, if its author named it.
    pub(crate) fn name(&self) -> Option<&str> {
        match &self.said {
            Said::Job(job) => job.spec.job_name.as_deref(),
            Said::Object(object) => object["metadata"]["name"].as_str(),
        }
    }

    /// As a server takes it.
    pub(crate) fn job(&self) -> Result<JobCreate> {
        match &self.said {
            Said::Job(job) => Ok((**job).clone()),
            Said::Object(object) => {
                let kind = object["kind"].as_str().unwrap_or("object");
                convert::job(object)
                    .map_err(|unfit| self.cannot(&format!("{kind} cannot go to a server"), &unfit))
            }
        }
    }

    /// As a cluster takes it.
    pub(crate) fn object(&self) -> Result<Value> {
        match &self.said {
            Said::Object(object) => Ok(object.clone()),
            Said::Job(job) => convert::object(job)
                .map_err(|unfit| self.cannot("job cannot go to a cluster", &unfit)),
        }
    }

    fn cannot(&self, what: &str, unfit: &Unfit) -> anyhow::Error {
        let Some(written) = &self.written else {
            return usage(format!("this {what}: {unfit}"));
        };
        let steps = written.steps(&unfit.field);
        match written.setting(&steps) {
            Some(set) => usage(format!("{set}: this {what}: {unfit}")),
            None => bad_file(format!("{}: this {what}: {unfit}", written.line(&steps))),
        }
    }

    /// A refusal of whoever was handed this, with the `--set` or the line that it is about, where that can be told.
    pub(crate) fn refused(&self, error: anyhow::Error) -> anyhow::Error {
        let by_server = matches!(error.downcast_ref(), Some(ClientError::Refused { .. }));
        let by_cluster = matches!(error.downcast_ref(), Some(Failure::Refused(_)));
        let written = self.written.as_ref().filter(|_| by_server || by_cluster);
        let place = written.and_then(|written| written.meant(&error.to_string()));
        let error = self.in_own_words(error);
        match place {
            Some(place) => error.context(place),
            None => error,
        }
    }

    /// A refusal of a server with fields called as the options or the short form call them.
    fn in_own_words(&self, error: anyhow::Error) -> anyhow::Error {
        let short = match (&self.said, &self.written) {
            (Said::Object(_), _) => return error,
            (Said::Job(_), Some(_)) => str::to_owned,
            (Said::Job(_), None) => option,
        };
        match error.downcast::<ClientError>() {
            Ok(ClientError::Refused { status, mut body }) => {
                for (long, name) in SHORT_NAMES {
                    let long = format!("`{long}`");
                    body.detail = body.detail.replace(&long, &format!("`{}`", short(name)));
                }
                ClientError::Refused { status, body }.into()
            }
            Ok(other) => other.into(),
            Err(error) => error,
        }
    }
}

/// The option that is called like a field of the short form.
fn option(field: &str) -> String {
    match field {
        "estimated_duration" => "--estimate".to_owned(),
        field => format!("--{}", field.replace('_', "-")),
    }
}

impl Written {
    /// The steps to a field that somebody named in the words of the API or of an object.
    fn steps<'a>(&self, field: &'a str) -> Vec<&'a str> {
        match steps(field).as_slice() {
            [field] => vec![in_short_form(field, &self.document.value)],
            steps => steps.to_vec(),
        }
    }

    /// The `--set` that gave a field its value.
    fn setting(&self, steps: &[&str]) -> Option<String> {
        let short = self.document.value.get("kind").is_none();
        let set = self.set.iter().rev().find(|(field, _)| {
            let set: Vec<&str> = field.split('.').collect();
            // In the short form everything below a field is the field's own.
            steps.starts_with(&set) || (short && !steps.is_empty() && set.starts_with(steps))
        });
        set.map(|(field, value)| format!("--set {field}={value}"))
    }

    fn line(&self, steps: &[&str]) -> String {
        format!("`{}`, {}", self.file, self.document.position(steps))
    }

    /// What a refusal is about: a field that it names, or a value in quotes that was set.
    fn meant(&self, said: &str) -> Option<String> {
        let quoted = |word: &str| [format!("`{word}`"), format!("\"{word}\"")];
        let is_quoted = |word: &str| quoted(word).iter().any(|word| said.contains(word));
        let words = said.split([' ', '`', '"', ',', ';', '(', ')', '\n']);
        let words = words.map(|word| word.trim_end_matches([':', '.']));
        let fields =
            words.filter(|word| !word.is_empty() && (word.contains('.') || is_quoted(word)));
        for steps in fields.map(|word| self.steps(word)) {
            if let Some(set) = self.setting(&steps) {
                return Some(set);
            }
            if self.document.at(&steps).is_some() {
                return Some(self.line(&steps));
            }
        }
        let set = self.set.iter().find(|(_, value)| !value.is_empty() && is_quoted(value));
        let fields = self.document.value.as_object().into_iter().flatten();
        let mut texts = fields.filter_map(|(field, value)| Some((field, value.as_str()?)));
        let text = texts.find(|(_, text)| !text.is_empty() && is_quoted(text));
        set.map(|(field, value)| format!("--set {field}={value}"))
            .or_else(|| text.map(|(field, _)| self.line(&[field.as_str()])))
            .or_else(|| said.contains("` is missing").then(|| self.line(&[])))
    }
}

/// `spec.containers[0].image` in steps; what is no path has none that exist.
fn steps(field: &str) -> Vec<&str> {
    field.split(['.', '[', ']']).filter(|step| !step.is_empty()).collect()
}

/// What the short form calls fields of the API that have another name there.
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

/// What the short form calls a field of the API.
fn in_short_form<'a>(field: &'a str, document: &Value) -> &'a str {
    let short = SHORT_NAMES.iter().find(|(long, _)| *long == field).map(|(_, short)| *short);
    short.filter(|short| document.get(short).is_some()).unwrap_or(field)
}

#[cfg(test)]
mod tests {
    use agentaflow_api::error::{ErrorBody, ErrorCode};

    use super::*;
    use agentaflow_manifest::yaml::Limits;
    use serde_json::json;

    #[test]
    fn fields_are_found_where_they_are_written() {
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
    fn a_refusal_calls_fields_as_whoever_wrote_them_does() {
        let refused = || {
            let detail = "`gpu_memory_required` and `estimated_duration_seconds`, `priority`";
            let body = ErrorBody::new(ErrorCode::Invalid, detail);
            anyhow::Error::from(ClientError::Refused { status: 422, body })
        };
        let said = Said::Job(Box::default());
        let mut work = Work { said, written: None };
        let told = work.refused(refused()).to_string();
        assert_eq!(told, "`--gpu-memory` and `--estimate`, `priority`");
        let document = agentaflow_manifest::yaml::read_text("command: x\n", &Limits::default());
        let document = document.unwrap().remove(0);
        work.written = Some(Written { file: "x".to_owned(), document, set: Vec::new() });
        let told = work.refused(refused()).to_string();
        assert_eq!(told, "`gpu_memory` and `estimated_duration`, `priority`");
    }

    #[test]
    fn a_refusal_names_the_set_or_the_line_that_it_is_about() {
        let text = "name: t\nimage: x\npriority: 3\n";
        let mut document =
            agentaflow_manifest::yaml::read_text(text, &Limits::default()).unwrap().remove(0);
        document.value["fraction"] = json!(7);
        document.value["env"] = json!({"A-B": "1"});
        document.value["queue"] = json!("nope");
        let set = [("fraction", "7"), ("env.A-B", "1"), ("queue", "nope")];
        let set = set.map(|(field, value)| (field.to_owned(), value.to_owned())).to_vec();
        let written = Written { file: "t.yaml".to_owned(), document, set };
        for (said, place) in [
            ("`gpu_fraction` must be below 1", Some("--set fraction=7")),
            ("`env` has a name that cannot be one", Some("--set env.A-B=1")),
            ("there is no queue `nope`", Some("--set queue=nope")),
            ("there is no queue `x`", Some("`t.yaml`, line 2, column 1")),
            ("`priority` is 3; at most 2 is allowed", Some("`t.yaml`, line 3, column 1")),
            ("`command` is missing", Some("`t.yaml`, line 1, column 1")),
            ("the server takes no more jobs", None),
        ] {
            assert_eq!(written.meant(said).as_deref(), place, "{said}");
        }
    }
}
