//! What the owners of pods say: asked for once, and forgotten with the last of their pods.

use agentaflow_kube_core::slim::Pod;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::ClusterState;
use super::action::{Action, Key};
use super::pod_entry::Parked;

/// The owner of pods: its namespace and uid.
pub(super) type OwnerKey = (Arc<str>, Arc<str>);

/// What the owner of pods says, and who wants to know.
#[derive(Debug, Default)]
pub(super) struct OwnerEntry {
    asked: bool,
    pub(super) said: Option<Arc<BTreeMap<String, String>>>,
    pods: BTreeSet<Key>,
}

impl ClusterState {
    pub(super) fn ask_owner(&mut self, key: &Key, owner: super::Owner) {
        self.leave(key);
        self.set_aside(key, Parked::LookingUp);
        let entry = self.owners.entry((owner.namespace.clone(), owner.uid.clone())).or_default();
        entry.pods.insert(key.clone());
        if !std::mem::replace(&mut entry.asked, true) {
            self.acts.push(Action::LookUp(owner));
        }
    }

    /// A pod is gone: when it was the last that asked about its owner, so is what the owner said.
    pub(super) fn forget_owner(&mut self, key: &Key, pod: &Pod) {
        let Some(owner) = super::membership::controller(pod) else { return };
        let owner = (key.namespace.clone(), Arc::from(owner.uid.as_str()));
        if let Some(entry) = self.owners.get_mut(&owner) {
            entry.pods.remove(key);
            if entry.pods.is_empty() {
                self.owners.remove(&owner);
            }
        }
    }

    /// The owner of some pods has answered; or did not, and is asked again when one of them is looked at.
    pub(super) fn see_owner(
        &mut self,
        owner: &OwnerKey,
        annotations: Option<BTreeMap<String, String>>,
    ) {
        let Some(entry) = self.owners.get_mut(owner) else { return };
        entry.asked = annotations.is_some();
        entry.said = annotations.map(Arc::new);
        self.stuck.extend(entry.pods.iter().cloned());
    }
}
