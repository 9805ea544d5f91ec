//! Topology domains: the values of a node label.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Cluster;

#[derive(Clone, Debug, Default)]
pub(crate) struct Domains {
    /// Domain by node index.
    pub(crate) of: Vec<Option<u32>>,
    /// Label value by domain.
    pub(crate) names: Vec<Arc<str>>,
}

impl Cluster {
    /// Domains of a topology key, cached; `node` makes every node a domain.
    pub(crate) fn domains(&mut self, key: &str) -> &Domains {
        if !self.domains.contains_key(key) {
            let made = self.make_domains(key);
            self.domains.insert(key.to_owned(), made);
        }
        &self.domains[key]
    }

    pub(crate) fn make_domains(&self, key: &str) -> Domains {
        let mut numbers: BTreeMap<Arc<str>, u32> = BTreeMap::new();
        let mut domains = Domains { of: vec![None; self.node_states.len()], names: Vec::new() };
        for node in self.ordered() {
            let spec = &self.node_state(node).spec;
            let value: Option<Arc<str>> = match key {
                "node" => Some(spec.id.as_str().into()),
                _ => spec.labels.get(key).map(|value| value.as_ref().into()),
            };
            domains.of[node as usize] = value.map(|value| {
                let next = numbers.len() as u32;
                *numbers.entry(value.clone()).or_insert_with(|| {
                    domains.names.push(value);
                    next
                })
            });
        }
        domains
    }
}
