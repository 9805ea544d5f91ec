//! Storage: claims, volumes, classes, and volume limits of nodes.

mod capacity;
mod claims;
mod counted;
mod matching;
mod together;

pub use claims::{ClaimBinding, ClaimToBind};
pub(super) use claims::{claim_names, of_pod, taken_by};
pub use counted::{VolumesLeft, is_counted};

use agentaflow_engine::labels::Labels;
use agentaflow_engine::{Node, ResourceName};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::{BTreeMap, BTreeSet};

use crate::slim::{
    CsiNode, PersistentVolume, PersistentVolumeClaim, StorageCapacity, StorageClass, StorageDriver,
};
use capacity::Capacities;

/// Annotation with the node for a volume to be provisioned.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Annotation of a completely bound claim.
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// Annotation with the class of claims and volumes, used before the API had a field.
const OLD_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
/// Effectively no limit.
const UNLIMITED: u64 = u32::MAX as u64;

/// Watched claims, volumes, classes and limits of nodes.
///
/// Every change returns true if it can affect a pod; most updates of these objects do not.
#[derive(Clone, Debug, Default)]
pub struct Volumes {
    /// By namespace and name.
    claims: BTreeMap<String, BTreeMap<String, PersistentVolumeClaim>>,
    by_name: BTreeMap<String, PersistentVolume>,
    /// Names of the volumes of each class.
    by_class: BTreeMap<String, BTreeSet<String>>,
    classes: BTreeMap<String, StorageClass>,
    /// By node and driver.
    limits: BTreeMap<String, BTreeMap<String, u64>>,
    /// Number of nodes with a limit, by driver.
    limited: BTreeMap<String, usize>,
    capacities: Capacities,
}

impl Volumes {
    /// Adds or updates a claim.
    pub fn set_claim(&mut self, claim: PersistentVolumeClaim) -> bool {
        let (Some(namespace), Some(name)) = (&claim.metadata.namespace, &claim.metadata.name)
        else {
            return false;
        };
        let known = self.claims.entry(namespace.clone()).or_default();
        let relevant = known.get(name).is_none_or(|old| !is_same_claim(old, &claim));
        known.insert(name.clone(), claim);
        relevant
    }

    pub fn remove_claim(&mut self, namespace: &str, name: &str) -> bool {
        let Some(claims) = self.claims.get_mut(namespace) else { return false };
        let known = claims.remove(name).is_some();
        if claims.is_empty() {
            self.claims.remove(namespace);
        }
        known
    }

    /// Adds or updates a volume.
    pub fn set_volume(&mut self, volume: PersistentVolume) -> bool {
        let Some(name) = volume.metadata.name.clone() else { return false };
        let relevant = self.by_name.get(&name).is_none_or(|old| !is_same_volume(old, &volume));
        self.forget_class(&name);
        self.by_class.entry(class_of_volume(&volume).to_owned()).or_default().insert(name.clone());
        self.by_name.insert(name, volume);
        relevant
    }

    pub fn remove_volume(&mut self, name: &str) -> bool {
        self.forget_class(name);
        self.by_name.remove(name).is_some()
    }

    /// Adds or updates a class.
    pub fn set_class(&mut self, class: StorageClass) -> bool {
        let Some(name) = class.metadata.name.clone() else { return false };
        let relevant = self.classes.get(&name).is_none_or(|old| {
            old.provisioner != class.provisioner
                || old.volume_binding_mode != class.volume_binding_mode
                || old.allowed_topologies != class.allowed_topologies
        });
        self.classes.insert(name, class);
        relevant
    }

    pub fn remove_class(&mut self, name: &str) -> bool {
        self.classes.remove(name).is_some()
    }

    /// Adds or updates the CSI drivers of a node. If [`limited_drivers`](Self::limited_drivers) changes, every node and
    /// every pod with claims must be translated again.
    pub fn set_csi_node(&mut self, node: &CsiNode) -> bool {
        let Some(name) = node.metadata.name.clone() else { return false };
        let limits = limits(node);
        if self.limits.get(&name).unwrap_or(&BTreeMap::new()) == &limits {
            return false;
        }
        self.remove_csi_node(&name);
        for driver in limits.keys() {
            *self.limited.entry(driver.clone()).or_default() += 1;
        }
        self.limits.insert(name, limits);
        true
    }

