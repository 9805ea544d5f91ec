//! Kinds of nodes: what is said about one node of a kind goes for all of them, and is kept by the kind's number.

use std::collections::BTreeMap;

use super::room::ModelIdx;
use super::{Cluster, NodeIdx};
use crate::model::labels::{Effect, Taint};
use crate::model::node::DeviceSelection;

/// Kinds without nodes that are kept beside as many as there are nodes. They do not come back as a rule: those who
/// take nodes away write the time into taints, and every time is another kind.
const SPARE: usize = 1024;

/// What nodes of one kind have in common: devices as (model, memory, in MIG mode), who chooses among
/// them, and taints.
type NodeClass = (Vec<(ModelIdx, i32, bool)>, bool, Vec<Taint>);

/// All kinds, numbered.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeClasses {
    numbers: BTreeMap<NodeClass, u32>,
    soft_taints: bool,
    /// How often they were numbered anew: what was kept by number before is void.
    pub(crate) numbering: u64,
}

impl NodeClasses {
    /// One more than the highest number.
    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Whether any node merely asks to stay away, or did lately.
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
    /// Finds the kind of a node that is new or described differently.
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
