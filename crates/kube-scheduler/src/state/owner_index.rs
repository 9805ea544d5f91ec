//! Annotations of the owners of pods: read once, and forgotten with the last of their pods.

use agentaflow_kube_core::slim::Pod;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::action::{Key, Owner};
use super::membership::controller;

/// Namespace and uid.
type OwnerKey = (Arc<str>, Arc<str>);

#[derive(Debug, Default)]
pub(super) struct OwnerIndex(FxHashMap<OwnerKey, OwnerEntry>);

#[derive(Debug, Default)]
struct OwnerEntry {
    requested: bool,
    annotations: Option<BTreeMap<String, String>>,
    pods: BTreeSet<Key>,
}

impl OwnerIndex {
    fn entry(&self, pod: &Pod) -> Option<&OwnerEntry> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        self.0.get(&(Arc::from(namespace), Arc::from(controller(pod)?.uid.as_str())))
    }

    /// Annotations of a pod's owner; none while they are unknown.
    pub(super) fn annotations(&self, pod: &Pod) -> Option<&BTreeMap<String, String>> {
        self.entry(pod)?.annotations.as_ref()
    }

    /// Owner whose annotations must be read before the pod can be submitted to the engine.
    pub(super) fn unread(&self, pod: &Pod) -> Option<Owner> {
        let owner = controller(pod)?;
        self.annotations(pod).is_none().then(|| Owner {
            api_version: owner.api_version.clone(),
            kind: owner.kind.clone(),
            namespace: pod.metadata.namespace.as_deref().unwrap_or_default().into(),
            name: owner.name.clone(),
            uid: owner.uid.as_str().into(),
        })
    }

    /// Records that a pod needs its owner's annotations; returns true if they must be requested now.
    pub(super) fn request(&mut self, pod: &Key, owner: &Owner) -> bool {
        let entry = self.0.entry((owner.namespace.clone(), owner.uid.clone())).or_default();
        entry.pods.insert(pod.clone());
        !std::mem::replace(&mut entry.requested, true)
    }

    /// Records the annotations of an owner, or that they could not be read; then they are requested again with the next
    /// reconciliation of one of its pods. Returns these pods.
    pub(super) fn record(
        &mut self,
        namespace: Arc<str>,
        uid: Arc<str>,
        annotations: Option<BTreeMap<String, String>>,
    ) -> impl Iterator<Item = &Key> {
        let entry = self.0.get_mut(&(namespace, uid));
        entry.into_iter().flat_map(move |entry| {
            entry.requested = annotations.is_some();
            entry.annotations.clone_from(&annotations);
            &entry.pods
        })
    }

    pub(super) fn pod_removed(&mut self, key: &Key, pod: &Pod) {
        let Some(owner) = controller(pod) else { return };
        let owner = (key.namespace.clone(), Arc::from(owner.uid.as_str()));
        if let Some(entry) = self.0.get_mut(&owner) {
            entry.pods.remove(key);
            if entry.pods.is_empty() {
                self.0.remove(&owner);
            }
        }
    }
}
