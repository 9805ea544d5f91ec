//! GPUs of `up`: real ones, or simulated ones that are marked as such.

use std::fs;
use std::sync::Arc;

use agentaflow_console::format;
use agentaflow_gpu::{Device, GpuError, GpuSource};
use anyhow::{Result, anyhow};

use crate::commands::standalone::{SimArgs, simulated_gpus};

/// Simulated GPUs on a machine without GPUs.
const DEFAULT_SIMULATED: u32 = 2;

pub(super) struct Gpus {
    source: Arc<dyn GpuSource>,
    devices: Vec<Device>,
    /// Simulated because there is no driver.
    no_driver: bool,
}

impl Gpus {
    /// Simulated GPUs on request, else real GPUs, else simulated ones. A failing driver is an error, since jobs may need
    /// a real GPU.
    pub(super) fn find(sim: &SimArgs) -> Result<Self> {
        let name = node_name();
        let (source, no_driver) = match sim.source(&name)? {
            Some(source) => (source, false),
            None => match agentaflow_gpu::detect() {
                Ok(source) => (source, false),
                Err(GpuError::NoDriver) => (simulated_gpus(DEFAULT_SIMULATED, &name)?, true),
                Err(error) => {
                    return Err(anyhow!(error).context(
                        "cannot use the GPUs of this machine (use --sim-gpus 2 to simulate GPUs, or --sim-gpus 0 for none)",
                    ));
                }
            },
        };
        let devices = source.devices()?;
        Ok(Self { source: source.into(), devices, no_driver })
    }

    pub(super) fn source(&self) -> Arc<dyn GpuSource> {
        Arc::clone(&self.source)
    }

    fn simulated(&self) -> bool {
        self.devices.iter().any(|device| device.simulated)
    }

    /// Notice of the server about simulated GPUs.
    pub(super) fn notice(&self) -> Option<String> {
        self.simulated().then(|| "GPUs are SIMULATED: jobs get no device".to_owned())
    }

    /// One line: `2 × NVIDIA A100, 80 GiB each`.
    pub(super) fn summary(&self) -> String {
        let Some(first) = self.devices.first() else { return "none: CPU jobs only".to_owned() };
        let alike =
            self.devices.iter().all(|gpu| (&gpu.name, gpu.memory) == (&first.name, first.memory));
        let which = if alike {
            format!(
                "{} × {}, {} each",
                self.devices.len(),
                first.name,
                format::memory(first.memory)
            )
        } else {
            let names: Vec<_> = self.devices.iter().map(|gpu| gpu.name.as_str()).collect();
            names.join(", ")
        };
        match (self.simulated(), self.no_driver) {
            (false, _) => which,
            (true, true) => {
                format!("{which}: SIMULATED (no NVIDIA driver); jobs get no device")
            }
            (true, false) => format!("{which}: SIMULATED; jobs get no device"),
        }
    }
}

/// The local node has the host name.
pub(super) fn node_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "local".to_owned() } else { name.to_owned() }
}
