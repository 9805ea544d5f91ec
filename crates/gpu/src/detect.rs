//! Selects the source of GPU data.

use std::path::Path;

use crate::nvml::{LIBRARIES, NvmlSource};
use crate::smi::SmiSource;
use crate::types::{Device, DeviceProcess, GpuError, GpuSource, Host, Sample};

/// Files that exist while a kernel driver is loaded.
const KERNEL_SIGNS: [&str; 2] = ["/proc/driver/nvidia/version", "/dev/nvidiactl"];

/// Opens NVML, else `nvidia-smi`.
///
/// Returns `NoDriver` only without any trace of a driver. A driver that is present and fails, or finds no GPU, is
/// `Broken` with the driver's message and advice. Blocks for up to a few seconds.
pub fn detect() -> Result<Box<dyn GpuSource>, GpuError> {
    let kernel = KERNEL_SIGNS.iter().copied().find(|sign| Path::new(sign).exists());
    let library = LIBRARIES.iter().any(|file| Path::new(file).is_file());
    let nvml = NvmlSource::open().map(|source| Box::new(source) as Box<dyn GpuSource>);
    choose(nvml, || Ok(Box::new(SmiSource::open()?)), kernel, library)
}

/// Source for a machine to be used without GPUs.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoGpus;

impl GpuSource for NoGpus {
    fn host(&self) -> Host {
        Host { source: "none", ..Host::default() }
    }

    fn devices(&self) -> Result<Vec<Device>, GpuError> {
        Ok(Vec::new())
    }

    fn sample(&self) -> Result<Vec<Sample>, GpuError> {
        Ok(Vec::new())
    }

    fn processes(&self) -> Result<Vec<DeviceProcess>, GpuError> {
        Ok(Vec::new())
    }
}

type Found = Result<Box<dyn GpuSource>, GpuError>;

fn choose(nvml: Found, smi: impl FnOnce() -> Found, kernel: Option<&str>, library: bool) -> Found {
    let nvml = match nvml.and_then(with_gpus) {
        Ok(source) => return Ok(source),
        Err(error) => error,
    };
    match (nvml, smi().and_then(with_gpus)) {
        (nvml, Ok(source)) => {
            tracing::warn!(%nvml, "NVML is unusable; reading GPUs through nvidia-smi, which is slower");
            Ok(source)
        }
        // The message of NVML includes advice and is therefore preferred.
        (GpuError::NoDriver, Err(GpuError::NoDriver)) => Err(unusable_driver(kernel, library)),
        (GpuError::NoDriver, Err(smi)) => Err(smi),
        (nvml, Err(_)) => Err(nvml),
    }
}

/// Rejects a driver that finds no GPU.
fn with_gpus(source: Box<dyn GpuSource>) -> Found {
    if source.devices()?.is_empty() {
        return Err(GpuError::Broken(
            "it is loaded but finds no GPU; check `lspci | grep -i nvidia`, `dmesg`, and the GPUs assigned to \
             the container"
                .into(),
        ));
    }
    Ok(source)
}

/// Error if neither the library nor the program is usable.
fn unusable_driver(kernel: Option<&str>, library: bool) -> GpuError {
    match (kernel, library) {
        (Some(sign), _) => GpuError::Broken(format!(
            "{sign} exists, but libnvidia-ml.so.1 and nvidia-smi are missing; install the driver's tools (on \
             Debian: nvidia-smi), or start the container with the NVIDIA container toolkit"
        )),
        (None, true) => GpuError::Broken(
            "libnvidia-ml.so.1 exists but cannot be loaded; reinstall the driver for this machine's \
             architecture"
                .into(),
        ),
        (None, false) => GpuError::NoDriver,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated::{Simulated, SimulatedSpec};

    fn gpus() -> Found {
        let spec = SimulatedSpec { count: 1, ..SimulatedSpec::default() };
        Ok(Box::new(Simulated::new(&spec)?))
    }

    fn broken(message: &str) -> Found {
        Err(GpuError::Broken(message.into()))
    }

    fn none() -> Found {
        Err(GpuError::NoDriver)
    }

    fn check(nvml: Found, smi: Found, kernel: Option<&str>, library: bool, expected: &str) {
        let reported = match choose(nvml, || smi, kernel, library) {
            Ok(source) => source.host().source.to_owned(),
            Err(error) => error.to_string(),
        };
        assert!(reported.contains(expected), "`{reported}` lacks `{expected}`");
    }

    #[test]
    fn a_machine_without_a_trace_of_a_driver_has_none() {
        check(none(), none(), None, false, "no NVIDIA driver");
    }

    #[test]
    fn nvidia_smi_serves_where_the_library_does_not() {
        check(none(), gpus(), None, false, "simulated");
        check(broken("too old"), gpus(), None, true, "simulated");
    }

    #[test]
    fn a_failing_driver_is_broken_with_its_own_message() {
        check(broken("version mismatch"), none(), None, true, "fails: version mismatch");
        check(broken("version mismatch"), broken("x"), None, true, "fails: version mismatch");
        check(none(), broken("NVIDIA-SMI has failed"), None, false, "fails: NVIDIA-SMI has failed");
    }

    #[test]
    fn a_kernel_driver_without_its_tools_is_broken_not_absent() {
        check(none(), none(), Some("/dev/nvidiactl"), false, "/dev/nvidiactl exists, but");
        check(none(), none(), None, true, "cannot be loaded");
    }

    #[test]
    fn a_driver_that_finds_no_gpu_is_broken_not_an_empty_list() {
        check(Ok(Box::new(NoGpus)), none(), None, true, "finds no GPU");
        check(Ok(Box::new(NoGpus)), Ok(Box::new(NoGpus)), None, true, "finds no GPU");
    }

    #[test]
    fn a_machine_used_without_gpus_says_so() {
        assert_eq!(NoGpus.host().source, "none");
        assert!(NoGpus.devices().unwrap().is_empty());
        assert!(NoGpus.sample().unwrap().is_empty());
        assert!(NoGpus.processes().unwrap().is_empty());
    }
}
