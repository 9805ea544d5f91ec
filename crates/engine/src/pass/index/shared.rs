//! One tree of scores for all shapes at once, for strategies whose opinion hardly depends on the shape.
//!
//! The least utilised node is the same for almost every request that fits there. So there is one tree
//! of upper bounds for each family of requests (no GPU, whole GPUs, shares), and a search looks at the
//! highest bounds first, judges those nodes exactly, and stops when no bound can beat what it has. A
//! request that is hard to please gives up after a few nodes and asks its own index instead.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::pass::index::tree::{Tree, UNFIT};
use crate::state::cluster::room::{CPU, Room};
use crate::state::cluster::shape::{GpuNeed, Shape};
use crate::state::cluster::{Cluster, NodeIdx};
use crate::strategy::{self, Strategy};

/// Nodes judged before a search gives up.
const MAX_TRIES: u32 = 12;

/// Requests that are alike in what they take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Family {
    pub(crate) takes: GpuClass,
    /// All of them ask for at least so many cores, a power of two. Nodes without CPU left but with idle
    /// GPUs would otherwise look best for ever.
    cores: u32,
}

/// What a family takes of GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum GpuClass {
    Nothing,
    Whole,
    Share,
}

impl Family {
    /// The family of a shape; none for shapes with wishes of their own.
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

    /// Whether a node could have room for any of them.
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

/// Upper bounds of all nodes for one family under one strategy.
#[derive(Debug, Default)]
pub(crate) struct SharedIndex {
    tree: Tree,
    mark: u64,
    layout: u64,
}

/// How a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SearchOutcome {
    /// At this place in the order.
    Found(usize),
    /// Nowhere, for sure.
    Nowhere,
    /// After too many tries.
    GaveUp,
}

impl SharedIndex {
    /// Follows what has changed.
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

    /// The place with the highest score, the first among equals.
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

    /// The first place at or after `from` where it fits.
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
