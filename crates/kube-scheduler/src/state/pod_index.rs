//! All recorded pods, with indexes of parked pods, pods of `GPUWorkload`s, and pods that wait for a gang.

use agentaflow_engine::WorkloadId;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::action::{Action, Key};
use super::parked::Parked;
use super::pod_entry::{BindingState, PodEntry, PodState};
use crate::controller::EventType;

#[derive(Debug, Default)]
pub(super) struct PodIndex {
    pods: FxHashMap<Key, PodEntry>,
    /// Pods whose state is [`PodState::Parked`].
    parked: BTreeSet<Key>,
    /// Pods by `GPUWorkload`, finished ones included; the workload itself may not be known yet.
    by_workload: BTreeMap<Key, BTreeSet<Key>>,
    /// Pods to reconcile when pods of a gang are placed or gone.
    gang_waiters: BTreeMap<WorkloadId, BTreeSet<Key>>,
}

impl PodIndex {
    pub(super) fn get(&self, key: &Key) -> Option<&PodEntry> {
        self.pods.get(key)
    }

    pub(super) fn get_mut(&mut self, key: &Key) -> Option<&mut PodEntry> {
        self.pods.get_mut(key)
    }

    pub(super) fn contains(&self, key: &Key) -> bool {
        self.pods.contains_key(key)
    }

    /// In no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &PodEntry)> {
        self.pods.iter()
    }

    pub(super) fn get_or_insert(
        &mut self,
        key: &Key,
        new: impl FnOnce() -> PodEntry,
    ) -> &mut PodEntry {
        self.pods.entry(key.clone()).or_insert_with(new)
    }

    pub(super) fn remove(&mut self, key: &Key) -> Option<PodEntry> {
        self.parked.remove(key);
        self.pods.remove(key)
    }

    /// Keys of the pods that satisfy a condition, sorted.
    pub(super) fn select(&self, wanted: impl Fn(&PodEntry) -> bool) -> BTreeSet<Key> {
        let found = self.pods.iter().filter(|(_, entry)| wanted(entry));
        found.map(|(key, _)| key.clone()).collect()
    }

    /// Replaces the state of a pod; returns the old one.
    pub(super) fn set_state(&mut self, key: &Key, state: PodState) -> PodState {
        let Some(entry) = self.pods.get_mut(key) else { return PodState::Untracked };
        if matches!(state, PodState::Parked(_)) {
            self.parked.insert(key.clone());
        } else {
            self.parked.remove(key);
        }
        std::mem::replace(&mut entry.state, state)
    }

    /// Replaces the binding of a member; returns the old one.
    pub(super) fn set_binding(&mut self, key: &Key, new: BindingState) -> Option<BindingState> {
        match &mut self.pods.get_mut(key)?.state {
            PodState::Member { binding, .. } => Some(std::mem::replace(binding, new)),
            _ => None,
        }
    }

    pub(super) fn set_task(&mut self, key: &Key, number: u32) {
        if let Some(PodEntry { state: PodState::Member { task, .. }, .. }) = self.pods.get_mut(key)
        {
            *task = number;
        }
    }

    fn binding(&self, key: &Key) -> Option<&BindingState> {
        self.pods.get(key)?.state.binding()
    }

    /// A member without a node.
    pub(super) fn is_pending(&self, key: &Key) -> bool {
        matches!(self.binding(key), Some(BindingState::Pending))
    }

    /// A member whose binding the API server confirmed.
    pub(super) fn is_bound(&self, key: &Key) -> bool {
        matches!(self.binding(key), Some(BindingState::Bound(_)))
    }

    /// A member with a node, bound or binding.
    pub(super) fn is_placed(&self, key: &Key) -> bool {
        self.binding(key).is_some_and(|binding| binding.node().is_some())
    }

    /// Retry count of the `GPUWorkload` when the pod was created: pods of one run have the same.
    pub(super) fn retries(&self, key: &Key) -> Option<&str> {
        let annotations = self.pods.get(key)?.pod.as_ref()?.metadata.annotations.as_ref()?;
        annotations.get(agentaflow_kube_core::names::POD_RETRIES).map(String::as_str)
    }

    /// Pending pods whose request was made from other objects, and parked pods except pods whose owner is being read.
    pub(super) fn dependents(&self) -> Vec<Key> {
        let depends = |entry: &PodEntry| {
            matches!(entry.state.binding(), Some(BindingState::Pending))
                && !entry.depends.is_empty()
        };
        let members = self.pods.iter().filter(|(_, entry)| depends(entry)).map(|(key, _)| key);
        let parked = self.parked.iter().filter(|key| {
            let state = self.pods.get(*key).map(|entry| &entry.state);
            !matches!(state, Some(PodState::Parked(Parked::ReadingOwner)))
        });
        members.chain(parked).cloned().collect()
    }

    /// An Event about a pod; none if the pod is unknown.
    pub(super) fn event(
        &self,
        key: &Key,
        event_type: EventType,
        reason: &'static str,
        message: String,
    ) -> Option<Action> {
        self.pods.get(key).map(|entry| entry.event(key, event_type, reason, message))
    }

    /// Records the target of a binding in flight, or its end.
    pub(super) fn set_pending_binding(
        &mut self,
        key: &Key,
        binding: Option<super::pod_entry::PendingBinding>,
    ) {
        if let Some(entry) = self.pods.get_mut(key) {
            entry.pending_binding = binding;
        }
    }

    /// Pods of this scheduler that are bound to a node or whose binding to that node is in flight.
    pub(super) fn on_node(&self, node: &str) -> BTreeSet<Key> {
        self.select(|entry| {
            let bound = entry.pod.as_ref().and_then(|pod| pod.spec.node_name.as_deref());
            let pending = entry.pending_binding.as_ref().map(|binding| &*binding.node);
            bound.or(pending) == Some(node)
        })
    }

    /// Names of the nodes for which these pods are nominated.
    pub(super) fn nominations<'a>(
        &'a self,
        keys: impl IntoIterator<Item = &'a Key>,
    ) -> impl Iterator<Item = &'a Arc<str>> {
        keys.into_iter().filter_map(|key| self.pods.get(key)?.nominated.as_ref())
    }

    pub(super) fn of_workload(&self, workload: &Key) -> impl Iterator<Item = &Key> {
        self.by_workload.get(workload).into_iter().flatten()
    }

    pub(super) fn add_to_workload(&mut self, workload: &Key, pod: &Key) {
        self.by_workload.entry(workload.clone()).or_default().insert(pod.clone());
    }

    pub(super) fn remove_from_workload(&mut self, workload: &Key, pod: &Key) {
        if let Some(pods) = self.by_workload.get_mut(workload) {
            pods.remove(pod);
            if pods.is_empty() {
                self.by_workload.remove(workload);
            }
        }
    }

    pub(super) fn wait_for_gang(&mut self, gang: &WorkloadId, pod: &Key) {
        self.gang_waiters.entry(gang.clone()).or_default().insert(pod.clone());
    }

    pub(super) fn take_gang_waiters(&mut self, gang: &WorkloadId) -> BTreeSet<Key> {
        self.gang_waiters.remove(gang).unwrap_or_default()
    }
}
