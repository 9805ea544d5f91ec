//! The records of the store.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use agentaflow_api::account::Role;
use agentaflow_api::end::{EndCause, EndReason};
use agentaflow_api::ids::{AgentId, JobId, MicroUsd, NodeId, UserId};
use agentaflow_api::job::{JobSpec, JobStatus, ResourceUsage, TaskState};
use agentaflow_api::link::{GpuGrant, KubernetesPlace, StopCause};
use agentaflow_api::node::{Health, NodeSpec, NodeUpdate, PriceSource};
use agentaflow_api::queue::QueueSpec;
use agentaflow_api::units::{Dollars, Stamp};
use agentaflow_engine::{GpuAllocation, Price};

/// A user.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct UserRow {
    pub id: UserId,
    /// The name; unique.
    pub username: String,
    /// Mail address.
    pub email: Option<String>,
    /// What the user may do.
    pub role: Role,
    /// Rights beyond the role.
    pub grants: Vec<String>,
    /// May log in and use keys.
    pub active: bool,
    /// The queue for jobs that do not name one.
    pub default_queue: String,
    /// Jobs wait when the balance is used up.
    pub prepaid: bool,
    /// The most that may be spent in a month, in micro-dollars.
    pub spending_limit: Option<MicroUsd>,
    /// argon2id, in PHC form; none for those who only use keys.
    pub password_hash: Option<String>,
    /// Access tokens with another number no longer count.
    pub session_epoch: u32,
    /// When the user was made.
    pub created_at: Stamp,
}

/// What a credential is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CredentialKind {
    /// A user's key.
    #[default]
    ApiKey,
    /// A session's refresh token; used once.
    Refresh,
    /// An invitation to sign up; used once.
    Invite,
    /// A link that logs a browser in; used once.
    BrowserLink,
    /// Lets machines register.
    Registration,
    /// A node's key.
    Node,
    /// An agent's key.
    Agent,
}

/// A key, token, session or invitation: only a hash of it is kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CredentialRow {
    /// Its number.
    pub id: i64,
    /// What it is for.
    pub kind: CredentialKind,
    /// blake3 of it, in hexadecimal; unique.
    pub hash: String,
    /// Its first characters, for lists.
    pub prefix: String,
    /// What it is called.
    pub name: String,
    /// Whose it is; the maker for registration tokens.
    pub user_id: Option<UserId>,
    /// The node it belongs to.
    pub node_id: Option<NodeId>,
    /// The agent it belongs to.
    pub agent_id: Option<AgentId>,
    /// When it was made.
    pub created_at: Stamp,
    /// When it ends.
    pub expires_at: Option<Stamp>,
    /// When it was used last, to the minute.
    pub last_used_at: Option<Stamp>,
    /// When it was revoked.
    pub revoked_at: Option<Stamp>,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeRow {
    /// Its number.
    pub id: NodeId,
    /// `gpu-` and twelve hexadecimal digits; unique.
    pub node_id: String,
    /// What it registered with, completed; its name is unique.
    pub spec: NodeSpec,
    pub price_source: PriceSource,
    /// An admin closed it.
    pub cordoned: bool,
    /// An admin has it emptied.
    pub draining: bool,
    /// What it said about its health last.
    pub health: Health,
    /// When it was last heard of, as far as that was written down.
    pub last_heartbeat: Option<Stamp>,
    /// What an admin set; it outlasts registrations.
    pub overrides: NodeOverrides,
    /// The address it registered from.
    pub peer: Option<String>,
    /// When it registered last.
    pub registered_at: Stamp,
    /// When it registered first.
    pub created_at: Stamp,
    /// When its description changed last.
    pub updated_at: Stamp,
}

/// What an admin set about a node; absent fields are the node's own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names are those of the node's description")]
pub struct NodeOverrides {
    pub max_concurrent_jobs: Option<u32>,
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
    /// Takes over what an update sets.
    pub fn merge(&mut self, update: NodeUpdate) {
        self.max_concurrent_jobs = update.max_concurrent_jobs.or(self.max_concurrent_jobs);
        self.price_per_gpu_hour = update.price_per_gpu_hour.or(self.price_per_gpu_hour);
        self.price_per_cpu_hour = update.price_per_cpu_hour.or(self.price_per_cpu_hour);
        self.price_per_memory_gb_hour =
            update.price_per_memory_gb_hour.or(self.price_per_memory_gb_hour);
        self.region = update.region.or_else(|| self.region.take());
        self.zone = update.zone.or_else(|| self.zone.take());
        self.labels = update.labels.or_else(|| self.labels.take());
        self.node_metadata = update.node_metadata.or_else(|| self.node_metadata.take());
    }

