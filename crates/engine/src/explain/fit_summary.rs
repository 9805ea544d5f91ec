//! What stands in the way, counted over all nodes and put into numbers.

use std::collections::BTreeMap;

use crate::explain::shortfall::{
    ALL_CODES, CODES, amount, has_text, note_models, other_model, plain, worded,
};
use crate::model::labels;
use crate::model::name::{GpuModel, TokenName};
use crate::model::request::{Request, TokenAccess};
use crate::model::wait::{FitSummary, Shortfall, UnavailableGpus};
use crate::state::cluster::fit::{self, Code, Standing};
use crate::state::cluster::room::{ModelIdx, Room};
use crate::state::cluster::shape::{ModelVerdict, Shape, ShapeIdx};
use crate::state::cluster::{NodeIdx, Reach, shut};
use crate::state::scheduler::Scheduler;
use crate::state::terms::Judgement;
use crate::strategy::Strategy;

impl Scheduler {
    /// What each node lacks for a task of this shape.
    pub(crate) fn tally(
        &mut self,
        request: &Request,
        shape: ShapeIdx,
        strategy: Strategy,
    ) -> FitSummary {
        if !self.terms.ignore(request) {
            let judgement = self.judge(request, shape, strategy, &[]);
            return self.tally_one_by_one(shape, Some(&judgement));
        }
        if self.cluster.shape(shape).has_node_terms {
            return self.tally_one_by_one(shape, None);
        }
        let shape = self.cluster.shape(shape);
        let mut count = Count::new(shape, &self.cluster.models);
        // Nodes of one kind stand alike, and most of the others show at a glance what they lack.
        let mut kinds: Vec<Option<(Standing, NodeIdx, u32)>> = vec![None; self.cluster.kinds.len()];
        for node in &self.cluster.order {
            let brief = &self.cluster.briefs[*node as usize];
            let kind = kinds[brief.kind as usize].get_or_insert_with(|| {
                (
                    fit::standing(shape, &self.cluster.host(*node).spec, self.cluster.room(*node)),
                    *node,
                    0,
                )
            });
            if matches!(kind.0, Standing::No(_)) {
                kind.2 += 1;
                continue;
            }
            match fit::brief_lack(shape, brief) {
                Some(Code::Closed) => self.count_node(*node, Code::Closed, &mut count),
                Some(code) if brief.shut => self.count_node(*node, code, &mut count),
                Some(code) => count.add(code, 1, fit::brief_amount(code, brief)),
                None => {
                    if let Some(code) = fit::lack(shape, self.cluster.room(*node)) {
                        self.count_node(*node, code, &mut count);
                    }
                }
            }
        }
        for (standing, node, nodes) in kinds.into_iter().flatten() {
            if let Standing::No(code) = standing {
                self.count_nodes(node, self.cluster.room(node), code, nodes, &mut count);
            }
        }
        count.tally(self.cluster.order.len())
    }

    /// The same where labels, names or other tasks have a say.
    fn tally_one_by_one(&self, shape: ShapeIdx, judgement: Option<&Judgement>) -> FitSummary {
        let shape = self.cluster.shape(shape);
        let mut count = Count::new(shape, &self.cluster.models);
        for node in &self.cluster.order {
            let room = self.cluster.room(*node);
            let by_terms =
                || judgement.and_then(|judgement| judgement.verdicts[*node as usize].lack);
            let code = match fit::standing(shape, &self.cluster.host(*node).spec, room) {
                Standing::No(code) => Some(code),
                Standing::Yes(_) => fit::lack(shape, room).or_else(by_terms),
            };
            if let Some(code) = code {
                self.count_node(*node, code, &mut count);
            }
        }
        count.tally(self.cluster.order.len())
    }

    /// What each node would lack even if nothing were booked on it.
    pub(crate) fn tally_when_empty(&self, shape: ShapeIdx) -> FitSummary {
        let shape = self.cluster.shape(shape);
        let mut count = Count::new(shape, &self.cluster.models);
        for node in &self.cluster.order {
            let room = self.empty_room_of(*node);
            let code = match fit::standing(shape, &self.cluster.host(*node).spec, &room) {
                Standing::No(code) => Some(code),
                Standing::Yes(_) => fit::lack(shape, &room),
            };
            if let Some(code) = code {
                self.count_nodes(*node, &room, code, 1, &mut count);
            }
        }
        count.tally(self.cluster.order.len())
    }

    fn count_node(&self, node: NodeIdx, code: Code, count: &mut Count<'_>) {
        self.count_nodes(node, self.cluster.room(node), code, 1, count);
    }

