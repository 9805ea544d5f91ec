//! Node classes: nodes with equal devices and taints share one cached eligibility per shape.

use std::collections::BTreeMap;

use super::room::ModelIdx;
use super::{Cluster, NodeIdx};
use crate::model::labels::{Effect, Taint};
use crate::model::node::DeviceSelection;

/// Unused classes kept beyond twice the number of nodes. Unused classes rarely return: node controllers write
/// timestamps into taints, and every timestamp is a new class.
const SPARE: usize = 1024;

/// Devices as (model, memory, MIG mode), device selection by the node, and taints: every property that `fit::eligibility`
/// reads. A new check there needs its property here, or nodes of one class share a wrong verdict.
type NodeClass = (Vec<(ModelIdx, i32, bool)>, bool, Vec<Taint>);

#[derive(Clone, Debug, Default)]
pub(crate) struct NodeClasses {
    numbers: BTreeMap<NodeClass, u32>,
    soft_taints: bool,
    /// Incremented when classes are renumbered, which invalidates caches.
    pub(crate) numbering: u64,
}

impl NodeClasses {
    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Any class has, or had since the last renumbering, a `PreferNoSchedule` taint.
    pub(crate) fn has_soft_taints(&self) -> bool {
        self.soft_taints
    }

    fn number(&mut self, kind: NodeClass) -> u32 {
        self.soft_taints |= kind.2.iter().any(|taint| taint.effect == Effect::PreferNoSchedule);
        let next = self.numbers.len() as u32;
        *self.numbers.entry(kind).or_insert(next)
    }
}

impl Cluster {
    /// Finds or creates the class of a new or changed node.
    pub(super) fn classify(&mut self, node: NodeIdx) {
        self.assign_class(node);
        if self.node_classes.len() > 2 * self.len() + SPARE {
            self.reclassify_all();
        }
    }

    fn reclassify_all(&mut self) {
        self.node_classes =
            NodeClasses { numbering: self.node_classes.numbering + 1, ..NodeClasses::default() };
        for node in self.ordered() {
            self.assign_class(node);
        }
    }

    fn assign_class(&mut self, node: NodeIdx) {
        let devices = &self.rooms[node as usize].devices;
        let devices = devices.iter().map(|d| (d.model, d.total, d.geometry.is_some())).collect();
        let spec = &self.node_state(node).spec;
        let kind = (devices, spec.device_selection == DeviceSelection::Node, spec.taints.clone());
        self.summaries[node as usize].class = self.node_classes.number(kind);
        self.summarise(node);
    }
}
