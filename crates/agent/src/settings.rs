//! How an agent is set up.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agentaflow_api::node::{Heartbeat, NodeRegistration};
use agentaflow_api::units::{Dollars, Secret};
use agentaflow_gpu::GpuSource;

use crate::runtime::Runtime;
use crate::runtime::docker::DockerSettings;

/// Settings of an agent. The command line fills them in.
#[derive(Clone)]
pub struct AgentSettings {
    /// The server: `http://127.0.0.1:8000`.
    pub server: String,
    /// With what the agent registers. Without it, the key of an earlier registration must still be good.
    pub registration_token: Option<Secret>,
    /// The node's name; the host's when absent.
    pub node_name: Option<String>,
    /// The pod, when the agent runs in Kubernetes.
    pub pod_name: Option<String>,
    /// Where the agent keeps its identity and its tasks; one folder is one agent.
    pub state_dir: PathBuf,
    /// The GPUs.
    pub gpus: Arc<dyn GpuSource>,
    /// How to use Docker; `None` does not use it. The folder and the limit of the output in it are replaced by the
    /// agent's.
    pub docker: Option<DockerSettings>,
    /// Process jobs may run on this host.
    pub allow_process: bool,
    /// As whom process jobs run when the agent is root: a name, or `uid:gid`; `nobody` when absent.
    pub job_user: Option<String>,
    /// The most processes and threads of a process job, where the machine can limit them.
    pub pids_limit: u64,
    /// How often the agent gives a sign of life. The lease is twice this.
    pub heartbeat_interval: Duration,
    /// The longest time between TERM and KILL that jobs of this node get; told to the server.
    pub stop_grace: Duration,
    /// The most jobs at a time; absent when resources alone decide.
    pub max_concurrent_jobs: Option<u32>,
    /// Prices an hour of a GPU, a CPU core and a GiB of memory; the server's when absent.
    pub prices: Prices,
    /// Labels of the node.
    pub labels: BTreeMap<String, String>,
    /// Where it stands.
    pub region: Option<String>,
    /// Where in the region.
    pub zone: Option<String>,
    /// Bytes of output that are kept of a task.
    pub log_limit: u64,
    /// Where the agent itself answers `/health` and `/ready`; nowhere when absent.
    pub listen: Option<SocketAddr>,
    /// The program that is started as `PROGRAM guardian --dir DIR`.
    pub guardian: PathBuf,
    /// The node is another machine than the agent's. Then neither Docker nor processes of this one are used.
    pub elsewhere: Option<Elsewhere>,
}

/// Another machine than the agent's, such as a node of a Kubernetes cluster. Its GPUs are [`AgentSettings::gpus`].
#[derive(Clone)]
pub struct Elsewhere {
    /// How tasks run there.
    pub runtime: Arc<dyn Runtime>,
    /// What it is like.
    pub machine: Arc<dyn Machine>,
}

impl fmt::Debug for Elsewhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Elsewhere").field("runtime", &self.runtime.name()).finish_non_exhaustive()
    }
}

/// What a machine is like that the agent does not run on.
pub trait Machine: Send + Sync {
    /// Writes over what would be said of the agent's own.
    fn describe(&self, registration: &mut NodeRegistration);
    /// The same for a sign of life.
    fn beat(&self, heartbeat: &mut Heartbeat);
}

/// Prices an hour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prices {
    /// Of a GPU.
    pub gpu: Option<Dollars>,
    /// Of a CPU core.
    pub cpu: Option<Dollars>,
    /// Of a GiB of memory.
    pub memory: Option<Dollars>,
}

impl AgentSettings {
    /// The usual settings: a sign of life every 30 seconds, no Docker, no process jobs, no port.
    pub fn new(server: impl Into<String>, state_dir: PathBuf, gpus: Arc<dyn GpuSource>) -> Self {
        Self {
            server: server.into(),
            registration_token: None,
            node_name: None,
            pod_name: None,
            state_dir,
            gpus,
            docker: None,
            allow_process: false,
            job_user: None,
            pids_limit: 4096,
            heartbeat_interval: Duration::from_secs(30),
            stop_grace: Duration::from_secs(30),
            max_concurrent_jobs: None,
            prices: Prices::default(),
            labels: BTreeMap::new(),
            region: None,
            zone: None,
            log_limit: 64 << 20,
            listen: None,
            elsewhere: None,
            guardian: std::env::current_exe().unwrap_or_else(|_| PathBuf::from("agentaflow")),
        }
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
