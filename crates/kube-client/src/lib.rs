//! Queries and changes of a cluster in the types of the REST API, so that the command line treats servers and clusters
//! alike.
//!
//! A job is a `GPUWorkload`, named by its name; a pod of this scheduler without a workload is
//! a job named `pod/NAME`. A namespace and a slash may precede both names.
//!
//! Start with `jobs.rs` (queries), `show.rs` (conversion to API types) and `convert.rs` (conversion of manifests between
//! server and cluster).

mod alerts;
mod clock;
pub mod convert;
mod convert_back;
mod create;
mod ending;
mod events;
mod exclusive;
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
pub mod present;
mod queues;
mod scheduler;
mod settings;
mod show;
mod template;
mod uninstall;
mod units;

pub use exclusive::{Exclusive, ForeignPod, Scope};
pub use failure::{Failure, Forbidden, Unreachable};
pub use uninstall::{Uninstall, UninstallStep};

/// Connection to a cluster, with its default namespace.
#[derive(Clone)]
pub struct Cluster {
    /// Build the client without `default_retry`: retries of 429 and 503 for minutes suit a controller, but a command must
    /// report these errors.
    pub client: kube::Client,
    /// Namespace of queries and submissions.
    pub namespace: String,
    /// Lists cover all namespaces.
    pub everywhere: bool,
    /// Namespace of agentaflow: its scheduler, its settings, the reports of its monitors.
    pub system: String,
    /// URL of the scheduler; default: the service proxy of the API server.
    pub scheduler: Option<String>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

/// Selection of a job's output.
#[derive(Clone, Debug, Default)]
pub struct LogQuery {
    /// Continue until the task ends.
    pub follow: bool,
    /// Number of lines from the end; default: all.
    pub tail: Option<u64>,
    /// Task number, from 0.
    pub task: u32,
}
