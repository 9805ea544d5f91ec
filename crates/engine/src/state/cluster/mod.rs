//! The cluster: nodes, what is left on them, and a journal of what changed.

pub(crate) mod capacity;
pub(crate) mod choose_devices;
mod domains;
pub(crate) mod fit;
mod host;
mod intern;
mod node_class;
pub(crate) mod room;
pub(crate) mod shape;
pub(crate) mod unavailable;

use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) use domains::Domains;
pub(crate) use host::{NodeState, Reachability};
use node_class::NodeClasses;
use room::{Claim, ResIdx, Room};
use shape::{Shape, ShapeIdx, ShapeKey};

use crate::model::name::{GpuModel, NodeId, ResourceName};
use crate::model::node::Node;

/// Dense number of a node.
pub(crate) type NodeIdx = u32;

/// Entries of the journal that readers can rely on; slower readers start over.
const JOURNAL: usize = 1 << 17;
/// Shapes without users that are kept, in case they come back.
const IDLE_SHAPES: usize = 1024;

/// What changed about a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Less is left.
    Booked,
    /// More may be left.
    Freed,
    /// It is described differently.
    Described,
}

/// What decides about most nodes at a glance, packed so that a walk over all nodes is quick.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RoomSummary {
    pub(crate) free: [i64; 4],
    pub(crate) most_milli: i32,
    pub(crate) most_mib: i32,
    /// Nodes of one kind have the same devices and taints.
    pub(crate) class: u32,
    pub(crate) whole: u16,
    pub(crate) open: bool,
    /// Some of its devices are closed.
    pub(crate) has_closed_gpus: bool,
}

impl RoomSummary {
    #[inline]
    pub(crate) fn of(room: &Room, class: u32) -> Self {
        Self {
            free: room.free,
            most_milli: room.most_milli,
            most_mib: room.most_mib,
            whole: room.whole,
            class,
            open: room.open,
            has_closed_gpus: room.has_closed(),
        }
    }
}

/// All nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cluster {
    /// By node number; an empty place has no host.
    pub(crate) node_states: Vec<Option<NodeState>>,
    pub(crate) rooms: Vec<Room>,
    pub(crate) summaries: Vec<RoomSummary>,
    pub(crate) node_classes: NodeClasses,
    /// By memory of its largest GPU: how many nodes.
    gpu_sizes: BTreeMap<i32, u32>,
    by_name: FxHashMap<NodeId, NodeIdx>,
    vacant: Vec<NodeIdx>,
    /// Node numbers in order of rank and name, and the way back.
    pub(crate) order: Vec<NodeIdx>,
    pub(crate) place: Vec<u32>,
    order_stale: bool,
    /// Counts changes of the order.
    pub(crate) layout: u64,
    journal: Vec<(NodeIdx, Change)>,
    journal_start: u64,
    /// Changes that may have made room.
    growth: u64,
    pub(crate) models: Vec<GpuModel>,
    pub(crate) resources: Vec<ResourceName>,
    resource_numbers: FxHashMap<ResourceName, ResIdx>,
    shapes: Vec<Option<Shape>>,
    vacant_shapes: Vec<ShapeIdx>,
    shape_by_key: FxHashMap<ShapeKey, ShapeIdx>,
    idle_shapes: usize,
    /// Shapes made so far; tells a number's shapes apart.
    shapes_made: u64,
    /// Sum of what all nodes have: CPU, memory, storage, GPU thousandths.
    pub(crate) capacity: [i64; 4],
    /// Memory of all GPUs in MiB.
    pub(crate) gpu_memory: i64,
    /// Domain numbers of nodes by topology key; made when first asked for.
    domains: BTreeMap<String, Domains>,
}

impl Cluster {
    pub(crate) fn find_node(&self, name: &NodeId) -> Option<NodeIdx> {
        self.by_name.get(name).copied()
    }

    pub(crate) fn node_state(&self, node: NodeIdx) -> &NodeState {
        self.node_states[node as usize].as_ref().expect("a node number in use has a host")
    }

    pub(crate) fn node_state_mut(&mut self, node: NodeIdx) -> &mut NodeState {
        self.node_states[node as usize].as_mut().expect("a node number in use has a host")
    }

    pub(crate) fn room(&self, node: NodeIdx) -> &Room {
        &self.rooms[node as usize]
    }

    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Adds a node; the caller has checked that its name is new.
    pub(crate) fn add(&mut self, spec: &Arc<Node>) -> NodeIdx {
        let room = self.empty_room(spec);
        let host = NodeState::new(spec.clone());
        let node = if let Some(node) = self.vacant.pop() {
            self.node_states[node as usize] = Some(host);
            self.rooms[node as usize] = room;
            node
        } else {
            self.node_states.push(Some(host));
            self.rooms.push(room);
            self.summaries.push(RoomSummary::default());
            self.place.push(0);
            self.node_states.len() as NodeIdx - 1
        };
        self.by_name.insert(spec.id.clone(), node);
        self.classify(node);
        self.count_capacity(node, 1);
        self.growth += 1;
        self.order_stale = true;
        self.domains.clear();
        node
    }

