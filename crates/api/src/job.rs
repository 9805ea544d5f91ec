//! Jobs: submitted specifications and their state.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::end::{EndCause, EndReason};
use crate::ids::{JobId, NodeId, UserId};
use crate::lenient;
use crate::pending::PendingReason;
use crate::trace::{TraceContext, TraceId};
use crate::units::{Cores, Dollars, Secret, Stamp};

/// Submission of a job. `docker_image` is required unless `runtime` is `process`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct JobCreate {
    #[serde(flatten)]
    pub spec: JobSpec,
    /// Password for the registry. Write-only, stored encrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub docker_password: Option<Secret>,
    /// Secret environment variables. Write-only, stored encrypted; `secret_env_names` lists the names.
    #[serde(deserialize_with = "lenient::or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub secret_env: BTreeMap<String, Secret>,
    /// Trace of the request, from its header `traceparent`.
    #[serde(skip)]
    pub trace: Option<TraceContext>,
}

/// Specification of a job, without its secrets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct JobSpec {
    /// Name; not unique.
    pub job_name: Option<String>,
    /// Type of work; default `gpu_inference`.
    pub job_type: Option<String>,
    pub docker_image: Option<String>,
    /// Tag of the image; default `latest`.
    pub docker_tag: Option<String>,
    pub docker_registry: Option<String>,
    pub docker_username: Option<String>,
    /// Settings, passed to the job in `JOB_DATA`.
    #[serde(deserialize_with = "lenient::or_default")]
    pub job_config: Map<String, Value>,
    /// Input, passed to the job in `JOB_DATA`.
    #[serde(deserialize_with = "lenient::or_default")]
    pub input_data: Value,
    /// GPU memory in MiB, per GPU.
    #[serde(deserialize_with = "lenient::whole")]
    pub gpu_memory_required: Option<u64>,
    pub cpu_cores_required: Option<Cores>,
    /// In MiB.
    #[serde(deserialize_with = "lenient::whole")]
    pub memory_required: Option<u64>,
    /// Storage in GiB.
    #[serde(deserialize_with = "lenient::whole")]
    pub storage_required: Option<u64>,
    /// Endpoint that the job serves.
    #[schema(value_type = Option<i64>)]
    pub endpoint_id: Option<Value>,

    /// Number of whole GPUs (this and all fields below are additive).
    #[serde(deserialize_with = "lenient::small")]
    pub gpu_count: Option<u32>,
    /// Required GPU model.
    pub gpu_type: Option<String>,
    /// Share of one GPU, above 0 and below 1.
    pub gpu_fraction: Option<f64>,
    /// MIG profile, such as `1g.5gb`; `gpu_count` gives the number of slices.
    pub mig_profile: Option<String>,
    /// No other job shares the GPUs.
    pub exclusive: Option<bool>,
    /// Number of tasks of the gang, which start together; default 1.
    #[serde(deserialize_with = "lenient::small")]
    pub replicas: Option<u32>,
    /// 0 to 10, higher first; default 5. A pod of a cluster shows the value of its priority class.
    #[serde(deserialize_with = "lenient::small_signed")]
    pub priority: Option<i32>,
    /// Queue; default is the user's `default_queue`.
    pub queue: Option<String>,
    /// Command: a list of arguments, or one line for the shell.
    #[serde(deserialize_with = "lenient::command")]
    pub command: Option<Vec<String>>,
    #[serde(deserialize_with = "lenient::or_default")]
    pub env: BTreeMap<String, String>,
    #[serde(deserialize_with = "lenient::whole")]
    pub timeout_seconds: Option<u64>,
    /// Retries on failure. Default: 0 after a failure of the job, 3 after the loss of a node.
    #[serde(deserialize_with = "lenient::small")]
    pub max_retries: Option<u32>,
    /// Host folders mounted into the container.
    #[serde(deserialize_with = "lenient::or_default")]
    pub volumes: Vec<Volume>,
    /// Runtime; default `docker` with an image, otherwise `process`.
    pub runtime: Option<Runtime>,
    /// Behaviour when the node is lost; default `requeue`, and `wait` on a node whose agent the server calls.
    pub on_node_lost: Option<OnNodeLost>,
    /// Expected run time in seconds; improves backfill, ETAs and budgets.
    #[serde(deserialize_with = "lenient::whole")]
    pub estimated_duration_seconds: Option<u64>,
    /// Jobs with a higher priority may preempt this one, which is then requeued.
    #[serde(deserialize_with = "lenient::or_default")]
    pub preemptible: bool,
    /// Seconds between SIGTERM and SIGKILL; default 10.
    #[serde(deserialize_with = "lenient::small")]
    pub stop_grace_seconds: Option<u32>,
    /// Size of `/dev/shm` in MiB.
    #[serde(deserialize_with = "lenient::whole")]
    pub shm_size: Option<u64>,
    /// Root file system is read-only except for `/tmp`.
    #[serde(deserialize_with = "lenient::or_default")]
    pub read_only: bool,
    pub working_dir: Option<String>,
}

