//! Records of the store.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use agentaflow_api::account::Role;
use agentaflow_api::end::{EndCause, EndReason};
use agentaflow_api::ids::{AgentId, CredentialId, JobId, MicroUsd, NodeId, UserId};
use agentaflow_api::job::{GpuUsage, JobSpec, JobStatus, ResourceUsage, TaskState};
use agentaflow_api::link::{GpuGrant, KubernetesObjects, StopCause};
use agentaflow_api::node::{Health, NodeSpec, NodeUpdate, PendingRegistration, PriceSource};
use agentaflow_api::pending::{BudgetShortfall, PendingReason};
use agentaflow_api::queue::QueueSpec;
use agentaflow_api::trace::TraceContext;
use agentaflow_api::units::{Dollars, Stamp};
use agentaflow_engine::{GpuAllocation, Price};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct UserRow {
    pub id: UserId,
    /// Unique.
    pub username: String,
    pub email: Option<String>,
    pub role: Role,
    /// Permissions beyond the role.
    pub grants: Vec<String>,
    /// May log in and use keys.
    pub active: bool,
    /// Queue of jobs that name none.
    pub default_queue: String,
    /// Jobs stay pending once the balance is exhausted.
    pub prepaid: bool,
    /// Maximum spending in a calendar month.
    pub spending_limit: Option<MicroUsd>,
    /// argon2id in PHC form; none for a user without a password.
    pub password_hash: Option<String>,
    /// Access tokens with another number are not valid.
    pub session_epoch: u32,
    pub created_at: Stamp,
}

/// Purpose of a credential.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CredentialKind {
    #[default]
    ApiKey,
    /// Refresh token of a session; used once.
    Refresh,
    /// Invitation to register; used once.
    Invite,
    /// Link that logs a browser in; used once.
    BrowserLink,
    /// Permits the registration of nodes and agents.
    Registration,
    Node,
    Agent,
}

/// A key, token, session or invitation. The store has only its hash.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CredentialRow {
    pub id: CredentialId,
    pub kind: CredentialKind,
    /// SHA-256 of the secret, in hexadecimal; unique.
    pub hash: String,
    /// First characters of the secret, for lists.
    pub prefix: String,
    pub name: String,
    /// Owner; the creator of a registration token.
    pub user_id: Option<UserId>,
    pub node_id: Option<NodeId>,
    pub agent_id: Option<AgentId>,
    pub created_at: Stamp,
    pub expires_at: Option<Stamp>,
    /// To the minute.
    pub last_used_at: Option<Stamp>,
    pub revoked_at: Option<Stamp>,
    /// Node registrations left of a registration token; none means unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uses_left: Option<u32>,
    /// Address from which a session was opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opened_from: Option<IpAddr>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeRow {
    pub id: NodeId,
    /// `gpu-` and twelve hexadecimal digits; unique.
    pub node_id: String,
    /// Registration with defaults filled in; `node_name` is unique.
    pub spec: NodeSpec,
    pub price_source: PriceSource,
    pub cordoned: bool,
    pub draining: bool,
    /// As last reported.
    pub health: Health,
    /// Saved at intervals; memory has a later one.
    pub last_heartbeat: Option<Stamp>,
    /// Values that an admin set; they survive registrations.
    pub overrides: NodeOverrides,
    /// Address that the node registered from.
    pub peer: Option<String>,
    /// Registration from another address, without the key of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<PendingRegistration>,
    /// Last registration.
    pub registered_at: Stamp,
    /// First registration.
    pub created_at: Stamp,
    pub updated_at: Stamp,
}

/// Values that an admin set for a node. Absent fields keep the node's own values.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names are those of the node's description")]
pub struct NodeOverrides {
    pub max_concurrent_jobs: Option<u32>,
    pub hostname: Option<String>,
    pub ip_address: Option<String>,
    pub price_per_gpu_hour: Option<Dollars>,
    pub price_per_cpu_hour: Option<Dollars>,
    pub price_per_memory_gb_hour: Option<Dollars>,
    pub region: Option<String>,
    pub zone: Option<String>,
    pub labels: Option<BTreeMap<String, String>>,
    pub node_metadata: Option<Map<String, Value>>,
    pub cordoned_gpus: BTreeSet<String>,
    pub draining_gpus: BTreeSet<String>,
}

