//! The best node for one task and its devices: from the index for plain requests, by a scan of the fitting
//! nodes for domains and terms, and in turn for round robin.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::labels;
use crate::model::node::DeviceSelection;
use crate::model::request::{Request, TopologySpread};
use crate::quota::charge::Excess;
use crate::state::cluster::fit::{self, Eligibility};
use crate::state::cluster::room::{Claim, ModelIdx};
use crate::state::cluster::shape::ShapeIdx;
use crate::state::cluster::{NodeIdx, choose_devices};
use crate::state::scheduler::{RoundRobinCursor, Scheduler};
use crate::state::terms::TermVerdicts;
use crate::strategy::{Strategy, View};

/// Parameters of the search for a node.
#[derive(Clone, Debug)]
pub(crate) struct Search {
    /// Includes the task's own labels, which the shape omits.
    pub(crate) request: Arc<Request>,
    pub(crate) shape: ShapeIdx,
    pub(crate) strategy: Strategy,
    /// Models excluded by quotas so far.
    pub(crate) closed: Vec<ModelIdx>,
    /// The quota that excluded the last model while nodes had room.
    pub(crate) excess: Option<Excess>,
    pub(crate) avoid: Option<NodeIdx>,
    pub(crate) domain: Domain,
}

/// Constraint on the topology domain of a gang's task.
#[derive(Clone, Debug)]
pub(crate) enum Domain {
    Any,
    /// One domain of a topology key.
    Only(Arc<str>, u32),
    /// Domains with fewer tasks of this gang first.
    Fewest(Arc<str>, BTreeMap<u32, u32>),
}

impl Scheduler {
    pub(crate) fn find(&mut self, search: &Search) -> Option<(NodeIdx, Claim)> {
        let request = &search.request;
        let plain = matches!(search.domain, Domain::Any) && search.avoid.is_none();
        if plain && self.terms.are_irrelevant_to(request) {
            let prefers = request.preferred_model.is_some() || !request.preferred_nodes.is_empty();
            if search.strategy == Strategy::RoundRobin && prefers {
                return self.find_among(search, None, None);
            }
            if search.strategy == Strategy::RoundRobin {
                return self.find_next(search, None);
            }
            let scoring = (&self.scoring, self.scoring_version);
            let node = self.indexes.best(&self.cluster, scoring, search.shape, search.strategy)?;
            let view = self.view(node, search.shape);
            return choose_devices::choose_devices(search.strategy, &view, None)
                .map(|claim| (node, claim));
        }
        let judgement = (!self.terms.are_irrelevant_to(request))
            .then(|| self.judge(request, search.shape, search.strategy, &[]));
        let found = self.find_among(search, judgement.as_ref(), search.avoid);
        // The node of the last refusal is better than none.
        if found.is_none() && search.avoid.is_some() {
            return self.find_among(search, judgement.as_ref(), None);
        }
        found
    }

    /// The best node within the domain and term constraints: a scan over all fitting nodes.
    fn find_among(
        &mut self,
        search: &Search,
        judgement: Option<&TermVerdicts>,
        avoid: Option<NodeIdx>,
    ) -> Option<(NodeIdx, Claim)> {
        let allowed = self.allowed(search, judgement, avoid);
        if search.strategy == Strategy::RoundRobin {
            // Preferences and even domains come first; the round-robin order breaks ties.
            let best = allowed.iter().map(|(crowd, score, _)| (*crowd, *score)).max()?;
            let equal = allowed.iter().filter(|(crowd, score, _)| (*crowd, *score) == best);
            let places: Vec<usize> = equal.map(|(_, _, place)| *place).collect();
            return self.find_next(search, Some(&places));
        }
        let best = allowed
            .into_iter()
            .max_by_key(|(crowd, score, place)| (*crowd, *score, std::cmp::Reverse(*place)));
        let node = self.cluster.order[best?.2];
        let view = self.view(node, search.shape);
        choose_devices::choose_devices(search.strategy, &view, None).map(|claim| (node, claim))
    }

    /// Fitting nodes within the constraints: negated task count of the domain, score, and position in the
    /// node order.
    pub(crate) fn allowed(
        &mut self,
        search: &Search,
        judgement: Option<&TermVerdicts>,
        avoid: Option<NodeIdx>,
    ) -> Vec<(i64, i64, usize)> {
        let domains = match &search.domain {
            Domain::Any => None,
            Domain::Only(key, _) | Domain::Fewest(key, _) => {
                Some(self.cluster.domains(key).of.clone())
            }
        };
        let index = self.indexes.get(
            &self.cluster,
            (&self.scoring, self.scoring_version),
            search.shape,
            search.strategy,
        );
        let mut allowed = Vec::new();
        for (place, score) in index.candidates() {
            let node = self.cluster.order[place];
            let domain = domains.as_ref().map(|of| of[node as usize]);
            let crowd = match (&search.domain, domain) {
                (Domain::Any, _) => 0,
                (Domain::Only(_, only), Some(Some(domain))) if domain == *only => 0,
                (Domain::Fewest(_, counts), Some(Some(domain))) => {
                    counts.get(&domain).copied().unwrap_or(0)
                }
                _ => continue,
            };
            let verdict =
                judgement.map(|judgement| judgement.verdicts[node as usize]).unwrap_or_default();
            if verdict.shortfall.is_none() && avoid != Some(node) {
                let score =
                    score.saturating_add(i64::from(verdict.preference).saturating_mul(1 << 40));
                allowed.push((-i64::from(crowd), score, place));
            }
        }
        allowed
    }

