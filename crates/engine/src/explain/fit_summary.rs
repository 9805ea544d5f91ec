//! Fit summary: shortfalls counted over all nodes.

use std::collections::BTreeMap;

use crate::explain::shortfall::{
    CODES, amount, collect_models, has_text, named_shortfall, other_model, plain,
};
use crate::model::labels;
use crate::model::name::{GpuModel, TokenName};
use crate::model::request::{Request, TokenAccess};
use crate::model::wait::{FitSummary, Shortfall, UnavailableGpus};
use crate::state::cluster::fit::{self, Eligibility, ShortfallCode};
use crate::state::cluster::room::{ModelIdx, Room};
use crate::state::cluster::shape::{ModelVerdict, Shape, ShapeIdx};
use crate::state::cluster::{NodeIdx, Reachability, unavailable};
use crate::state::scheduler::Scheduler;
use crate::state::terms::TermVerdicts;
use crate::strategy::Strategy;

impl Scheduler {
    /// Shortfalls of all nodes for a task of this shape.
    pub(crate) fn fit_summary(
        &mut self,
        request: &Request,
        shape: ShapeIdx,
        strategy: Strategy,
    ) -> FitSummary {
        if !self.terms.are_irrelevant_to(request) {
            let judgement = self.judge(request, shape, strategy, &[]);
            return self.fit_summary_by_node(shape, Some(&judgement));
        }
        if self.cluster.shape(shape).has_node_terms {
            return self.fit_summary_by_node(shape, None);
        }
        let shape = self.cluster.shape(shape);
        let mut count = Count::new(shape, &self.cluster.models);
        // Nodes of one class share their eligibility, and the room summary decides most of the rest.
        let mut kinds: Vec<Option<(Eligibility, NodeIdx, u32)>> =
            vec![None; self.cluster.node_classes.len()];
        for node in &self.cluster.order {
            let brief = &self.cluster.summaries[*node as usize];
            let kind = kinds[brief.class as usize].get_or_insert_with(|| {
                (
                    fit::eligibility(
                        shape,
                        &self.cluster.node_state(*node).spec,
                        self.cluster.room(*node),
                    ),
                    *node,
                    0,
                )
            });
            if matches!(kind.0, Eligibility::Excluded(_)) {
                kind.2 += 1;
                continue;
            }
            match fit::summary_shortfall(shape, brief) {
                Some(ShortfallCode::Unschedulable) => {
                    self.count_node(*node, ShortfallCode::Unschedulable, &mut count);
                }
                Some(code) if brief.has_closed_gpus => self.count_node(*node, code, &mut count),
                Some(code) => count.add(code, 1, fit::summary_amount(code, brief)),
                None => {
                    if let Some(code) = fit::shortfall(shape, self.cluster.room(*node)) {
                        self.count_node(*node, code, &mut count);
                    }
                }
            }
        }
        for (standing, node, nodes) in kinds.into_iter().flatten() {
            if let Eligibility::Excluded(code) = standing {
                self.count_nodes(node, self.cluster.room(node), code, nodes, &mut count);
            }
        }
        count.into_summary(self.cluster.order.len())
    }

    /// Exact version for shapes with node terms or task terms.
    fn fit_summary_by_node(&self, shape: ShapeIdx, judgement: Option<&TermVerdicts>) -> FitSummary {
        let shape = self.cluster.shape(shape);
        let mut count = Count::new(shape, &self.cluster.models);
        for node in &self.cluster.order {
            let room = self.cluster.room(*node);
            let by_terms =
                || judgement.and_then(|judgement| judgement.verdicts[*node as usize].shortfall);
            let code = match fit::eligibility(shape, &self.cluster.node_state(*node).spec, room) {
                Eligibility::Excluded(code) => Some(code),
                Eligibility::Eligible(_) => fit::shortfall(shape, room).or_else(by_terms),
            };
            if let Some(code) = code {
                self.count_node(*node, code, &mut count);
            }
        }
        count.into_summary(self.cluster.order.len())
    }

