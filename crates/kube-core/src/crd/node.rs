//! `GPUNode`: the GPUs of a node as reported by its monitor.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;

use super::schema::{FIXED, conditions, rules};

/// GPUs of a node.
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
    doc = "GPUs of a node, as reported by its monitor.",
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
    /// Name of the node.
    #[schemars(length(min = 1, max = 253))]
    #[schemars(extend("x-kubernetes-validations" = rules(&[FIXED])))]
    pub node_name: String,
    /// GPU devices.
    #[serde(default)]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["id"]))]
    pub gpu_devices: Vec<GpuDevice>,
}

/// GPU device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuDevice {
    /// Device id of the device plugin (a UUID).
    #[schemars(length(max = 253))]
    pub id: String,
    /// GPU model.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Memory in MiB.
    pub memory_total: u64,
    /// PCI address.
    #[serde(rename = "pciBusID", default)]
    pub pci_bus_id: String,
    /// Driver version.
    #[serde(default)]
    pub driver_version: String,
}

/// Age of a report after which the monitor is lost: three times the longest interval between two reports, which is a minute.
pub const MONITOR_TIMEOUT: Duration = Duration::from_mins(3);

/// Status of the GPUs of a node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuNodeStatus {
    /// Availability of the node's GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<GpuNodePhase>,
    /// Status of each device.
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["id"]))]
    pub gpu_status: Vec<GpuStatus>,
    /// Time of the last update.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_updated: Option<Time>,
    /// `Ready`, `Healthy`, `Schedulable`, and `ForeignGpuPods` while pods of other schedulers race for the GPUs.
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
}

/// Availability of the GPUs of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum GpuNodePhase {
    /// At least one GPU is usable.
    #[default]
    Active,
    /// No GPU is usable.
    Unavailable,
    /// An administrator set the node to maintenance.
    Maintenance,
}

/// Status of a device.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuStatus {
    /// Device id.
    #[schemars(length(max = 253))]
    pub id: String,
    /// Usable: healthy and not cordoned.
    pub available: bool,
    /// Used memory in MiB.
    #[serde(default)]
    pub memory_used: u64,
    /// Utilization in percent.
    #[serde(default)]
    pub utilization: f64,
    /// Temperature in degrees Celsius.
    #[serde(default)]
    pub temperature: f64,
    /// Power draw in watts.
    #[serde(default)]
    pub power_usage: f64,
    /// Power limit in watts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_limit: Option<f64>,
    /// Uncorrected memory errors since the driver was loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecc_errors: Option<u64>,
    /// Driver error (XID) that makes the device unavailable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xid: Option<u64>,
    /// The device does not respond, or reports a fault.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lost: bool,
    /// Pod that uses the device: `namespace/name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_workload: Option<String>,
    /// Problem that makes the device unavailable, or a warning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub reason: Option<String>,
}
