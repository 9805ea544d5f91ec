//! Settings of an agent.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agentaflow_api::client::Trust;
use agentaflow_api::node::{Heartbeat, Node, NodeRegistration};
use agentaflow_api::units::{Dollars, Secret};
use agentaflow_gpu::GpuSource;
use agentaflow_metrics::Access;

use crate::metrics::AgentMetrics;
use crate::runtime::Runtime;
use crate::runtime::docker::DockerSettings;
use crate::runtime::uids::UidRange;

#[derive(Clone)]
pub struct AgentSettings {
    /// URL of the server: `http://127.0.0.1:8000`.
    pub server: String,
    /// Accepted certificates. Default: the public key pinned at the first registration, else the authorities of the
    /// system, else a server that proves its knowledge of the registration token.
    pub trust: Option<Trust>,
    /// Without a token the agent uses the API key of an earlier registration.
    pub registration_token: Option<Secret>,
    /// Default: the host name.
    pub node_name: Option<String>,
    /// Set when the agent runs in Kubernetes.
    pub pod_name: Option<String>,
    /// Directory of the agent's identity and task folders. Each agent needs its own.
    pub state_dir: PathBuf,
    pub gpus: Arc<dyn GpuSource>,
    /// `None` disables Docker. [`run`](crate::run) overwrites `state_dir` and `log_limit` with the agent's.
    pub docker: Option<DockerSettings>,
    /// Allows process jobs on this host.
    pub allow_process: bool,
    /// User of all process jobs when the agent runs as root: a name, or `uid:gid`. Default: a uid of `job_uids` per owner.
    pub job_user: Option<String>,
    pub job_uids: UidRange,
    /// Maximum number of processes and threads of a process job. Without the pids cgroup controller, of all jobs of a uid.
    pub pids_limit: u64,
    /// Maximum number of open files of each process of a process job.
    pub open_files_limit: u64,
    pub heartbeat_interval: Duration,
    /// Longest time between TERM and KILL on this node; part of the registration.
    pub stop_grace: Duration,
    /// Default: no limit beyond the node's resources.
    pub max_concurrent_jobs: Option<u32>,
    /// Default: the server's prices.
    pub prices: Prices,
    pub labels: BTreeMap<String, String>,
    pub region: Option<String>,
    pub zone: Option<String>,
    /// Bytes of output kept per task.
    pub log_limit: u64,
    /// Address of `/health`, `/ready` and `/metrics`. Default: not served.
    pub listen: Option<SocketAddr>,
    /// Readers of `/metrics` on `listen`.
    pub metrics_access: Access,
    /// Filled by [`run`](crate::run); the caller may serve them elsewhere.
    pub metrics: AgentMetrics,
    /// Program that the agent starts as `PROGRAM guardian --dir DIR`.
    pub guardian: PathBuf,
    /// Makes the agent represent another node than its own host; disables Docker and process jobs of the host.
    pub remote_node: Option<RemoteNode>,
}

/// Node other than the agent's host, such as a node of a Kubernetes cluster. Its GPUs are [`AgentSettings::gpus`].
#[derive(Clone)]
pub struct RemoteNode {
    pub runtime: Arc<dyn Runtime>,
    pub facts: Arc<dyn NodeFacts>,
}

impl fmt::Debug for RemoteNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteNode").field("runtime", &self.runtime.name()).finish_non_exhaustive()
    }
}

/// Description of a [`RemoteNode`]. Both methods overwrite the fields that describe the agent's own host.
pub trait NodeFacts: Send + Sync {
    fn complete_registration(&self, registration: &mut NodeRegistration);
    fn complete_heartbeat(&self, heartbeat: &mut Heartbeat);
}

/// Prices per hour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prices {
    pub gpu: Option<Dollars>,
    /// Per core.
    pub cpu: Option<Dollars>,
    /// Per GiB.
    pub memory: Option<Dollars>,
}

impl AgentSettings {
    /// Defaults: a heartbeat every 30 seconds, no Docker, no process jobs, no endpoints.
    pub fn new(server: impl Into<String>, state_dir: PathBuf, gpus: Arc<dyn GpuSource>) -> Self {
        Self {
            server: server.into(),
            trust: None,
            registration_token: None,
            node_name: None,
            pod_name: None,
            state_dir,
            gpus,
            docker: None,
            allow_process: false,
            job_user: None,
            job_uids: UidRange::default(),
            pids_limit: 4096,
            open_files_limit: 65_536,
            heartbeat_interval: Duration::from_secs(30),
            stop_grace: Duration::from_secs(30),
            max_concurrent_jobs: None,
            prices: Prices::default(),
            labels: BTreeMap::new(),
            region: None,
            zone: None,
            log_limit: 64 << 20,
            listen: None,
            metrics_access: Access::default(),
            metrics: AgentMetrics::default(),
            remote_node: None,
            guardian: std::env::current_exe().unwrap_or_else(|_| PathBuf::from("agentaflow")),
        }
    }
}

impl AgentSettings {
    /// Lease before the first contact with the server.
    pub(crate) fn first_lease(&self) -> Duration {
        self.heartbeat_interval * 10
    }

    /// No server grants a shorter lease.
    pub(crate) fn shortest_lease(&self) -> Duration {
        self.heartbeat_interval * 2
    }

    /// Lease that the server granted with the response to a heartbeat.
    pub(crate) fn lease(&self, node: &Node) -> Duration {
        node.lease_ms.map_or(self.shortest_lease(), Duration::from_millis)
    }
}

impl fmt::Debug for AgentSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentSettings")
            .field("server", &self.server)
            .field("node_name", &self.node_name)
            .field("state_dir", &self.state_dir)
            .field("allow_process", &self.allow_process)
            .finish_non_exhaustive()
    }
}