    pub fn remove_csi_node(&mut self, node: &str) -> bool {
        let Some(limits) = self.limits.remove(node) else { return false };
        for driver in limits.keys() {
            if let Some(nodes) = self.limited.get_mut(driver) {
                *nodes -= 1;
                if *nodes == 0 {
                    self.limited.remove(driver);
                }
            }
        }
        !limits.is_empty()
    }

    /// Adds or updates a storage driver.
    pub fn set_driver(&mut self, driver: &StorageDriver) -> bool {
        self.capacities.set_driver(driver)
    }

    pub fn remove_driver(&mut self, name: &str) -> bool {
        self.capacities.remove_driver(name)
    }

    /// Updates the remaining capacity of a driver in a topology.
    pub fn set_capacity(&mut self, message: StorageCapacity) -> bool {
        self.capacities.set(message)
    }

    pub fn remove_capacity(&mut self, namespace: &str, name: &str) -> bool {
        self.capacities.remove(namespace, name).is_some()
    }

    /// Drivers with a limit on at least one node.
    pub fn limited_drivers(&self) -> impl Iterator<Item = &str> {
        self.limited.keys().map(String::as_str)
    }

    /// Adds unlimited attachments to a node for drivers that only other nodes limit. Otherwise the engine would treat a
    /// missing limit as no room.
    pub fn lift_limits(&self, node: &mut Node) {
        for driver in self.limited_drivers() {
            node.resources.entry(attachments(driver)).or_insert(UNLIMITED);
        }
    }

    /// `None` if the claim is unknown.
    pub fn claim(&self, namespace: &str, name: &str) -> Option<&PersistentVolumeClaim> {
        self.claims.get(namespace)?.get(name)
    }

    /// `None` if the volume is unknown.
    pub fn volume(&self, name: &str) -> Option<&PersistentVolume> {
        self.by_name.get(name)
    }

    pub fn is_bound(&self, namespace: &str, name: &str) -> bool {
        self.claim(namespace, name).is_some_and(is_bound)
    }

    /// Existing free volume for a claim on a node: the pre-bound one, or the smallest match that is not in `taken`.
    /// None for a claim that is being provisioned.
    pub fn volume_for(
        &self,
        (namespace, name): (&str, &str),
        (node, labels): (&str, &Labels),
        taken: &BTreeSet<String>,
    ) -> Option<String> {
        let claim = self.claim(namespace, name).filter(|claim| selected_node(claim).is_none())?;
        let mut candidates = matching::candidates(self, claim);
        candidates.retain(|volume| {
            matching::reachable(volume).is_ok_and(|places| places.contain(node, labels))
                && volume.metadata.name.as_ref().is_some_and(|name| !taken.contains(name))
        });
        let size =
            |volume: &&PersistentVolume| (matching::size(volume), volume.metadata.name.clone());
        candidates.into_iter().min_by_key(size)?.metadata.name.clone()
    }

    /// True if a volume for a claim can be, or is being, provisioned for a node.
    pub fn can_provision(
        &self,
        (namespace, name): (&str, &str),
        (node, labels): (&str, &Labels),
    ) -> bool {
        let Some(claim) = self.claim(namespace, name) else { return false };
        match selected_node(claim) {
            Some(selected) => selected == node,
            None => self
                .class(class_of_claim(claim))
                .is_some_and(|class| self.can_make(class, claim, (node, labels))),
        }
    }

    /// True if a node can access a volume.
    pub fn reaches(&self, volume: &str, node: &str, labels: &Labels) -> bool {
        self.volume(volume).is_some_and(|volume| reaches(volume, node, labels))
    }

    /// True if a class can provision a volume for a claim there, with enough capacity left.
    fn can_make(
        &self,
        class: &StorageClass,
        claim: &PersistentVolumeClaim,
        (node, labels): (&str, &Labels),
    ) -> bool {
        matching::provisionable(class).contain(node, labels)
            && self.capacities.places(class, claim).contain(node, labels)
    }

