//! Protocol between server and agent: the stream that an agent holds open, and its reports.
//!
//! * `GET  /gpu-workers/agents/{agent_id}/stream?session=S&after=N`: one JSON object per line ([`Framed`]), an empty
//!   line as a ping every few seconds. Sequence numbers increase within a session. An agent that reconnects with the
//!   session and number of its last message receives the missed messages; with any other position it receives a
//!   [`Message::Sync`] with its complete desired state, and kills unlisted tasks.
//! * `GET  …/poll?session=S&after=N&wait_ms=25000`: the same messages as a JSON array, for networks that cut streams.
//! * `POST …/report` ([`ReportBatch`] → [`ReportReply`]): task updates and log chunks.
//!
//! A message may arrive twice or not at all; the protocol tolerates both. Every assignment carries an epoch: the server
//! answers an update with another epoch than the job's current one with `stale` and changes nothing.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::end::StartFailure;
use crate::event::EventKind;
use crate::ids::{JobId, UserId};
use crate::job::{GpuUsage, ResourceUsage, Runtime, Volume};
use crate::trace::TraceId;
use crate::units::{Cores, Secret, Stamp};

/// A task of one attempt of a job.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
pub struct TaskKey {
    pub job: JobId,
    /// Attempt, from 1.
    pub epoch: u32,
    /// Random number of the server start that began the attempt. A restored backup repeats job and attempt numbers; the
    /// incarnation tells their tasks apart.
    #[serde(default)]
    pub incarnation: u32,
    /// Number of the task, from 0.
    pub task: u32,
}

impl std::fmt::Display for TaskKey {
    /// `17-1-0-9c3f02ab`: job, attempt, task and incarnation; also the name of folders and containers.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}-{}-{:08x}", self.job, self.epoch, self.task, self.incarnation)
    }
}

impl std::str::FromStr for TaskKey {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.splitn(4, '-');
        let mut next = || parts.next().ok_or(());
        Ok(Self {
            job: next()?.parse().map_err(drop)?,
            epoch: next()?.parse().map_err(drop)?,
            task: next()?.parse().map_err(drop)?,
            incarnation: u32::from_str_radix(next()?, 16).map_err(drop)?,
        })
    }
}

/// A message with its sequence number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Framed {
    /// Session of sequence numbers; a restart of the server begins a new one.
    pub session: String,
    /// Increases by one.
    pub seq: u64,
    #[serde(flatten)]
    pub message: Message,
}

/// Message from the server to an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Message {
    /// Complete desired state: the agent starts missing tasks and kills unlisted ones.
    Sync {
        assignments: Vec<Assignment>,
        /// Assignments to stop.
        stops: Vec<Stop>,
    },
    /// A task to run.
    Assign(Box<Assignment>),
    /// A task to stop.
    Stop(Stop),
}

/// Stop of a task: SIGTERM, then SIGKILL after the grace period.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Stop {
    #[serde(flatten)]
    pub key: TaskKey,
    pub cause: StopCause,
    /// Milliseconds between SIGTERM and SIGKILL.
    pub grace_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopCause {
    /// A user cancelled the job.
    Cancelled,
    /// The job exceeded its timeout.
    TimedOut,
    /// The node is being drained.
    Drained,
    /// Another job preempts it.
    Preempted,
    /// The job exceeded its share of GPU memory.
    GpuMemoryExceeded,
    /// The driver reported an error of the application that asks for its restart.
    GpuApplicationError,
    /// The job exceeded its disk limit.
    StorageExceeded,
    /// The budget of the owner is exhausted.
    BudgetExceeded,
    /// Another task of the gang failed or could not start.
    GangBroken,
    /// The GPU failed.
    #[serde(alias = "gpu_sick")]
    GpuUnhealthy,
    /// The lease of the agent expired.
    LeaseLost,
    /// The server shuts down.
    Shutdown,
    /// The server assigned the task elsewhere, or does not know it.
    Replaced,
}

/// Assignment of a task to an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[expect(clippy::struct_excessive_bools, reason = "each says something of its own")]
pub struct Assignment {
    #[serde(flatten)]
    pub key: TaskKey,
    /// Name of the job, for labels.
    pub job_name: Option<String>,
    pub runtime: Runtime,
    /// Image with registry and tag; only for containers.
    pub image: Option<String>,
    pub registry_auth: Option<RegistryAuth>,
    /// Command; default is the command of the image.
    pub command: Option<Vec<String>>,
    pub working_dir: Option<String>,
    /// Environment without the variables that the agent sets: devices, `JOB_DATA` or `JOB_DATA_FILE`,
    /// `AGENTAFLOW_OUTPUT`. Holds secrets, so it is never logged.
    pub env: BTreeMap<String, Secret>,
    /// `JOB_DATA`: `job_id`, `input_data`, `config`, `resource_requirements`.
    #[schema(value_type = Object)]
    pub job_data: Map<String, Value>,
    pub gpus: Vec<GpuGrant>,
    /// CPU limit; 0 means no limit.
    pub cpu: Cores,
    /// Memory limit in MiB; 0 means no limit.
    pub memory: u64,
    /// Disk limit in MiB; 0 means no limit.
    #[serde(default)]
    pub storage: u64,
    /// Size of `/dev/shm` in MiB; 0 means the default of the runtime.
    pub shm: u64,
    /// Host folders mounted into the container.
    pub volumes: Vec<Volume>,
    /// Root file system is read-only except for `/tmp`.
    pub read_only: bool,
    /// Set for tasks of a gang.
    #[serde(default)]
    pub gang: Option<Gang>,
    /// Timeout in milliseconds.
    pub timeout_ms: Option<u64>,
    /// Milliseconds between SIGTERM and SIGKILL.
    pub grace_ms: u64,
    /// The agent stops the task after a driver error that asks for a restart of the application: the job has a retry left.
    #[serde(default)]
    pub restart_on_gpu_error: bool,
    /// The task must not outlive the lease: the server starts it elsewhere.
    pub leased: bool,
    /// The GPUs are simulated: the task gets no device, and a notice.
    pub simulated: bool,
    /// Name of the owner.
    pub user: String,
    #[serde(default)]
    pub user_id: Option<UserId>,
    /// The task runs already according to the server: an agent without the task reports its end instead of
    /// starting it a second time.
    #[serde(default)]
    pub running: bool,
    /// Trace of the job, for logs.
    #[serde(default)]
    pub trace_id: Option<TraceId>,
}

