//! Work that is handed in: written as our API takes it, or as a Kubernetes object. Each can be turned into the other
//! as far as both can say it.

use agentaflow_api::job::JobCreate;
use agentaflow_kube::client::convert;
use anyhow::Result;
use serde_json::Value;

use crate::failure::usage;

/// Work that is handed in.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// As our API takes it.
    Job(Box<JobCreate>),
    /// A Kubernetes object.
    Object(Value),
}

impl Work {
    /// As a server takes it.
    pub(crate) fn job(&self) -> Result<JobCreate> {
        match self {
            Self::Job(job) => Ok((**job).clone()),
            Self::Object(object) => {
                let kind = object["kind"].as_str().unwrap_or("object");
                convert::job(object)
                    .map_err(|unfit| usage(format!("this {kind} cannot go to a server: {unfit}")))
            }
        }
    }

    /// As a cluster takes it.
    pub(crate) fn object(&self) -> Result<Value> {
        match self {
            Self::Object(object) => Ok(object.clone()),
            Self::Job(job) => convert::object(job)
                .map_err(|unfit| usage(format!("this job cannot go to a cluster: {unfit}"))),
        }
    }
}
