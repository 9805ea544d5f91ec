//! Runtimes that execute tasks, behind one trait.

pub mod docker;
pub mod process;
pub mod run_clock;
pub mod stop_record;
pub mod transcript;
pub mod uids;
pub mod user;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use thiserror::Error;

use agentaflow_api::end::{EndReason, StartFailure};
use agentaflow_api::event::EventKind;
use agentaflow_api::job::Runtime as RuntimeKind;
use agentaflow_api::link::{Assignment, KubernetesObjects, StopCause, TaskKey};
use agentaflow_api::units::Stamp;

use user::JobUser;

/// Capabilities of a container. All other capabilities are dropped, above all `NET_RAW` (forged packets), `MKNOD` (devices)
/// and `SYS_CHROOT`, which Docker grants by default.
pub const CAPABILITIES: [&str; 8] = [
    // Package managers and archives set owners and modes of files.
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    // An entry point that runs as root starts and stops unprivileged workers.
    "KILL",
    "SETGID",
    "SETUID",
    // Web servers listen on port 80.
    "NET_BIND_SERVICE",
];

/// Complete description of a task to start: the runtime makes no choices.
#[derive(Clone, Debug)]
pub struct Launch {
    pub assignment: Assignment,
    /// Complete environment, device variables included. Contains secrets, so it is never logged.
    pub env: Vec<(String, String)>,
    /// Task folder on the host: `output.log`, `data.json` (if too large for the environment), `out/` (directory of
    /// `$AGENTAFLOW_OUTPUT`).
    pub dir: PathBuf,
    /// UUIDs of GPUs; empty for simulated GPUs.
    pub devices: Vec<String>,
    /// User of a process; `None` means the user of the agent.
    pub user: Option<JobUser>,
    /// Pipe directory of NVIDIA's Multi-Process Service, for a process that shares a GPU.
    pub mps_pipes: Option<PathBuf>,
}

/// End of a task as its runtime observed it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// Exit code; 128 plus the signal number after a signal; `None` if unknown.
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// The kernel's OOM killer ended the task.
    pub out_of_memory: bool,
    /// Set when the runtime stopped the task on request or after the lease expired.
    pub stopped: Option<StopCause>,
    /// `None` if the runtime does not know it.
    pub ran: Option<Duration>,
    pub started_at: Option<Stamp>,
}

/// Task that a runtime knows, found after a restart of the agent.
#[derive(Clone, Debug)]
pub struct FoundTask {
    pub key: TaskKey,
    pub started_at: Option<Stamp>,
    pub ended: bool,
}

/// Resource usage of a task since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskUsage {
    pub cpu: Duration,
    /// Peak memory in MiB.
    pub memory: u64,
    /// Present memory in MiB; 0 after the end.
    pub memory_now: u64,
}

#[derive(Debug, Error)]
pub enum StartError {
    /// The job would fail on every node. The detail contains no secrets.
    #[error("{}", .0.detail)]
    Job(StartFailure),
    /// A fault of the node; the server tries another one.
    #[error("{0}")]
    Node(String),
}

impl StartError {
    pub fn job(reason: EndReason, detail: impl Into<String>) -> Self {
        Self::Job(StartFailure::new(reason, detail))
    }
}

/// Receives the progress of a start as events of the job.
pub type Progress<'a> = &'a (dyn Fn(EventKind, String) + Send + Sync);

#[async_trait]
pub trait Runtime: Send + Sync + 'static {
    fn kind(&self) -> RuntimeKind;
    /// Name in the registration.
    fn name(&self) -> &'static str {
        self.kind().as_str()
    }
    /// Paths of the result file and the data file as the task sees them, given the task folder on the host.
    fn files(&self, dir: &Path) -> io::Result<[String; 2]>;
    /// Starts a task and returns when it runs. Its output is written to `output.log` in the task folder.
    async fn start(&self, launch: &Launch, progress: Progress<'_>) -> Result<Stamp, StartError>;
    /// Waits until no process of the task runs and its output is complete. May be called again after a restart of the
    /// agent, and after the end.
    async fn wait(&self, key: TaskKey) -> Result<Exit, StartError>;
    /// Sends TERM now and KILL after the grace. Returns at once; `wait` returns at the end. Ignores unknown tasks.
    async fn stop(&self, key: TaskKey, cause: StopCause, grace: Duration);
    async fn list(&self) -> Result<Vec<FoundTask>, StartError>;
    async fn used(&self, key: TaskKey) -> TaskUsage;
    /// Bytes of disk that a task with a disk limit uses; `None` if unknown, or if the runtime enforces the limit.
    async fn disk_used(&self, _key: TaskKey) -> Option<u64> {
        None
    }
    /// Process ids of a task in the host's pid namespace.
    async fn pids(&self, key: TaskKey) -> Vec<u32>;
    /// Kubernetes objects of a task, for a runtime that uses Kubernetes.
    fn kubernetes_objects(&self, _key: TaskKey) -> Option<KubernetesObjects> {
        None
    }
    /// Extends leased tasks: the lease is valid for `left` from now.
    fn renew_lease(&self, _left: Duration) {}
    /// Removes the remains of an ended task, such as its container, but not its folder.
    async fn remove(&self, key: TaskKey);
}
