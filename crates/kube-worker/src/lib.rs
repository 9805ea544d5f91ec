//! Makes a node of a Kubernetes cluster a worker of the server. The agent runs inside or outside the cluster; each
//! assignment becomes a `batch/v1` Job on the node.
//!
//! One agent represents one node. `crates/agent` does heartbeats, leases, streams and adoption; this crate implements
//! its [`Runtime`](agentaflow_agent::runtime::Runtime) and [`NodeFacts`](agentaflow_agent::NodeFacts). A `DaemonSet`
//! covers a whole cluster.
//!
//! | file | content |
//! |---|---|
//! | `object.rs` | Job and Secrets of a task, based on `create_gpu_job` |
//! | `pod_status.rs` | start state and exit of a task from the status of its pod |
//! | `offer.rs` | resources of the node, and foreign usage |
//! | `watch.rs` | reflectors of the node, its pods and the agent's Jobs |
//! | `runtime.rs`, `start.rs`, `follow.rs`, `stop.rs`, `output.rs` | start, follow and stop of tasks, copy of their output |
//! | `lease.rs`, `clock.rs` | deadlines of leased Jobs, by the clock of the API server |
//! | `node_facts.rs` | registration and heartbeat data of the node, its GPUs |
//!
//! The first three are pure functions. The cluster is the source of truth: Jobs are found again by their labels.

mod clock;
#[cfg(test)]
mod fake_api;
mod fault;
mod follow;
mod gpu_pod;
mod lease;
mod names;
mod node_facts;
mod object;
mod offer;
mod output;
mod pod_status;
mod runtime;
mod secrets;
mod start;
mod stop;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agentaflow_agent::RemoteNode;
use agentaflow_gpu::GpuSource;
use thiserror::Error;

use runtime::Jobs;

#[derive(Clone)]
pub struct Settings {
    pub client: kube::Client,
    /// Display name.
    pub cluster: Option<String>,
    /// Namespace of the Jobs.
    pub namespace: String,
    pub node: String,
    /// URL of the server; identifies the agent's Jobs together with the node.
    pub server: String,
    /// State directory of the agent.
    pub state_dir: PathBuf,
    /// Bytes of output kept per task.
    pub log_limit: u64,
    /// Length of the lease.
    pub lease: Duration,
}

#[derive(Debug, Error)]
pub enum WorkerError {
    #[error("node `{0}` does not exist; set --node or NODE_NAME to a node of the cluster")]
    NoNode(String),
}

/// Watched node with the agent's Jobs.
#[derive(Clone)]
pub struct Worker {
    jobs: Arc<Jobs>,
}

impl Worker {
    /// Starts the watches; waits for an API server that does not answer yet.
    pub async fn connect(settings: Settings) -> Result<Self, WorkerError> {
        let jobs = Jobs::connect(settings).await?;
        Ok(Self { jobs })
    }

    /// Node that the agent represents instead of its own host.
    pub fn remote_node(&self) -> RemoteNode {
        RemoteNode { runtime: self.jobs.clone(), facts: self.jobs.clone() }
    }

    pub fn gpus(&self) -> Arc<dyn GpuSource> {
        self.jobs.clone()
    }

    /// Waits until the GPUs or other resources of the node differ from the state at the call: the agent then has to register
    /// again.
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
