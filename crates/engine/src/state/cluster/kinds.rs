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
type Kind = (Vec<(ModelIdx, i32, bool)>, bool, Vec<Taint>);

/// All kinds, numbered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kinds {
    numbers: BTreeMap<Kind, u32>,
    soft_taints: bool,
    /// How often they were numbered anew: what was kept by number before is void.
    pub(crate) numbering: u64,
}

impl Kinds {
    /// One more than the highest number.
    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Whether any node merely asks to stay away, or did lately.
    pub(crate) fn has_soft_taints(&self) -> bool {
        self.soft_taints
    }

    fn number(&mut self, kind: Kind) -> u32 {
        self.soft_taints |= kind.2.iter().any(|taint| taint.effect == Effect::PreferNoSchedule);
        let next = self.numbers.len() as u32;
        *self.numbers.entry(kind).or_insert(next)
    }
}

impl Cluster {
    /// Finds the kind of a node that is new or described differently.
    pub(super) fn sort_into_kind(&mut self, node: NodeIdx) {
        self.number_kind(node);
        if self.kinds.len() > 2 * self.len() + SPARE {
            self.number_kinds_anew();
        }
    }

    fn number_kinds_anew(&mut self) {
        self.kinds = Kinds { numbering: self.kinds.numbering + 1, ..Kinds::default() };
        for node in self.ordered() {
            self.number_kind(node);
        }
    }

    fn number_kind(&mut self, node: NodeIdx) {
        let devices = &self.rooms[node as usize].devices;
        let devices = devices.iter().map(|d| (d.model, d.total, d.geometry.is_some())).collect();
        let spec = &self.host(node).spec;
        let kind = (devices, spec.device_selection == DeviceSelection::Node, spec.taints.clone());
        self.briefs[node as usize].kind = self.kinds.number(kind);
        self.summarise(node);
    }
}
