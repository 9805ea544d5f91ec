//! Ways to run a task, behind one trait.

pub mod docker;
pub mod process;
pub mod stopped;
pub mod transcript;
pub mod user;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use thiserror::Error;

use agentaflow_api::end::StartFailure;
use agentaflow_api::event::EventKind;
use agentaflow_api::job::Runtime as Kind;
use agentaflow_api::link::{Assignment, KubernetesPlace, StopCause, TaskKey};
use agentaflow_api::units::Stamp;

/// All that a container may do beyond a plain user, and what for. Everything else is dropped; above all
/// `NET_RAW` (forged packets), `MKNOD` (devices) and `SYS_CHROOT`, which Docker would leave.
pub const CAPABILITIES: [&str; 8] = [
    // Packages are installed and files unpacked with owners and modes of their own.
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    // A first process that is root starts and stops workers that are not.
    "KILL",
    "SETGID",
    "SETUID",
    // Servers listen on port 80.
    "NET_BIND_SERVICE",
];

/// A task with everything decided: what the runtime has only to carry out.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The assignment.
    pub assignment: Assignment,
    /// The complete environment, device variables included. Never logged.
    pub env: Vec<(String, String)>,
    /// The task's own folder on the host: `output.log`, `data.json` (too large for the environment), `out/`
    /// (the folder of `$AGENTAFLOW_OUTPUT`).
    pub dir: PathBuf,
    /// Devices to hand over, by uuid; empty when there are none or they are simulated.
    pub devices: Vec<String>,
}

/// Whether and how a task ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// Its exit code; 128 and the number of the signal if it was ended by one.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The kernel ended it for lack of memory.
    pub out_of_memory: bool,
    /// Why it was stopped, when the runtime was told to, or did so because the lease ran out.
    pub stopped: Option<StopCause>,
    /// How long it ran.
    pub ran: Duration,
    /// When it began.
    pub started_at: Option<Stamp>,
}

/// A task that a runtime still has, found after a restart of the agent.
#[derive(Clone, Debug)]
pub struct Found {
    /// Which.
    pub key: TaskKey,
    /// When it began.
    pub started_at: Option<Stamp>,
    /// It is over.
    pub ended: bool,
}

/// What a task has used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// CPU time.
    pub cpu: Duration,
    /// MiB of memory, at most.
    pub memory: u64,
}

/// Why a task did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The job is at fault: it would fail on any node. The detail holds no secrets.
    #[error("{}", .0.detail)]
    Job(StartFailure),
    /// The node is at fault; another may do better.
    #[error("{0}")]
    Node(String),
}

/// Reports progress as an event kind and a message.
pub type Progress<'a> = &'a (dyn Fn(EventKind, String) + Send + Sync);

/// A way to run tasks.
#[async_trait]
pub trait Runtime: Send + Sync + 'static {
    /// Which jobs it runs.
    fn kind(&self) -> Kind;
    /// What the server knows it by.
    fn name(&self) -> &'static str {
        self.kind().as_str()
    }
    /// Where a task finds the file for its result and the file with its data, given its folder on this machine.
    fn files(&self, dir: &Path) -> io::Result<[String; 2]>;
    /// Starts a task; returns when it runs. Its output goes to `output.log` in its folder.
    async fn start(&self, launch: &Launch, progress: Progress<'_>) -> Result<Stamp, StartError>;
    /// Waits until nothing of the task runs any more and its output is complete. May be called again after a
    /// restart of the agent, and after the end.
    async fn wait(&self, key: TaskKey) -> Result<Exit, StartError>;
    /// TERM now, KILL after the grace. Returns at once; `wait` tells of the end. Unknown tasks are fine.
    async fn stop(&self, key: TaskKey, cause: StopCause, grace: Duration);
    /// Every task that it has.
    async fn list(&self) -> Result<Vec<Found>, StartError>;
    /// What a task has used.
    async fn used(&self, key: TaskKey) -> Used;
    /// The processes of a task, as the host counts.
    async fn pids(&self, key: TaskKey) -> Vec<u32>;
    /// What a task is in Kubernetes, where it runs there.
    fn place(&self, _key: TaskKey) -> Option<KubernetesPlace> {
        None
    }
    /// The lease holds for so long from now: leased tasks may live until then, even if this agent does not.
    fn renewed(&self, _left: Duration) {}
    /// Removes what is left of a task that is over: its container; not its folder.
    async fn remove(&self, key: TaskKey);
}
