//! Nodes: GPU servers that take work.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::lenient;
use crate::units::{Cores, Dollars, Secret, Stamp};
use crate::wire::wire_enum;

/// What a worker says about its machine when it registers. The same `node_name` again updates that node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct NodeRegistration {
    /// Its name; unique.
    pub node_name: String,
    /// Its host name.
    pub hostname: Option<String>,
    /// Its address.
    pub ip_address: Option<String>,
    /// Where it stands.
    pub region: Option<String>,
    /// Where in the region.
    pub zone: Option<String>,
    /// The group of machines it belongs to; `default` when absent.
    pub cluster_name: Option<String>,
    /// GPUs.
    #[serde(deserialize_with = "lenient::small")]
    pub gpu_count: Option<u32>,
    /// Their model.
    pub gpu_type: Option<String>,
    /// MiB of GPU memory of the whole node.
    #[serde(deserialize_with = "lenient::whole")]
    pub gpu_memory_total: Option<u64>,
    /// Driver version.
    pub gpu_driver_version: Option<String>,
    /// CUDA version.
    pub gpu_cuda_version: Option<String>,
    /// CPU cores.
    pub cpu_cores: Option<Cores>,
    /// MiB of memory.
    #[serde(deserialize_with = "lenient::whole")]
    pub memory_total: Option<u64>,
    /// GiB of storage.
    #[serde(deserialize_with = "lenient::whole")]
    pub storage_total: Option<u64>,
    /// The most jobs at a time; 1 when absent, 0 when resources alone decide.
    #[serde(deserialize_with = "lenient::small")]
    pub max_concurrent_jobs: Option<u32>,
    /// The node registered itself.
    pub auto_register: Option<bool>,
    /// Dollars an hour for a GPU.
    pub price_per_gpu_hour: Option<Dollars>,
    /// Dollars an hour for a CPU core.
    pub price_per_cpu_hour: Option<Dollars>,
    /// Dollars an hour for a GiB of memory.
    pub price_per_memory_gb_hour: Option<Dollars>,
    /// Its name in Kubernetes.
    pub k8s_node_name: Option<String>,
    /// Its Kubernetes cluster.
    pub k8s_cluster: Option<String>,
    /// Its Kubernetes namespace.
    pub k8s_namespace: Option<String>,
    /// Its Kubernetes labels.
    #[schema(value_type = Option<Object>)]
    pub k8s_labels: Option<Value>,
    /// Its Kubernetes taints.
    #[schema(value_type = Option<Object>)]
    pub k8s_taints: Option<Value>,
    /// Where its agent can be called, for agents that are pushed to.
    pub api_endpoint: Option<String>,
    /// Where it can be reached by SSH.
    pub ssh_endpoint: Option<String>,
    /// Where it can be reached by VNC.
    pub vnc_endpoint: Option<String>,
    /// Anything else.
    #[serde(deserialize_with = "lenient::or_default")]
    pub node_metadata: Map<String, Value>,
    /// The `gpu-…` name, to update a node under another name.
    pub node_id: Option<String>,
    /// The registration token, for clients that cannot send a header.
    pub registration_token: Option<Secret>,
    /// Its GPUs one by one (additive).
    #[serde(deserialize_with = "lenient::or_default")]
    pub gpu_instances: Vec<GpuInstance>,
    /// How it can run jobs: `docker`, `process`, `kubernetes` (additive).
    #[serde(deserialize_with = "lenient::or_default")]
    pub runtimes: Vec<String>,
    /// Its GPUs are simulated (additive).
    #[serde(deserialize_with = "lenient::or_default")]
    pub simulated: bool,
    /// Labels (additive).
    #[serde(deserialize_with = "lenient::or_default")]
    pub labels: BTreeMap<String, String>,
}

/// One GPU of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct GpuInstance {
    /// Its number on the node.
    #[serde(deserialize_with = "lenient::small")]
    pub gpu_index: Option<u32>,
    /// Its identifier.
    pub gpu_uuid: Option<String>,
    /// Its name.
    pub gpu_name: Option<String>,
    /// Its model.
    pub gpu_type: Option<String>,
    /// MiB of memory.
    #[serde(deserialize_with = "lenient::whole")]
    pub gpu_memory: Option<u64>,
    /// MiB that are free.
    #[serde(deserialize_with = "lenient::whole")]
    pub gpu_memory_available: Option<u64>,
    /// Percent.
    pub utilization: Option<f64>,
    /// Degrees Celsius.
    pub temperature: Option<f64>,
    /// Watts.
    pub power_usage: Option<f64>,
    /// Status of the GPU.
    pub status: Option<GpuStatus>,
    /// MiB held by processes that are not jobs of ours (additive).
    #[serde(deserialize_with = "lenient::whole", skip_serializing_if = "Option::is_none")]
    pub gpu_memory_foreign: Option<u64>,
    /// GPUs with the same number are joined by NVLink (additive).
    #[serde(deserialize_with = "lenient::small", skip_serializing_if = "Option::is_none")]
    pub nvlink_group: Option<u32>,
    /// PCI address (additive).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci_bus_id: Option<String>,
    /// The GPU is in MIG mode, and these slices exist: profile, first memory slot, uuid (additive).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig: Option<Vec<MigSlice>>,
    /// Clock of the multiprocessors in MHz (additive).
    #[serde(deserialize_with = "lenient::small", skip_serializing_if = "Option::is_none")]
    pub sm_clock: Option<u32>,
    /// Uncorrected memory errors since the driver was loaded (additive).
    #[serde(deserialize_with = "lenient::whole", skip_serializing_if = "Option::is_none")]
    pub ecc_errors: Option<u64>,
    /// Why it runs slower than it could, if it does (additive).
    #[serde(deserialize_with = "lenient::or_default", skip_serializing_if = "Vec::is_empty")]
    pub throttled: Vec<String>,
}

