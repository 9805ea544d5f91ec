//! `deploy/worker/15-network-policy.yaml`: network of the pods of jobs.

use std::collections::BTreeSet;

use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyEgressRule};

use crate::support::repository;

/// Networks of nodes, pods, services and the metadata service of clouds (`169.254.169.254`, `fd00:ec2::254`).
const CLOSED: [&str; 10] = [
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "::1/128",
    "fc00::/7",
    "fe80::/10",
];

/// Asserts that pods accept no connection, and open connections only to public addresses and to the name server.
pub(crate) fn check(policy: &NetworkPolicy) {
    let spec = policy.spec.as_ref().unwrap();
    let types: BTreeSet<&str> = spec.policy_types.iter().flatten().map(String::as_str).collect();
    assert_eq!(types, BTreeSet::from(["Egress", "Ingress"]), "a type that is missing is open");
    // The API server drops empty lists.
    assert!(spec.ingress.as_ref().is_none_or(Vec::is_empty), "{:?}", spec.ingress);
    let egress = spec.egress.as_ref().unwrap();
    let mut blocks = Vec::new();
    for rule in egress {
        let peers = rule.to.as_ref().filter(|peers| !peers.is_empty());
        let peers = peers.expect("a rule without peers permits every address");
        for peer in peers {
            match &peer.ip_block {
                Some(block) => blocks.push(block),
                None => assert!(is_name_server(rule), "{rule:?}"),
            }
        }
    }
    let open: BTreeSet<&str> = blocks.iter().map(|block| block.cidr.as_str()).collect();
    assert_eq!(open, BTreeSet::from(["0.0.0.0/0", "::/0"]));
    let closed: BTreeSet<&str> =
        blocks.iter().flat_map(|block| block.except.iter().flatten()).map(String::as_str).collect();
    assert_eq!(closed, BTreeSet::from(CLOSED));
}

/// The rule names the pods of the name server in the system namespace, and its port.
fn is_name_server(rule: &NetworkPolicyEgressRule) -> bool {
    let ports = rule.ports.iter().flatten();
    let ports: Vec<_> = ports.map(|port| serde_json::to_value(&port.port).unwrap()).collect();
    let has_label =
        |selector: Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector>,
         key: &str,
         value: &str| {
            let labels = selector.and_then(|selector| selector.match_labels.as_ref());
            labels.and_then(|labels| labels.get(key)).is_some_and(|found| found == value)
        };
    let is_dns = rule.to.iter().flatten().all(|peer| {
        has_label(peer.namespace_selector.as_ref(), "kubernetes.io/metadata.name", "kube-system")
            && has_label(peer.pod_selector.as_ref(), "k8s-app", "kube-dns")
    });
    is_dns && !ports.is_empty() && ports.iter().all(|port| *port == 53)
}

#[test]
fn pods_of_jobs_accept_no_connection_and_reach_only_public_addresses() {
    let file = repository().join("deploy/worker/15-network-policy.yaml");
    let text = std::fs::read_to_string(file).unwrap();
    check(&serde_saphyr::from_str(&text).unwrap());
}
