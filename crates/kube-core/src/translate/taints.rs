//! Taints of nodes and tolerations of pods.

use agentaflow_engine::labels::{Effect, Taint, Toleration, TolerationOp};
use k8s_openapi::api::core::v1;

use crate::slim::{Node, Pod};

/// Taint of a cordoned node, which the node controller adds later.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// Tolerations of a pod. An invalid toleration tolerates nothing and is dropped.
pub(super) fn tolerations(pod: &Pod) -> Vec<Toleration> {
    pod.spec.tolerations.iter().flatten().filter_map(toleration).collect()
}

/// Taints of a node, including the taint of a cordon.
pub(super) fn taints(node: &Node) -> Vec<Taint> {
    let mut taints: Vec<Taint> = node.spec.taints.iter().flatten().filter_map(taint).collect();
    let cordon = Taint::new(UNSCHEDULABLE, "", Effect::NoSchedule);
    let is_cordon = |taint: &Taint| taint.key == cordon.key && taint.effect == cordon.effect;
    if node.spec.unschedulable == Some(true) && !taints.iter().any(is_cordon) {
        taints.push(cordon);
    }
    taints
}

fn taint(taint: &v1::Taint) -> Option<Taint> {
    let value = taint.value.as_deref().unwrap_or_default();
    Some(Taint::new(&*taint.key, value, effect(&taint.effect)?))
}

fn toleration(toleration: &v1::Toleration) -> Option<Toleration> {
    let op = match toleration.operator.as_deref() {
        None | Some("" | "Equal") => TolerationOp::Equal,
        Some("Exists") => TolerationOp::Exists,
        Some("Lt") => TolerationOp::Lt,
        Some("Gt") => TolerationOp::Gt,
        Some(_) => return None,
    };
    let effect = match toleration.effect.as_deref() {
        None | Some("") => None,
        Some(name) => Some(effect(name)?),
    };
    let key = toleration.key.as_deref().filter(|key| !key.is_empty()).map(Into::into);
    let value =
        toleration.value.as_deref().filter(|_| op != TolerationOp::Exists).unwrap_or_default();
    let made = Toleration { key, op, value: value.into(), effect };
    made.validate().is_ok().then_some(made)
}

fn effect(name: &str) -> Option<Effect> {
    match name {
        "NoSchedule" => Some(Effect::NoSchedule),
        "PreferNoSchedule" => Some(Effect::PreferNoSchedule),
        "NoExecute" => Some(Effect::NoExecute),
        _ => None,
    }
}
