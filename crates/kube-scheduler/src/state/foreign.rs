//! Pods that the engine does not decide about, and what they take of their nodes: pods of others, and those of ours
//! that the engine cannot know.

use agentaflow_kube_core::slim::Pod;
use agentaflow_kube_core::translate::{self, Surroundings};
use std::sync::Arc;

use super::ClusterState;
use super::action::Key;
use super::pod_entry::{PodState, is_finished, node_of};

impl ClusterState {
    /// A pod of others is there, or was changed.
    pub(super) fn see_foreign(&mut self, key: &Key, pod: Pod) {
        let around = Surroundings { volumes: &self.volumes, namespaces: &self.namespaces };
        let uses = translate::foreign(&pod, &around);
        let depends = !translate::depends(&pod, &around).is_empty();
        let Some(entry) = self.pods.get_mut(key) else { return };
        let unchanged = entry.uses.as_deref() == Some(&uses);
        entry.uses = Some(Box::new(uses));
        entry.pod = None;
        self.settle_foreign(key, &pod, unchanged);
        if let Some(entry) = self.pods.get_mut(key) {
            entry.theirs = depends.then(|| Box::new(pod));
        }
    }

    fn settle_foreign(&mut self, key: &Key, pod: &Pod, unchanged: bool) {
        let wanted = if is_finished(pod) { None } else { node_of(pod) };
        let wanted: Option<Arc<str>> = wanted.map(Arc::from);
        let place = self.pods.get(key).map(|entry| entry.place.clone()).unwrap_or_default();
        if place == wanted.clone().map_or(PodState::Untracked, PodState::Foreign) && unchanged {
            return;
        }
        if let Some(node) = wanted {
            if place != PodState::Foreign(node.clone()) {
                self.leave(key);
            }
            self.make_foreign(key, &node);
        } else {
            self.leave(key);
            self.pods.remove(key);
        }
    }

    /// A pod of ours that the engine does not decide about takes what it takes.
    pub(super) fn count_as_foreign(&mut self, key: &Key, pod: &Pod, node: &Arc<str>) {
        let around = Surroundings { volumes: &self.volumes, namespaces: &self.namespaces };
        let uses = translate::foreign(pod, &around);
        if let Some(entry) = self.pods.get_mut(key) {
            entry.uses = Some(Box::new(uses));
        }
        self.make_foreign(key, node);
    }

    /// Objects have changed on which it may depend what pods take that the engine does not decide about.
    pub(super) fn recount(&mut self) {
        let foreign = self.pods.iter().filter_map(|(key, entry)| match &entry.place {
            PodState::Foreign(node) if entry.theirs.is_some() || entry.pod.is_some() => {
                Some((key.clone(), node.clone()))
            }
            _ => None,
        });
        for (key, node) in foreign.collect::<Vec<_>>() {
            if self.count_again(&key) {
                self.tell_foreign(&key, &node);
            }
        }
    }

    /// What a pod takes, by what is known now; whether that is something else.
    pub(super) fn count_again(&mut self, key: &Key) -> bool {
        let around = Surroundings { volumes: &self.volumes, namespaces: &self.namespaces };
        let Some(entry) = self.pods.get_mut(key) else { return false };
        let pod = entry.theirs.as_deref().or(entry.pod.as_deref());
        let Some(uses) = pod.map(|pod| translate::foreign(pod, &around)) else { return false };
        let changed = entry.uses.as_deref() != Some(&uses);
        entry.uses = Some(Box::new(uses));
        changed
    }

    /// A pod that takes something of a node without the engine deciding about it.
    pub(super) fn make_foreign(&mut self, key: &Key, node: &Arc<str>) {
        if let Some(entry) = self.pods.get_mut(key) {
            entry.place = PodState::Foreign(node.clone());
        }
        let entry = self.nodes.entry(node.clone()).or_default();
        entry.foreign.insert(key.clone());
        if self.begun {
            self.tell_foreign(key, node);
        }
    }
}
