//! The cluster: nodes, their rooms, and a journal of changes.

pub(crate) mod capacity;
pub(crate) mod choose_devices;
mod domains;
pub(crate) mod fit;
mod intern;
mod node_class;
mod node_state;
pub(crate) mod room;
pub(crate) mod shape;
pub(crate) mod unavailable;

use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) use domains::Domains;
use node_class::NodeClasses;
pub(crate) use node_state::{NodeState, Reachability};
use room::{CPU, Claim, MEMORY, NodeAmounts, ResIdx, Room, STORAGE};
use shape::{Shape, ShapeIdx, ShapeKey};

use crate::model::name::{GpuModel, NodeId, ResourceName};
use crate::model::node::Node;
use crate::quota::queues::{GPU, QuotaAmounts};

/// Dense index of a node.
pub(crate) type NodeIdx = u32;

/// Guaranteed length of the journal; slower readers rebuild.
const JOURNAL: usize = 1 << 17;
/// Limit of cached shapes without users.
const IDLE_SHAPES: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Booked,
    Freed,
    Described,
}

/// Summary of a room, packed for fast scans over all nodes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RoomSummary {
    pub(crate) free: NodeAmounts,
    pub(crate) most_milli: i32,
    pub(crate) most_mib: i32,
    /// Index of the [`NodeClasses`] entry.
    pub(crate) class: u32,
    pub(crate) whole: u16,
    pub(crate) open: bool,
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

#[derive(Clone, Debug, Default)]
pub(crate) struct Cluster {
    /// By node index; `None` for free indexes.
    pub(crate) node_states: Vec<Option<NodeState>>,
    pub(crate) rooms: Vec<Room>,
    pub(crate) summaries: Vec<RoomSummary>,
    pub(crate) node_classes: NodeClasses,
    /// Number of nodes by the memory of their largest GPU.
    gpu_sizes: BTreeMap<i32, u32>,
    by_name: FxHashMap<NodeId, NodeIdx>,
    vacant: Vec<NodeIdx>,
    /// Node indexes in order of rank and name, and the inverse.
    pub(crate) order: Vec<NodeIdx>,
    pub(crate) place: Vec<u32>,
    order_stale: bool,
    /// Incremented with each change of the order.
    pub(crate) layout: u64,
    journal: Vec<(NodeIdx, Change)>,
    journal_start: u64,
    /// Number of changes that may have freed room.
    growth: u64,
    pub(crate) models: Vec<GpuModel>,
    pub(crate) resources: Vec<ResourceName>,
    resource_numbers: FxHashMap<ResourceName, ResIdx>,
    shapes: Vec<Option<Shape>>,
    vacant_shapes: Vec<ShapeIdx>,
    shape_by_key: FxHashMap<ShapeKey, ShapeIdx>,
    idle_shapes: usize,
    /// Shapes created so far; distinguishes shapes that reuse an index.
    shapes_made: u64,
    /// Sum over all nodes.
    pub(crate) capacity: QuotaAmounts,
    /// Total GPU memory in MiB.
    pub(crate) gpu_memory: i64,
    /// Cache by topology key.
    domains: BTreeMap<String, Domains>,
}

impl Cluster {
    pub(crate) fn find_node(&self, name: &NodeId) -> Option<NodeIdx> {
        self.by_name.get(name).copied()
    }

    pub(crate) fn node_state(&self, node: NodeIdx) -> &NodeState {
        self.node_states[node as usize].as_ref().expect("a node index in use has a node state")
    }

    pub(crate) fn node_state_mut(&mut self, node: NodeIdx) -> &mut NodeState {
        self.node_states[node as usize].as_mut().expect("a node index in use has a node state")
    }

