//! Faults of simulated GPUs from a file, for tests of health rules and alerts.
//!
//! The file is a JSON object with one entry per GPU index: `{"0": {"xid": 79}, "1": {"temperature": 96}}`. It is read
//! again at each sample; without the file there are no faults. Replace it by a rename: half a file is an error.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::Deserialize;

use crate::types::{Device, GpuError, Sample};

/// Environment variable with the path of the file.
const VARIABLE: &str = "AGENTAFLOW_SIMULATED_FAULTS";

/// Values that replace simulated values.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct GpuFault {
    /// Driver error; reported once, and again after another value.
    xid: Option<u64>,
    /// Permanent fault that the GPU reports.
    fault: Option<String>,
    /// The GPU does not respond.
    lost: bool,
    /// Uncorrected memory errors.
    ecc_errors: Option<u64>,
    corrected_ecc_errors: Option<u64>,
    /// Degrees Celsius.
    temperature: Option<u32>,
    /// Percent.
    utilization: Option<u32>,
    /// MiB.
    memory_used: Option<u64>,
    /// Watts.
    power: Option<f64>,
    throttled: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
struct FaultFile {
    /// Message with which the whole driver fails.
    driver: Option<String>,
    #[serde(flatten)]
    gpus: BTreeMap<String, GpuFault>,
}

/// Fault file of simulated GPUs.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    path: Option<PathBuf>,
    /// XID in the last version of the file, by GPU index.
    reported: Mutex<BTreeMap<u32, u64>>,
}

impl Faults {
    pub(crate) fn from_environment() -> Self {
        Self { path: std::env::var_os(VARIABLE).map(PathBuf::from), ..Self::default() }
    }

    /// Applies the faults to samples in the order of the devices.
    pub(crate) fn apply(
        &self,
        devices: &[Device],
        samples: Vec<Sample>,
    ) -> Result<Vec<Sample>, GpuError> {
        let Some(path) = &self.path else { return Ok(samples) };
        let FaultFile { driver, gpus } = read(path)?;
        if let Some(message) = driver {
            return Err(GpuError::Broken(message));
        }
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        let each = devices.iter().zip(samples).map(|(gpu, sample)| {
            let fault = gpus.get(&gpu.index.to_string()).cloned().unwrap_or_default();
            let before = match fault.xid {
                Some(xid) => reported.insert(gpu.index, xid),
                None => reported.remove(&gpu.index),
            };
            let xids = fault.xid.filter(|xid| before != Some(*xid)).into_iter().collect();
            faulty(gpu, Sample { xids, ..sample }, fault)
        });
        Ok(each.collect())
    }
}

fn read(path: &Path) -> Result<FaultFile, GpuError> {
    let wrong = |error: &dyn std::error::Error| {
        let message = format!("cannot read the simulated faults in {}: {error}", path.display());
        GpuError::Simulation(message)
    };
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| wrong(&error)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(FaultFile::default()),
        Err(error) => Err(wrong(&error)),
    }
}

fn faulty(gpu: &Device, sample: Sample, fault: GpuFault) -> Sample {
    if fault.lost {
        let message = fault.fault.unwrap_or_else(|| "the GPU does not respond".to_owned());
        let Sample { uuid, xids, .. } = sample;
        return Sample { uuid, xids, fault: Some(message), ..Sample::default() };
    }
    let used = fault.memory_used.map(|used| used.min(gpu.memory));
    Sample {
        fault: fault.fault,
        ecc_errors: fault.ecc_errors.or(sample.ecc_errors),
        corrected_ecc_errors: fault.corrected_ecc_errors.or(sample.corrected_ecc_errors),
        temperature: fault.temperature.or(sample.temperature),
        utilization: fault.utilization.or(sample.utilization),
        memory_used: used.or(sample.memory_used),
        memory_free: used.map(|used| gpu.memory - used).or(sample.memory_free),
        power: fault.power.or(sample.power),
        throttled: if fault.throttled.is_empty() { sample.throttled } else { fault.throttled },
        ..sample
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated::{Simulated, SimulatedSpec};
    use crate::types::GpuSource as _;

    struct Lab {
        dir: tempfile::TempDir,
        gpus: Simulated,
    }

    impl Lab {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let path = Some(dir.path().join("faults.json"));
            let spec = SimulatedSpec { count: 2, ..SimulatedSpec::default() };
            let faults = Faults { path, ..Faults::default() };
            Self { gpus: Simulated::with_faults(&spec, faults).unwrap(), dir }
        }

        fn write(&self, text: &str) {
            std::fs::write(self.dir.path().join("faults.json"), text).unwrap();
        }

        fn xids(&self) -> Vec<Option<u64>> {
            self.gpus.sample().unwrap().iter().map(Sample::worst_xid).collect()
        }
    }

    #[test]
    fn the_file_replaces_readings_of_the_gpu_that_it_names() {
        let lab = Lab::new();
        let healthy = lab.gpus.sample().unwrap();
        assert!(healthy.iter().all(|sample| sample.fault.is_none()));
        lab.write(
            r#"{"1": {"fault": "rows", "ecc_errors": 3, "temperature": 96, "utilization": 7,
                "memory_used": 1000, "power": 12.5, "throttled": ["thermal"]}}"#,
        );
        let samples = lab.gpus.sample().unwrap();
        assert_eq!((&samples[0].fault, samples[0].ecc_errors), (&None, Some(0)));
        let sick = &samples[1];
        assert_eq!(sick.fault.as_deref(), Some("rows"));
        assert_eq!((sick.ecc_errors, sick.temperature), (Some(3), Some(96)));
        assert_eq!((sick.utilization, sick.power), (Some(7), Some(12.5)));
        assert_eq!((sick.memory_used, sick.memory_free), (Some(1_000), Some(142_771)));
        assert_eq!(sick.throttled, ["thermal"]);
        std::fs::remove_file(lab.dir.path().join("faults.json")).unwrap();
        assert_eq!(lab.gpus.sample().unwrap()[1].ecc_errors, Some(0));
    }

    #[test]
    fn an_xid_is_reported_once_for_each_change_of_the_file() {
        let lab = Lab::new();
        assert_eq!(lab.xids(), [None, None]);
        lab.write(r#"{"0": {"xid": 94}}"#);
        assert_eq!(lab.xids(), [Some(94), None]);
        assert_eq!(lab.xids(), [None, None]);
        lab.write(r#"{"0": {"xid": 79}}"#);
        assert_eq!(lab.xids(), [Some(79), None]);
        lab.write("{}");
        assert_eq!(lab.xids(), [None, None]);
        lab.write(r#"{"0": {"xid": 79}}"#);
        assert_eq!(lab.xids(), [Some(79), None]);
    }

    #[test]
    fn a_gpu_is_lost_a_driver_fails_and_an_invalid_file_is_an_error() {
        let lab = Lab::new();
        lab.write(r#"{"0": {"lost": true, "xid": 79}}"#);
        let lost = &lab.gpus.sample().unwrap()[0];
        assert_eq!((&*lost.xids, lost.memory_used, lost.temperature), (&[79][..], None, None));
        assert!(lost.fault.is_some());
        lab.write(r#"{"driver": "version mismatch"}"#);
        assert!(
            matches!(lab.gpus.sample(), Err(GpuError::Broken(text)) if text == "version mismatch")
        );
        for invalid in ["", "[]", r#"{"0": {"xxid": 1}}"#] {
            lab.write(invalid);
            let problem = lab.gpus.sample().unwrap_err().to_string();
            assert!(problem.contains("faults.json"), "{problem}");
        }
    }
}