    /// Round robin: the first fitting device after the cursor, in order of nodes and devices.
    fn find_next(&mut self, search: &Search, among: Option<&[usize]>) -> Option<(NodeIdx, Claim)> {
        let (start, after) = self.after_cursor();
        let fits_here = self.first_place(search, among, start) == Some(start);
        if let Some(after) = after.filter(|_| fits_here) {
            let node = self.cluster.order[start];
            let view = self.view(node, search.shape);
            if let Some(claim) = choose_devices::choose_devices(search.strategy, &view, Some(after))
                .filter(|c| !c.devices.is_empty())
            {
                return Some((node, claim));
            }
        }
        let next = start + usize::from(after.is_some());
        let place =
            self.first_place(search, among, next).or_else(|| self.first_place(search, among, 0))?;
        let node = self.cluster.order[place];
        let view = self.view(node, search.shape);
        choose_devices::choose_devices(search.strategy, &view, None).map(|claim| (node, claim))
    }

    fn first_place(
        &mut self,
        search: &Search,
        among: Option<&[usize]>,
        from: usize,
    ) -> Option<usize> {
        if let Some(places) = among {
            return places.iter().copied().find(|place| *place >= from);
        }
        let scoring = (&self.scoring, self.scoring_version);
        self.indexes.first_from(&self.cluster, scoring, search.shape, search.strategy, from)
    }

    /// Position of the cursor in the node order, and the last used device when its node still exists.
    fn after_cursor(&self) -> (usize, Option<usize>) {
        let Some(cursor) = &self.cursor else { return (0, None) };
        let order = &self.cluster.order;
        let place = order.partition_point(|node| {
            let spec = &self.cluster.node_state(*node).spec;
            (spec.rank, &spec.id) < (cursor.rank, &cursor.node)
        });
        let Some(node_state) = order.get(place).map(|node| self.cluster.node_state(*node)) else {
            return (0, None);
        };
        if node_state.spec.id != cursor.node {
            return (place, None);
        }
        let last = node_state.spec.gpus.len().saturating_sub(1);
        let device = cursor.gpu.as_ref().and_then(|gpu| node_state.device(gpu)).unwrap_or(last);
        (place, Some(device))
    }

    pub(crate) fn cursor_after(&self, node: NodeIdx, claim: &Claim) -> RoundRobinCursor {
        let spec = &self.cluster.node_state(node).spec;
        let last = claim.devices.iter().map(|part| usize::from(part.device)).max();
        // Devices that the node chooses have no order: the next node follows.
        let last = last.filter(|_| spec.device_selection != DeviceSelection::Node);
        RoundRobinCursor {
            rank: spec.rank,
            node: spec.id.clone(),
            gpu: last.map(|device| spec.gpus[device].id.clone()),
        }
    }

    pub(crate) fn view(&self, node: NodeIdx, shape: ShapeIdx) -> View<'_> {
        View {
            room: self.cluster.room(node),
            shape: self.cluster.shape(shape),
            scoring: &self.scoring,
        }
    }

    /// Verdicts of affinity, spread and tokens on every node. `without` lists tasks to ignore.
    pub(crate) fn judge(
        &mut self,
        request: &Request,
        shape: ShapeIdx,
        strategy: Strategy,
        without: &[(NodeIdx, &Request)],
    ) -> TermVerdicts {
        let scoring = (&self.scoring, self.scoring_version);
        let mut index = self.indexes.get(&self.cluster, scoring, shape, strategy);
        let mut eligible = vec![false; self.cluster.node_states.len()];
        for (place, node) in self.cluster.order.iter().enumerate() {
            let barred = matches!(
                index.eligibility(place),
                Eligibility::Excluded(
                    fit::ShortfallCode::OtherNode
                        | fit::ShortfallCode::NodeSelector
                        | fit::ShortfallCode::NodeAffinity
                )
            );
            eligible[*node as usize] = !barred;
        }
        let mut tainted = vec![false; eligible.len()];
        if request.spread.iter().any(|spread| spread.honor_taints) {
            for node in &self.cluster.order {
                let taints = &self.cluster.node_state(*node).spec.taints;
                tainted[*node as usize] =
                    labels::first_untolerated(taints, &request.tolerations).is_some();
            }
        }
        let counts = |node: NodeIdx, spread: &TopologySpread| {
            let node = node as usize;
            (eligible[node] || spread.ignore_node_affinity)
                && !(tainted[node] && spread.honor_taints)
        };
        self.terms.judge(&mut self.cluster, request, counts, without)
    }

    pub(crate) fn is_eligible_anywhere_for(&mut self, search: &Search) -> bool {
        let scoring = (&self.scoring, self.scoring_version);
        let mut index = self.indexes.get(&self.cluster, scoring, search.shape, search.strategy);
        (0..self.cluster.order.len())
            .any(|place| matches!(index.eligibility(place), Eligibility::Eligible(_)))
    }
}
