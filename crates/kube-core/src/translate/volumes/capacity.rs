//! Remaining storage capacity, for drivers that report it.

use agentaflow_units::Amount;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::{BTreeMap, BTreeSet};

use super::super::places::Places;
use super::super::selector::selector_term;
use crate::slim::{PersistentVolumeClaim, StorageCapacity, StorageClass, StorageDriver};

/// Remaining storage capacity reported by drivers.
#[derive(Clone, Debug, Default)]
pub(super) struct Capacities {
    /// Drivers that report capacity.
    drivers: BTreeSet<String>,
    /// By class, then by namespace and name of the object.
    by_class: BTreeMap<String, BTreeMap<(String, String), StorageCapacity>>,
    /// Class of each object.
    classes: BTreeMap<(String, String), String>,
}

impl Capacities {
    pub(super) fn set_driver(&mut self, driver: &StorageDriver) -> bool {
        let Some(name) = driver.metadata.name.as_deref() else { return false };
        if driver.spec.storage_capacity == Some(true) {
            self.drivers.insert(name.to_owned())
        } else {
            self.drivers.remove(name)
        }
    }

    pub(super) fn remove_driver(&mut self, name: &str) -> bool {
        self.drivers.remove(name)
    }

    pub(super) fn set(&mut self, capacity: StorageCapacity) -> bool {
        let metadata = &capacity.metadata;
        let key = (
            metadata.namespace.clone().unwrap_or_default(),
            metadata.name.clone().unwrap_or_default(),
        );
        let class = capacity.storage_class_name.clone();
        let old = self.remove(&key.0, &key.1);
        let relevant = old.is_none_or(|old| !old.has_equal_values(&capacity));
        self.classes.insert(key.clone(), class.clone());
        self.by_class.entry(class).or_default().insert(key, capacity);
        relevant
    }

    pub(super) fn remove(&mut self, namespace: &str, name: &str) -> Option<StorageCapacity> {
        let key = (namespace.to_owned(), name.to_owned());
        let class = self.classes.remove(&key)?;
        let all = self.by_class.get_mut(&class)?;
        let old = all.remove(&key);
        if all.is_empty() {
            self.by_class.remove(&class);
        }
        old
    }

    /// Nodes with capacity for a new volume of this class and the size of the claim.
    pub(super) fn places(&self, class: &StorageClass, claim: &PersistentVolumeClaim) -> Places {
        let requests =
            claim.spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        let asked = requests.and_then(|requests| requests.get("storage"));
        let Some(asked) = asked.filter(|_| self.drivers.contains(&class.provisioner)) else {
            return Places::ANYWHERE;
        };
        let Ok(asked) = Amount::parse(&asked.0) else { return Places::NOWHERE };
        let name = class.metadata.name.as_deref().unwrap_or_default();
        let message = self.by_class.get(name).into_iter().flat_map(BTreeMap::values);
        let enough =
            message.filter(|message| largest(message).is_some_and(|largest| largest >= asked));
        Places::union(enough.map(reaching))
    }
}

/// Largest volume that can be provisioned.
fn largest(message: &StorageCapacity) -> Option<Amount> {
    let quantity: &Quantity = message.maximum_volume_size.as_ref().or(message.capacity.as_ref())?;
    Amount::parse(&quantity.0).ok()
}

/// Nodes with access to the storage; none without a valid topology.
fn reaching(message: &StorageCapacity) -> Places {
    let Some(topology) = &message.node_topology else { return Places::NOWHERE };
    match selector_term(topology) {
        Err(_) => Places::NOWHERE,
        Ok(term) if term.is_empty() => Places::ANYWHERE,
        Ok(term) => Places::any_of(vec![term]),
    }
}
