//! Nodes: GPU servers that run jobs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::ids::NodeId;
use crate::lenient;
use crate::link::TaskUse;
use crate::units::{Cores, Dollars, Secret, Stamp};
use crate::wire::wire_enum;

/// Registration of a node. A registration with an existing `node_name` updates that node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct NodeRegistration {
    /// Unique name.
    pub node_name: String,
    pub hostname: Option<String>,
    pub ip_address: Option<String>,
    pub region: Option<String>,
    pub zone: Option<String>,
    /// Name of the cluster; default `default`.
    pub cluster_name: Option<String>,
    #[serde(deserialize_with = "lenient::small")]
    pub gpu_count: Option<u32>,
    pub gpu_type: Option<String>,
    /// GPU memory of the whole node in MiB.
    #[serde(deserialize_with = "lenient::whole")]
    pub gpu_memory_total: Option<u64>,
    pub gpu_driver_version: Option<String>,
    pub gpu_cuda_version: Option<String>,
    pub cpu_cores: Option<Cores>,
    /// In MiB.
    #[serde(deserialize_with = "lenient::whole")]
    pub memory_total: Option<u64>,
    /// Storage in GiB.
    #[serde(deserialize_with = "lenient::whole")]
    pub storage_total: Option<u64>,
    /// Maximum number of concurrent jobs; default 1, 0 means no limit beyond resources.
    #[serde(deserialize_with = "lenient::small")]
    pub max_concurrent_jobs: Option<u32>,
    pub auto_register: Option<bool>,
    /// US dollars.
    pub price_per_gpu_hour: Option<Dollars>,
    /// US dollars.
    pub price_per_cpu_hour: Option<Dollars>,
    /// US dollars.
    pub price_per_memory_gb_hour: Option<Dollars>,
    pub k8s_node_name: Option<String>,
    pub k8s_cluster: Option<String>,
    pub k8s_namespace: Option<String>,
    #[schema(value_type = Option<Object>)]
    pub k8s_labels: Option<Value>,
    #[schema(value_type = Option<Object>)]
    pub k8s_taints: Option<Value>,
    /// URL of the agent, for agents that the server pushes jobs to.
    pub api_endpoint: Option<String>,
    pub ssh_endpoint: Option<String>,
    pub vnc_endpoint: Option<String>,
    /// Free-form data.
    #[serde(deserialize_with = "lenient::or_default")]
    pub node_metadata: Map<String, Value>,
    /// `gpu-…` name of an existing node, to rename it.
    pub node_id: Option<String>,
    /// Registration token, for clients that cannot send a header.
    pub registration_token: Option<Secret>,
    /// Details of each GPU (additive).
    #[serde(deserialize_with = "lenient::or_default")]
    pub gpu_instances: Vec<GpuInstance>,
    /// Runtimes: `docker`, `process`, `kubernetes` (additive).
    #[serde(deserialize_with = "lenient::or_default")]
    pub runtimes: Vec<String>,
    /// The GPUs are simulated (additive).
    #[serde(deserialize_with = "lenient::or_default")]
    pub simulated: bool,
    /// (additive)
    #[serde(deserialize_with = "lenient::or_default")]
    pub labels: BTreeMap<String, String>,
}

