//! Node indexes: the best node for each shape, kept up to date.
//!
//! Each shape and strategy in use has a tree of scores over all nodes. A query first updates the nodes that
//! changed since the last one, from the cluster's journal. A thousand equal workloads cost one evaluation,
//! and a large cluster costs as much as a small one.

pub(crate) mod shared;
pub(crate) mod tree;

use rustc_hash::FxHashMap;

use crate::pass::index::shared::{Family, SearchOutcome, SharedIndex};
use crate::pass::index::tree::{Tree, UNFIT};
use crate::state::cluster::fit::{self, Eligibility, ShortfallCode};
use crate::state::cluster::shape::{Shape, ShapeIdx};
use crate::state::cluster::{Change, Cluster, NodeIdx};
use crate::strategy::{self, ScoringData, Strategy, View};

/// Limit of cached scores over all indexes, eight bytes each.
const MAX_SCORES: usize = 16 << 20;
/// Minimum number of indexes, independent of the cluster size.
const MIN_INDEXES: usize = 32;

/// A cache: clones start empty, and no decision depends on its content.
#[derive(Debug, Default)]
pub(crate) struct Indexes {
    by_shape: FxHashMap<(ShapeIdx, Strategy), Index>,
    shared: FxHashMap<(Family, Strategy), SharedIndex>,
    history: FxHashMap<(ShapeIdx, Strategy), SearchHistory>,
    tick: u64,
}

impl Clone for Indexes {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// Recent search results of a shape.
#[derive(Clone, Copy, Debug, Default)]
struct SearchHistory {
    stamp: u64,
    /// Value of the cluster's growth counter when no node fitted; no node fits before the next change.
    unfit_at: Option<u64>,
    /// Searches that skip the shared tree after it gave up.
    hard: u8,
}

/// Searches that skip the shared tree after a failure.
const HARD_SEARCHES: u8 = 64;

/// Scores of one shape under one strategy, by position in the node order.
#[derive(Debug, Default)]
struct Index {
    tree: Tree,
    eligibility_cache: EligibilityCache,
    mark: u64,
    layout: u64,
    numbering: u64,
    scoring: u64,
    stamp: u64,
    last_used: u64,
}

/// By node class, or by position when node terms apply.
#[derive(Debug, Default)]
struct EligibilityCache {
    by_class: Vec<Option<Eligibility>>,
    by_place: Vec<Eligibility>,
}

/// An up-to-date index with its inputs.
#[derive(Debug)]
pub(crate) struct CurrentIndex<'a> {
    index: &'a mut Index,
    context: ScoringContext<'a>,
}

/// Inputs of a node's score.
#[derive(Clone, Copy, Debug)]
struct ScoringContext<'a> {
    cluster: &'a Cluster,
    scoring: &'a ScoringData,
    shape: &'a Shape,
    strategy: Strategy,
}