    /// Shortfalls of all nodes without any booking.
    pub(crate) fn fit_summary_when_empty(&self, shape: ShapeIdx) -> FitSummary {
        let shape = self.cluster.shape(shape);
        let mut count = Count::new(shape, &self.cluster.models);
        for node in &self.cluster.order {
            let room = self.empty_room_of(*node);
            let code = match fit::eligibility(shape, &self.cluster.node_state(*node).spec, &room) {
                Eligibility::Excluded(code) => Some(code),
                Eligibility::Eligible(_) => fit::shortfall(shape, &room),
            };
            if let Some(code) = code {
                self.count_nodes(*node, &room, code, 1, &mut count);
            }
        }
        count.into_summary(self.cluster.order.len())
    }

    fn count_node(&self, node: NodeIdx, code: ShortfallCode, count: &mut Count<'_>) {
        self.count_nodes(node, self.cluster.room(node), code, 1, count);
    }

    /// Counts `nodes` nodes that equal this one.
    fn count_nodes(
        &self,
        node: NodeIdx,
        room: &Room,
        code: ShortfallCode,
        nodes: u32,
        count: &mut Count<'_>,
    ) {
        let lost = code == ShortfallCode::Unschedulable
            && self.cluster.node_state(node).reach == Reachability::Lost;
        let code = if lost { ShortfallCode::NotReady } else { code };
        if let Some(closed) = self.blocking_unavailable_gpus(code, count.shape, node, room) {
            return count.add_closed(&closed);
        }
        if code == ShortfallCode::GpuModel {
            return count.add_models(room, nodes);
        }
        match self.text(code, count.shape, node, room) {
            Some((text, left)) if has_text(code) => count.add_text(code, text, nodes, left),
            _ => count.add(code, nodes, amount(code, count.shape, room)),
        }
    }

    pub(crate) fn node_shortfall(&self, shape: ShapeIdx, node: NodeIdx) -> Option<Shortfall> {
        let shape = self.cluster.shape(shape);
        let room = self.cluster.room(node);
        let code = match fit::eligibility(shape, &self.cluster.node_state(node).spec, room) {
            Eligibility::Excluded(code) => code,
            Eligibility::Eligible(_) => fit::shortfall(shape, room)?,
        };
        if let Some(closed) = self.blocking_unavailable_gpus(code, shape, node, room) {
            return Some(Shortfall::UnavailableGpus(closed));
        }
        if code == ShortfallCode::GpuModel {
            let mut models = Vec::new();
            collect_models(&mut models, room);
            return Some(other_model(shape, &models, &self.cluster.models));
        }
        match self.text(code, shape, node, room) {
            Some((text, left)) if has_text(code) => Some(named_shortfall(code, &text, shape, left)),
            _ => Some(plain(code, shape, amount(code, shape, room).unwrap_or(0))),
        }
    }

    /// Unavailable GPUs of the node that would resolve its GPU shortfall.
    fn blocking_unavailable_gpus(
        &self,
        code: ShortfallCode,
        shape: &Shape,
        node: NodeIdx,
        room: &Room,
    ) -> Option<UnavailableGpus> {
        let closed = unavailable::blocking_gpus(shape, room).filter(|_| code.is_short_of_gpus())?;
        let node_state = self.cluster.node_state(node);
        let mut counted = UnavailableGpus::default();
        for device in closed {
            counted.count(&node_state.spec.gpus[device].id, node_state.health_of(device));
        }
        Some(counted)
    }

