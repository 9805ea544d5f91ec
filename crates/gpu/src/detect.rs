//! Chooses where the facts about GPUs come from.

use std::path::Path;

use crate::nvml::{LIBRARIES, NvmlSource};
use crate::smi::SmiSource;
use crate::types::{Device, DeviceProcess, GpuError, GpuSource, Host, Sample};

/// Signs of a kernel driver that is loaded.
const KERNEL_SIGNS: [&str; 2] = ["/proc/driver/nvidia/version", "/dev/nvidiactl"];

/// Finds the machine's GPUs: by NVML, else by `nvidia-smi`.
///
/// `NoDriver` only when nothing of a driver is there; a driver that is there and fails, or finds no GPU, is
/// `Broken`, with its words and what to do. Blocks for up to some seconds.
pub fn detect() -> Result<Box<dyn GpuSource>, GpuError> {
    let kernel = KERNEL_SIGNS.iter().copied().find(|sign| Path::new(sign).exists());
    let library = LIBRARIES.iter().any(|file| Path::new(file).is_file());
    let nvml = NvmlSource::open().map(|source| Box::new(source) as Box<dyn GpuSource>);
    choose(nvml, || Ok(Box::new(SmiSource::open()?)), kernel, library)
}

/// The machine is to be used without GPUs.
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
            tracing::warn!(%nvml, "NVML cannot be used; GPUs are read through nvidia-smi, which is slower");
            Ok(source)
        }
        // NVML's words come with advice, so they go before those of nvidia-smi.
        (GpuError::NoDriver, Err(GpuError::NoDriver)) => Err(nothing_answers(kernel, library)),
        (GpuError::NoDriver, Err(smi)) => Err(smi),
        (nvml, Err(_)) => Err(nvml),
    }
}

/// A driver that finds no GPU does not do what it was installed for.
fn with_gpus(source: Box<dyn GpuSource>) -> Found {
    if source.devices()?.is_empty() {
        return Err(GpuError::Broken(
            "it is loaded but finds no GPU; check `lspci | grep -i nvidia` and `dmesg`, and in a container \
             which GPUs it was given"
                .into(),
        ));
    }
    Ok(source)
}

/// Neither the library nor the program could be used: is there a driver at all?
fn nothing_answers(kernel: Option<&str>, library: bool) -> GpuError {
    match (kernel, library) {
        (Some(sign), _) => GpuError::Broken(format!(
            "{sign} exists, but neither libnvidia-ml.so.1 nor nvidia-smi can be found; install the tools that \
             come with the driver (on Debian: nvidia-smi), or, in a container, start it with the NVIDIA \
             container toolkit"
        )),
        (None, true) => GpuError::Broken(
            "libnvidia-ml.so.1 is there but cannot be loaded; install the driver again for this machine's \
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

    fn broken(words: &str) -> Found {
        Err(GpuError::Broken(words.into()))
    }

    fn none() -> Found {
        Err(GpuError::NoDriver)
    }

    fn check(nvml: Found, smi: Found, kernel: Option<&str>, library: bool, expected: &str) {
        let told = match choose(nvml, || smi, kernel, library) {
            Ok(source) => source.host().source.to_owned(),
            Err(error) => error.to_string(),
        };
        assert!(told.contains(expected), "`{told}` lacks `{expected}`");
    }

    #[test]
    fn a_machine_without_any_sign_of_a_driver_has_none() {
        check(none(), none(), None, false, "no NVIDIA driver");
    }

    #[test]
    fn nvidia_smi_serves_where_the_library_does_not() {
        check(none(), gpus(), None, false, "simulated");
        check(broken("too old"), gpus(), None, true, "simulated");
    }

    #[test]
    fn a_driver_that_is_there_but_fails_is_broken_in_its_own_words() {
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
