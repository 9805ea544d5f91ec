//! Between server and agent: what goes over the stream that an agent holds open, and what it reports.
//!
//! * `GET  /gpu-workers/agents/{agent_id}/stream?session=S&after=N`: one JSON object a line ([`Framed`]),
//!   an empty line as a ping every few seconds. Numbers count up within a session. An agent that comes back with
//!   the session and number it saw last gets what it missed; with anything else it gets a [`Message::Sync`]
//!   of all that it should have, and kills what is not in it.
//! * `GET  …/poll?session=S&after=N&wait_ms=25000`: the same as one JSON array, for networks that cut streams.
//! * `POST …/report` ([`ReportBatch`] → [`ReportReply`]): updates of tasks and pieces of logs.
//!
//! Delivery may repeat and may skip; the meaning never depends on it. Every assignment carries an epoch:
//! an update with another epoch than the job's present one is answered `stale` and changes nothing.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::end::StartFailure;
use crate::event::EventKind;
use crate::ids::JobId;
use crate::job::{ResourceUsage, Runtime, Volume};
use crate::units::{Cores, Secret, Stamp};

/// One task of one try of one job.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
pub struct TaskKey {
    pub job: JobId,
    /// Which try, from 1.
    pub epoch: u32,
    /// Which task of it, from 0.
    pub task: u32,
}

impl std::fmt::Display for TaskKey {
    /// `17-1-0`: also the name of folders and containers.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}-{}", self.job, self.epoch, self.task)
    }
}

impl std::str::FromStr for TaskKey {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.splitn(3, '-');
        let mut next = || parts.next().ok_or(());
        Ok(Self {
            job: next()?.parse().map_err(drop)?,
            epoch: next()?.parse().map_err(drop)?,
            task: next()?.parse().map_err(drop)?,
        })
    }
}

/// A message with its number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Framed {
    /// The session of numbers; another one after the server was restarted.
    pub session: String,
    /// Counts up by one.
    pub seq: u64,
    /// What is said.
    #[serde(flatten)]
    pub message: Message,
}

/// What the server tells an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Message {
    /// Everything that should be there: start what is missing, kill what is not named.
    Sync {
        /// All live assignments of this node.
        assignments: Vec<Assignment>,
        /// Those of them that are to be stopped.
        stops: Vec<Stop>,
    },
    /// Run this.
    Assign(Box<Assignment>),
    /// Stop this.
    Stop(Stop),
}

/// A task to stop: politely, then, after the grace, hard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Stop {
    /// Which.
    #[serde(flatten)]
    pub key: TaskKey,
    /// Why.
    pub cause: StopCause,
    /// Milliseconds between TERM and KILL.
    pub grace_ms: u64,
}

/// Why a task is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopCause {
    /// Its user said so.
    Cancelled,
    /// It ran too long.
    TimedOut,
    /// Its node is being emptied.
    Drained,
    /// More important work needs the room.
    Preempted,
    /// It used more GPU memory than its share.
    GpuMemoryExceeded,
    /// Its user's money is used up.
    BudgetExceeded,
    /// Another task of the same job failed or could not start.
    GangBroken,
    /// The GPU under it is broken.
    GpuSick,
    /// The agent lost touch with the server for too long.
    LeaseLost,
    /// The whole system is being stopped.
    Shutdown,
    /// The server gave it to another, or no longer knows it.
    Replaced,
}

/// Everything an agent needs in order to run one task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[expect(clippy::struct_excessive_bools, reason = "each says something of its own")]
pub struct Assignment {
    /// Which.
    #[serde(flatten)]
    pub key: TaskKey,
    /// The job's name, for labels.
    pub job_name: Option<String>,
    /// How to run it.
    pub runtime: Runtime,
    /// The image with registry and tag; only for containers.
    pub image: Option<String>,
    /// How to log in to the registry.
    pub registry_auth: Option<RegistryAuth>,
    /// What to run; the image's own when absent.
    pub command: Option<Vec<String>>,
    /// The folder in which it starts.
    pub working_dir: Option<String>,
    /// Environment, complete but for what only the agent knows: devices, `JOB_DATA` or `JOB_DATA_FILE`,
    /// `AGENTAFLOW_OUTPUT`. Secret variables are in here too, so it is never logged.
    pub env: BTreeMap<String, Secret>,
    /// `JOB_DATA`: `job_id`, `input_data`, `config`, `resource_requirements`.
    #[schema(value_type = Object)]
    pub job_data: Map<String, Value>,
    /// The GPUs.
    pub gpus: Vec<GpuGrant>,
    /// CPU cores; 0 is no limit.
    pub cpu: Cores,
    /// MiB of memory; 0 is no limit.
    pub memory: u64,
    /// MiB of `/dev/shm`; 0 is the runtime's own default.
    pub shm: u64,
    /// Folders that the container sees.
    pub volumes: Vec<Volume>,
    /// The container may not write to its own file system, except `/tmp`.
    pub read_only: bool,
    /// Stopped after so many milliseconds.
    pub timeout_ms: Option<u64>,
    /// Milliseconds between TERM and KILL.
    pub grace_ms: u64,
    /// It must not outlive the lease: the server will start it elsewhere.
    pub leased: bool,
    /// Its GPUs are simulated: it gets no device, and a notice.
    pub simulated: bool,
    /// Whose job it is.
    pub user: String,
    /// The server believes that it runs already: an agent that does not have it says that it is over instead of
    /// starting it a second time.
    #[serde(default)]
    pub running: bool,
}

