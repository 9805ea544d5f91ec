//! What people ask of a cluster, answered in the words of the REST API: the same types, so that whoever shows them
//! need not know which of the two was asked.
//!
//! A job is a `GPUWorkload`, named by its name; a pod that our scheduler places and that belongs to no workload is a
//! job too, named `pod/` and its name. Both may be preceded by their namespace and a slash.
//!
//! Where to look first: `jobs.rs` asks, `show.rs` says it in the API's words; `convert.rs` turns work that is written
//! for one of the two into what the other takes.

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

pub use failure::Failure;

/// A cluster, and where in it.
#[derive(Clone)]
pub struct Cluster {
    /// Speaks to its API server. Make it of a configuration without `default_retry`: repeating for minutes what is
    /// answered with 429 or 503 is right for a controller, and wrong where these are the answer.
    pub client: kube::Client,
    /// Where work is looked for and handed in.
    pub namespace: String,
    /// Work of all namespaces is listed.
    pub everywhere: bool,
    /// The namespace of the product: its scheduler, its settings, what its monitors say.
    pub system: String,
    /// Where the scheduler answers questions; through the API server when nobody says.
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
