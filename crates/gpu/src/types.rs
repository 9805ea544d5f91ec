//! GPU data types and the [`GpuSource`] trait.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::xid_action::XidAction;

/// Properties of a GPU that stay constant while the driver is loaded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// Index on the host.
    pub index: u32,
    /// `GPU-…`, or `SIM-…` for a simulated GPU.
    pub uuid: String,
    /// Model name: `NVIDIA H200`.
    pub name: String,
    /// MiB.
    pub memory: u64,
    /// PCI address: `00000000:65:00.0`.
    pub pci_bus_id: Option<String>,
    /// GPUs with the same number are joined by NVLink.
    pub nvlink_group: Option<u32>,
    /// Watts.
    pub power_limit: Option<f64>,
    /// MIG devices; `Some` in MIG mode.
    pub mig: Option<Vec<MigDevice>>,
    pub simulated: bool,
}

/// Prefix of the identifier of a GPU that cannot be queried; its index follows.
pub(crate) const UNREADABLE: &str = "GPU-unreadable-";

/// True for the placeholder identifier of a GPU that cannot be queried.
pub fn is_unreadable(uuid: &str) -> bool {
    uuid.starts_with(UNREADABLE)
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigDevice {
    /// `MIG-…`.
    pub uuid: String,
    /// `1g.18gb`.
    pub profile: String,
    /// First memory slot.
    pub start: u8,
    /// MiB.
    pub memory: u64,
}

/// Readings of a GPU at one time. Values that the GPU does not report are absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    pub uuid: String,
    /// Percent of time in which some kernel ran.
    pub utilization: Option<u32>,
    /// Percent of time in which memory was read or written.
    #[serde(default)]
    pub memory_utilization: Option<u32>,
    /// Percent of time with an active compute or graphics engine. Only after [`GpuSource::start_watches`], on Hopper and
    /// later.
    #[serde(default)]
    pub engine_activity: Option<f64>,
    /// Percent of time with active tensor cores. As `engine_activity`.
    #[serde(default)]
    pub tensor_activity: Option<f64>,
    /// MiB used by all processes and the driver.
    pub memory_used: Option<u64>,
    /// Allocatable MiB. Smaller than total minus used: the driver reserves memory.
    #[serde(default)]
    pub memory_free: Option<u64>,
    /// Degrees Celsius.
    pub temperature: Option<u32>,
    /// Watts.
    pub power: Option<f64>,
    /// Joules since the driver was loaded.
    #[serde(default)]
    pub energy: Option<f64>,
    /// MHz.
    pub sm_clock: Option<u32>,
    /// MHz.
    pub memory_clock: Option<u32>,
    /// Uncorrected memory errors since the driver was loaded.
    pub ecc_errors: Option<u64>,
    /// Corrected memory errors since the driver was loaded.
    #[serde(default)]
    pub corrected_ecc_errors: Option<u64>,
    /// None before Ampere, which does not remap rows.
    #[serde(default)]
    pub remapped_rows: Option<RemappedRows>,
    /// Active throttle reasons: `power cap`, `thermal`, …
    pub throttled: Vec<String>,
    /// Message for the user if the GPU does not respond or reports a permanent fault.
    pub fault: Option<String>,
    /// Driver errors (XID) since the previous sample, in their order. Reported once, and only after
    /// [`GpuSource::start_watches`].
    #[serde(default)]
    pub xids: Vec<u64>,
}

impl Sample {
    /// XID that asks for the most severe action; of two such XIDs the later one.
    pub fn worst_xid(&self) -> Option<u64> {
        self.xids.iter().copied().max_by_key(|xid| XidAction::of(*xid))
    }
}

/// Rows of memory that the GPU replaced by spare rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemappedRows {
    /// After corrected errors.
    pub corrected: u64,
    /// After uncorrected errors.
    pub uncorrected: u64,
    /// A row could not be remapped.
    pub failed: bool,
}

/// Memory held by a process on a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceProcess {
    /// The GPU, or the MIG slice.
    pub uuid: String,
    /// PID in the namespace of the host.
    pub pid: u32,
    /// MiB.
    pub memory: u64,
}

/// Utilization of a GPU by a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessLoad {
    pub uuid: String,
    /// PID in the namespace of the host.
    pub pid: u32,
    /// Percent of the time since the previous call.
    pub utilization: u32,
}

/// Driver data shared by all GPUs of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// `580.95.05`.
    pub driver: Option<String>,
    /// `13.0`.
    pub cuda: Option<String>,
    /// Data source: `nvml`, `nvidia-smi`, `simulated` or `none`.
    pub source: &'static str,
}

/// GPUs could not be found or read.
#[derive(Debug, Error)]
pub enum GpuError {
    /// Expected on a machine without GPUs.
    #[error("no NVIDIA driver on this machine")]
    NoDriver,
    /// The driver is present but fails.
    #[error("the NVIDIA driver is installed but fails: {0}")]
    Broken(String),
    /// Invalid specification of simulated GPUs.
    #[error("{0}")]
    Simulation(String),
}

/// A source of GPUs. Calls block for a few milliseconds; async callers use a blocking thread.
pub trait GpuSource: Send + Sync {
    fn host(&self) -> Host;
    /// The GPUs, by index.
    fn devices(&self) -> Result<Vec<Device>, GpuError>;
    /// Readings in the order of `devices`.
    fn sample(&self) -> Result<Vec<Sample>, GpuError>;
    fn processes(&self) -> Result<Vec<DeviceProcess>, GpuError>;
    /// Utilization by process; empty if the driver does not report it.
    fn process_loads(&self) -> Vec<ProcessLoad> {
        Vec::new()
    }
    /// Starts threads for readings that need one: driver errors, each of which is reported only once ([`Sample::xids`]),
    /// and the activity of engines and tensor cores. No effect if the source has no such readings.
    fn start_watches(&self) {}
    /// Sets the load of simulated GPUs: (uuid, thousandths of the device, MiB) for each task. Real GPUs ignore it.
    fn set_simulated_load(&self, _load: &[(String, u32, u64)]) {}
}
