//! The namespaces of the cluster and their labels.

use agentaflow_engine::labels::Labels;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::selector::{labels, selector};
use crate::slim::Namespace;

#[derive(Clone, Debug, Default)]
pub struct Namespaces {
    labels: BTreeMap<Arc<str>, Labels>,
}

impl Namespaces {
    /// Adds or updates a namespace; true if its labels changed.
    pub fn set(&mut self, namespace: &Namespace) -> bool {
        let Some(name) = namespace.metadata.name.as_deref() else { return false };
        let labels = labels(namespace.metadata.labels.as_ref());
        if self.labels.get(name) == Some(&labels) {
            return false;
        }
        self.labels.insert(name.into(), labels);
        true
    }

    /// Removes a namespace; true if it was known.
    pub fn remove(&mut self, name: &str) -> bool {
        self.labels.remove(name).is_some()
    }

    /// Names that match the selector, in order; empty for an invalid selector.
    pub fn matching(&self, wanted: &LabelSelector) -> Vec<Arc<str>> {
        let Ok(wanted) = selector(wanted) else { return Vec::new() };
        let picked = self.labels.iter().filter(|(_, labels)| wanted.matches(labels));
        picked.map(|(name, _)| name.clone()).collect()
    }

    pub fn labels(&self, name: &str) -> Option<&Labels> {
        self.labels.get(name)
    }
}