    /// Name and free amount of the obstacle, for codes that have a name.
    fn text(
        &self,
        code: ShortfallCode,
        shape: &Shape,
        node: NodeIdx,
        room: &Room,
    ) -> Option<(String, i64)> {
        let node_state = self.cluster.node_state(node);
        let name = match code {
            ShortfallCode::Taint => {
                let tolerations = &shape.key.request.tolerations;
                labels::first_untolerated(&node_state.spec.taints, tolerations)
                    .map(ToString::to_string)
            }
            ShortfallCode::GpuModelQuota => {
                let closed =
                    room.devices.iter().find(|d| shape.model(d.model) == ModelVerdict::Closed);
                closed.map(|d| self.cluster.models[usize::from(d.model)].to_string())
            }
            ShortfallCode::Resource => {
                let lacking = shape
                    .need
                    .named
                    .iter()
                    .find(|(resource, amount)| *amount > room.named(*resource));
                let (resource, _) = lacking?;
                return Some((
                    self.cluster.resource_name(*resource).to_string(),
                    room.named(*resource),
                ));
            }
            ShortfallCode::Token => {
                let held = |token: &&(TokenName, TokenAccess)| !fit::token_free(room, token);
                let cluster_wide = |token: &&(TokenName, TokenAccess)| self.terms.is_held(&token.0);
                let tokens = &shape.need.tokens;
                let token = tokens.iter().find(held).or_else(|| tokens.iter().find(cluster_wide));
                token.map(|(token, _)| token.to_string())
            }
            _ => None,
        };
        name.map(|name| (name, 0))
    }
}

/// Counters of a fit summary.
struct Count<'a> {
    shape: &'a Shape,
    /// Names by model index.
    names: &'a [GpuModel],
    nodes: [u32; CODES],
    most: [i64; CODES],
    /// Models of nodes without a suitable model.
    models: Vec<ModelIdx>,
    /// Unavailable GPUs that would resolve the shortfall.
    closed: UnavailableGpus,
    texts: BTreeMap<(ShortfallCode, String), (u32, i64)>,
}

impl<'a> Count<'a> {
    fn new(shape: &'a Shape, names: &'a [GpuModel]) -> Self {
        Self {
            shape,
            names,
            nodes: [0; CODES],
            most: [0; CODES],
            models: Vec::new(),
            closed: UnavailableGpus::default(),
            texts: BTreeMap::new(),
        }
    }

    fn add(&mut self, code: ShortfallCode, nodes: u32, amount: Option<i64>) {
        self.nodes[code as usize] += nodes;
        let most = &mut self.most[code as usize];
        *most = (*most).max(amount.unwrap_or(0));
    }

    fn add_models(&mut self, room: &Room, nodes: u32) {
        self.add(ShortfallCode::GpuModel, nodes, None);
        collect_models(&mut self.models, room);
    }

    fn add_closed(&mut self, closed: &UnavailableGpus) {
        self.add(ShortfallCode::UnavailableGpus, 1, None);
        self.closed.add(closed);
    }

    fn add_text(&mut self, code: ShortfallCode, text: String, nodes: u32, left: i64) {
        let entry = self.texts.entry((code, text)).or_default();
        *entry = (entry.0 + nodes, entry.1.max(left));
    }

    fn into_summary(self, nodes: usize) -> FitSummary {
        let counted =
            ShortfallCode::ALL.iter().copied().filter(|code| self.nodes[*code as usize] > 0);
        let shortfall = |code: ShortfallCode| match code {
            ShortfallCode::GpuModel => other_model(self.shape, &self.models, self.names),
            ShortfallCode::UnavailableGpus => Shortfall::UnavailableGpus(self.closed.clone()),
            _ => plain(code, self.shape, self.most[code as usize]),
        };
        let plain = counted.map(|code| (shortfall(code), self.nodes[code as usize]));
        let named = self.texts.iter().map(|((code, text), (count, most))| {
            (named_shortfall(*code, text, self.shape, *most), *count)
        });
        let mut lacks: Vec<(Shortfall, u32)> = plain.chain(named).collect();
        lacks.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        FitSummary { nodes: nodes as u32, shortfalls: lacks }
    }
}
