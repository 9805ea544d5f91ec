//! Health of the GPUs over time. A driver error (XID) that takes a GPU out survives the agent: the driver reports it once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use agentaflow_api::node::GpuStatus;
use agentaflow_gpu::{Cause, DeviceObservation, Health, Sample, machine_problem};

use crate::guardian::procs::boot_id;
use crate::identity::write_private;

/// Interval of healthy observations: a GPU is available again after [`agentaflow_gpu::HEALTHY_SAMPLES`] of them.
const INTERVAL: Duration = Duration::from_secs(15);
const FILE: &str = "gpu-xids.json";

/// Health of each GPU by UUID.
#[derive(Debug, Default)]
pub(super) struct HealthTable {
    gpus: BTreeMap<String, Health>,
    observed_at: Option<Instant>,
    /// Indexes of the GPUs that an admin has cordoned.
    cordoned: BTreeSet<String>,
    /// State directory of the agent; none keeps the XIDs in memory.
    dir: Option<PathBuf>,
}

/// Driver errors of this boot.
#[derive(Debug, Default, Serialize, Deserialize)]
struct XidRecord {
    boot: String,
    /// By UUID of the GPU.
    xids: BTreeMap<String, u64>,
}

/// An application failed on a GPU that stays healthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApplicationFault {
    pub(crate) uuid: String,
    pub(crate) message: String,
}

impl HealthTable {
    /// Reads the XIDs of earlier agents since the last boot.
    pub(super) fn load(dir: &Path) -> Self {
        let record = std::fs::read(dir.join(FILE)).ok();
        let record = record.and_then(|bytes| serde_json::from_slice::<XidRecord>(&bytes).ok());
        let xids = record.filter(|record| record.boot == boot_id()).map(|record| record.xids);
        let restored = |(uuid, xid)| {
            let sample = Sample { xids: vec![xid], ..Sample::default() };
            (uuid, Health::default().after(DeviceObservation::Sample(&sample), false))
        };
        let gpus = xids.unwrap_or_default().into_iter().map(restored).collect();
        Self { gpus, dir: Some(dir.to_owned()), ..Self::default() }
    }

    /// Adds the samples of one tick. Problems count at once, healthy samples once per interval.
    pub(super) fn observe(
        &mut self,
        samples: &BTreeMap<String, Sample>,
        now: Instant,
    ) -> Vec<ApplicationFault> {
        let due = self.observed_at.is_none_or(|at| now.duration_since(at) >= INTERVAL);
        if due {
            self.observed_at = Some(now);
        }
        let xids_before = self.xids();
        let mut faults = Vec::new();
        for (uuid, sample) in samples {
            let before = self.gpus.entry(uuid.clone()).or_default();
            let after = before.after(DeviceObservation::Sample(sample), false);
            let found = after.problem.as_ref().filter(|problem| problem.better == 0);
            if !sample.xids.is_empty()
                && let Some(problem) = found.filter(|problem| problem.cause == Cause::Application)
            {
                let message = problem.message.clone();
                faults.push(ApplicationFault { uuid: uuid.clone(), message });
            }
            if due || found.is_some() {
                *before = after;
            }
        }
        self.save_if_changed(&xids_before);
        faults
    }

    /// GPUs that are cordoned now, by index. An XID is forgotten when the cordon of its GPU ends: the admin has reset it.
    pub(super) fn set_cordoned(
        &mut self,
        cordoned: BTreeSet<String>,
        uuid_of: impl Fn(&str) -> Option<String>,
    ) {
        let xids_before = self.xids();
        for index in self.cordoned.difference(&cordoned) {
            if let Some(uuid) = uuid_of(index) {
                self.gpus.remove(&uuid);
            }
        }
        self.cordoned = cordoned;
        self.save_if_changed(&xids_before);
    }

    /// Status that the health imposes: none for a usable GPU.
    pub(super) fn status(&self, uuid: &str) -> Option<GpuStatus> {
        let problem = self.gpus.get(uuid)?.problem.as_ref()?;
        match problem.cause {
            Cause::Hot | Cause::Throttled | Cause::Application => None,
            // Running tasks continue; the GPU takes no new work.
            Cause::Overheated | Cause::Ecc => Some(GpuStatus::Maintenance),
            Cause::Driver | Cause::Lost | Cause::Fault | Cause::Xid => Some(GpuStatus::Error),
        }
    }

