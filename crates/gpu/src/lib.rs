//! Finds and samples GPUs: through NVML, through `nvidia-smi` if NVML cannot be loaded, or simulated.
//!
//! A driver that is present but fails is an error, never an empty list and never a simulation.

mod activity;
pub mod catalog;
mod command;
mod detect;
mod energy;
mod health;
mod mig;
mod models;
mod nvlink;
mod nvml;
mod simulated;
mod simulated_faults;
mod smi;
mod smi_text;
mod throttle;
mod types;
mod xid;
mod xid_action;
mod xid_counts;

pub use detect::{NoGpus, detect};
pub use energy::{EnergyMeter, GpuUse};
pub use health::{
    CRITICAL, Cause, DeviceObservation, HEALTHY_SAMPLES, HOT, Health, HealthProblem,
    machine_problem,
};
pub use models::power_limit;
pub use nvml::NvmlSource;
pub use simulated::{DEFAULT_MODEL, MAX_GPUS, Simulated, SimulatedSpec};
pub use smi::SmiSource;
pub use types::{
    Device, DeviceProcess, GpuError, GpuSource, Host, MigDevice, ProcessLoad, RemappedRows, Sample,
    is_unreadable,
};
pub use xid_action::XidAction;
pub use xid_counts::XidCounts;
