//! Work that is handed in: written as our API takes it, or as a Kubernetes object. Each can be turned into the other
//! as far as both can say it.

use agentaflow_api::job::JobCreate;
use agentaflow_kube::client::convert::{self, Unfit};
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
    pub(crate) document: Document,
}

impl Work {
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
        let Some(Written { file, document }) = &self.written else {
            return usage(format!("this {what}: {unfit}"));
        };
        let steps = steps(&unfit.field);
        let place = match steps.as_slice() {
            [field] => document.place(&[in_short_form(field, &document.value)]),
            steps => document.place(steps),
        };
        bad_file(format!("`{file}`, {place}: this {what}: {unfit}"))
    }
}

/// `spec.containers[0].image` in steps; what is no path has none that exist.
fn steps(field: &str) -> Vec<&str> {
    field.split(['.', '[', ']']).filter(|step| !step.is_empty()).collect()
}

/// What the short form calls a field of the API.
fn in_short_form<'a>(field: &'a str, document: &Value) -> &'a str {
    let bare = field.trim_start_matches("gpu_").trim_start_matches("max_");
    let bare = bare.trim_end_matches("_seconds").trim_end_matches("_size");
    if document.get(field).is_none() && document.get(bare).is_some() { bare } else { field }
}

#[cfg(test)]
mod tests {
    use super::*;
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
}
