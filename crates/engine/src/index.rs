//! The answer to "which node is best for this shape?", kept ready.
//!
//! For each shape and strategy in use there is a tree of scores over all nodes. It is brought up to
//! date from the cluster's journal when it is asked: only nodes that changed since are looked at
//! again. A thousand equal workloads cost one look, and a large cluster costs as much as a small one.

use rustc_hash::FxHashMap;

use crate::cluster::fit::{self, Code, Standing};
use crate::cluster::shape::ShapeIdx;
use crate::cluster::{Cluster, NodeIdx};
use crate::strategy::{self, Outlook, Strategy, View};
use crate::tree::{Tree, UNFIT};

/// Scores kept over all indexes: 17 bytes each.
const MOST_SCORES: usize = 8 << 20;
/// Indexes that are kept however large the cluster is.
const FEWEST: usize = 32;

/// All indexes. A cache: a copy starts empty, and nothing depends on what is in it.
#[derive(Debug, Default)]
pub(crate) struct Indexes {
    by_shape: FxHashMap<(ShapeIdx, Strategy), Index>,
    tick: u64,
}

impl Clone for Indexes {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// Scores of one shape under one strategy, by place in the cluster's order.
#[derive(Debug, Default)]
pub(crate) struct Index {
    tree: Tree,
    standings: Vec<Standing>,
    lacks: Vec<Option<Code>>,
    stamp: u64,
    mark: u64,
    layout: u64,
    outlook: u64,
    last_used: u64,
}

impl Indexes {
    /// The index of this shape and strategy, up to date.
    pub(crate) fn get(
        &mut self,
        cluster: &mut Cluster,
        outlook: (&Outlook, u64),
        shape: ShapeIdx,
        strategy: Strategy,
    ) -> &mut Index {
        cluster.sort();
        self.tick += 1;
        let limit = (MOST_SCORES / cluster.len().max(1)).max(FEWEST);
        if self.by_shape.len() >= limit && !self.by_shape.contains_key(&(shape, strategy)) {
            self.evict(cluster, limit / 2);
        }
        let index = self.by_shape.entry((shape, strategy)).or_default();
        index.last_used = self.tick;
        index.refresh(cluster, outlook, shape, strategy);
        index
    }

    fn evict(&mut self, cluster: &Cluster, keep: usize) {
        self.by_shape.retain(|key, _| cluster.has_shape(key.0));
        let mut ages: Vec<u64> = self.by_shape.values().map(|index| index.last_used).collect();
        ages.sort_unstable();
        let oldest = ages.len().checked_sub(keep).map_or(0, |drop| ages[drop.min(ages.len() - 1)]);
        self.by_shape.retain(|_, index| index.last_used >= oldest);
    }
}

impl Index {
    /// The best node.
    pub(crate) fn best(&self, cluster: &Cluster) -> Option<NodeIdx> {
        self.tree.best().map(|place| cluster.order[place])
    }

    /// The first fitting node at or after a place in the order.
    pub(crate) fn first_from(&self, place: usize) -> Option<usize> {
        self.tree.first_from(place)
    }

    /// What stands in the way on the node at this place.
    pub(crate) fn lack(&self, place: usize) -> Option<Code> {
        self.lacks[place]
    }

    /// What the description of the node at this place says.
    pub(crate) fn standing(&self, place: usize) -> Standing {
        self.standings[place]
    }

    /// Places and scores of all fitting nodes, in order.
    pub(crate) fn candidates(&self) -> impl Iterator<Item = (usize, i64)> {
        let places = 0..self.lacks.len();
        places.filter(|place| self.lacks[*place].is_none()).map(|place| (place, self.tree.get(place)))
    }

    fn refresh(
        &mut self,
        cluster: &Cluster,
        (outlook, generation): (&Outlook, u64),
        shape: ShapeIdx,
        strategy: Strategy,
    ) {
        let (changes, mark) = cluster.changes_since(self.mark);
        let look = Look { cluster, outlook, shape, strategy };
        let stamp = cluster.shape(shape).stamp;
        let stale = self.layout != cluster.layout || self.outlook != generation || self.stamp != stamp;
        match changes.filter(|changes| !stale && changes.len() <= cluster.order.len().max(64)) {
            Some(changes) => {
                let mut last = NodeIdx::MAX;
                for change in changes.iter().rev() {
                    if change.node != last || change.description {
                        self.update(&look, change.node, change.description);
                        last = change.node;
                    }
                }
            }
            None => self.rebuild(&look),
        }
        self.mark = mark;
        self.layout = cluster.layout;
        self.outlook = generation;
        self.stamp = stamp;
    }

    fn rebuild(&mut self, look: &Look<'_>) {
        let nodes = look.cluster.order.len();
        self.standings.clear();
        self.lacks.clear();
        let mut scores = Vec::with_capacity(nodes);
        for node in &look.cluster.order {
            let standing = look.standing(*node);
            let (lack, score) = look.judge(*node, standing);
            self.standings.push(standing);
            self.lacks.push(lack);
            scores.push(score);
        }
        self.tree = Tree::new(scores);
    }

    fn update(&mut self, look: &Look<'_>, node: NodeIdx, description: bool) {
        if look.cluster.hosts[node as usize].is_none() {
            return;
        }
        let place = look.cluster.place[node as usize] as usize;
        if description {
            self.standings[place] = look.standing(node);
        }
        let (lack, score) = look.judge(node, self.standings[place]);
        self.lacks[place] = lack;
        self.tree.set(place, score);
    }
}

/// What is needed to judge a node.
struct Look<'a> {
    cluster: &'a Cluster,
    outlook: &'a Outlook,
    shape: ShapeIdx,
    strategy: Strategy,
}

impl Look<'_> {
    fn standing(&self, node: NodeIdx) -> Standing {
        let shape = self.cluster.shape(self.shape);
        fit::standing(shape, &self.cluster.host(node).spec, self.cluster.room(node))
    }

    fn judge(&self, node: NodeIdx, standing: Standing) -> (Option<Code>, i64) {
        let liking = match standing {
            Standing::No(code) => return (Some(code), UNFIT),
            Standing::Yes(liking) => liking,
        };
        let shape = self.cluster.shape(self.shape);
        let room = self.cluster.room(node);
        if let Some(code) = fit::lack(shape, room) {
            return (Some(code), UNFIT);
        }
        let view = View { room, shape, outlook: self.outlook };
        (None, strategy::score(self.strategy, &view, liking))
    }
}
