//! Volumes that people made, as amounts of which nodes have only so many.
//!
//! A pod takes one from the moment it is placed until all of its workload is bound: then the volume is its claim's,
//! and would not be free again if the pod were stopped for another. What a node has is what nobody has or was
//! promised, and what those take who are placed there and not bound: a placement, and what comes of it, leave the
//! sum as it was.

use agentaflow_engine::labels::Labels;
use agentaflow_engine::{Request, WorkloadId};
use agentaflow_kube_core::translate::{self, ClaimToBind, Left};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::ClusterState;
use super::action::Key;
use super::pod_entry::{BindingState, PodState};

/// Pods that wait for volumes that people made.
#[derive(Debug, Default)]
pub(super) struct VolumeWaiters {
    /// By claim.
    pods: BTreeMap<Key, BTreeSet<Key>>,
    /// Workloads of which a pod has its volumes and is bound.
    bound: BTreeSet<WorkloadId>,
    /// Some node was told how many it has left.
    told: bool,
}

impl ClusterState {
    /// A pod waits for the volumes of these claims, and of no others.
    pub(super) fn take_volumes(&mut self, key: &Key, claims: &[ClaimToBind]) {
        let now: BTreeSet<Key> = counted(claims).collect();
        let before = self.pods.get(key).map(|entry| counted(&entry.claims).collect());
        let before: BTreeSet<Key> = before.unwrap_or_default();
        for claim in before.difference(&now) {
            let Some(pods) = self.takers.pods.get_mut(claim) else { continue };
            if pods.remove(key) && pods.len() == 1 {
                self.stuck.extend(pods.iter().cloned());
            }
            if pods.is_empty() {
                self.takers.pods.remove(claim);
            }
        }
        for claim in now {
            let pods = self.takers.pods.entry(claim).or_default();
            if pods.insert(key.clone()) && pods.len() == 2 {
                self.stuck.extend(pods.iter().filter(|pod| *pod != key).cloned());
            }
        }
    }

    /// Asks for one volume for each claim that a pod has for itself. Pods that share a claim share its volume, too, and
    /// whoever is bound first decides where the others go.
    pub(super) fn ask_for_volumes(&self, asked: &mut translate::Asked) {
        let shared = |claim: &ClaimToBind| {
            let name = Key::new(&claim.namespace, &claim.name);
            self.takers.pods.get(&name).is_some_and(|pods| pods.len() > 1)
        };
        for claim in asked.claims.iter().filter(|claim| !shared(claim)) {
            for resource in &claim.takes {
                *asked.request.resources.entry(resource.clone()).or_default() += 1;
            }
        }
    }

    /// A pod is bound, and its claims have their volumes.
    pub(super) fn has_volumes(&mut self, key: &Key, workload: &WorkloadId) {
        if self.pods.get(key).is_some_and(|entry| counted(&entry.claims).next().is_some()) {
            self.takers.bound.insert(workload.clone());
        }
    }

    /// Tells the engine how many volumes each node has left for those who wait.
    pub(super) fn count_volumes(&mut self) {
        for workload in std::mem::take(&mut self.takers.bound) {
            self.release_volumes(&workload);
        }
        if self.takers.pods.is_empty() && !self.takers.told {
            return;
        }
        let mut left = self.volumes_left();
        self.takers.told = !left.is_empty();
        let nodes: Vec<Arc<str>> = self.nodes.keys().cloned().collect();
        for node in nodes {
            let now = left.remove(&node).unwrap_or_default();
            let Some(entry) = self.nodes.get_mut(&node).filter(|entry| entry.left != now) else {
                continue;
            };
            entry.left = now;
            if entry.is_known() {
                self.tell_node(&node);
            }
        }
    }

    /// All of a workload is bound: it takes no volumes of its nodes any more.
    fn release_volumes(&mut self, workload: &WorkloadId) {
        let members = self.groups.get(workload).map(|group| group.members.clone());
        let members: Vec<Key> = members.unwrap_or_default().into_values().collect();
        // The last that is bound comes here again.
        if !members.iter().all(|key| self.is_bound(key)) {
            return;
        }
        if let Some(first) = members.first() {
            self.adopt_anew(first, workload);
        }
        for key in &members {
            let asked = self.pods.get(key).and_then(|entry| entry.asked.as_ref());
            if asked.is_some_and(|asked| !asked.resources.keys().any(translate::is_counted)) {
                self.take_volumes(key, &[]);
            }
        }
    }

    fn volumes_left(&self) -> BTreeMap<Arc<str>, Left> {
        let known = self.nodes.iter().filter_map(|(name, entry)| Some((&**name, entry.labels()?)));
        let nodes: BTreeMap<&str, &Labels> = known.collect();
        let claims = self.takers.pods.keys().map(|claim| (&*claim.namespace, &*claim.name));
        let left = self.volumes.left(claims, &nodes, &self.promises.volumes());
        let mut left: BTreeMap<Arc<str>, Left> =
            left.into_iter().map(|(node, left)| (node.into(), left)).collect();
        let pods: BTreeSet<&Key> = self.takers.pods.values().flatten().collect();
        for entry in pods.into_iter().filter_map(|key| self.pods.get(key)) {
            let PodState::Member {
                seat: BindingState::Binding { node, .. } | BindingState::Bound(node),
                ..
            } = &entry.place
            else {
                continue;
            };
            let asked = entry.asked.iter().flat_map(|asked| &asked.resources);
            for (resource, amount) in asked.filter(|(name, _)| translate::is_counted(name)) {
                let there = left.entry(node.clone()).or_default();
                *there.entry(resource.clone()).or_default() += amount;
            }
        }
        left
    }
}

/// The same without volumes that people made.
pub(super) fn without_volumes(request: &Arc<Request>) -> Arc<Request> {
    let mut request = request.clone();
    if request.resources.keys().any(translate::is_counted) {
        Arc::make_mut(&mut request).resources.retain(|name, _| !translate::is_counted(name));
    }
    request
}

/// Claims that only a volume can serve that people made.
fn counted(claims: &[ClaimToBind]) -> impl Iterator<Item = Key> {
    let counted = claims.iter().filter(|claim| !claim.takes.is_empty());
    counted.map(|claim| Key::new(&claim.namespace, &claim.name))
}
