//! A node of a Kubernetes cluster as a worker of the server. The agent runs beside the cluster or in it; what the
//! server assigns to the node becomes a `batch/v1` Job there.
//!
//! One agent is one node, as everywhere in the product: heartbeats, leases, streams and adoption are the agent's own
//! (`crates/agent`), which only hands tasks to a [`Runtime`](agentaflow_agent::runtime::Runtime) and asks a
//! [`Machine`](agentaflow_agent::Machine) what it is like. A `DaemonSet` makes a whole cluster of them.
//!
//! | file | what it does |
//! |---|---|
//! | `object.rs` | the objects of a task, around what `create_gpu_job` gives |
//! | `ending.rs` | what a pod's status says: waits, runs, ended, and how |
//! | `offer.rs` | what a node offers, and what of it others have |
//! | `watch.rs` | the node, its pods and our Jobs, as the API server tells them |
//! | `runtime.rs`, `begin.rs`, `follow.rs`, `stop.rs`, `output.rs` | starts, follows and stops tasks, and copies their output |
//! | `lease.rs`, `clock.rs` | lets the cluster itself end what nobody looks after any more, by its own clock |
//! | `machine.rs` | tells the agent about the node and its GPUs |
//!
//! The first three are plain functions. The cluster keeps the truth: Jobs are found again by their labels.

mod begin;
mod clock;
mod ending;
#[cfg(test)]
mod fake;
mod fault;
mod follow;
mod lease;
mod machine;
mod names;
mod object;
mod offer;
mod output;
mod runtime;
mod stop;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agentaflow_agent::Elsewhere;
use agentaflow_gpu::GpuSource;
use thiserror::Error;

use runtime::Jobs;

/// Which node, and how to reach its cluster.
#[derive(Clone)]
pub struct Settings {
    /// Speaks to the API server.
    pub client: kube::Client,
    /// What the cluster is called, to be shown.
    pub cluster: Option<String>,
    /// Where Jobs are made.
    pub namespace: String,
    /// The node.
    pub node: String,
    /// The server, which with the node tells our Jobs from those of others.
    pub server: String,
    /// The agent's folder.
    pub state_dir: PathBuf,
    /// Bytes of output that are kept of a task.
    pub log_limit: u64,
    /// How long a lease is.
    pub lease: Duration,
}

/// Why a node cannot be a worker.
#[derive(Debug, Error)]
pub enum WorkerError {
    /// The node is not there.
    #[error("the cluster has no node `{0}`: name one with --node, or NODE_NAME")]
    NoNode(String),
    /// The instances that the product knows cannot be read.
    #[error("cannot read the catalogue of instances: {0}")]
    Catalogue(String),
}

/// A node that is watched, and the Jobs on it.
#[derive(Clone)]
pub struct Worker {
    jobs: Arc<Jobs>,
}

impl Worker {
    /// Begins to watch the node; waits for an API server that does not answer yet.
    pub async fn connect(settings: Settings) -> Result<Self, WorkerError> {
        let jobs = Jobs::connect(settings).await?;
        Ok(Self { jobs })
    }

    /// What the agent is to use in place of its own machine.
    pub fn elsewhere(&self) -> Elsewhere {
        Elsewhere { runtime: self.jobs.clone(), machine: self.jobs.clone() }
    }

    /// The node's GPUs.
    pub fn gpus(&self) -> Arc<dyn GpuSource> {
        self.jobs.clone()
    }

    /// Waits until the node has other GPUs, or more or less of something else, than when this was called: the
    /// server has to be told anew.
    pub async fn changed(&self) {
        self.jobs.changed().await;
    }
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { namespace, node, .. } = self;
        f.debug_struct("Settings")
            .field("namespace", namespace)
            .field("node", node)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").finish_non_exhaustive()
    }
}
