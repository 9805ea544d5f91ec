//! `ResourceQuota`s of namespaces. Groups whose pods other controllers create take no turns under a quota; their pending reason
//! names it.

use agentaflow_kube_core::quota::{self, FullQuota};
use agentaflow_kube_core::slim::{Pod, ResourceQuota};
use std::collections::BTreeMap;
use std::sync::Arc;

use super::{action::Key, key_of};

#[derive(Debug, Default)]
pub(super) struct NamespaceQuotas(BTreeMap<Key, ResourceQuota>);

impl NamespaceQuotas {
    /// Returns true if limits or usage changed.
    pub(super) fn record(&mut self, quota: ResourceQuota) -> bool {
        let key = key_of(&quota.metadata);
        let old = self.0.get(&key);
        let changed =
            old.is_none_or(|old| (&old.spec, &old.status) != (&quota.spec, &quota.status));
        self.0.insert(key, quota);
        changed
    }

    /// Returns true if the quota was known.
    pub(super) fn remove(&mut self, key: &Key) -> bool {
        self.0.remove(key).is_some()
    }

    /// The first quota of the namespace without room for one more pod like this one.
    pub(super) fn full(&self, namespace: &Arc<str>, pod: &Pod) -> Option<FullQuota> {
        let first = Key { namespace: namespace.clone(), name: "".into() };
        let mut quotas = self.0.range(first..).take_while(|(key, _)| key.namespace == *namespace);
        let containers = pod.spec.containers.iter();
        let charges = quota::charges(containers.filter_map(|one| one.resources.as_ref()));
        quotas.find_map(|(_, quota)| quota::full(quota, &charges))
    }
}