/// A GPU of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct GpuInstance {
    /// Index on the node.
    #[serde(deserialize_with = "lenient::small")]
    pub gpu_index: Option<u32>,
    pub gpu_uuid: Option<String>,
    pub gpu_name: Option<String>,
    pub gpu_type: Option<String>,
    /// In MiB.
    #[serde(deserialize_with = "lenient::whole")]
    pub gpu_memory: Option<u64>,
    /// Free memory in MiB.
    #[serde(deserialize_with = "lenient::whole")]
    pub gpu_memory_available: Option<u64>,
    /// Percent.
    pub utilization: Option<f64>,
    /// Degrees Celsius.
    pub temperature: Option<f64>,
    /// Watts.
    pub power_usage: Option<f64>,
    /// Power limit in watts (additive).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit: Option<f64>,
    pub status: Option<GpuStatus>,
    /// Memory in MiB held by processes outside of jobs (additive).
    #[serde(deserialize_with = "lenient::whole", skip_serializing_if = "Option::is_none")]
    pub gpu_memory_foreign: Option<u64>,
    /// GPUs with the same number are connected by NVLink (additive).
    #[serde(deserialize_with = "lenient::small", skip_serializing_if = "Option::is_none")]
    pub nvlink_group: Option<u32>,
    /// PCI address (additive).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci_bus_id: Option<String>,
    /// Existing MIG slices; absent when MIG mode is off (additive).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig: Option<Vec<MigSlice>>,
    /// SM clock in MHz (additive).
    #[serde(deserialize_with = "lenient::small", skip_serializing_if = "Option::is_none")]
    pub sm_clock: Option<u32>,
    /// Uncorrected memory errors since the driver was loaded (additive).
    #[serde(deserialize_with = "lenient::whole", skip_serializing_if = "Option::is_none")]
    pub ecc_errors: Option<u64>,
    /// Active throttle reasons (additive).
    #[serde(deserialize_with = "lenient::or_default", skip_serializing_if = "Vec::is_empty")]
    pub throttled: Vec<String>,
    /// Problem of the GPU, with the remedy (additive).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Driver error (XID) that keeps the GPU out of use (additive).
    #[serde(deserialize_with = "lenient::whole", skip_serializing_if = "Option::is_none")]
    pub xid: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GpuStatus {
    /// No job uses the GPU.
    Available,
    /// A job uses the GPU.
    Busy,
    /// The GPU does not work.
    Error,
    /// The GPU takes no new work.
    Maintenance,
}

impl GpuStatus {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Available => "available",
            Self::Busy => "busy",
            Self::Error => "error",
            Self::Maintenance => "maintenance",
        }
    }
}

wire_enum! {
    /// Source of the prices of a node.
    pub enum PriceSource else Unknown {
        /// The node registered with prices.
        Node = "node",
        /// An admin set the prices.
        Admin = "admin",
        /// The catalogue has prices for the GPU model.
        Catalogue = "catalogue",
        /// Default prices of the server.
        Default = "default",
        /// Not known.
        Unknown = "",
    }
}

#[allow(clippy::derivable_impls, reason = "`wire_enum!` takes no attribute of a variant")]
impl Default for PriceSource {
    fn default() -> Self {
        Self::Unknown
    }
}

/// A MIG slice that exists on a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MigSlice {
    /// Profile, such as `1g.18gb`.
    pub profile: String,
    /// First memory slot.
    pub start: u8,
    pub uuid: String,
}

/// A node with its state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Node {
    pub id: NodeId,
    /// `gpu-` and twelve hexadecimal digits.
    pub node_id: String,
    #[serde(flatten)]
    pub spec: NodeSpec,
    /// GPU memory free for new jobs, in MiB.
    pub gpu_memory_available: u64,
    /// CPU cores free for new jobs.
    pub cpu_cores_available: Cores,
    /// Memory free for new jobs, in MiB.
    pub memory_available: u64,
    /// Storage free for new jobs, in GiB.
    pub storage_available: u64,
    pub status: NodeStatus,
    pub health_status: Health,
    /// Time of the last heartbeat.
    pub last_heartbeat: Option<Stamp>,
    /// Number of live jobs.
    pub current_jobs: u32,
    /// Time of the last registration.
    pub registered_at: Stamp,
    /// Time of the last contact.
    pub last_seen: Option<Stamp>,
    /// Time of the first registration.
    pub created_at: Stamp,
    /// Time of the last change of the description.
    pub updated_at: Stamp,
    /// Source of the prices (additive).
    pub price_source: PriceSource,
    /// Cordoned by an admin: no new jobs (additive).
    pub cordoned: bool,
    /// Draining: running jobs are requeued elsewhere (additive).
    pub draining: bool,
    /// GPUs cordoned by an admin (additive).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cordoned_gpus: Vec<String>,
    /// GPUs being drained (additive).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub draining_gpus: Vec<String>,
    /// True if the server can assign jobs now: an open stream, or a push endpoint that answers (additive).
    pub reachable: bool,
    /// Length of the lease that a heartbeat renews, in milliseconds; only in the response to a heartbeat (additive).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// Registration that awaits the approval of an admin (additive).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_registration: Option<PendingRegistration>,
    /// Key for heartbeats and status; only in the response to a registration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<Secret>,
}

