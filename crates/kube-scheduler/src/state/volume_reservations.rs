//! Claims of pods that are being bound: where a volume is made for each, or which one it gets.
//!
//! What was chosen is remembered until the watches tell it: another pod of the same claim, in the same pass or in one
//! of the next, must not choose otherwise, and a pod of another claim not the same volume.

use agentaflow_engine::WorkloadId;
use agentaflow_engine::labels::Labels;
use agentaflow_kube_core::translate::{ClaimHow, ClaimToBind, Volumes};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::ClusterState;
use super::action::{Bind, ClaimAction, Key};

/// What bindings under way do with claims.
#[derive(Debug, Default)]
pub(super) struct VolumeReservations(BTreeMap<Key, VolumeReservation>);

#[derive(Debug)]
struct VolumeReservation {
    act: ClaimAction,
    /// The pods for which it is done.
    pods: BTreeSet<Key>,
}

impl VolumeReservations {
    /// A pod is being bound.
    pub(super) fn make(&mut self, bind: &Bind) {
        for (claim, act) in &bind.claims {
            let promise = self.0.entry(claim.clone());
            let promise = promise
                .or_insert_with(|| VolumeReservation { act: act.clone(), pods: BTreeSet::new() });
            promise.pods.insert(bind.pod.key.clone());
        }
    }

    /// A pod is not being bound any more.
    pub(super) fn withdraw(&mut self, pod: &Key) {
        self.0.retain(|_, promise| {
            promise.pods.remove(pod);
            !promise.pods.is_empty()
        });
    }

    /// Forgets what the watches have told.
    pub(super) fn settle(&mut self, volumes: &Volumes) {
        self.0.retain(|Key { namespace, name }, _| {
            volumes.claim(namespace, name).is_some() && !volumes.is_bound(namespace, name)
        });
    }

    /// Volumes that claims are getting.
    pub(super) fn volumes(&self) -> BTreeSet<String> {
        let volume = |promise: &VolumeReservation| match &promise.act {
            ClaimAction::Volume(volume) => Some(volume.clone()),
            ClaimAction::Provision(_) => None,
        };
        self.0.values().filter_map(volume).collect()
    }

    fn of(&self, claim: &Key) -> Option<&ClaimAction> {
        self.0.get(claim).map(|promise| &promise.act)
    }
}

impl ClusterState {
    /// What is done for the claims of a pod on a node; none when one of them has no volume there after all.
    pub(super) fn claim_acts(
        &self,
        claims: &[ClaimToBind],
        workload: &WorkloadId,
        node: &Arc<str>,
    ) -> Option<Vec<(Key, ClaimAction)>> {
        if claims.is_empty() {
            return Some(Vec::new());
        }
        let labels = self.nodes.get(node)?.labels()?;
        let is_gang = self.groups.get(workload).is_some_and(|group| group.need > 1);
        let mut taken = self.promises.volumes();
        let mut acts = Vec::new();
        for claim in claims {
            let name = Key::new(&claim.namespace, &claim.name);
            let act = match self.promises.of(&name) {
                Some(promised) => self.share(promised, is_gang, (node, labels))?,
                None => self.choose(claim, (node, labels), &taken)?,
            };
            if let ClaimAction::Volume(volume) = &act {
                taken.insert(volume.clone());
            }
            acts.push((name, act));
        }
        Some(acts)
    }

    /// Another pod of the claim is being bound. A pod goes where that one does, or is placed again when it is known
    /// where the volume is. A gang would never start that way: its pods wait for the volume on their nodes, and are
    /// bound only where it can be reached.
    fn share(
        &self,
        promised: &ClaimAction,
        is_gang: bool,
        (node, labels): (&Arc<str>, &Labels),
    ) -> Option<ClaimAction> {
        let is_there = match promised {
            ClaimAction::Provision(at) => at == node,
            ClaimAction::Volume(volume) => self.volumes.reaches(volume, node, labels),
        };
        (is_gang || is_there).then(|| promised.clone())
    }

    /// A volume that is there, else one that is made.
    fn choose(
        &self,
        claim: &ClaimToBind,
        (node, labels): (&Arc<str>, &Labels),
        taken: &BTreeSet<String>,
    ) -> Option<ClaimAction> {
        let name = (claim.namespace.as_str(), claim.name.as_str());
        let found = self.volumes.volume_for(name, (node, labels), taken).map(ClaimAction::Volume);
        let can_be_made =
            || claim.how == ClaimHow::Provision && self.volumes.can_provision(name, (node, labels));
        found.or_else(|| can_be_made().then(|| ClaimAction::Provision(node.clone())))
    }
}