impl Indexes {
    /// Returns the index of a shape and strategy, updated. The node order must be current.
    pub(crate) fn get<'a>(
        &'a mut self,
        cluster: &'a Cluster,
        (scoring, version): (&'a ScoringData, u64),
        shape: ShapeIdx,
        strategy: Strategy,
    ) -> CurrentIndex<'a> {
        debug_assert!(cluster.is_sorted(), "nodes are sorted before they are searched");
        self.tick += 1;
        let limit = (MAX_SCORES / cluster.len().max(1)).max(MIN_INDEXES);
        if self.by_shape.len() >= limit && !self.by_shape.contains_key(&(shape, strategy)) {
            self.evict(cluster, limit / 2);
        }
        let index = self.by_shape.entry((shape, strategy)).or_default();
        index.last_used = self.tick;
        let context = ScoringContext { cluster, scoring, shape: cluster.shape(shape), strategy };
        index.refresh(&context, version);
        CurrentIndex { index, context }
    }

    pub(crate) fn best(
        &mut self,
        cluster: &Cluster,
        scoring: (&ScoringData, u64),
        shape: ShapeIdx,
        strategy: Strategy,
    ) -> Option<NodeIdx> {
        let mut history = self.history.get(&(shape, strategy)).copied().unwrap_or_default();
        let stamp = cluster.shape(shape).stamp;
        if history.stamp != stamp {
            history = SearchHistory { stamp, ..SearchHistory::default() };
        }
        if history.unfit_at == Some(cluster.growth()) {
            return None;
        }
        let found = self.search(cluster, scoring, shape, strategy, &mut history);
        history.unfit_at = if found.is_none() { Some(cluster.growth()) } else { None };
        self.history.insert((shape, strategy), history);
        found
    }

    fn search(
        &mut self,
        cluster: &Cluster,
        scoring: (&ScoringData, u64),
        shape: ShapeIdx,
        strategy: Strategy,
        history: &mut SearchHistory,
    ) -> Option<NodeIdx> {
        history.hard = history.hard.saturating_sub(1);
        if history.hard == 0
            && let Some((shared, context)) = self.shared(cluster, scoring.0, shape, strategy)
        {
            match shared.best(|place| context.score(place)) {
                SearchOutcome::Found(place) => return Some(cluster.order[place]),
                SearchOutcome::Nowhere => return None,
                SearchOutcome::GaveUp => history.hard = HARD_SEARCHES,
            }
        }
        self.get(cluster, scoring, shape, strategy).best()
    }

    /// The first fitting position at or after `from`.
    pub(crate) fn first_from(
        &mut self,
        cluster: &Cluster,
        scoring: (&ScoringData, u64),
        shape: ShapeIdx,
        strategy: Strategy,
        from: usize,
    ) -> Option<usize> {
        if let Some((shared, context)) = self.shared(cluster, scoring.0, shape, strategy) {
            match shared.first_from(from, |place| context.score(place)) {
                SearchOutcome::Found(place) => return Some(place),
                SearchOutcome::Nowhere => return None,
                SearchOutcome::GaveUp => {}
            }
        }
        self.get(cluster, scoring, shape, strategy).first_from(from)
    }

    /// The shared tree that serves this shape, if any.
    fn shared<'a>(
        &'a mut self,
        cluster: &'a Cluster,
        scoring: &'a ScoringData,
        shape: ShapeIdx,
        strategy: Strategy,
    ) -> Option<(&'a SharedIndex, ScoringContext<'a>)> {
        let shape = cluster.shape(shape);
        let family = Family::of(shape)
            .filter(|_| strategy.has_bounds() && !cluster.node_classes.has_soft_taints())?;
        let shared = self.shared.entry((family, strategy)).or_default();
        shared.refresh(cluster, strategy, family);
        Some((shared, ScoringContext { cluster, scoring, shape, strategy }))
    }

    fn evict(&mut self, cluster: &Cluster, keep: usize) {
        self.by_shape.retain(|key, _| cluster.has_shape(key.0));
        self.history.retain(|key, _| cluster.has_shape(key.0));
        let mut ages: Vec<u64> = self.by_shape.values().map(|index| index.last_used).collect();
        ages.sort_unstable();
        let oldest = ages.len().checked_sub(keep).map_or(0, |drop| ages[drop.min(ages.len() - 1)]);
        self.by_shape.retain(|_, index| index.last_used >= oldest);
    }
}

