//! GPU pods of other schedulers that have no node yet. They race with this scheduler for free GPUs, and may take the room
//! that a preemption makes.

use agentaflow_kube_core::slim::Pod;
use agentaflow_kube_core::translate::gpu_resources;
use std::collections::BTreeMap;

use super::action::Key;
use super::pod_entry::{is_finished, is_terminating, node_of};

/// Pending pods with their GPUs.
#[derive(Debug, Default)]
pub(super) struct ForeignDemand(BTreeMap<Key, u64>);

impl ForeignDemand {
    /// Records a pod of another scheduler.
    pub(super) fn observe(&mut self, key: &Key, pod: &Pod) {
        let waits = node_of(pod).is_none() && !is_finished(pod) && !is_terminating(pod);
        let gpus: u64 = if waits { gpu_resources(pod).values().sum() } else { 0 };
        if gpus > 0 {
            self.0.insert(key.clone(), gpus);
        } else {
            self.0.remove(key);
        }
    }

    pub(super) fn remove(&mut self, key: &Key) {
        self.0.remove(key);
    }

    pub(super) fn pods(&self) -> u64 {
        self.0.len() as u64
    }
}