/// Status of a GPU.
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
    /// Word in JSON.
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

impl Default for PriceSource {
    fn default() -> Self {
        Self::Unknown
    }
}

/// A MIG slice that exists on a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MigSlice {
    /// Its profile: `1g.18gb`.
    pub profile: String,
    /// Its first memory slot.
    pub start: u8,
    /// Its identifier.
    pub uuid: String,
}

/// A node as the API shows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Node {
    /// Its number.
    pub id: i64,
    /// `gpu-` and twelve hexadecimal digits.
    pub node_id: String,
    /// What it registered with.
    #[serde(flatten)]
    pub spec: NodeSpec,
    /// MiB of GPU memory that new jobs can have.
    pub gpu_memory_available: u64,
    /// CPU cores that new jobs can have.
    pub cpu_cores_available: Cores,
    /// MiB of memory that new jobs can have.
    pub memory_available: u64,
    /// GiB of storage that new jobs can have.
    pub storage_available: u64,
    /// How it is: see [`NodeStatus`].
    pub status: NodeStatus,
    /// `healthy`, `unhealthy` or `unknown`.
    pub health_status: Health,
    /// When it was last heard of.
    pub last_heartbeat: Option<Stamp>,
    /// Jobs that it has now.
    pub current_jobs: u32,
    /// When it registered last.
    pub registered_at: Stamp,
    /// When anything was last heard of it.
    pub last_seen: Option<Stamp>,
    /// When it registered first.
    pub created_at: Stamp,
    /// When its description changed last.
    pub updated_at: Stamp,
    /// Source of the prices (additive).
    pub price_source: PriceSource,
    /// The GPU server takes no new work by an admin's wish (additive).
    pub cordoned: bool,
    /// Running jobs are being moved off it (additive).
    pub draining: bool,
    /// GPUs that take no new work by an admin's wish (additive).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cordoned_gpus: Vec<String>,
    /// GPUs from which running jobs are being moved (additive).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub draining_gpus: Vec<String>,
    /// Whether work can reach it now: a live stream, or a push endpoint that answers (additive).
    pub reachable: bool,
    /// The key for heartbeats and status; only in the answer to a registration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<Secret>,
}

/// The description of a node, complete.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct NodeSpec {
    /// Its name.
    pub node_name: String,
    /// Its host name.
    pub hostname: Option<String>,
    /// Its address.
    pub ip_address: Option<String>,
    /// Where it stands.
    pub region: Option<String>,
    /// Where in the region.
    pub zone: Option<String>,
    /// The group of machines it belongs to.
    pub cluster_name: String,
    /// GPUs.
    pub gpu_count: u32,
    /// Their model.
    pub gpu_type: Option<String>,
    /// MiB of GPU memory of the whole node.
    pub gpu_memory_total: u64,
    /// Driver version.
    pub gpu_driver_version: Option<String>,
    /// CUDA version.
    pub gpu_cuda_version: Option<String>,
    /// CPU cores.
    pub cpu_cores: Cores,
    /// MiB of memory.
    pub memory_total: u64,
    /// GiB of storage.
    pub storage_total: u64,
    /// The most jobs at a time; 0 when resources alone decide.
    pub max_concurrent_jobs: u32,
    /// The node registered itself.
    pub auto_register: bool,
    /// Dollars an hour for a GPU.
    pub price_per_gpu_hour: Dollars,
    /// Dollars an hour for a CPU core.
    pub price_per_cpu_hour: Dollars,
    /// Dollars an hour for a GiB of memory.
    pub price_per_memory_gb_hour: Dollars,
    /// Its name in Kubernetes.
    pub k8s_node_name: Option<String>,
    /// Its Kubernetes cluster.
    pub k8s_cluster: Option<String>,
    /// Its Kubernetes namespace.
    pub k8s_namespace: Option<String>,
    /// Its Kubernetes labels.
    #[schema(value_type = Option<Object>)]
    pub k8s_labels: Option<Value>,
    /// Its Kubernetes taints.
    #[schema(value_type = Option<Object>)]
    pub k8s_taints: Option<Value>,
    /// Where its agent can be called.
    pub api_endpoint: Option<String>,
    /// Where it can be reached by SSH.
    pub ssh_endpoint: Option<String>,
    /// Where it can be reached by VNC.
    pub vnc_endpoint: Option<String>,
    /// Anything else.
    pub node_metadata: Map<String, Value>,
    /// Its GPUs one by one.
    pub gpu_instances: Vec<GpuInstance>,
    /// How it can run jobs: `docker`, `process`, `kubernetes`, `push`.
    pub runtimes: Vec<String>,
    /// Its GPUs are simulated: no job gets a device.
    pub simulated: bool,
    /// Labels.
    pub labels: BTreeMap<String, String>,
}

