//! One tree of upper bounds for many shapes, for strategies whose score hardly depends on the shape.
//!
//! The least utilized node is the same for almost every request that fits there. Each family of requests (no
//! GPU, whole GPUs, shares) has one tree of upper bounds. A search evaluates the nodes with the highest
//! bounds exactly and stops when no bound exceeds the best score. A request that few nodes fit gives up after
//! some tries and uses its own index.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::pass::index::tree::{Tree, UNFIT};
use crate::state::cluster::room::{CPU, Room};
use crate::state::cluster::shape::{GpuNeed, Shape};
use crate::state::cluster::{Cluster, NodeIdx};
use crate::strategy::{self, Strategy};

/// Nodes evaluated before a search gives up.
const MAX_TRIES: u32 = 12;

/// Requests with the same kind of GPU use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Family {
    pub(crate) takes: GpuClass,
    /// Minimum number of cores of the family, a power of two. Without it, nodes with idle GPUs but no free
    /// CPU would always look best.
    cores: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum GpuClass {
    Nothing,
    Whole,
    Share,
}

impl Family {
    /// `None` for shapes with node terms, a preferred model or MIG slices.
    pub(crate) fn of(shape: &Shape) -> Option<Self> {
        if shape.has_node_terms || shape.key.request.preferred_model.is_some() {
            return None;
        }
        let takes = match shape.gpu_need {
            GpuNeed::None => GpuClass::Nothing,
            GpuNeed::Whole(_) => GpuClass::Whole,
            GpuNeed::Share(_) | GpuNeed::Memory(_) => GpuClass::Share,
            GpuNeed::Mig(..) => return None,
        };
        let cores = u32::try_from(shape.need.amounts[CPU] / 1000).unwrap_or(u32::MAX);
        let cores = cores.checked_ilog2().map_or(0, |log| 1 << log);
        Some(Self { takes, cores })
    }

    /// A node may have room for a request of this family.
    pub(crate) fn may_fit(self, room: &Room) -> bool {
        let device = match self.takes {
            GpuClass::Nothing => true,
            GpuClass::Whole => room.whole > 0,
            GpuClass::Share => room.most_milli > 0,
        };
        let cores = self.cores == 0 || room.free[CPU] >= i64::from(self.cores) * 1000;
        device && cores && room.open
    }
}

/// Upper bounds of all nodes for one family and strategy.
#[derive(Debug, Default)]
pub(crate) struct SharedIndex {
    tree: Tree,
    mark: u64,
    layout: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SearchOutcome {
    /// Position in the node order.
    Found(usize),
    /// No node fits.
    Nowhere,
    /// Too many tries.
    GaveUp,
}

impl SharedIndex {
    /// Applies the changes since the last call.
    pub(crate) fn refresh(&mut self, cluster: &Cluster, strategy: Strategy, family: Family) {
        let bound = |node: NodeIdx| strategy::bound(strategy, cluster.room(node), family);
        let (changes, mark) = cluster.changes_since(self.mark);
        let fresh = self.layout == cluster.layout;
        match changes.filter(|changes| fresh && changes.len() <= 2 * cluster.order.len().max(64)) {
            Some(changes) => {
                let mut last = NodeIdx::MAX;
                for (node, _) in changes.iter().rev() {
                    if *node != last && cluster.node_states[*node as usize].is_some() {
                        self.tree.set(cluster.place[*node as usize] as usize, bound(*node));
                    }
                    last = *node;
                }
            }
            None => self.tree = Tree::new(cluster.order.iter().map(|node| bound(*node)).collect()),
        }
        self.mark = mark;
        self.layout = cluster.layout;
    }

    /// Position with the highest score; the first among equals.
    pub(crate) fn best(&self, score: impl Fn(usize) -> i64) -> SearchOutcome {
        let Some(first) = self.tree.best() else { return SearchOutcome::Nowhere };
        let exact = score(first);
        if exact == self.tree.get(first) {
            return SearchOutcome::Found(first);
        }
        let mut best = (exact, Reverse(first));
        let mut tries = 1;
        let mut open: BinaryHeap<(i64, Reverse<usize>, usize)> = BinaryHeap::new();
        open.push((i64::MAX, Reverse(0), self.tree.height()));
        while let Some((bound, Reverse(place), level)) = open.pop() {
            if (bound, Reverse(place)) <= best {
                break;
            }
            if level > 0 {
                open.extend(
                    self.tree
                        .children(level, place)
                        .map(|(bound, place)| (bound, Reverse(place), level - 1)),
                );
                continue;
            }
            tries += 1;
            if tries > MAX_TRIES {
                return SearchOutcome::GaveUp;
            }
            best = best.max((score(place), Reverse(place)));
        }
        if best.0 == UNFIT { SearchOutcome::Nowhere } else { SearchOutcome::Found(best.1.0) }
    }

    /// The first fitting position at or after `from`.
    pub(crate) fn first_from(
        &self,
        mut from: usize,
        score: impl Fn(usize) -> i64,
    ) -> SearchOutcome {
        for _ in 0..MAX_TRIES {
            let Some(place) = self.tree.first_from(from) else { return SearchOutcome::Nowhere };
            if score(place) != UNFIT {
                return SearchOutcome::Found(place);
            }
            from = place + 1;
        }
        SearchOutcome::GaveUp
    }
}