/// How to log in to a registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RegistryAuth {
    /// The registry; Docker Hub when absent.
    pub server: Option<String>,
    /// The user name.
    pub username: String,
    /// The password.
    pub password: Secret,
}

/// A GPU, or a part of one, that a task may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GpuGrant {
    /// Its number on the node.
    pub index: u32,
    /// Its identifier; of the MIG slice if it is one.
    pub uuid: String,
    /// Thousandths of the device.
    pub milli: u32,
    /// MiB of its memory that the task may use.
    pub memory: u64,
    /// Others may be on the same device.
    pub shared: bool,
}

/// What an agent reports in one go.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ReportBatch {
    /// Pieces of logs; written before the reports are looked at.
    pub logs: Vec<LogPiece>,
    /// Updates of tasks.
    pub reports: Vec<Report>,
}

/// A piece of a task's output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LogPiece {
    /// Whose.
    #[serde(flatten)]
    pub key: TaskKey,
    /// Where in the task's output it begins, in bytes.
    pub offset: u64,
    /// The bytes, in base64.
    pub data: String,
}

/// An update of one task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Report {
    /// Which.
    #[serde(flatten)]
    pub key: TaskKey,
    /// What.
    #[serde(flatten)]
    pub update: TaskUpdate,
}

/// Update of a task. Later updates include earlier ones: `ended` alone is enough for a short job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "update", rename_all = "snake_case")]
pub enum TaskUpdate {
    /// The agent has it.
    Accepted,
    /// The agent cannot run it now; another may.
    Refused {
        /// Why, in words.
        detail: String,
    },
    /// Something worth an event: an image being pulled, a warning.
    Progress {
        /// `Pulling`, `Pulled`, `Starting` or `Warning`.
        kind: EventKind,
        /// In words.
        detail: String,
    },
    /// What it is in Kubernetes, where it runs there.
    Placed(KubernetesPlace),
    /// It runs.
    Running {
        /// Since when, by the agent's clock.
        started_at: Stamp,
    },
    /// It is over and nothing of it runs any more.
    Ended(Box<Ended>),
}

/// A task as Kubernetes knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct KubernetesPlace {
    /// The namespace.
    pub namespace: String,
    /// The name of the `batch/v1` Job.
    pub job_name: String,
    /// The name of its pod.
    pub pod_name: String,
}

/// How a task ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Ended {
    /// Its exit code, or 128 and the number of the signal; none if it never ran.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// It was stopped, and this is why.
    pub stopped: Option<StopCause>,
    /// The kernel ended it because the host's memory, or its own limit, was used up.
    pub out_of_memory: bool,
    /// Failure to start, where the task never ran.
    pub failed_to_start: Option<StartFailure>,
    /// When it began to run, by the agent's clock.
    pub started_at: Option<Stamp>,
    /// How long it ran, by a clock that does not jump.
    pub ran_ms: u64,
    /// What it wrote to `$AGENTAFLOW_OUTPUT`.
    #[schema(value_type = Option<Object>)]
    pub output_data: Option<Value>,
    /// What it used.
    pub usage: ResourceUsage,
    /// Bytes of output in all, so that the server knows when it has everything.
    pub log_bytes: u64,
    /// The end of what it wrote, if it failed. It is not sent: the server has it in its log.
    #[serde(skip)]
    pub last_words: String,
}

/// The answer to a batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReportReply {
    /// For each report, in order: whether it counts. A stale task is to be killed and forgotten.
    pub accepted: Vec<bool>,
    /// How many bytes of output the server now has of each task that pieces came for; go on from there.
    pub log_have: Vec<(TaskKey, u64)>,
}