impl NodeOverrides {
    /// Takes over the values of an update.
    pub fn merge(&mut self, update: NodeUpdate) {
        self.max_concurrent_jobs = update.max_concurrent_jobs.or(self.max_concurrent_jobs);
        self.price_per_gpu_hour = update.price_per_gpu_hour.or(self.price_per_gpu_hour);
        self.price_per_cpu_hour = update.price_per_cpu_hour.or(self.price_per_cpu_hour);
        self.price_per_memory_gb_hour =
            update.price_per_memory_gb_hour.or(self.price_per_memory_gb_hour);
        self.hostname = update.hostname.or_else(|| self.hostname.take());
        self.ip_address = update.ip_address.or_else(|| self.ip_address.take());
        self.region = update.region.or_else(|| self.region.take());
        self.zone = update.zone.or_else(|| self.zone.take());
        self.labels = update.labels.or_else(|| self.labels.take());
        self.node_metadata = update.node_metadata.or_else(|| self.node_metadata.take());
    }

    /// Applies the values to a spec.
    pub fn apply(&self, spec: &mut NodeSpec, price_source: &mut PriceSource) {
        let set = self.clone();
        if set.price_per_gpu_hour.is_some() {
            *price_source = PriceSource::Admin;
        }
        spec.max_concurrent_jobs = set.max_concurrent_jobs.unwrap_or(spec.max_concurrent_jobs);
        spec.price_per_gpu_hour = set.price_per_gpu_hour.unwrap_or(spec.price_per_gpu_hour);
        spec.price_per_cpu_hour = set.price_per_cpu_hour.unwrap_or(spec.price_per_cpu_hour);
        spec.price_per_memory_gb_hour =
            set.price_per_memory_gb_hour.unwrap_or(spec.price_per_memory_gb_hour);
        spec.hostname = set.hostname.or_else(|| spec.hostname.take());
        spec.ip_address = set.ip_address.or_else(|| spec.ip_address.take());
        spec.region = set.region.or_else(|| spec.region.take());
        spec.zone = set.zone.or_else(|| spec.zone.take());
        spec.labels = set.labels.unwrap_or_else(|| std::mem::take(&mut spec.labels));
        spec.node_metadata =
            set.node_metadata.unwrap_or_else(|| std::mem::take(&mut spec.node_metadata));
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentRow {
    pub id: AgentId,
    /// Name that the agent chose; unique.
    pub agent_id: String,
    pub node_id: NodeId,
    pub agent_version: Option<String>,
    pub config: Map<String, Value>,
    pub capabilities: Map<String, Value>,
    pub api_endpoint: Option<String>,
    pub websocket_endpoint: Option<String>,
    /// First registration.
    pub created_at: Stamp,
    pub updated_at: Stamp,
    /// Last registration.
    pub started_at: Option<Stamp>,
}

/// A job: the submission, which never changes, and its state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobRow {
    pub id: JobId,
    pub user_id: UserId,
    pub queue: String,
    /// Submitted spec without secrets.
    pub spec: JobSpec,
    /// `gpu-…` name of the only permitted node.
    pub pinned: Option<String>,
    /// Names of the secret environment variables.
    pub secret_names: Vec<String>,
    /// None for jobs of servers without randomness.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceContext>,
    pub created_at: Stamp,
    pub state: JobState,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobState {
    pub status: JobStatus,
    /// Secrets, sealed (see `secrets.rs`), in base64; none after the end of the job.
    pub sealed: Option<String>,
    /// Current attempt, from 1; 0 before the first placement.
    pub epoch: u32,
    /// Server start that began the attempt; see [`agentaflow_api::link::TaskKey`].
    pub incarnation: u32,
    /// Tasks of the current attempt; kept after the end of the job.
    pub tasks: Vec<TaskAssignment>,
    /// Attempts after the job's own failures.
    pub retries_used: u32,
    /// Attempts that ended with the loss of a node.
    pub losses: u32,
    pub cancel_requested: bool,
    /// The job counts as completed once its tasks are stopped.
    pub complete_requested: bool,
    /// Cause for which the tasks are being stopped.
    pub stopping: Option<StopCause>,
    pub output_data: Option<Value>,
    /// Rendered from the end reason and its details.
    pub error_message: Option<String>,
    pub end_reason: Option<EndReason>,
    pub end_cause: Option<EndCause>,
    /// First failure of a task.
    pub failed_at: Option<Stamp>,
    pub exit_code: Option<i32>,
    pub usage: ResourceUsage,
    /// GPU time of the ended tasks of all attempts, as far as its use was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuAccount>,
    pub scheduled_at: Option<Stamp>,
    pub started_at: Option<Stamp>,
    pub completed_at: Option<Stamp>,
    /// Longest run time of a task.
    pub ran_ms: u64,
    /// Sum of the ledger entries of the job.
    pub cost: MicroUsd,
    /// Pending reason that the engine reported last; its numbers may be out of date.
    pub pending_reason: Option<PendingReason>,
    /// Budget that keeps the job pending.
    pub gate: Option<BudgetShortfall>,
    /// Warning about the exhausted budget.
    pub warned_at: Option<Stamp>,
    pub updated_at: Stamp,
}

/// Billed GPU time of tasks whose use was measured, beside that use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuAccount {
    /// Times are sums over the tasks; the other values are the highest of any task.
    pub usage: GpuUsage,
    /// Billed thousandths of a GPU × milliseconds.
    pub billed: u64,
    /// Cost of the billed GPUs.
    pub cost: MicroUsd,
    /// Granted MiB × milliseconds of the tasks whose GPU memory was measured.
    pub memory_billed: u64,
    /// The same with the peak of each GPU.
    pub memory_used: u64,
    /// GPUs of a task.
    pub gpus: u32,
    /// Granted thousandths of each of them.
    pub milli: u32,
    /// Granted MiB of each of them.
    pub memory: u64,
    /// A share of a GPU would be possible.
    pub divisible: bool,
}

/// Assignment of a task to a node in the current attempt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskAssignment {
    /// From 0.
    pub task: u32,
    pub node: NodeId,
    /// Devices by their engine names.
    pub gpus: Vec<GpuAllocation>,
    /// Devices for the agent.
    pub grants: Vec<GpuGrant>,
    /// Price of the node at placement.
    pub price: Price,
    /// Billed GPUs, in thousandths.
    pub gpu_milli: u64,
    pub state: TaskState,
    pub started_at: Option<Stamp>,
    pub ran_ms: u64,
    pub exit_code: Option<i32>,
    /// The task was stopped and did not end by itself.
    pub stopped: bool,
    /// Kubernetes objects of the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<KubernetesObjects>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueRow {
    /// Definition; the name is unique.
    pub spec: QueueSpec,
    /// Users that `spec.users` names.
    pub members: Vec<UserId>,
    pub created_at: Stamp,
    pub updated_at: Stamp,
}

/// Submission with an idempotency key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdempotencyRow {
    pub user_id: UserId,
    pub key: String,
    /// SHA-256 of the body, in hexadecimal.
    pub body: String,
    pub job_id: JobId,
    pub at: Stamp,
}

/// Last heartbeat of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeartbeatRow {
    pub node: NodeId,
    pub at: Stamp,
}

/// Account of a user: the sums of the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccountRow {
    pub user: UserId,
    /// Credits minus costs.
    pub balance: MicroUsd,
    /// Costs of the current month.
    pub spent: MicroUsd,
}
