//! The node annotation `agentaflow.gpu/status`: the node's GPUs in one line of JSON, for people, for the scheduler and
//! for the monitor itself after a restart.

use agentaflow_kube_core::crd::GpuNodePhase;
use serde::{Deserialize, Serialize};

use super::health::Cause;

/// The GPUs of a node in one line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusLine {
    /// Whether the node's GPUs can be used.
    pub phase: GpuNodePhase,
    /// What the driver says, where it fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Devices that can be used.
    pub available: u32,
    /// Devices.
    pub total: u32,
    /// Percent, the mean over the devices.
    pub utilization: f64,
    /// Percent to aim at.
    pub utilization_goal: u32,
    /// The mean is above the goal.
    pub above_goal: bool,
    /// MiB in use.
    pub memory_used: u64,
    /// MiB.
    pub memory_total: u64,
    /// Degrees Celsius of the hottest device.
    pub temperature: f64,
    /// Watts of all devices.
    pub power_usage: f64,
    /// Time slices of each device: a unit that a pod asks for is that share of a device.
    pub replicas: u32,
    /// Which start of the machine this is, so that errors that only a restart clears are not kept longer.
    #[serde(rename = "bootID")]
    pub boot_id: String,
    /// Each device.
    pub devices: Vec<DeviceLine>,
}

/// A device in the line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceLine {
    /// Its id.
    pub id: String,
    /// It can be used.
    pub available: bool,
    /// Percent.
    pub utilization: f64,
    /// MiB in use.
    pub memory_used: u64,
    /// Degrees Celsius.
    pub temperature: f64,
    /// Watts.
    pub power_usage: f64,
    /// What is wrong, in a word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// What is wrong, in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The driver's error that speaks against it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xid: Option<u64>,
}