/// A host folder mounted into the container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Volume {
    /// Folder on the node, below a root that the operator of the node permits.
    pub source: String,
    /// Mount path in the container.
    pub target: String,
    /// Mounted read-only.
    #[serde(default)]
    pub read_only: bool,
}

/// Runtime of a job.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Runtime {
    Docker,
    /// A plain process on the node.
    Process,
}

impl Runtime {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Process => "process",
        }
    }
}

/// Behaviour of a job when its node is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnNodeLost {
    /// The job is requeued; the lost node stops its tasks before they start elsewhere.
    #[default]
    Requeue,
    /// The job keeps running on the lost node until the node returns. It fails if the process of an agent that the
    /// server calls is gone.
    Wait,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobStatus {
    /// Not placed yet.
    #[default]
    Pending,
    /// Placed on its nodes, not running yet.
    Scheduled,
    Running,
    /// Completed successfully.
    Completed,
    Failed,
    /// Cancelled by a user.
    Cancelled,
}

impl JobStatus {
    pub const ALL: [Self; 6] = [
        Self::Pending,
        Self::Scheduled,
        Self::Running,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Scheduled => "scheduled",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Returns true if the job has ended.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

/// A job with its state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    pub id: JobId,
    pub user_id: UserId,
    #[serde(flatten)]
    pub spec: JobSpec,
    pub status: JobStatus,
    /// JSON that the job wrote to `$AGENTAFLOW_OUTPUT`.
    #[schema(value_type = Option<Object>)]
    pub output_data: Option<Value>,
    /// Message about a failure; `end_reason` and `end_cause` are the data.
    pub error_message: Option<String>,
    /// Number of the node; of the first task for a gang.
    pub assigned_node_id: Option<NodeId>,
    /// GPUs: the index of the only GPU, otherwise indexes or names, comma-separated.
    pub assigned_gpu_id: Option<AssignedGpus>,
    pub k8s_pod_name: Option<String>,
    pub k8s_job_name: Option<String>,
    /// (additive)
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub k8s_namespace: Option<String>,
    /// Peak, in MiB.
    pub gpu_memory_used: Option<u64>,
    /// Average.
    pub cpu_cores_used: Option<Cores>,
    /// Peak, in MiB.
    pub memory_used: Option<u64>,
    /// In GiB.
    pub storage_used: Option<u64>,
    /// Use of GPUs by the ended tasks, as far as it was measured (additive).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_usage: Option<GpuUsage>,
    /// Time of placement.
    pub scheduled_at: Option<Stamp>,
    /// Start of the run.
    pub started_at: Option<Stamp>,
    /// End of the job.
    pub completed_at: Option<Stamp>,
    /// Run time in seconds.
    pub duration_seconds: Option<f64>,
    /// Cost in dollars so far.
    pub cost: Dollars,
    /// Time of submission.
    pub created_at: Stamp,
    /// Time of the last change.
    pub updated_at: Stamp,

    /// Exit code of the process, or 128 plus the number of the signal (this and all fields below are additive).
    pub exit_code: Option<i32>,
    /// Reason for the end of the job.
    pub end_reason: Option<EndReason>,
    /// Cause of the end, where the output or the runtime tells more than the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_cause: Option<EndCause>,
    /// Trace of the job, from submission to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<TraceId>,
    /// Number of placements so far.
    pub attempt: u32,
    /// Retries used after failures of the job itself.
    pub retries_used: u32,
    /// Names of the secret variables.
    pub secret_env_names: Vec<String>,
    /// A user requested cancellation.
    pub cancel_requested: bool,
    /// The GPUs are simulated; the job gets no device.
    pub simulated: bool,
    /// Placement and state of the tasks.
    pub tasks: Vec<TaskPlace>,
    /// Message for `pending_reason`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_reason: Option<String>,
    /// Reason for which the job is pending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_reason: Option<PendingReason>,
    /// Price of the placement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_per_hour: Option<Dollars>,
    /// Name of the owner, while the user exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
}

impl Job {
    /// Handle for commands: the number of a server's job, else the name in Kubernetes.
    pub fn handle(&self) -> String {
        let named = self.k8s_job_name.clone().filter(|_| self.id == JobId::default());
        named.unwrap_or_else(|| self.id.to_string())
    }
}

/// GPUs of a placed job. Existing clients require a number for a single GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum AssignedGpus {
    /// Index of the only GPU.
    Index(u32),
    /// Indexes or names, comma-separated.
    List(String),
}

