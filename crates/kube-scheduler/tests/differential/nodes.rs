//! Random nodes. Their topology keys are unique, so that nodes of other tests are in no domain.

use serde_json::{Value, json};

use crate::dice::Dice;
use crate::support::{NodePlan, Share};

/// Topology keys of a share's nodes.
#[derive(Clone)]
pub(crate) struct Keys {
    pub(crate) zone: String,
    pub(crate) rack: String,
    pub(crate) host: String,
}

impl Keys {
    pub(crate) fn of(share: &Share) -> Self {
        let key = |name: &str| format!("{}/{name}", share.id);
        Self { zone: key("zone"), rack: key("rack"), host: key("host") }
    }

    pub(crate) fn all(&self) -> [&str; 3] {
        [&self.zone, &self.rack, &self.host]
    }
}

pub(crate) const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
pub(crate) const TAINTS: [&str; 3] = ["dedicated", "gpu", "spot"];

/// A random node plan.
pub(crate) fn plan(dice: &mut Dice, keys: &Keys, name: &str) -> NodePlan {
    let mut plan = NodePlan::plain()
        .label(&keys.host, name)
        .amount("cpu", &dice.between(2, 16).to_string())
        .amount("memory", &format!("{}Gi", dice.between(4, 48)))
        .amount("ephemeral-storage", &format!("{}Gi", dice.between(10, 60)))
        .amount("pods", &dice.between(4, 14).to_string());
    if dice.chance(85) {
        plan = plan.label(&keys.zone, dice.pick(&["a", "b", "c"]));
    }
    if dice.chance(80) {
        plan = plan.label(&keys.rack, dice.pick(&["r0", "r1", "r2", "r3"]));
    }
    if dice.chance(70) {
        plan = plan.label("disk", dice.pick(&["ssd", "hdd", ""]));
    }
    if dice.chance(70) {
        plan = plan.label("size", dice.pick(&["1", "5", "9", "007", "large"]));
    }
    for (resource, most) in
        [("nvidia.com/gpu", 8), ("nvidia.com/mig-1g.10gb", 7), ("example.com/widget", 5)]
    {
        if dice.chance(60) {
            plan = plan.amount(resource, &dice.between(0, most).to_string());
        }
    }
    if dice.chance(30) {
        plan = plan.amount("hugepages-2Mi", &format!("{}Mi", 2 * dice.between(1, 64)));
    }
    for key in TAINTS {
        if dice.chance(15) {
            plan = plan.taint(key, dice.pick(&["a", "b", ""]), dice.pick(&EFFECTS));
        }
    }
    plan
}

/// Status of a node whose kubelet can, or cannot, restart all containers of a pod.
pub(crate) fn declaring(can: bool) -> Value {
    let features = if can { json!(["RestartAllContainersOnContainerExits"]) } else { json!(null) };
    json!({"status": {"declaredFeatures": features}})
}

/// A random change of a node and of its status.
pub(crate) fn change(dice: &mut Dice, keys: &Keys) -> (Option<Value>, Option<Value>) {
    let label = |key: &str, value: Value| Some(json!({"metadata": {"labels": {key: value}}}));
    match dice.below(7) {
        0 => (Some(json!({"spec": {"unschedulable": true}})), None),
        1 => (Some(json!({"spec": {"unschedulable": null}})), None),
        2 => (label(&keys.zone, json!(dice.pick(&[Some("a"), Some("b"), None]))), None),
        3 => (label("disk", json!(dice.pick(&[Some("ssd"), Some("hdd"), None]))), None),
        4 => {
            let gpus = dice.below(9).to_string();
            let amounts = json!({"nvidia.com/gpu": gpus});
            (None, Some(json!({"status": {"allocatable": amounts, "capacity": amounts}})))
        }
        5 => (None, Some(declaring(dice.chance(50)))),
        _ => {
            let amounts = json!({"pods": dice.between(3, 14).to_string()});
            (None, Some(json!({"status": {"allocatable": amounts}})))
        }
    }
}
