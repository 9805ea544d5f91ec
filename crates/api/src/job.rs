//! Jobs: what users hand in and what becomes of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::end::{EndCause, EndReason};
use crate::lenient;
use crate::units::{Cores, Dollars, Secret, Stamp};

/// A job as it is handed in. `docker_image` is required unless `runtime` is `process`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct JobCreate {
    /// What to run, and how.
    #[serde(flatten)]
    pub spec: JobSpec,
    /// The password for the registry. Write-only: stored encrypted, never shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub docker_password: Option<Secret>,
    /// Secret environment variables. Write-only: stored encrypted, never shown; names are shown.
    #[serde(deserialize_with = "lenient::or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub secret_env: BTreeMap<String, Secret>,
}

/// The part of a job that its owner wrote and may read again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct JobSpec {
    /// A name for people; not unique.
    pub job_name: Option<String>,
    /// The kind of work; `gpu_inference` when absent.
    pub job_type: Option<String>,
    /// The image.
    pub docker_image: Option<String>,
    /// Its tag; `latest` when absent.
    pub docker_tag: Option<String>,
    /// Its registry.
    pub docker_registry: Option<String>,
    /// The user name for the registry.
    pub docker_username: Option<String>,
    /// Settings for the job, passed on in `JOB_DATA`.
    #[serde(deserialize_with = "lenient::or_default")]
    pub job_config: Map<String, Value>,
    /// Input for the job, passed on in `JOB_DATA`.
    #[serde(deserialize_with = "lenient::or_default")]
    #[schema(value_type = Object)]
    pub input_data: Value,
    /// MiB of memory on each GPU.
    #[serde(deserialize_with = "lenient::whole")]
    pub gpu_memory_required: Option<u64>,
    /// CPU cores.
    pub cpu_cores_required: Option<Cores>,
    /// MiB of memory.
    #[serde(deserialize_with = "lenient::whole")]
    pub memory_required: Option<u64>,
    /// GiB of storage.
    #[serde(deserialize_with = "lenient::whole")]
    pub storage_required: Option<u64>,
    /// The endpoint it serves.
    #[schema(value_type = Option<i64>)]
    pub endpoint_id: Option<Value>,

    /// Whole GPUs (additive, like all below).
    #[serde(deserialize_with = "lenient::small")]
    pub gpu_count: Option<u32>,
    /// Only GPUs of this model.
    pub gpu_type: Option<String>,
    /// A share of one GPU, above 0 and below 1.
    pub gpu_fraction: Option<f64>,
    /// A MIG profile, such as `1g.5gb`; `gpu_count` says how many.
    pub mig_profile: Option<String>,
    /// Nobody else on its GPUs.
    pub exclusive: Option<bool>,
    /// So many copies that start together; 1 when absent.
    #[serde(deserialize_with = "lenient::small")]
    pub replicas: Option<u32>,
    /// 0 to 10, higher first; 5 when absent.
    #[serde(deserialize_with = "lenient::small")]
    pub priority: Option<u32>,
    /// The queue that pays; the user's own default when absent.
    pub queue: Option<String>,
    /// What to run: a list of words, or one line for the shell.
    #[serde(deserialize_with = "lenient::command")]
    pub command: Option<Vec<String>>,
    /// Environment variables.
    #[serde(deserialize_with = "lenient::or_default")]
    pub env: BTreeMap<String, String>,
    /// Stopped after so many seconds.
    #[serde(deserialize_with = "lenient::whole")]
    pub timeout_seconds: Option<u64>,
    /// Started again so often after a failure. Absent: never after its own failure, three times after
    /// the loss of a node.
    #[serde(deserialize_with = "lenient::small")]
    pub max_retries: Option<u32>,
    /// Folders of the node that the container sees.
    #[serde(deserialize_with = "lenient::or_default")]
    pub volumes: Vec<Volume>,
    /// How to run it; `docker` when absent and there is an image, otherwise `process`.
    pub runtime: Option<Runtime>,
    /// What happens when its node is lost.
    pub on_node_lost: Option<OnNodeLost>,
    /// How long it is expected to run; makes ETAs and budgets better.
    #[serde(deserialize_with = "lenient::whole")]
    pub estimated_duration_seconds: Option<u64>,
    /// It may be stopped for more important work and started again later.
    #[serde(deserialize_with = "lenient::or_default")]
    pub preemptible: bool,
    /// Seconds between the polite and the hard way of stopping it; 10 when absent.
    #[serde(deserialize_with = "lenient::small")]
    pub stop_grace_seconds: Option<u32>,
    /// MiB of `/dev/shm`.
    #[serde(deserialize_with = "lenient::whole")]
    pub shm_size: Option<u64>,
    /// The container may not write to its own file system, except `/tmp`.
    #[serde(deserialize_with = "lenient::or_default")]
    pub read_only: bool,
    /// The folder in which it starts.
    pub working_dir: Option<String>,
}

/// A folder of the node that the container sees.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Volume {
    /// The folder on the node; below a root that the node's operator allows.
    pub source: String,
    /// Where the container sees it.
    pub target: String,
    /// The container may not change it.
    #[serde(default)]
    pub read_only: bool,
}

/// How a job runs.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Runtime {
    /// In a container.
    Docker,
    /// As a plain process of the node.
    Process,
}