impl From<String> for AssignedGpus {
    fn from(list: String) -> Self {
        list.parse().map_or(Self::List(list), Self::Index)
    }
}

/// Placement and state of a task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskPlace {
    /// Number of the task, from 0.
    pub task: u32,
    /// `gpu-…` name of the node.
    pub node_id: String,
    pub node_name: String,
    pub gpus: Vec<String>,
    pub state: TaskState,
    pub exit_code: Option<i32>,
}

/// State of a task of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// The task has a node; the agent has not confirmed it.
    #[default]
    Scheduled,
    /// The agent has the task.
    Starting,
    Running,
    /// The task has ended.
    Ended,
}

impl TaskState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Ended => "ended",
        }
    }
}

/// Status of a job that its worker reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct JobStatusUpdate {
    /// Must equal the job in the path.
    #[serde(deserialize_with = "lenient::id")]
    pub job_id: Option<JobId>,
    /// `running`, `completed`, `failed` or `cancelled`.
    pub status: Option<JobStatus>,
    #[schema(value_type = Option<Object>)]
    pub output_data: Option<Value>,
    /// Message about a failure.
    pub error_message: Option<String>,
    pub resource_usage: Option<ResourceUsage>,
    /// Run time in seconds.
    pub duration_seconds: Option<f64>,
    /// Exit code of a failed job (additive). Absent, it is read from a message such as
    /// `Container exited with code 3: …`.
    pub exit_code: Option<i32>,
}

/// Resource usage of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ResourceUsage {
    /// Peak GPU memory in MiB.
    #[serde(deserialize_with = "lenient::whole")]
    pub gpu_memory: Option<u64>,
    /// Average CPU cores.
    pub cpu_cores: Option<Cores>,
    /// Peak memory in MiB.
    #[serde(deserialize_with = "lenient::whole")]
    pub memory: Option<u64>,
    /// Storage in GiB.
    #[serde(deserialize_with = "lenient::whole")]
    pub storage: Option<u64>,
    /// Use of GPUs; none if it was not measured (additive).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuUsage>,
}

/// Use of GPUs by one task, or by all tasks of a job, while it was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct GpuUsage {
    /// Allocated GPU time in milliseconds: a second of half a GPU is 500.
    pub allocated_ms: u64,
    /// GPU time in milliseconds in which kernels ran: a second at a utilisation of 50 % is 500.
    pub used_ms: u64,
    /// GPUs of a task on which a kernel ran or a process held memory.
    pub gpus_used: u32,
    /// Peak memory on one GPU, in MiB; none where processes cannot be seen.
    pub memory_peak: Option<u64>,
    /// Sum of the peaks of the GPUs of a task, in MiB.
    pub memory_peaks: Option<u64>,
    /// Highest mean utilisation of one GPU over a minute, in percent.
    pub busiest_minute: f64,
}