/// Registration with the name of a known node, without its key and from another address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct PendingRegistration {
    /// Address of the caller.
    pub address: String,
    pub requested_at: Stamp,
    /// An admin approved the next registration from this address.
    pub approved: bool,
}

/// Approval of a pending registration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct NodeApproval {
    /// Expected address, so that no other registration is approved; default the pending one.
    pub address: Option<String>,
}

/// Description of a node, with defaults applied.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct NodeSpec {
    pub node_name: String,
    pub hostname: Option<String>,
    pub ip_address: Option<String>,
    pub region: Option<String>,
    pub zone: Option<String>,
    pub cluster_name: String,
    pub gpu_count: u32,
    pub gpu_type: Option<String>,
    /// GPU memory of the whole node in MiB.
    pub gpu_memory_total: u64,
    pub gpu_driver_version: Option<String>,
    pub gpu_cuda_version: Option<String>,
    pub cpu_cores: Cores,
    /// In MiB.
    pub memory_total: u64,
    /// Storage in GiB.
    pub storage_total: u64,
    /// Maximum number of concurrent jobs; 0 means no limit beyond resources.
    pub max_concurrent_jobs: u32,
    pub auto_register: bool,
    /// US dollars.
    pub price_per_gpu_hour: Dollars,
    /// US dollars.
    pub price_per_cpu_hour: Dollars,
    /// US dollars.
    pub price_per_memory_gb_hour: Dollars,
    pub k8s_node_name: Option<String>,
    pub k8s_cluster: Option<String>,
    pub k8s_namespace: Option<String>,
    #[schema(value_type = Option<Object>)]
    pub k8s_labels: Option<Value>,
    #[schema(value_type = Option<Object>)]
    pub k8s_taints: Option<Value>,
    /// URL of the agent, for agents that the server pushes jobs to.
    pub api_endpoint: Option<String>,
    pub ssh_endpoint: Option<String>,
    pub vnc_endpoint: Option<String>,
    /// Free-form data.
    pub node_metadata: Map<String, Value>,
    /// Details of each GPU.
    pub gpu_instances: Vec<GpuInstance>,
    /// Runtimes: `docker`, `process`, `kubernetes`, `push`.
    pub runtimes: Vec<String>,
    /// The GPUs are simulated; jobs get no device.
    pub simulated: bool,
    pub labels: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NodeStatus {
    /// Registered, no heartbeat yet.
    #[default]
    Pending,
    /// Heartbeats arrive.
    Active,
    /// No heartbeat for three intervals.
    Inactive,
    /// The node reports an error.
    Error,
    /// Cordoned by an admin.
    Maintenance,
}

impl NodeStatus {
    pub const ALL: [Self; 5] =
        [Self::Pending, Self::Active, Self::Inactive, Self::Error, Self::Maintenance];

    /// Word in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Active => "active",
            Self::Inactive => "inactive",
            Self::Error => "error",
            Self::Maintenance => "maintenance",
        }
    }
}

/// Health that a node reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    Healthy,
    Unhealthy,
    /// Not reported.
    #[default]
    Unknown,
}