/// How a node is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NodeStatus {
    /// Registered, and never heard of since.
    #[default]
    Pending,
    /// Alive.
    Active,
    /// Not heard of for three intervals.
    Inactive,
    /// It says that something is wrong.
    Error,
    /// Closed by an admin.
    Maintenance,
}

/// What a node says about its health.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// In order.
    Healthy,
    /// Not in order.
    Unhealthy,
    /// It did not say.
    #[default]
    Unknown,
}

/// Sign of life. Every field but `node_id` is optional, and that may stand in the path alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Heartbeat {
    /// The node: its `gpu-…` name or its number.
    #[schema(value_type = Option<String>)]
    pub node_id: Option<Value>,
    /// MiB of GPU memory that are free.
    #[serde(deserialize_with = "lenient::whole")]
    pub gpu_memory_available: Option<u64>,
    /// CPU cores that are free.
    pub cpu_cores_available: Option<Cores>,
    /// MiB of memory that are free.
    #[serde(deserialize_with = "lenient::whole")]
    pub memory_available: Option<u64>,
    /// GiB of storage that are free.
    #[serde(deserialize_with = "lenient::whole")]
    pub storage_available: Option<u64>,
    /// Jobs that it has.
    #[serde(deserialize_with = "lenient::small")]
    pub current_jobs: Option<u32>,
    /// `healthy`, `unhealthy` or `unknown`.
    pub health_status: Option<Health>,
    /// Its GPUs.
    pub gpu_instances: Option<Vec<GpuInstance>>,
}

/// What an admin may change about a node; absent fields stay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct NodeUpdate {
    /// `maintenance` closes it for new work, `active` opens it again.
    pub status: Option<NodeStatus>,
    /// Move running jobs off it, or stop doing so.
    pub drain: Option<bool>,
    /// GPUs, by index or UUID, that take no new work; replaces all.
    pub cordoned_gpus: Option<Vec<String>>,
    /// GPUs, by index or UUID, that take no new work and from which running jobs are moved; replaces all.
    pub draining_gpus: Option<Vec<String>>,
    /// GPUs, by index or UUID, that take no new work from now on; all others stay as they are (additive).
    pub cordon_gpus: Option<Vec<String>>,
    /// GPUs, by index or UUID, that take no new work from now on and from which running jobs are moved; all others
    /// stay as they are (additive).
    pub drain_gpus: Option<Vec<String>>,
    /// GPUs, by index or UUID, that take work again; all others stay as they are (additive).
    pub uncordon_gpus: Option<Vec<String>>,
    /// The most jobs at a time; 0 when resources alone decide.
    #[serde(deserialize_with = "lenient::small")]
    pub max_concurrent_jobs: Option<u32>,
    /// Dollars an hour for a GPU; holds for jobs placed from now on.
    pub price_per_gpu_hour: Option<Dollars>,
    /// Dollars an hour for a CPU core.
    pub price_per_cpu_hour: Option<Dollars>,
    /// Dollars an hour for a GiB of memory.
    pub price_per_memory_gb_hour: Option<Dollars>,
    /// Where it stands.
    pub region: Option<String>,
    /// Where in the region.
    pub zone: Option<String>,
    /// Labels; replaces all.
    pub labels: Option<BTreeMap<String, String>>,
    /// Anything else; replaces all.
    pub node_metadata: Option<Map<String, Value>>,
}

/// A node in numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeStats {
    /// MiB.
    pub total_gpu_memory: u64,
    /// MiB.
    pub available_gpu_memory: u64,
    /// Cores.
    pub total_cpu_cores: Cores,
    /// Cores.
    pub available_cpu_cores: Cores,
    /// MiB.
    pub total_memory: u64,
    /// MiB.
    pub available_memory: u64,
    /// Jobs now.
    pub current_jobs: u32,
    /// The most jobs at a time; 0 when resources alone decide.
    pub max_concurrent_jobs: u32,
    /// Booked GPU memory, in percent of all.
    pub utilization_percentage: f64,
    /// Percent, for each GPU; null where no reading was sent.
    pub gpu_utilization: Vec<Option<f64>>,
    /// Degrees Celsius, for each GPU.
    pub temperature: Vec<Option<f64>>,
    /// Watts, for each GPU.
    pub power_usage: Vec<Option<f64>>,
    /// The readings are simulated (additive).
    pub simulated: bool,
}

/// Nodes on which a job of a certain size would fit now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AvailableNodes {
    /// How many.
    pub available_nodes: u32,
    /// Which.
    pub nodes: Vec<Node>,
}
