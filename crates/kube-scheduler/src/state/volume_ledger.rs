//! Storage objects, volumes reserved for bindings in flight, and pods that wait for pre-provisioned volumes.
//!
//! A chosen volume stays reserved until the watch reports it: another pod of the same claim, in this pass or a later one,
//! must not choose another volume, and a pod of another claim must not choose the same.
//!
//! Pre-provisioned volumes are counted as a resource of their nodes. A pod takes one from its placement until all of its
//! workload is bound: then the volume belongs to its claim, and preempting the pod would not free the volume. A node offers
//! its unreserved volumes, and the volumes of pods that are placed there and not bound: a placement and its binding leave the sum
//! unchanged.

use agentaflow_engine::Request;
use agentaflow_engine::labels::Labels;
use agentaflow_kube_core::translate::{self, ClaimBinding, ClaimToBind, Volumes, VolumesLeft};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::action::{Bind, ClaimAction, Key};
use super::pod_index::PodIndex;

#[derive(Debug, Default)]
pub(super) struct VolumeLedger {
    objects: Volumes,
    /// Actions of bindings in flight, by claim.
    reservations: BTreeMap<Key, Reservation>,
    /// Pods that wait for a pre-provisioned volume, by claim.
    waiters: BTreeMap<Key, BTreeSet<Key>>,
    /// Claims by pod.
    claims: BTreeMap<Key, BTreeSet<Key>>,
    /// Some node was sent a number of free volumes.
    published: bool,
}

#[derive(Debug)]
struct Reservation {
    action: ClaimAction,
    pods: BTreeSet<Key>,
}

impl VolumeLedger {
    pub(super) fn objects(&self) -> &Volumes {
        &self.objects
    }

    pub(super) fn objects_mut(&mut self) -> &mut Volumes {
        &mut self.objects
    }

    /// Reserves the volumes of a pod that is being bound.
    pub(super) fn reserve(&mut self, bind: &Bind) {
        for (claim, action) in &bind.claims {
            let reservation = self.reservations.entry(claim.clone());
            let reservation = reservation
                .or_insert_with(|| Reservation { action: action.clone(), pods: BTreeSet::new() });
            reservation.pods.insert(bind.pod.key.clone());
        }
    }

    /// Releases the reservations of a pod that is not being bound any more.
    pub(super) fn release(&mut self, pod: &Key) {
        self.reservations.retain(|_, reservation| {
            reservation.pods.remove(pod);
            !reservation.pods.is_empty()
        });
    }

    /// Drops reservations whose outcome the watch has reported.
    pub(super) fn drop_reported(&mut self) {
        let objects = &self.objects;
        self.reservations.retain(|Key { namespace, name }, _| {
            objects.claim(namespace, name).is_some() && !objects.is_bound(namespace, name)
        });
    }

    fn reserved_volumes(&self) -> BTreeSet<String> {
        let volume = |reservation: &Reservation| match &reservation.action {
            ClaimAction::Volume(volume) => Some(volume.clone()),
            ClaimAction::Provision(_) => None,
        };
        self.reservations.values().filter_map(volume).collect()
    }

    /// The actions that bind a pod's claims for a node; none if a claim has no volume there after all.
    pub(super) fn bind_claims(
        &self,
        claims: &[ClaimToBind],
        is_gang: bool,
        node: &Arc<str>,
        labels: Option<&Labels>,
    ) -> Option<Vec<(Key, ClaimAction)>> {
        if claims.is_empty() {
            return Some(Vec::new());
        }
        let labels = labels?;
        let mut taken = self.reserved_volumes();
        let mut actions = Vec::new();
        for claim in claims {
            let name = Key::new(&claim.namespace, &claim.name);
            let action = match self.reservations.get(&name) {
                Some(reserved) => self.share(&reserved.action, is_gang, (node, labels))?,
                None => self.choose(claim, (node, labels), &taken)?,
            };
            if let ClaimAction::Volume(volume) = &action {
                taken.insert(volume.clone());
            }
            actions.push((name, action));
        }
        Some(actions)
    }

    /// Another pod of the claim is being bound. A single pod follows to the same node, or is placed again when the volume's
    /// node is known. A gang would never start that way: its pods wait for the volume on their nodes, and the executor binds
    /// them only where the volume can be reached.
    fn share(
        &self,
        reserved: &ClaimAction,
        is_gang: bool,
        (node, labels): (&Arc<str>, &Labels),
    ) -> Option<ClaimAction> {
        let is_reachable = match reserved {
            ClaimAction::Provision(at) => at == node,
            ClaimAction::Volume(volume) => self.objects.reaches(volume, node, labels),
        };
        (is_gang || is_reachable).then(|| reserved.clone())
    }