    /// Puts what is set into a description.
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
        spec.region = set.region.or_else(|| spec.region.take());
        spec.zone = set.zone.or_else(|| spec.zone.take());
        spec.labels = set.labels.unwrap_or_else(|| std::mem::take(&mut spec.labels));
        spec.node_metadata =
            set.node_metadata.unwrap_or_else(|| std::mem::take(&mut spec.node_metadata));
    }
}

/// An agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentRow {
    /// Its number.
    pub id: AgentId,
    /// Its name; unique.
    pub agent_id: String,
    /// The number of its node.
    pub node_id: NodeId,
    /// Its version.
    pub agent_version: Option<String>,
    /// Its settings.
    pub config: Map<String, Value>,
    /// What it can do.
    pub capabilities: Map<String, Value>,
    /// Where it can be called.
    pub api_endpoint: Option<String>,
    /// Where it can be called by web socket.
    pub websocket_endpoint: Option<String>,
    /// When it registered first.
    pub created_at: Stamp,
    /// When it changed last.
    pub updated_at: Stamp,
    /// When it registered last.
    pub started_at: Option<Stamp>,
}

/// A job: what was handed in, which never changes, and its state, which does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobRow {
    /// Its number.
    pub id: JobId,
    /// Its owner.
    pub user_id: UserId,
    /// The queue that pays.
    pub queue: String,
    /// What was handed in, without secrets.
    pub spec: JobSpec,
    /// The only node that it may go to, by its `gpu-…` name.
    pub pinned: Option<String>,
    /// Names of its secret variables.
    pub secret_names: Vec<String>,
    /// When it was handed in.
    pub created_at: Stamp,
    /// Its state.
    pub state: JobState,
}

/// What changes about a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobState {
    /// Where it stands.
    pub status: JobStatus,
    /// Its secrets, sealed (see `secrets.rs`), in base64; forgotten when it is over.
    pub sealed: Option<String>,
    /// The present try, from 1; 0 before the first.
    pub epoch: u32,
    /// Where its tasks are in the present try; kept when it is over.
    pub tasks: Vec<TaskAssignment>,
    /// Tries used up by its own failures.
    pub retries_used: u32,
    /// Tries used up by lost nodes.
    pub losses: u32,
    /// Somebody asked for it to be stopped.
    pub cancel_requested: bool,
    /// Somebody asked for it to be ended as if it were done.
    pub complete_requested: bool,
    /// Why its tasks are being stopped.
    pub stopping: Option<StopCause>,
    /// Its result.
    pub output_data: Option<Value>,
    /// Why it failed, in words.
    pub error_message: Option<String>,
    pub end_reason: Option<EndReason>,
    pub end_cause: Option<EndCause>,
    /// When its first task failed.
    pub failed_at: Option<Stamp>,
    /// Its exit code.
    pub exit_code: Option<i32>,
    /// What it used.
    pub usage: ResourceUsage,
    /// When it got its place.
    pub scheduled_at: Option<Stamp>,
    /// When it began to run.
    pub started_at: Option<Stamp>,
    /// When it was over.
    pub completed_at: Option<Stamp>,
    /// How long it ran, all tries together.
    pub ran_ms: u64,
    /// What it cost so far, in micro-dollars, as in the ledger.
    pub cost: MicroUsd,
    /// Why it waits, in words.
    pub wait_reason: Option<String>,
    /// Why it may not start yet although there may be room: its owner's money.
    pub gate: Option<String>,
    /// When its owner was warned that money runs out.
    pub warned_at: Option<Stamp>,
    /// When it changed last.
    pub updated_at: Stamp,
}

/// A task's place in the present try.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskAssignment {
    /// The task, from 0.
    pub task: u32,
    /// The number of the node.
    pub node: NodeId,
    /// The devices, as the engine names them.
    pub gpus: Vec<GpuAllocation>,
    /// The devices, as the agent needs them.
    pub grants: Vec<GpuGrant>,
    /// The node's price when the place was given.
    pub price: Price,
    /// GPUs to pay for, in thousandths.
    pub gpu_milli: u64,
    /// How far it is.
    pub state: TaskState,
    /// When it began to run.
    pub started_at: Option<Stamp>,
    /// How long it ran.
    pub ran_ms: u64,
    /// Its exit code.
    pub exit_code: Option<i32>,
    /// It did not end by itself.
    pub stopped: bool,
    /// What it is in Kubernetes, if it runs there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<KubernetesPlace>,
}

/// A queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueRow {
    /// What was written; its name is unique.
    pub spec: QueueSpec,
    /// When it was made.
    pub created_at: Stamp,
    /// When it was changed last.
    pub updated_at: Stamp,
}

/// What was answered to a submission with a key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdempotencyRow {
    /// Whose key.
    pub user_id: UserId,
    /// The key.
    pub key: String,
    /// blake3 of the body, in hexadecimal.
    pub body: String,
    /// The job that was made.
    pub job_id: JobId,
    /// When.
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
