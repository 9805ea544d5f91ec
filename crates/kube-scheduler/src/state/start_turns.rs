//! Turns of jobs whose pods did not come when they were resumed, as under a `ResourceQuota`.
//!
//! Two jobs that each got a part of a quota would wait for each other. After a start without all pods, the jobs of the
//! namespace get their pods one at a time, until each of these jobs has run.

use agentaflow_engine::WorkloadId;
use std::collections::{BTreeMap, BTreeSet};

type ByNamespace = BTreeMap<String, BTreeSet<WorkloadId>>;

#[derive(Debug, Default)]
pub(super) struct StartTurns {
    /// Jobs whose pods did not come.
    short_of_pods: ByNamespace,
    /// Jobs that wait for their turn.
    waiters: ByNamespace,
}

impl StartTurns {
    pub(super) fn record_missing_pods(&mut self, id: &WorkloadId) {
        insert(&mut self.short_of_pods, id);
    }

    /// Jobs of a namespace take turns.
    pub(super) fn are_taken(&self, namespace: &str) -> bool {
        self.short_of_pods.contains_key(namespace)
    }

    /// Jobs whose pods did not come, in the namespace of a job.
    pub(super) fn short_of_pods(&self, id: &WorkloadId) -> impl Iterator<Item = &WorkloadId> {
        self.short_of_pods.get(namespace_of(id)).into_iter().flatten()
    }

    pub(super) fn wait(&mut self, id: &WorkloadId) {
        insert(&mut self.waiters, id);
    }

    pub(super) fn has_waiters(&self, id: &WorkloadId) -> bool {
        self.waiters.contains_key(namespace_of(id))
    }

    /// Removes and returns the jobs that wait in the namespace of a job.
    pub(super) fn take_waiters(&mut self, id: &WorkloadId) -> BTreeSet<WorkloadId> {
        self.waiters.remove(namespace_of(id)).unwrap_or_default()
    }

    /// The job runs, or is gone.
    pub(super) fn forget(&mut self, id: &WorkloadId) {
        for jobs in [&mut self.short_of_pods, &mut self.waiters] {
            if let Some(ids) = jobs.get_mut(namespace_of(id)) {
                ids.remove(id);
                if ids.is_empty() {
                    jobs.remove(namespace_of(id));
                }
            }
        }
    }
}

fn insert(jobs: &mut ByNamespace, id: &WorkloadId) {
    jobs.entry(namespace_of(id).to_owned()).or_default().insert(id.clone());
}

/// The namespace in the id of a job.
pub(super) fn namespace_of(id: &WorkloadId) -> &str {
    id.as_str().split('/').next().unwrap_or_default()
}
