//! Static volumes as counted resources: the volumes left on each node.
//!
//! No provisioner creates more of them. Each pod with a claim that waits for one requests one like any other
//! resource, so that the engine never places more pods of a gang on a node than volumes exist there.

use agentaflow_engine::ResourceName;
use agentaflow_engine::labels::Labels;
use std::collections::{BTreeMap, BTreeSet};

use super::{Volumes, class_of_claim, class_of_volume, matching};
use crate::slim::{PersistentVolume, PersistentVolumeClaim};

/// Volumes left on a node, by resource.
pub type VolumesLeft = BTreeMap<ResourceName, u64>;

/// Prefix of these resources.
const FREE: &str = "free volume of class ";
/// Node label that local volumes select.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// True for a counted volume resource.
pub fn is_counted(resource: &ResourceName) -> bool {
    resource.as_str().starts_with(FREE)
}

/// Resources that a claim for static volumes requests: one matching volume, and one of its class. The second keeps
/// different claims from counting the same volume twice.
pub(super) fn asked(claim: &PersistentVolumeClaim) -> Vec<ResourceName> {
    let class = class_of_claim(claim);
    let spec = &claim.spec;
    let requests = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let size = requests.and_then(|requests| requests.get("storage")).map(|size| size.0.as_str());
    let modes = spec.access_modes.iter().flatten().map(String::as_str);
    let others = [&spec.volume_mode, &spec.volume_attributes_class_name];
    let others = others.into_iter().filter_map(Option::as_deref);
    let mut words: Vec<String> =
        size.into_iter().chain(modes).chain(others).map(str::to_owned).collect();
    words.extend(spec.selector.as_ref().and_then(|wanted| serde_json::to_string(wanted).ok()));
    vec![of_class(class), format!("{FREE}{class} for {}", words.join(", ")).into()]
}

fn of_class(class: &str) -> ResourceName {
    format!("{FREE}{class}").into()
}

impl Volumes {
    /// Free volumes on each node for claims like these, without the volumes in `taken`.
    pub fn left<'a>(
        &self,
        claims: impl IntoIterator<Item = (&'a str, &'a str)>,
        nodes: &BTreeMap<&'a str, &'a Labels>,
        taken: &BTreeSet<String>,
    ) -> BTreeMap<&'a str, VolumesLeft> {
        let mut left: BTreeMap<&str, VolumesLeft> = BTreeMap::new();
        let by_host = by_host(nodes);
        for (volume, names) in self.serving(claims) {
            let is_taken = volume.metadata.name.as_ref().is_none_or(|name| taken.contains(name));
            let Ok(places) = matching::reachable(volume) else { continue };
            if is_taken {
                continue;
            }
            let hosts = places.values_of(HOSTNAME).map(|hosts| {
                hosts.into_iter().filter_map(|host| by_host.get(host)).flatten().copied().collect()
            });
            let near: BTreeSet<&str> = hosts.unwrap_or_else(|| nodes.keys().copied().collect());
            for node in near.into_iter().filter(|node| places.contain(node, nodes[node])) {
                let there = left.entry(node).or_default();
                for name in &names {
                    *there.entry(name.clone()).or_default() += 1;
                }
            }
        }
        left
    }

    /// Volumes for claims like these, each with its resources.
    fn serving<'a>(
        &self,
        claims: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Vec<(&PersistentVolume, Vec<ResourceName>)> {
        let mut kinds: BTreeSet<Vec<ResourceName>> = BTreeSet::new();
        let mut serving: BTreeMap<Option<&str>, (&PersistentVolume, Vec<ResourceName>)> =
            BTreeMap::new();
        for (namespace, name) in claims {
            let Some(claim) = self.claim(namespace, name) else { continue };
            let kind = asked(claim);
            if kinds.contains(&kind) {
                continue;
            }
            for volume in self.of_class(class_of_claim(claim)).filter(|one| matching::is_free(one))
            {
                let entry = serving.entry(volume.metadata.name.as_deref());
                let any = || (volume, vec![of_class(class_of_volume(volume))]);
                let (_, names) = entry.or_insert_with(any);
                names.extend(kind.last().filter(|_| matching::serves(volume, claim)).cloned());
            }
            kinds.insert(kind);
        }
        serving.into_values().collect()
    }
}

/// Nodes by host name: most static volumes use it, and thousands of both can exist.
fn by_host<'a>(nodes: &BTreeMap<&'a str, &'a Labels>) -> BTreeMap<&'a str, Vec<&'a str>> {
    let mut hosts: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (node, labels) in nodes {
        if let Some(host) = labels.get(HOSTNAME) {
            hosts.entry(host).or_default().push(node);
        }
    }
    hosts
}
