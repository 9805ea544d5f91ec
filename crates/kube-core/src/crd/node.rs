//! `GPUNode`: the GPUs of a node as its monitor sees them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema::{FIXED, conditions, rules};

/// The GPUs of a node.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "agentaflow.io",
    version = "v1",
    kind = "GPUNode",
    root = "GpuNode",
    plural = "gpunodes",
    singular = "gpunode",
    shortname = "gn",
    category = "agentaflow",
    namespaced,
    status = "GpuNodeStatus",
    doc = "The GPUs of a node, as the monitor that runs there sees them.",
    selectable = ".spec.nodeName",
    printcolumn = r#"{"name":"Node", "type":"string", "jsonPath":".spec.nodeName"}"#,
    printcolumn = r#"{"name":"Phase", "type":"string", "jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"Model", "type":"string", "jsonPath":".spec.gpuDevices[0].name"}"#,
    printcolumn = r#"{"name":"Driver", "type":"string", "jsonPath":".spec.gpuDevices[0].driverVersion", "priority":1}"#,
    printcolumn = r#"{"name":"Healthy", "type":"string", "jsonPath":".status.conditions[?(@.type==\"Healthy\")].status"}"#,
    printcolumn = r#"{"name":"Updated", "type":"date", "jsonPath":".status.lastUpdated"}"#,
    printcolumn = r#"{"name":"Age", "type":"date", "jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct GpuNodeSpec {
    /// The node.
    #[schemars(length(min = 1, max = 253))]
    #[schemars(extend("x-kubernetes-validations" = rules(&[FIXED])))]
    pub node_name: String,
    /// Its devices.
    #[serde(default)]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["id"]))]
    pub gpu_devices: Vec<GpuDevice>,
}

/// One device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuDevice {
    /// Its id: what the device plugin calls it (a UUID).
    #[schemars(length(max = 253))]
    pub id: String,
    /// Its model.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Its memory in MiB.
    pub memory_total: u64,
    /// Where it sits.
    #[serde(rename = "pciBusID", default)]
    pub pci_bus_id: String,
    /// The driver's version.
    #[serde(default)]
    pub driver_version: String,
}

/// How the GPUs of a node are.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuNodeStatus {
    /// Whether the node can be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<GpuNodePhase>,
    /// Each device.
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["id"]))]
    pub gpu_status: Vec<GpuStatus>,
    /// When this was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_updated: Option<Time>,
    /// `Ready`, `Healthy`, `Schedulable`.
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
}

/// Whether the GPUs of a node can be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum GpuNodePhase {
    /// They can.
    #[default]
    Active,
    /// They cannot.
    Unavailable,
    /// Somebody works on them.
    Maintenance,
}

/// How one device is.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuStatus {
    /// Its id.
    #[schemars(length(max = 253))]
    pub id: String,
    /// It can be used: healthy and not closed.
    pub available: bool,
    /// MiB in use.
    #[serde(default)]
    pub memory_used: u64,
    /// Percent.
    #[serde(default)]
    pub utilization: f64,
    /// Degrees Celsius.
    #[serde(default)]
    pub temperature: f64,
    /// Watts.
    #[serde(default)]
    pub power_usage: f64,
    /// The pod that has it: `namespace/name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_workload: Option<String>,
    /// Why it is not available, or what to keep an eye on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub reason: Option<String>,
}
