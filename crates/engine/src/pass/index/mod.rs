//! The answer to "which node is best for this shape?", kept ready.
//!
//! For each shape and strategy in use there is a tree of scores over all nodes, brought up to date
//! from the cluster's journal when it is asked: only nodes that changed since are looked at again. A
//! thousand equal workloads cost one look, and a large cluster costs as much as a small one.

pub(crate) mod shared;
pub(crate) mod tree;

use rustc_hash::FxHashMap;

use crate::pass::index::shared::{Common, Family, Search};
use crate::pass::index::tree::{Tree, UNFIT};
use crate::state::cluster::fit::{self, Code, Standing};
use crate::state::cluster::shape::{Shape, ShapeIdx};
use crate::state::cluster::{Change, Cluster, NodeIdx};
use crate::strategy::{self, Outlook, Strategy, View};

/// Scores kept over all indexes, eight bytes each.
const MOST_SCORES: usize = 16 << 20;
/// Indexes that are kept however large the cluster is.
const FEWEST: usize = 32;

/// All indexes. A cache: a copy starts empty, and nothing depends on what is in it.
#[derive(Debug, Default)]
pub(crate) struct Indexes {
    by_shape: FxHashMap<(ShapeIdx, Strategy), Index>,
    common: FxHashMap<(Family, Strategy), Common>,
    past: FxHashMap<(ShapeIdx, Strategy), Past>,
    tick: u64,
}

impl Clone for Indexes {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// How searches for a shape ended lately.
#[derive(Clone, Copy, Debug, Default)]
struct Past {
    stamp: u64,
    /// The cluster's growth at which nothing fitted: until it grows, nothing will.
    unfit_at: Option<u64>,
    /// Searches that go to the shape's own index at once, because the common tree gave up.
    hard: u8,
}

/// Searches for which a shape counts as hard to please.
const HARD: u8 = 64;

/// Scores of one shape under one strategy, by place in the cluster's order.
#[derive(Debug, Default)]
struct Index {
    tree: Tree,
    standings: Standings,
    mark: u64,
    layout: u64,
    numbering: u64,
    outlook: u64,
    stamp: u64,
    last_used: u64,
}

/// What descriptions say: by kind of node, or node by node when labels or names matter.
#[derive(Debug, Default)]
struct Standings {
    by_kind: Vec<Option<Standing>>,
    by_place: Vec<Standing>,
}

/// An index that is up to date, and what is needed to ask it.
#[derive(Debug)]
pub(crate) struct Ready<'a> {
    index: &'a mut Index,
    look: Look<'a>,
}

/// What is needed to judge a node.
#[derive(Clone, Copy, Debug)]
struct Look<'a> {
    cluster: &'a Cluster,
    outlook: &'a Outlook,
    shape: &'a Shape,
    strategy: Strategy,
}

