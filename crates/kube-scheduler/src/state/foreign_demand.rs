//! GPU pods of other schedulers that have no node yet. They race with this scheduler for free GPUs, and may take the room
//! that a preemption makes.

use agentaflow_engine::{ForeignDemand, Time};
use agentaflow_kube_core::slim::Pod;
use agentaflow_kube_core::translate::{self, TranslationContext, gpu_resources};
use std::collections::BTreeMap;
use std::sync::Arc;

use super::action::Key;
use super::foreign_report::PENDING_REPORTED;
use super::pod_entry::{engine_time, is_finished, is_terminating, node_of};

/// Pending pods that are not nominated for a node, with the times since which they are known.
#[derive(Debug, Default)]
pub(super) struct PendingForeignPods(BTreeMap<Key, (Box<Pod>, Time)>);

impl PendingForeignPods {
    /// Records a pod of another scheduler; returns true if it is or was pending.
    pub(super) fn observe(&mut self, key: &Key, pod: &Pod, now: Time) -> bool {
        let waits = node_of(pod).is_none() && !is_finished(pod) && !is_terminating(pod);
        if waits && gpu_resources(pod).values().sum::<u64>() > 0 {
            let since = self.0.get(key).map_or(now, |(_, since)| *since);
            self.0.insert(key.clone(), (Box::new(pod.clone()), since));
            return true;
        }
        self.remove(key)
    }

    /// Returns true if the pod was pending.
    pub(super) fn remove(&mut self, key: &Key) -> bool {
        self.0.remove(key).is_some()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.0.keys()
    }

    /// Pods that are pending for a while at this time.
    pub(super) fn pending_since(&self, now: Time) -> impl Iterator<Item = &Key> {
        let old =
            move |(_, (_, since)): &(&Key, &(Box<Pod>, Time))| since.after(PENDING_REPORTED) <= now;
        self.0.iter().filter(old).map(|(key, _)| key)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The demand of a pod for the engine; none if the pod is not pending, gated, or waits for volumes.
    pub(super) fn demand(
        &self,
        key: &Key,
        around: &TranslationContext<'_>,
    ) -> Option<Box<ForeignDemand>> {
        let (pod, _) = self.0.get(key)?;
        let request = Arc::new(translate::pod(pod, around).ok()?.request);
        let created = pod.metadata.creation_timestamp.as_ref();
        let submitted = created.map(|time| engine_time(time.0)).unwrap_or_default();
        Some(Box::new(ForeignDemand { request, priority: translate::priority(pod), submitted }))
    }
}