/// Heartbeat of a node. Every field is optional; `node_id` may be in the path only.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Heartbeat {
    /// `gpu-…` name or number of the node.
    #[schema(value_type = Option<String>)]
    pub node_id: Option<Value>,
    /// Free GPU memory in MiB.
    #[serde(deserialize_with = "lenient::whole")]
    pub gpu_memory_available: Option<u64>,
    pub cpu_cores_available: Option<Cores>,
    /// Free memory in MiB.
    #[serde(deserialize_with = "lenient::whole")]
    pub memory_available: Option<u64>,
    /// Free storage in GiB.
    #[serde(deserialize_with = "lenient::whole")]
    pub storage_available: Option<u64>,
    /// Number of live jobs.
    #[serde(deserialize_with = "lenient::small")]
    pub current_jobs: Option<u32>,
    pub health_status: Option<Health>,
    pub gpu_instances: Option<Vec<GpuInstance>>,
    /// Use of the running tasks (additive).
    #[serde(deserialize_with = "lenient::or_default", skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<TaskUse>,
}

/// Changes to a node by an admin; absent fields stay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct NodeUpdate {
    /// `maintenance` cordons the node, `active` uncordons it.
    pub status: Option<NodeStatus>,
    /// Starts or ends a drain.
    pub drain: Option<bool>,
    /// Cordoned GPUs by index or UUID; replaces the whole list.
    pub cordoned_gpus: Option<Vec<String>>,
    /// Draining GPUs by index or UUID; replaces the whole list.
    pub draining_gpus: Option<Vec<String>>,
    /// GPUs to cordon, by index or UUID; the list keeps its other entries (additive).
    pub cordon_gpus: Option<Vec<String>>,
    /// GPUs to drain, by index or UUID; the list keeps its other entries (additive).
    pub drain_gpus: Option<Vec<String>>,
    /// GPUs to uncordon, by index or UUID; the lists keep their other entries (additive).
    pub uncordon_gpus: Option<Vec<String>>,
    /// Maximum number of concurrent jobs; 0 means no limit beyond resources.
    #[serde(deserialize_with = "lenient::small")]
    pub max_concurrent_jobs: Option<u32>,
    pub hostname: Option<String>,
    pub ip_address: Option<String>,
    /// US dollars; applies to jobs placed after the change.
    pub price_per_gpu_hour: Option<Dollars>,
    /// US dollars.
    pub price_per_cpu_hour: Option<Dollars>,
    /// US dollars.
    pub price_per_memory_gb_hour: Option<Dollars>,
    pub region: Option<String>,
    pub zone: Option<String>,
    /// Replaces all labels.
    pub labels: Option<BTreeMap<String, String>>,
    /// Replaces all free-form data.
    pub node_metadata: Option<Map<String, Value>>,
}

/// Statistics of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeStats {
    /// In MiB.
    pub total_gpu_memory: u64,
    /// In MiB.
    pub available_gpu_memory: u64,
    pub total_cpu_cores: Cores,
    pub available_cpu_cores: Cores,
    /// In MiB.
    pub total_memory: u64,
    /// In MiB.
    pub available_memory: u64,
    pub current_jobs: u32,
    /// Maximum number of concurrent jobs; 0 means no limit beyond resources.
    pub max_concurrent_jobs: u32,
    /// Allocated GPU memory in percent.
    pub utilization_percentage: f64,
    /// Percent per GPU; 0 without a reading.
    pub gpu_utilization: Vec<f64>,
    /// Degrees Celsius per GPU; empty unless every GPU has a reading.
    pub temperature: Vec<f64>,
    /// Watts per GPU; empty unless every GPU has a reading.
    pub power_usage: Vec<f64>,
    /// The readings are simulated (additive).
    pub simulated: bool,
}

/// Nodes with room for a job of the given size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AvailableNodes {
    pub available_nodes: u32,
    pub nodes: Vec<Node>,
}
