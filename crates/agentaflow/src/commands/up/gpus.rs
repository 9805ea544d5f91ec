//! Which GPUs `up` works with: the machine's own, or simulated ones that say so.

use std::fs;
use std::sync::Arc;

use agentaflow_console::format;
use agentaflow_gpu::{Device, GpuError, GpuSource};
use anyhow::{Result, anyhow};

use crate::commands::standalone::{SimArgs, stand_ins};

/// How many GPUs a machine without any pretends to have.
const STAND_INS: u32 = 2;

/// GPUs, and why these.
pub(super) struct Gpus {
    source: Arc<dyn GpuSource>,
    devices: Vec<Device>,
    /// Simulated because there is no driver, not because somebody asked.
    unasked: bool,
}

impl Gpus {
    /// The GPUs that were asked for, else the machine's, else stand-ins. A driver that fails is an error: jobs
    /// that need a real GPU must not be told that all is well.
    pub(super) fn find(asked: &SimArgs) -> Result<Self> {
        let name = node_name();
        let (source, unasked) = match asked.asked(&name)? {
            Some(source) => (source, false),
            None => match agentaflow_gpu::detect() {
                Ok(source) => (source, false),
                Err(GpuError::NoDriver) => (stand_ins(STAND_INS, &name)?, true),
                Err(error) => {
                    return Err(anyhow!(error).context(
                        "cannot use this machine's GPUs (--sim-gpus 2 simulates some, --sim-gpus 0 does without)",
                    ));
                }
            },
        };
        let devices = source.devices()?;
        Ok(Self { source: source.into(), devices, unasked })
    }

    pub(super) fn source(&self) -> Arc<dyn GpuSource> {
        Arc::clone(&self.source)
    }

    fn simulated(&self) -> bool {
        self.devices.iter().any(|device| device.simulated)
    }

    /// What everybody has to know who looks at the server.
    pub(super) fn notice(&self) -> Option<String> {
        self.simulated().then(|| "GPUs are SIMULATED: jobs on them get no device".to_owned())
    }

    /// The GPUs in a line: `2 × NVIDIA A100, 80 GiB each`.
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
        match (self.simulated(), self.unasked) {
            (false, _) => which,
            (true, true) => {
                format!("{which}: SIMULATED, there is no NVIDIA driver; jobs get no device")
            }
            (true, false) => format!("{which}: SIMULATED; jobs get no device"),
        }
    }
}

/// The name of the local node: the host's.
pub(super) fn node_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "local".to_owned() } else { name.to_owned() }
}
