//! What is known about a GPU.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Facts about a GPU that do not change while the driver is loaded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// Its number on the host.
    pub index: u32,
    /// Its identifier: `GPU-…`; `SIM-…` for a simulated one.
    pub uuid: String,
    /// Its model: `NVIDIA H200`.
    pub name: String,
    /// MiB of memory.
    pub memory: u64,
    /// PCI address: `00000000:65:00.0`.
    pub pci_bus_id: Option<String>,
    /// GPUs with the same number are joined by NVLink.
    pub nvlink_group: Option<u32>,
    /// Watts that it may draw.
    pub power_limit: Option<f64>,
    /// `Some` when it is in MIG mode: the slices that exist.
    pub mig: Option<Vec<MigDevice>>,
    /// It is simulated.
    pub simulated: bool,
}

/// What the identifiers of GPUs begin with that are there but cannot tell their own; their number follows.
pub(crate) const UNREADABLE: &str = "GPU-unreadable-";

/// Whether an identifier stands in for that of a GPU that cannot tell its own.
pub fn is_unreadable(uuid: &str) -> bool {
    uuid.starts_with(UNREADABLE)
}

/// A MIG slice that exists.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigDevice {
    /// Its identifier: `MIG-…`.
    pub uuid: String,
    /// Its profile: `1g.18gb`.
    pub profile: String,
    /// Its first memory slot.
    pub start: u8,
    /// MiB of memory.
    pub memory: u64,
}

/// Readings of a GPU at one moment; what a GPU cannot tell is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Which.
    pub uuid: String,
    /// Percent of time in which some kernel ran.
    pub utilization: Option<u32>,
    /// MiB in use, by anybody.
    pub memory_used: Option<u64>,
    /// MiB that can still be taken. Less than what is not in use: the driver keeps some for itself.
    #[serde(default)]
    pub memory_free: Option<u64>,
    /// Degrees Celsius.
    pub temperature: Option<u32>,
    /// Watts.
    pub power: Option<f64>,
    /// MHz.
    pub sm_clock: Option<u32>,
    /// MHz.
    pub memory_clock: Option<u32>,
    /// Uncorrected memory errors since the driver was loaded.
    pub ecc_errors: Option<u64>,
    /// Why it runs slower than it could: `power cap`, `thermal`, …
    pub throttled: Vec<String>,
    /// It does not answer, or says that it is broken; in words.
    pub fault: Option<String>,
    /// The driver's number (XID) of the last error since the sample before that speaks against the device, told
    /// once; only where somebody watches for errors, see [`GpuSource::watch_errors`].
    #[serde(default)]
    pub xid: Option<u64>,
}

/// Memory that a process holds on a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceProcess {
    /// The GPU, or the MIG slice.
    pub uuid: String,
    /// The process, as the host counts.
    pub pid: u32,
    /// MiB.
    pub memory: u64,
}

/// How busy a process keeps a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessLoad {
    /// The GPU.
    pub uuid: String,
    /// The process, as the host counts.
    pub pid: u32,
    /// Percent of the time since the last look.
    pub utilization: u32,
}

/// What the host has in common for all its GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Driver version: `580.95.05`.
    pub driver: Option<String>,
    /// CUDA version: `13.0`.
    pub cuda: Option<String>,
    /// Where the facts come from: `nvml`, `nvidia-smi`, `simulated`, `none`.
    pub source: &'static str,
}

/// Why GPUs could not be found or read.
#[derive(Debug, Error)]
pub enum GpuError {
    /// There is no driver: not a failure on a machine without GPUs.
    #[error("there is no NVIDIA driver on this machine")]
    NoDriver,
    /// There is a driver, but it fails.
    #[error("the NVIDIA driver is installed but fails: {0}")]
    Broken(String),
    /// A simulated GPU was asked for that cannot exist.
    #[error("{0}")]
    Simulation(String),
}

/// A source of GPUs. Calls block for a few milliseconds; async callers use a blocking thread.
pub trait GpuSource: Send + Sync {
    /// What all GPUs have in common.
    fn host(&self) -> Host;
    /// The GPUs, by index.
    fn devices(&self) -> Result<Vec<Device>, GpuError>;
    /// Their readings, in the order of `devices`.
    fn sample(&self) -> Result<Vec<Sample>, GpuError>;
    /// Processes on them.
    fn processes(&self) -> Result<Vec<DeviceProcess>, GpuError>;
    /// How busy each process keeps them; empty where the driver does not tell.
    fn process_loads(&self) -> Vec<ProcessLoad> {
        Vec::new()
    }
    /// Begins to watch for errors that the driver reports once and never again ([`Sample::xid`]). Costs a thread,
    /// so only those ask who act on it. Without effect where the driver cannot be watched.
    fn watch_errors(&self) {}
    /// Tells a simulated GPU what load it has: (uuid, thousandths of the device, MiB) for each task. Real ones
    /// know by themselves.
    fn pretend(&self, _load: &[(String, u32, u64)]) {}
}