    /// Counts so many nodes like this one.
    fn count_nodes(
        &self,
        node: NodeIdx,
        room: &Room,
        code: Code,
        nodes: u32,
        count: &mut Count<'_>,
    ) {
        let lost = code == Code::Closed && self.cluster.host(node).reach == Reach::Lost;
        let code = if lost { Code::Down } else { code };
        if let Some(closed) = self.closed_in_the_way(code, count.shape, node, room) {
            return count.add_closed(&closed);
        }
        if code == Code::Model {
            return count.add_models(room, nodes);
        }
        match self.text(code, count.shape, node, room) {
            Some((text, left)) if has_text(code) => count.add_text(code, text, nodes, left),
            _ => count.add(code, nodes, amount(code, count.shape, room)),
        }
    }

    /// What one node lacks, with numbers.
    pub(crate) fn lack_of(&self, shape: ShapeIdx, node: NodeIdx) -> Option<Shortfall> {
        let shape = self.cluster.shape(shape);
        let room = self.cluster.room(node);
        let code = match fit::standing(shape, &self.cluster.host(node).spec, room) {
            Standing::No(code) => code,
            Standing::Yes(_) => fit::lack(shape, room)?,
        };
        if let Some(closed) = self.closed_in_the_way(code, shape, node, room) {
            return Some(Shortfall::UnavailableGpus(closed));
        }
        if code == Code::Model {
            let mut models = Vec::new();
            note_models(&mut models, room);
            return Some(other_model(shape, &models, &self.cluster.models));
        }
        match self.text(code, shape, node, room) {
            Some((text, left)) if has_text(code) => Some(worded(code, &text, shape, left)),
            _ => Some(plain(code, shape, amount(code, shape, room).unwrap_or(0))),
        }
    }

    /// The closed GPUs of a node, if the shape lacks GPUs there and opening them would help.
    fn closed_in_the_way(
        &self,
        code: Code,
        shape: &Shape,
        node: NodeIdx,
        room: &Room,
    ) -> Option<UnavailableGpus> {
        let closed = shut::in_the_way(shape, room).filter(|_| code.is_short_of_gpus())?;
        let host = self.cluster.host(node);
        let mut counted = UnavailableGpus::default();
        for device in closed {
            counted.count(&host.spec.gpus[device].id, host.health_of(device));
        }
        Some(counted)
    }

    /// The name of what is in the way, for those codes that have one, and how much of it is left.
    fn text(&self, code: Code, shape: &Shape, node: NodeIdx, room: &Room) -> Option<(String, i64)> {
        let host = self.cluster.host(node);
        let name = match code {
            Code::Taint => {
                let tolerations = &shape.key.request.tolerations;
                labels::first_untolerated(&host.spec.taints, tolerations).map(ToString::to_string)
            }
            Code::ModelQuota => {
                let closed =
                    room.devices.iter().find(|d| shape.model(d.model) == ModelVerdict::Closed);
                closed.map(|d| self.cluster.models[usize::from(d.model)].to_string())
            }
            Code::Named => {
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
            Code::Token => {
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

/// Lacks as they are counted.
struct Count<'a> {
    shape: &'a Shape,
    /// The names of all models.
    names: &'a [GpuModel],
    nodes: [u32; CODES],
    most: [i64; CODES],
    /// What the nodes have whose GPUs are of another model.
    models: Vec<ModelIdx>,
    /// What the nodes have whose GPUs would do if they were open.
    closed: UnavailableGpus,
    texts: BTreeMap<(Code, String), (u32, i64)>,
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

    fn add(&mut self, code: Code, nodes: u32, amount: Option<i64>) {
        self.nodes[code as usize] += nodes;
        let most = &mut self.most[code as usize];
        *most = (*most).max(amount.unwrap_or(0));
    }

    fn add_models(&mut self, room: &Room, nodes: u32) {
        self.add(Code::Model, nodes, None);
        note_models(&mut self.models, room);
    }

    fn add_closed(&mut self, closed: &UnavailableGpus) {
        self.add(Code::ClosedGpus, 1, None);
        self.closed.add(closed);
    }

    fn add_text(&mut self, code: Code, text: String, nodes: u32, left: i64) {
        let entry = self.texts.entry((code, text)).or_default();
        *entry = (entry.0 + nodes, entry.1.max(left));
    }

    fn tally(self, nodes: usize) -> FitSummary {
        let counted = ALL_CODES.into_iter().filter(|code| self.nodes[*code as usize] > 0);
        let told = |code: Code| match code {
            Code::Model => other_model(self.shape, &self.models, self.names),
            Code::ClosedGpus => Shortfall::UnavailableGpus(self.closed.clone()),
            _ => plain(code, self.shape, self.most[code as usize]),
        };
        let plain = counted.map(|code| (told(code), self.nodes[code as usize]));
        let worded = self
            .texts
            .iter()
            .map(|((code, text), (count, most))| (worded(*code, text, self.shape, *most), *count));
        let mut lacks: Vec<(Shortfall, u32)> = plain.chain(worded).collect();
        lacks.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        FitSummary { nodes: nodes as u32, shortfalls: lacks }
    }
}