impl Indexes {
    /// The index of this shape and strategy, up to date. The cluster must be sorted.
    pub(crate) fn get<'a>(
        &'a mut self,
        cluster: &'a Cluster,
        (outlook, version): (&'a Outlook, u64),
        shape: ShapeIdx,
        strategy: Strategy,
    ) -> Ready<'a> {
        debug_assert!(cluster.is_sorted(), "nodes are sorted before they are searched");
        self.tick += 1;
        let limit = (MOST_SCORES / cluster.len().max(1)).max(FEWEST);
        if self.by_shape.len() >= limit && !self.by_shape.contains_key(&(shape, strategy)) {
            self.evict(cluster, limit / 2);
        }
        let index = self.by_shape.entry((shape, strategy)).or_default();
        index.last_used = self.tick;
        let look = Look { cluster, outlook, shape: cluster.shape(shape), strategy };
        index.refresh(&look, version);
        Ready { index, look }
    }

    /// The best node for a shape.
    pub(crate) fn best(
        &mut self,
        cluster: &Cluster,
        outlook: (&Outlook, u64),
        shape: ShapeIdx,
        strategy: Strategy,
    ) -> Option<NodeIdx> {
        let mut past = self.past.get(&(shape, strategy)).copied().unwrap_or_default();
        let stamp = cluster.shape(shape).stamp;
        if past.stamp != stamp {
            past = Past { stamp, ..Past::default() };
        }
        if past.unfit_at == Some(cluster.growth()) {
            return None;
        }
        let found = self.search(cluster, outlook, shape, strategy, &mut past);
        past.unfit_at = if found.is_none() { Some(cluster.growth()) } else { None };
        self.past.insert((shape, strategy), past);
        found
    }

    fn search(
        &mut self,
        cluster: &Cluster,
        outlook: (&Outlook, u64),
        shape: ShapeIdx,
        strategy: Strategy,
        past: &mut Past,
    ) -> Option<NodeIdx> {
        past.hard = past.hard.saturating_sub(1);
        if past.hard == 0
            && let Some((common, look)) = self.common(cluster, outlook.0, shape, strategy)
        {
            match common.best(|place| look.score(place)) {
                Search::Found(place) => return Some(cluster.order[place]),
                Search::Nowhere => return None,
                Search::GaveUp => past.hard = HARD,
            }
        }
        self.get(cluster, outlook, shape, strategy).best()
    }

    /// The first fitting place at or after one in the order.
    pub(crate) fn first_from(
        &mut self,
        cluster: &Cluster,
        outlook: (&Outlook, u64),
        shape: ShapeIdx,
        strategy: Strategy,
        from: usize,
    ) -> Option<usize> {
        if let Some((common, look)) = self.common(cluster, outlook.0, shape, strategy) {
            match common.first_from(from, |place| look.score(place)) {
                Search::Found(place) => return Some(place),
                Search::Nowhere => return None,
                Search::GaveUp => {}
            }
        }
        self.get(cluster, outlook, shape, strategy).first_from(from)
    }

    /// The tree of bounds that serves this shape, if there is one.
    fn common<'a>(
        &'a mut self,
        cluster: &'a Cluster,
        outlook: &'a Outlook,
        shape: ShapeIdx,
        strategy: Strategy,
    ) -> Option<(&'a Common, Look<'a>)> {
        let shape = cluster.shape(shape);
        let family = Family::of(shape)
            .filter(|_| strategy.has_bounds() && !cluster.kinds.has_soft_taints())?;
        let common = self.common.entry((family, strategy)).or_default();
        common.refresh(cluster, strategy, family);
        Some((common, Look { cluster, outlook, shape, strategy }))
    }

    fn evict(&mut self, cluster: &Cluster, keep: usize) {
        self.by_shape.retain(|key, _| cluster.has_shape(key.0));
        self.past.retain(|key, _| cluster.has_shape(key.0));
        let mut ages: Vec<u64> = self.by_shape.values().map(|index| index.last_used).collect();
        ages.sort_unstable();
        let oldest = ages.len().checked_sub(keep).map_or(0, |drop| ages[drop.min(ages.len() - 1)]);
        self.by_shape.retain(|_, index| index.last_used >= oldest);
    }
}

impl Ready<'_> {
    /// The best node.
    fn best(&self) -> Option<NodeIdx> {
        self.index.tree.best().map(|place| self.look.cluster.order[place])
    }

    /// The first fitting node at or after a place in the order.
    pub(crate) fn first_from(&self, place: usize) -> Option<usize> {
        self.index.tree.first_from(place)
    }

    /// What the description of the node at this place says.
    pub(crate) fn standing(&mut self, place: usize) -> Standing {
        self.index.standings.get(&self.look, place)
    }

    /// Places and scores of all fitting nodes, in order.
    pub(crate) fn candidates(&self) -> Vec<(usize, i64)> {
        let mut found = Vec::new();
        let mut next = self.first_from(0);
        while let Some(place) = next {
            found.push((place, self.index.tree.get(place)));
            next = self.first_from(place + 1);
        }
        found
    }
}