    /// True if a volume is pre-bound to a claim.
    fn has_own(&self, claim: &PersistentVolumeClaim) -> bool {
        self.of_class(class_of_claim(claim)).any(|volume| matching::is_set_aside(volume, claim))
    }

    fn class(&self, name: &str) -> Option<&StorageClass> {
        self.classes.get(name)
    }

    fn of_class(&self, class: &str) -> impl Iterator<Item = &PersistentVolume> {
        self.by_class.get(class).into_iter().flatten().filter_map(|name| self.by_name.get(name))
    }

    fn is_limited(&self, driver: &str) -> bool {
        self.limited.contains_key(driver)
    }

    fn forget_class(&mut self, name: &str) {
        let Some(class) = self.by_name.get(name).map(|volume| class_of_volume(volume).to_owned())
        else {
            return;
        };
        if let Some(names) = self.by_class.get_mut(&class) {
            names.remove(name);
            if names.is_empty() {
                self.by_class.remove(&class);
            }
        }
    }
}

/// True if a node can access a volume: its node affinity and zone match.
pub fn reaches(volume: &PersistentVolume, node: &str, labels: &Labels) -> bool {
    matching::reachable(volume).is_ok_and(|places| places.contain(node, labels))
        && matching::in_zone(volume).contain(node, labels)
}

/// Engine resource that counts the volumes of a driver on a node.
pub(super) fn attachments(driver: &str) -> ResourceName {
    format!("volumes/{driver}").into()
}

/// Volume limits of a node by driver.
pub(super) fn limits(node: &CsiNode) -> BTreeMap<String, u64> {
    let limit = |driver: &crate::slim::CsiDriver| {
        let count = driver.allocatable.as_ref()?.count?;
        Some((driver.name.clone(), u64::try_from(count).unwrap_or(0)))
    };
    node.spec.drivers.iter().filter_map(limit).collect()
}

/// Class of a claim; `None` for an empty name.
pub(super) fn class_of_claim(claim: &PersistentVolumeClaim) -> &str {
    class_of(&claim.metadata, claim.spec.storage_class_name.as_deref())
}

/// Class of a volume; `None` for an empty name.
pub(super) fn class_of_volume(volume: &PersistentVolume) -> &str {
    class_of(&volume.metadata, volume.spec.storage_class_name.as_deref())
}

fn class_of<'a>(metadata: &'a ObjectMeta, field: Option<&'a str>) -> &'a str {
    annotation(metadata, OLD_CLASS).or(field).unwrap_or_default()
}

/// True if a claim is completely bound: a volume name alone can be a request.
pub(super) fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    bound_volume(claim).is_some() && annotation(&claim.metadata, BIND_COMPLETED).is_some()
}

fn bound_volume(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.volume_name.as_deref().filter(|name| !name.is_empty())
}

fn selected_node(claim: &PersistentVolumeClaim) -> Option<&str> {
    annotation(&claim.metadata, SELECTED_NODE)
}

fn annotation<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn is_same_claim(one: &PersistentVolumeClaim, two: &PersistentVolumeClaim) -> bool {
    let notes = |claim: &PersistentVolumeClaim| {
        [SELECTED_NODE, BIND_COMPLETED, OLD_CLASS]
            .map(|key| annotation(&claim.metadata, key).map(str::to_owned))
    };
    one.spec == two.spec
        && one.status == two.status
        && one.metadata.uid == two.metadata.uid
        && one.metadata.owner_references == two.metadata.owner_references
        && one.metadata.deletion_timestamp.is_some() == two.metadata.deletion_timestamp.is_some()
        && notes(one) == notes(two)
}

fn is_same_volume(one: &PersistentVolume, two: &PersistentVolume) -> bool {
    let old_class = |volume| class_of_volume(volume).to_owned();
    one.spec == two.spec
        && one.status == two.status
        && one.metadata.labels == two.metadata.labels
        && one.metadata.deletion_timestamp.is_some() == two.metadata.deletion_timestamp.is_some()
        && old_class(one) == old_class(two)
}