impl Runtime {
    /// Its name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Process => "process",
        }
    }
}

/// What happens to a job when its node is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnNodeLost {
    /// It is started elsewhere; the cut-off node stops it first.
    #[default]
    Requeue,
    /// It stays where it is and keeps running, cut off or not, until the node comes back.
    Wait,
}

/// Where a job stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobStatus {
    /// It waits.
    #[default]
    Pending,
    /// It has a place.
    Scheduled,
    /// It runs.
    Running,
    /// It ended well.
    Completed,
    /// It ended badly.
    Failed,
    /// It was stopped by a user.
    Cancelled,
}

impl JobStatus {
    /// Every status.
    pub const ALL: [Self; 6] = [
        Self::Pending,
        Self::Scheduled,
        Self::Running,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
    ];

    /// Its word on the wire.
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

    /// It is over.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

/// A job as the API shows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// Its number.
    pub id: i64,
    /// Its owner.
    pub user_id: i64,
    /// What was handed in.
    #[serde(flatten)]
    pub spec: JobSpec,
    /// Where it stands.
    pub status: JobStatus,
    /// What it wrote to `$AGENTAFLOW_OUTPUT`.
    #[schema(value_type = Option<Object>)]
    pub output_data: Option<Value>,
    /// Why it failed, in words.
    pub error_message: Option<String>,
    /// The number of its node; of its first task's node for a gang.
    pub assigned_node_id: Option<i64>,
    /// Its GPUs, comma-separated.
    pub assigned_gpu_id: Option<String>,
    /// Its pod in Kubernetes.
    pub k8s_pod_name: Option<String>,
    /// Its job in Kubernetes.
    pub k8s_job_name: Option<String>,
    /// Its namespace in Kubernetes (additive).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub k8s_namespace: Option<String>,
    /// MiB, at most.
    pub gpu_memory_used: Option<u64>,
    /// Cores, on average.
    pub cpu_cores_used: Option<Cores>,
    /// MiB, at most.
    pub memory_used: Option<u64>,
    /// GiB.
    pub storage_used: Option<u64>,
    /// When it got its place.
    pub scheduled_at: Option<Stamp>,
    /// When it began to run.
    pub started_at: Option<Stamp>,
    /// When it was over.
    pub completed_at: Option<Stamp>,
    /// How long it ran.
    pub duration_seconds: Option<f64>,
    /// What it cost in dollars so far.
    pub cost: Dollars,
    /// When it was handed in.
    pub created_at: Stamp,
    /// When it changed last.
    pub updated_at: Stamp,

    /// The exit code of its process, or 128 and the number of the signal (additive, like all below).
    pub exit_code: Option<i32>,
    /// Reason for the end of the job.
    pub end_reason: Option<EndReason>,
    /// Cause of the end, where the output or the runtime tells more than the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_cause: Option<EndCause>,
    /// How often it was given a place.
    pub attempt: u32,
    /// How often it was started again after its own failure.
    pub retries_used: u32,
    /// Names of its secret variables.
    pub secret_env_names: Vec<String>,
    /// Somebody asked for it to be stopped.
    pub cancel_requested: bool,
    /// Its GPUs are simulated: it gets no device.
    pub simulated: bool,
    /// Where its tasks are.
    pub tasks: Vec<TaskPlace>,
    /// Why it waits, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_reason: Option<String>,
    /// What it costs an hour while it has its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_per_hour: Option<Dollars>,
    /// The name of its owner, while there is such a user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
}

impl Job {
    /// How people name it to us: by its number, which every job of a server has, else by its name in Kubernetes.
    pub fn handle(&self) -> String {
        let named = self.k8s_job_name.clone().filter(|_| self.id == 0);
        named.unwrap_or_else(|| self.id.to_string())
    }
}

/// Where a task of a job is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskPlace {
    /// The task, from 0.
    pub task: u32,
    /// The `gpu-…` name of its node.
    pub node_id: String,
    /// The name of its node.
    pub node_name: String,
    /// Its GPUs.
    pub gpus: Vec<String>,
    pub state: TaskState,
    /// Its exit code.
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
    /// The task runs.
    Running,
    /// The task has ended.
    Ended,
}

impl TaskState {
    /// Word in JSON.
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
    /// The job; must be the one in the path.
    #[serde(deserialize_with = "lenient::whole")]
    pub job_id: Option<u64>,
    /// Where it stands: `running`, `completed`, `failed` or `cancelled`.
    pub status: Option<JobStatus>,
    /// Its result.
    #[schema(value_type = Option<Object>)]
    pub output_data: Option<Value>,
    /// Why it failed.
    pub error_message: Option<String>,
    /// What it used.
    pub resource_usage: Option<ResourceUsage>,
    /// How long it ran.
    pub duration_seconds: Option<f64>,
}

/// What a job used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ResourceUsage {
    /// MiB of GPU memory, at most.
    #[serde(deserialize_with = "lenient::whole")]
    pub gpu_memory: Option<u64>,
    /// CPU cores, on average.
    pub cpu_cores: Option<Cores>,
    /// MiB of memory, at most.
    #[serde(deserialize_with = "lenient::whole")]
    pub memory: Option<u64>,
    /// GiB of storage.
    #[serde(deserialize_with = "lenient::whole")]
    pub storage: Option<u64>,
}