    pub(crate) fn room(&self, node: NodeIdx) -> &Room {
        &self.rooms[node as usize]
    }

    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// The caller ensures that the id is new.
    pub(crate) fn add(&mut self, spec: &Arc<Node>) -> NodeIdx {
        let room = self.empty_room(spec);
        let node_state = NodeState::new(spec.clone());
        let node = if let Some(node) = self.vacant.pop() {
            self.node_states[node as usize] = Some(node_state);
            self.rooms[node as usize] = room;
            node
        } else {
            self.node_states.push(Some(node_state));
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

    /// Removes a node without bookings.
    pub(crate) fn remove(&mut self, node: NodeIdx) {
        self.count_capacity(node, -1);
        let node_state =
            self.node_states[node as usize].take().expect("a node index in use has a node state");
        self.by_name.remove(&node_state.spec.id);
        self.rooms[node as usize] = Room::default();
        self.vacant.push(node);
        // Reuse the lowest free index, so that indexes do not depend on the length of the history.
        self.vacant.sort_unstable_by_key(|node| std::cmp::Reverse(*node));
        self.order_stale = true;
        self.domains.clear();
    }

    /// Replaces a node's description and empties its room; the caller books everything again.
    pub(crate) fn redescribe(&mut self, node: NodeIdx, spec: &Arc<Node>) {
        self.count_capacity(node, -1);
        self.rooms[node as usize] = self.empty_room(spec);
        self.count_capacity(node, 1);
        self.relabel(node, spec);
    }

    /// Replaces the description of a node with unchanged capacity; bookings stay.
    pub(crate) fn relabel(&mut self, node: NodeIdx, spec: &Arc<Node>) {
        let node_state = self.node_state_mut(node);
        let reordered = node_state.spec.rank != spec.rank;
        let relabelled = node_state.spec.labels != spec.labels;
        node_state.spec = spec.clone();
        self.rooms[node as usize].copy_properties(spec);
        self.classify(node);
        self.apply_state(node);
        self.order_stale |= reordered;
        if relabelled || reordered {
            self.domains.clear();
        }
        self.touch(node, Change::Described);
    }

    /// Copies the node's condition into its room.
    pub(crate) fn apply_state(&mut self, node: NodeIdx) {
        if let Some(node_state) = &self.node_states[node as usize] {
            node_state.apply_state(&mut self.rooms[node as usize]);
            self.summarise(node);
        }
    }

    /// Does not check capacity.
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

    /// Records a change in the journal.
    pub(crate) fn touch(&mut self, node: NodeIdx, change: Change) {
        if self.journal.len() >= 2 * JOURNAL {
            self.journal.drain(..JOURNAL);
            self.journal_start += JOURNAL as u64;
        }
        self.growth += u64::from(change != Change::Booked);
        self.journal.push((node, change));
    }

    /// Changes since a reader's mark, or `None` when the reader must rebuild; and the new mark.
    pub(crate) fn changes_since(&self, mark: u64) -> (Option<&[(NodeIdx, Change)]>, u64) {
        let end = self.journal_start + self.journal.len() as u64;
        let from = mark.checked_sub(self.journal_start).map(|from| &self.journal[from as usize..]);
        (from, end)
    }

    /// Updates the node order when it is stale.
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

    /// All nodes by rank and name.
    pub(crate) fn ordered(&self) -> Vec<NodeIdx> {
        let mut order: Vec<NodeIdx> = self.by_name.values().copied().collect();
        order.sort_unstable_by(|a, b| {
            let (a, b) = (&self.node_state(*a).spec, &self.node_state(*b).spec);
            (a.rank, &a.id).cmp(&(b.rank, &b.id))
        });
        order
    }

    pub(crate) fn is_sorted(&self) -> bool {
        !self.order_stale
    }

    /// Memory in MiB of the largest GPU.
    pub(crate) fn largest_gpu(&self) -> i32 {
        self.gpu_sizes.keys().next_back().copied().unwrap_or(0)
    }

    pub(crate) fn growth(&self) -> u64 {
        self.growth
    }

    fn summarise(&mut self, node: NodeIdx) {
        let brief = &mut self.summaries[node as usize];
        *brief = RoomSummary::of(&self.rooms[node as usize], brief.class);
    }

    fn count_capacity(&mut self, node: NodeIdx, sign: i64) {
        let room = &self.rooms[node as usize];
        for at in [CPU, MEMORY, STORAGE] {
            self.capacity[at] += sign * room.total[at];
        }
        self.capacity[GPU] += sign * room.devices.len() as i64 * 1000;
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
