//! Jobs whose secrets cannot be opened: they stay pending and never start without their secrets.

use std::collections::BTreeSet;
use std::time::SystemTime;

use agentaflow_api::ids::JobId;
use agentaflow_engine::{Event, Gate};

use super::job::workload::workload_id;
use super::state::State;

/// Pending jobs whose secrets cannot be opened.
#[derive(Debug, Default)]
pub(super) struct SealedJobs {
    jobs: BTreeSet<JobId>,
    /// Time of the last change of the key file at the last check.
    checked: Option<SystemTime>,
}

impl State {
    /// Withdraws the placement of a job whose secrets cannot be opened; true if it did.
    pub(super) fn hold_sealed_job(&mut self, id: JobId) -> bool {
        let Some(Err(error)) = self.jobs.get(id).map(|job| self.open_secrets(job)) else {
            return false;
        };
        let key_file = self.secrets.path().display().to_string();
        if self.sealed.jobs.insert(id) {
            tracing::error!(
                job = %id, %error,
                "Cannot decrypt the secrets of a job; it stays pending until {key_file} has their key"
            );
        }
        let gate = Some(Gate::SecretsSealed(key_file));
        self.engine.apply(Event::Requeued(workload_id(id)));
        self.engine.apply(Event::GateChanged { workload: workload_id(id), gate });
        true
    }

    /// Lets held jobs start once their key is back in the key file.
    pub(super) fn release_sealed_jobs(&mut self) {
        if self.sealed.jobs.is_empty() {
            return;
        }
        let file = std::fs::metadata(self.secrets.path());
        let changed = file.and_then(|file| file.modified()).ok();
        if self.sealed.checked == changed {
            return;
        }
        self.sealed.checked = changed;
        let opens =
            |id: &JobId| self.jobs.get(*id).is_none_or(|job| self.open_secrets(job).is_ok());
        let released: Vec<JobId> = self.sealed.jobs.iter().copied().filter(opens).collect();
        for id in released {
            self.sealed.jobs.remove(&id);
            if self.jobs.get(id).is_some_and(|job| job.state.gate.is_none()) {
                let workload = workload_id(id);
                self.engine.apply(Event::GateChanged { workload, gate: None });
            }
        }
    }
}