    /// Forgets a node on which nothing is booked any more.
    pub(crate) fn remove(&mut self, node: NodeIdx) {
        self.count_capacity(node, -1);
        let host = self.node_states[node as usize].take().expect("a node number in use has a host");
        self.by_name.remove(&host.spec.id);
        self.rooms[node as usize] = Room::default();
        self.vacant.push(node);
        // The lowest vacant number is used first, so that numbers do not depend on history length.
        self.vacant.sort_unstable_by_key(|node| std::cmp::Reverse(*node));
        self.order_stale = true;
        self.domains.clear();
    }

    /// Replaces a node's description and its room, which the caller books anew.
    pub(crate) fn redescribe(&mut self, node: NodeIdx, spec: &Arc<Node>) {
        self.count_capacity(node, -1);
        self.rooms[node as usize] = self.empty_room(spec);
        self.count_capacity(node, 1);
        self.relabel(node, spec);
    }

    /// Replaces the description of a node that has what it had: its bookings stay.
    pub(crate) fn relabel(&mut self, node: NodeIdx, spec: &Arc<Node>) {
        let host = self.node_state_mut(node);
        let reordered = host.spec.rank != spec.rank;
        let relabelled = host.spec.labels != spec.labels;
        host.spec = spec.clone();
        self.rooms[node as usize].price = host::prices(spec);
        self.classify(node);
        self.apply_state(node);
        self.order_stale |= reordered;
        if relabelled || reordered {
            self.domains.clear();
        }
        self.touch(node, Change::Described);
    }

    /// Writes a node's condition into its room.
    pub(crate) fn apply_state(&mut self, node: NodeIdx) {
        if let Some(host) = &self.node_states[node as usize] {
            host.apply_state(&mut self.rooms[node as usize]);
            self.summarise(node);
        }
    }

    /// Books a claim; what is there is the caller's business.
    pub(crate) fn book(&mut self, node: NodeIdx, claim: &Claim) {
        self.rooms[node as usize].book(claim);
        self.summarise(node);
        self.touch(node, Change::Booked);
    }

    pub(crate) fn release(&mut self, node: NodeIdx, claim: &Claim) {
        self.rooms[node as usize].release(claim);
        self.summarise(node);
        self.touch(node, Change::Freed);
    }

    /// Notes that readers must look at this node again.
    pub(crate) fn touch(&mut self, node: NodeIdx, change: Change) {
        if self.journal.len() >= 2 * JOURNAL {
            self.journal.drain(..JOURNAL);
            self.journal_start += JOURNAL as u64;
        }
        self.growth += u64::from(change != Change::Booked);
        self.journal.push((node, change));
    }

    /// Changes since a reader's mark, or nothing when the reader must start over; and the new mark.
    pub(crate) fn changes_since(&self, mark: u64) -> (Option<&[(NodeIdx, Change)]>, u64) {
        let end = self.journal_start + self.journal.len() as u64;
        let from = mark.checked_sub(self.journal_start).map(|from| &self.journal[from as usize..]);
        (from, end)
    }

    /// Puts the nodes in order if that changed.
    pub(crate) fn sort(&mut self) {
        if !self.order_stale {
            return;
        }
        let order = self.ordered();
        for (place, node) in order.iter().enumerate() {
            self.place[*node as usize] = place as u32;
        }
        self.order = order;
        self.order_stale = false;
        self.layout += 1;
    }

    /// All nodes by rank and name, whatever their numbers are.
    pub(crate) fn ordered(&self) -> Vec<NodeIdx> {
        let mut order: Vec<NodeIdx> = self.by_name.values().copied().collect();
        order.sort_unstable_by(|a, b| {
            let (a, b) = (&self.node_state(*a).spec, &self.node_state(*b).spec);
            (a.rank, &a.id).cmp(&(b.rank, &b.id))
        });
        order
    }

    /// Whether the order is as last sorted.
    pub(crate) fn is_sorted(&self) -> bool {
        !self.order_stale
    }

    /// Memory of the largest GPU.
    pub(crate) fn largest_gpu(&self) -> i32 {
        self.gpu_sizes.keys().next_back().copied().unwrap_or(0)
    }

    /// Counts changes that may have made room.
    pub(crate) fn growth(&self) -> u64 {
        self.growth
    }

    fn summarise(&mut self, node: NodeIdx) {
        let brief = &mut self.summaries[node as usize];
        *brief = RoomSummary::of(&self.rooms[node as usize], brief.class);
    }

    fn count_capacity(&mut self, node: NodeIdx, sign: i64) {
        let room = &self.rooms[node as usize];
        for at in 0..3 {
            self.capacity[at] += sign * room.total[at];
        }
        self.capacity[3] += sign * room.devices.len() as i64 * 1000;
        let largest = room.devices.iter().map(|device| device.total).max().unwrap_or(0);
        let nodes = self.gpu_sizes.entry(largest).or_default();
        *nodes = nodes.wrapping_add_signed(sign as i32);
        if *nodes == 0 {
            self.gpu_sizes.remove(&largest);
        }
        self.gpu_memory +=
            sign * room.devices.iter().map(|device| i64::from(device.total)).sum::<i64>();
    }
}