    /// An existing volume, else one to provision.
    fn choose(
        &self,
        claim: &ClaimToBind,
        (node, labels): (&Arc<str>, &Labels),
        taken: &BTreeSet<String>,
    ) -> Option<ClaimAction> {
        let name = (claim.namespace.as_str(), claim.name.as_str());
        let found = self.objects.volume_for(name, (node, labels), taken).map(ClaimAction::Volume);
        let can_provision = || {
            claim.how == ClaimBinding::Provision && self.objects.can_provision(name, (node, labels))
        };
        found.or_else(|| can_provision().then(|| ClaimAction::Provision(node.clone())))
    }

    /// Replaces the claims for which a pod waits; returns pods whose claim became shared or stopped being shared, which
    /// changes their request.
    pub(super) fn set_waiting(&mut self, pod: &Key, claims: &[ClaimToBind]) -> Vec<Key> {
        let now: BTreeSet<Key> = counted(claims).collect();
        let before = self.claims.remove(pod).unwrap_or_default();
        let mut affected = Vec::new();
        for claim in before.difference(&now) {
            let Some(pods) = self.waiters.get_mut(claim) else { continue };
            if pods.remove(pod) && pods.len() == 1 {
                affected.extend(pods.iter().cloned());
            }
            if pods.is_empty() {
                self.waiters.remove(claim);
            }
        }
        for claim in &now {
            let pods = self.waiters.entry(claim.clone()).or_default();
            if pods.insert(pod.clone()) && pods.len() == 2 {
                affected.extend(pods.iter().filter(|other| *other != pod).cloned());
            }
        }
        if !now.is_empty() {
            self.claims.insert(pod.clone(), now);
        }
        affected
    }

    /// Adds one volume to the request for each claim that no other pod waits for. Pods that share a claim share its volume;
    /// the pod that is bound first decides on the node of the rest.
    pub(super) fn request_volumes(&self, asked: &mut translate::PodDemand) {
        let is_shared = |claim: &ClaimToBind| {
            let name = Key::new(&claim.namespace, &claim.name);
            self.waiters.get(&name).is_some_and(|pods| pods.len() > 1)
        };
        for claim in asked.claims.iter().filter(|claim| !is_shared(claim)) {
            for resource in &claim.takes {
                *asked.request.resources.entry(resource.clone()).or_default() += 1;
            }
        }
    }

    /// Volumes that each node has for pods that wait; none if nothing waits and nothing was published before.
    pub(super) fn free_volumes(
        &mut self,
        nodes: &BTreeMap<&str, &Labels>,
        pods: &PodIndex,
    ) -> Option<BTreeMap<Arc<str>, VolumesLeft>> {
        if self.waiters.is_empty() && !self.published {
            return None;
        }
        let claims = self.waiters.keys().map(|claim| (&*claim.namespace, &*claim.name));
        let free = self.objects.left(claims, nodes, &self.reserved_volumes());
        let mut free: BTreeMap<Arc<str>, VolumesLeft> =
            free.into_iter().map(|(node, left)| (node.into(), left)).collect();
        for entry in self.claims.keys().filter_map(|key| pods.get(key)) {
            let Some(node) = entry.state.binding().and_then(|binding| binding.node()) else {
                continue;
            };
            let requested = entry.request.iter().flat_map(|request| &request.resources);
            for (resource, amount) in requested.filter(|(name, _)| translate::is_counted(name)) {
                let on_node = free.entry(node.clone()).or_default();
                *on_node.entry(resource.clone()).or_default() += amount;
            }
        }
        self.published = !free.is_empty();
        Some(free)
    }
}

/// The request without pre-provisioned volumes.
pub(super) fn without_volumes(request: &Arc<Request>) -> Arc<Request> {
    let mut request = request.clone();
    if takes_volumes(&request) {
        Arc::make_mut(&mut request).resources.retain(|name, _| !translate::is_counted(name));
    }
    request
}

pub(super) fn takes_volumes(request: &Request) -> bool {
    request.resources.keys().any(translate::is_counted)
}

/// Claims that only a pre-provisioned volume can serve.
pub(super) fn counted(claims: &[ClaimToBind]) -> impl Iterator<Item = Key> {
    let counted = claims.iter().filter(|claim| !claim.takes.is_empty());
    counted.map(|claim| Key::new(&claim.namespace, &claim.name))
}