/// Meeting point of the tasks of a gang: task 0, the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Gang {
    /// `MASTER_PORT`.
    pub master_port: u16,
    /// Task 0 runs on the same node.
    pub master_here: bool,
    /// Tasks of the gang run on several nodes.
    pub spans_nodes: bool,
}

/// Credentials of a registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RegistryAuth {
    /// Registry; default Docker Hub.
    pub server: Option<String>,
    pub username: String,
    pub password: Secret,
}

/// A GPU, or a part of one, assigned to a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GpuGrant {
    /// Index on the node.
    pub index: u32,
    /// UUID of the device or MIG slice.
    pub uuid: String,
    /// Share of the device in thousandths.
    pub milli: u32,
    /// Memory that the task may use, in MiB.
    pub memory: u64,
    /// Other tasks may share the device.
    pub shared: bool,
}

/// Batch of reports from an agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ReportBatch {
    /// Log chunks; stored before the reports are applied.
    pub logs: Vec<LogPiece>,
    pub reports: Vec<Report>,
}

/// A chunk of a task's output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LogPiece {
    #[serde(flatten)]
    pub key: TaskKey,
    /// Offset in the task's output, in bytes.
    pub offset: u64,
    /// Bytes in base64.
    pub data: String,
}

/// An update of one task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Report {
    #[serde(flatten)]
    pub key: TaskKey,
    #[serde(flatten)]
    pub update: TaskUpdate,
}

/// Update of a task. Later updates include earlier ones: `ended` alone is enough for a short job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "update", rename_all = "snake_case")]
pub enum TaskUpdate {
    /// The agent has the task.
    Accepted,
    /// The agent cannot run the task now; another agent may.
    Refused { detail: String },
    /// Progress worth an event: an image pull, a warning.
    Progress {
        /// `Pulling`, `Pulled`, `Starting` or `Warning`.
        kind: EventKind,
        detail: String,
    },
    /// Objects of the task in Kubernetes.
    Placed(KubernetesObjects),
    Running {
        /// Start by the agent's clock.
        started_at: Stamp,
    },
    /// The task has ended and no process of it remains.
    Ended(Box<Ended>),
}

/// Objects of a task in Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct KubernetesObjects {
    pub namespace: String,
    /// Name of the `batch/v1` Job.
    pub job_name: String,
    pub pod_name: String,
}

/// End of a task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Ended {
    /// Exit code, or 128 plus the number of the signal; none if the task never ran.
    pub exit_code: Option<i32>,
    /// Signal that killed the process.
    pub signal: Option<i32>,
    /// Cause of the stop, if the agent stopped the task.
    pub stopped: Option<StopCause>,
    /// The kernel's OOM killer ended the process.
    pub out_of_memory: bool,
    /// Failure to start, where the task never ran.
    pub failed_to_start: Option<StartFailure>,
    /// Start by the agent's clock.
    pub started_at: Option<Stamp>,
    /// Run time in milliseconds, independent of steps of the wall clock; zero if unknown.
    pub ran_ms: u64,
    /// JSON that the job wrote to `$AGENTAFLOW_OUTPUT`.
    #[schema(value_type = Option<Object>)]
    pub output_data: Option<Value>,
    pub usage: ResourceUsage,
    /// Total bytes of output; the server compares them with the chunks received.
    pub log_bytes: u64,
    /// Last bytes of the output of a failed task. Not sent: the server reads them from its log.
    #[serde(skip)]
    pub log_tail: String,
}

/// Use of a task that runs, in a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskUse {
    #[serde(flatten)]
    pub key: TaskKey,
    /// CPU time since the start in milliseconds; none if the runtime does not measure it.
    #[serde(default)]
    pub cpu_ms: Option<u64>,
    /// Present memory in MiB.
    #[serde(default)]
    pub memory: Option<u64>,
    /// Present GPU memory in MiB.
    #[serde(default)]
    pub gpu_memory: Option<u64>,
    /// Energy of the GPUs in joules since the start, or since the start of the agent.
    #[serde(default)]
    pub gpu_joules: Option<f64>,
    /// Use of GPUs since the start.
    #[serde(default)]
    pub gpu: Option<GpuUsage>,
}

/// Response to a batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReportReply {
    /// One entry per report, in order: true if the server applied the report. The agent kills and forgets a stale task.
    pub accepted: Vec<bool>,
    /// Bytes of output that the server has per task; the agent continues from there.
    pub log_have: Vec<(TaskKey, u64)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_task_contains_its_whole_key() {
        let key = TaskKey { job: JobId(17), epoch: 1, incarnation: 0x00c3_02ab, task: 0 };
        assert_eq!(key.to_string(), "17-1-0-00c302ab");
        assert_eq!("17-1-0-00c302ab".parse(), Ok(key));
        for text in ["17-1-0", "17-1-0-xyz", "17-1", ""] {
            assert_eq!(text.parse::<TaskKey>(), Err(()), "{text}");
        }
    }
}