impl Index {
    fn refresh(&mut self, look: &Look<'_>, version: u64) {
        let cluster = look.cluster;
        let (changes, mark) = cluster.changes_since(self.mark);
        let same = self.layout == cluster.layout
            && self.numbering == cluster.kinds.numbering
            && self.outlook == version
            && self.stamp == look.shape.stamp;
        match changes.filter(|changes| same && changes.len() <= 2 * cluster.order.len().max(64)) {
            Some(changes) => self.follow(look, changes),
            None => self.rebuild(look),
        }
        self.mark = mark;
        self.layout = cluster.layout;
        self.numbering = cluster.kinds.numbering;
        self.outlook = version;
        self.stamp = look.shape.stamp;
    }

    fn follow(&mut self, look: &Look<'_>, changes: &[(NodeIdx, Change)]) {
        let mut last = NodeIdx::MAX;
        for (node, change) in changes.iter().rev() {
            if *change == Change::Described {
                self.standings.forget(look, *node);
            } else if *node == last {
                continue;
            }
            last = *node;
            self.update(look, *node);
        }
    }

    fn rebuild(&mut self, look: &Look<'_>) {
        self.standings.renew(look);
        let mut scores = Vec::with_capacity(look.cluster.order.len());
        for (place, node) in look.cluster.order.iter().enumerate() {
            let standing = self.standings.get(look, place);
            scores.push(look.judge(*node, standing));
        }
        self.tree = Tree::new(scores);
    }

    fn update(&mut self, look: &Look<'_>, node: NodeIdx) {
        if look.cluster.hosts[node as usize].is_none() {
            return;
        }
        let place = look.cluster.place[node as usize] as usize;
        let standing = self.standings.get(look, place);
        self.tree.set(place, look.judge(node, standing));
    }
}

impl Standings {
    fn renew(&mut self, look: &Look<'_>) {
        self.by_kind.clear();
        self.by_place.clear();
        if look.shape.has_node_terms {
            self.by_place.extend(look.cluster.order.iter().map(|node| look.standing(*node)));
        }
    }

    #[inline]
    fn get(&mut self, look: &Look<'_>, place: usize) -> Standing {
        if look.shape.has_node_terms {
            return self.by_place[place];
        }
        let node = look.cluster.order[place];
        let kind = look.cluster.briefs[node as usize].kind as usize;
        match self.by_kind.get(kind) {
            Some(Some(standing)) => *standing,
            _ => self.learn(look, node, kind),
        }
    }

    #[cold]
    fn learn(&mut self, look: &Look<'_>, node: NodeIdx, kind: usize) -> Standing {
        if kind >= self.by_kind.len() {
            self.by_kind.resize(kind + 1, None);
        }
        *self.by_kind[kind].insert(look.standing(node))
    }

    fn forget(&mut self, look: &Look<'_>, node: NodeIdx) {
        if look.shape.has_node_terms && look.cluster.hosts[node as usize].is_some() {
            self.by_place[look.cluster.place[node as usize] as usize] = look.standing(node);
        }
    }
}

impl Look<'_> {
    fn standing(&self, node: NodeIdx) -> Standing {
        fit::standing(self.shape, &self.cluster.host(node).spec, self.cluster.room(node))
    }

    /// The score at a place in the order.
    fn score(&self, place: usize) -> i64 {
        let node = self.cluster.order[place];
        if fit::brief_lack(self.shape, &self.cluster.briefs[node as usize]).is_some() {
            return UNFIT;
        }
        self.judge(node, self.standing(node))
    }

    fn lack(&self, node: NodeIdx) -> Option<Code> {
        let brief = fit::brief_lack(self.shape, &self.cluster.briefs[node as usize]);
        brief.or_else(|| fit::lack(self.shape, self.cluster.room(node)))
    }

    #[inline]
    fn judge(&self, node: NodeIdx, standing: Standing) -> i64 {
        let Standing::Yes(liking) = standing else { return UNFIT };
        if self.lack(node).is_some() {
            return UNFIT;
        }
        let view = View { room: self.cluster.room(node), shape: self.shape, outlook: self.outlook };
        strategy::score(self.strategy, &view, liking)
    }
}