impl CurrentIndex<'_> {
    fn best(&self) -> Option<NodeIdx> {
        self.index.tree.best().map(|place| self.context.cluster.order[place])
    }

    /// The first fitting position at or after `place`.
    pub(crate) fn first_from(&self, place: usize) -> Option<usize> {
        self.index.tree.first_from(place)
    }

    pub(crate) fn eligibility(&mut self, place: usize) -> Eligibility {
        self.index.eligibility_cache.get(&self.context, place)
    }

    /// Positions and scores of all fitting nodes, in order.
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
    fn refresh(&mut self, context: &ScoringContext<'_>, version: u64) {
        let cluster = context.cluster;
        let (changes, mark) = cluster.changes_since(self.mark);
        let same = self.layout == cluster.layout
            && self.numbering == cluster.node_classes.numbering
            && self.scoring == version
            && self.stamp == context.shape.stamp;
        match changes.filter(|changes| same && changes.len() <= 2 * cluster.order.len().max(64)) {
            Some(changes) => self.follow(context, changes),
            None => self.rebuild(context),
        }
        self.mark = mark;
        self.layout = cluster.layout;
        self.numbering = cluster.node_classes.numbering;
        self.scoring = version;
        self.stamp = context.shape.stamp;
    }

    fn follow(&mut self, context: &ScoringContext<'_>, changes: &[(NodeIdx, Change)]) {
        let mut last = NodeIdx::MAX;
        for (node, change) in changes.iter().rev() {
            if *change == Change::Described {
                self.eligibility_cache.forget(context, *node);
            } else if *node == last {
                continue;
            }
            last = *node;
            self.update(context, *node);
        }
    }

    fn rebuild(&mut self, context: &ScoringContext<'_>) {
        self.eligibility_cache.renew(context);
        let mut scores = Vec::with_capacity(context.cluster.order.len());
        for (place, node) in context.cluster.order.iter().enumerate() {
            let standing = self.eligibility_cache.get(context, place);
            scores.push(context.judge(*node, standing));
        }
        self.tree = Tree::new(scores);
    }

    fn update(&mut self, context: &ScoringContext<'_>, node: NodeIdx) {
        if context.cluster.node_states[node as usize].is_none() {
            return;
        }
        let place = context.cluster.place[node as usize] as usize;
        let standing = self.eligibility_cache.get(context, place);
        self.tree.set(place, context.judge(node, standing));
    }
}

impl EligibilityCache {
    fn renew(&mut self, context: &ScoringContext<'_>) {
        self.by_class.clear();
        self.by_place.clear();
        if context.shape.has_node_terms {
            self.by_place
                .extend(context.cluster.order.iter().map(|node| context.eligibility(*node)));
        }
    }

    #[inline]
    fn get(&mut self, context: &ScoringContext<'_>, place: usize) -> Eligibility {
        if context.shape.has_node_terms {
            return self.by_place[place];
        }
        let node = context.cluster.order[place];
        let kind = context.cluster.summaries[node as usize].class as usize;
        match self.by_class.get(kind) {
            Some(Some(standing)) => *standing,
            _ => self.learn(context, node, kind),
        }
    }

    #[cold]
    fn learn(&mut self, context: &ScoringContext<'_>, node: NodeIdx, kind: usize) -> Eligibility {
        if kind >= self.by_class.len() {
            self.by_class.resize(kind + 1, None);
        }
        *self.by_class[kind].insert(context.eligibility(node))
    }

    fn forget(&mut self, context: &ScoringContext<'_>, node: NodeIdx) {
        if context.shape.has_node_terms && context.cluster.node_states[node as usize].is_some() {
            self.by_place[context.cluster.place[node as usize] as usize] =
                context.eligibility(node);
        }
    }
}

impl ScoringContext<'_> {
    fn eligibility(&self, node: NodeIdx) -> Eligibility {
        fit::eligibility(self.shape, &self.cluster.node_state(node).spec, self.cluster.room(node))
    }

    fn score(&self, place: usize) -> i64 {
        let node = self.cluster.order[place];
        if fit::summary_shortfall(self.shape, &self.cluster.summaries[node as usize]).is_some() {
            return UNFIT;
        }
        self.judge(node, self.eligibility(node))
    }

    fn shortfall(&self, node: NodeIdx) -> Option<ShortfallCode> {
        let brief = fit::summary_shortfall(self.shape, &self.cluster.summaries[node as usize]);
        brief.or_else(|| fit::shortfall(self.shape, self.cluster.room(node)))
    }

    #[inline]
    fn judge(&self, node: NodeIdx, standing: Eligibility) -> i64 {
        let Eligibility::Eligible(preference) = standing else { return UNFIT };
        if self.shortfall(node).is_some() {
            return UNFIT;
        }
        let view = View { room: self.cluster.room(node), shape: self.shape, scoring: self.scoring };
        strategy::score(self.strategy, &view, preference)
    }
}
