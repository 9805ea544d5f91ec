//! The node annotation `agentaflow.gpu/status`: the node's GPUs in one line of JSON, read by users, the scheduler,
//! and the monitor after a restart.

use agentaflow_kube_core::crd::GpuNodePhase;
use serde::{Deserialize, Serialize};

use agentaflow_gpu::Cause;

/// The GPUs of a node in one line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusLine {
    pub phase: GpuNodePhase,
    /// Message of a failing driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Usable devices.
    pub available: u32,
    pub total: u32,
    /// Mean over the devices, in percent.
    pub utilization: f64,
    /// Target utilization in percent.
    pub utilization_goal: u32,
    /// True if the mean is above the goal.
    pub above_goal: bool,
    /// MiB.
    pub memory_used: u64,
    /// MiB.
    pub memory_total: u64,
    /// Degrees Celsius of the hottest device.
    pub temperature: f64,
    /// Watts of all devices.
    pub power_usage: f64,
    /// Time slices of each device; a requested unit is one slice.
    pub replicas: u32,
    /// Boot id: errors that a restart clears are discarded when it changes.
    #[serde(rename = "bootID")]
    pub boot_id: String,
    pub devices: Vec<DeviceLine>,
}

/// A device in the line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceLine {
    pub id: String,
    pub available: bool,
    /// Percent.
    pub utilization: f64,
    /// MiB.
    pub memory_used: u64,
    /// Degrees Celsius.
    pub temperature: f64,
    /// Watts.
    pub power_usage: f64,
    /// Problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// Message of the problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Driver error (XID) that takes the GPU out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xid: Option<u64>,
}
