//! Kubelet features required by some pods. Nodes declare them; for the engine they are labels with a key that is not
//! a valid Kubernetes label.

use std::sync::Arc;

use crate::slim::{Node, Pod};

/// Prefix of feature names; a valid label key has no capital letters in this part.
const PREFIX: &str = "status.declaredFeatures/";
/// A container exit restarts all containers of the pod.
const RESTART_ALL: &str = "RestartAllContainersOnContainerExits";
/// Host network with user namespaces.
const OWN_USERS: &str = "UserNamespacesHostNetworkSupport";

type Label = (Arc<str>, Arc<str>);

/// Features that the node of a pod must declare.
pub(super) fn needed(pod: &Pod) -> impl Iterator<Item = Label> {
    let spec = &pod.spec;
    let mut containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let restarts_all = containers.any(|container| {
        let mut rules = container.restart_policy_rules.iter().flatten();
        rules.any(|rule| rule.action == "RestartAllContainers")
    });
    let own_users = spec.host_network == Some(true) && spec.host_users == Some(false);
    let all = [(RESTART_ALL, restarts_all), (OWN_USERS, own_users)];
    all.into_iter().filter(|(_, needed)| *needed).map(|(name, _)| label(name))
}

/// Features of a node that a pod can require.
pub(super) fn declared(node: &Node) -> impl Iterator<Item = Label> {
    let declared = node.status.declared_features.as_deref().unwrap_or_default();
    let known = [RESTART_ALL, OWN_USERS].into_iter();
    known.filter(|name| declared.iter().any(|one| one == name)).map(label)
}

fn label(feature: &str) -> Label {
    (format!("{PREFIX}{feature}").into(), "true".into())
}
