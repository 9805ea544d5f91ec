//! Queries and changes of a cluster in the types of the REST API, so that the command line treats servers and clusters
//! alike.
//!
//! A job is a `GPUWorkload`, named by its name; a pod of this scheduler without a workload is
//! a job named `pod/NAME`. A namespace and a slash may precede both names.
//!
//! Start with `jobs.rs` (queries), `show.rs` (conversion to API types) and `convert.rs` (conversion of manifests between
//! server and cluster).

mod clock;
pub mod convert;
mod convert_back;
mod create;
mod ending;
mod events;
mod explain;
mod failure;
mod follow;
mod jobs;
mod list;
mod logs;
mod named;
mod node_view;
mod nodes;
mod once;
mod queues;
mod scheduler;
mod settings;
mod show;
mod template;

pub use failure::{Failure, Forbidden, Unreachable};

/// A cluster, and where in it.
#[derive(Clone)]
pub struct Cluster {
    /// Speaks to its API server. Make it of a configuration without `default_retry`: repeating for minutes what is
    /// answered with 429 or 503 is right for a controller, and wrong where these are the answer.
    pub client: kube::Client,
    /// Namespace of queries and submissions.
    pub namespace: String,
    /// Work of all namespaces is listed.
    pub everywhere: bool,
    /// The namespace of the product: its scheduler, its settings, what its monitors say.
    pub system: String,
    /// URL of the scheduler; default: the service proxy of the API server.
    pub scheduler: Option<String>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

/// Which part of a job's output is wanted.
#[derive(Clone, Debug, Default)]
pub struct LogQuery {
    /// Go on until the task is over.
    pub follow: bool,
    /// Only so many lines from the end.
    pub tail: Option<u64>,
    /// The task, from 0.
    pub task: u32,
}