    /// Reason for which the machine must restart before any of its GPUs takes work.
    pub(super) fn machine_problem(&self) -> Option<String> {
        machine_problem(self.gpus.iter().map(|(uuid, health)| (uuid.as_str(), health)))
    }

    pub(super) fn message(&self, uuid: &str) -> Option<String> {
        self.gpus.get(uuid)?.message()
    }

    pub(super) fn xid(&self, uuid: &str) -> Option<u64> {
        self.gpus.get(uuid)?.xid
    }

    fn xids(&self) -> BTreeMap<String, u64> {
        self.gpus.iter().filter_map(|(uuid, health)| Some((uuid.clone(), health.xid?))).collect()
    }

    fn save_if_changed(&self, before: &BTreeMap<String, u64>) {
        let xids = self.xids();
        let Some(dir) = self.dir.as_ref().filter(|_| xids != *before) else { return };
        let record = XidRecord { boot: boot_id(), xids };
        let bytes = serde_json::to_vec(&record).unwrap_or_default();
        if let Err(error) = write_private(dir, FILE, &bytes) {
            tracing::warn!(%error, "cannot save the driver errors (XID) of the GPUs");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: &str = "GPU-a";

    fn sample(xid: Option<u64>) -> BTreeMap<String, Sample> {
        let sample = Sample {
            uuid: GPU.into(),
            memory_used: Some(0),
            temperature: Some(40),
            xids: xid.into_iter().collect(),
            ..Sample::default()
        };
        [(GPU.to_owned(), sample)].into()
    }

    fn hot(degrees: u32) -> BTreeMap<String, Sample> {
        let mut samples = sample(None);
        for sample in samples.values_mut() {
            sample.temperature = Some(degrees);
        }
        samples
    }

    #[test]
    fn each_class_of_xid_has_its_effect() {
        let expected = [
            (63, None, 0),
            (94, None, 1),
            (109, Some(GpuStatus::Error), 0),
            (79, Some(GpuStatus::Error), 0),
            (54, Some(GpuStatus::Error), 0),
        ];
        for (xid, status, faults) in expected {
            let mut table = HealthTable::default();
            let found = table.observe(&sample(Some(xid)), Instant::now());
            assert_eq!((table.status(GPU), found.len()), (status, faults), "XID {xid}");
        }
    }

    #[test]
    fn an_xid_outlives_the_agent_until_the_cordon_ends() {
        let dir = tempfile::tempdir().unwrap();
        HealthTable::load(dir.path()).observe(&sample(Some(109)), Instant::now());
        let mut table = HealthTable::load(dir.path());
        table.observe(&sample(None), Instant::now());
        assert_eq!((table.status(GPU), table.xid(GPU)), (Some(GpuStatus::Error), Some(109)));
        table.set_cordoned(["0".to_owned()].into(), |_| Some(GPU.to_owned()));
        assert_eq!(table.xid(GPU), Some(109));
        table.set_cordoned(BTreeSet::new(), |_| Some(GPU.to_owned()));
        assert_eq!(HealthTable::load(dir.path()).xid(GPU), None);
    }

    #[test]
    fn an_xid_of_an_earlier_boot_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let record = XidRecord { boot: "earlier".into(), xids: [(GPU.to_owned(), 79)].into() };
        write_private(dir.path(), FILE, &serde_json::to_vec(&record).unwrap()).unwrap();
        assert_eq!(HealthTable::load(dir.path()).status(GPU), None);
    }

    #[test]
    fn an_overheated_gpu_takes_no_new_work_until_three_cool_intervals() {
        let mut table = HealthTable::default();
        let start = Instant::now();
        table.observe(&hot(96), start);
        for second in 1..=30 {
            table.observe(&hot(50), start + Duration::from_secs(second));
            assert_eq!(table.status(GPU), Some(GpuStatus::Maintenance), "second {second}");
        }
        table.observe(&hot(50), start + Duration::from_secs(45));
        assert_eq!(table.status(GPU), None);
    }
}
