//! What stands in the way, counted over all nodes and put into numbers.

use std::collections::BTreeMap;

use crate::cluster::fit::{self, Code, Standing};
use crate::cluster::room::{CPU, MEMORY, Room, STORAGE};
use crate::cluster::shape::{Ask, ModelVerdict, Shape, ShapeIdx};
use crate::cluster::{NodeIdx, Reach};
use crate::decision::{Lack, Tally};
use crate::labels;
use crate::name::TokenName;
use crate::request::{MigProfile, Request, TokenUse};
use crate::scheduler::Scheduler;
use crate::strategy::Strategy;
use crate::terms::Judgement;
use crate::units::{MiB, MilliCpu};

const CODES: usize = Code::Spread as usize + 1;

impl Scheduler {
    /// What each node lacks for a task of this shape.
    pub(crate) fn tally(
        &mut self,
        request: &Request,
        shape: ShapeIdx,
        strategy: Strategy,
    ) -> Tally {
        if !self.terms.ignore(request) {
            let judgement = self.judge(request, shape, strategy, &[]);
            return self.tally_one_by_one(shape, Some(&judgement));
        }
        if self.cluster.shape(shape).has_node_terms {
            return self.tally_one_by_one(shape, None);
        }
        let shape = self.cluster.shape(shape);
        let mut count = Count::new(shape);
        // Nodes of one kind stand alike, and most of the others show at a glance what they lack.
        let mut kinds: Vec<Option<(Standing, NodeIdx, u32)>> = vec![None; self.cluster.kinds()];
        for node in &self.cluster.order {
            let brief = &self.cluster.briefs[*node as usize];
            let kind = kinds[usize::from(brief.kind)].get_or_insert_with(|| {
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
    fn tally_one_by_one(&self, shape: ShapeIdx, judgement: Option<&Judgement>) -> Tally {
        let shape = self.cluster.shape(shape);
        let mut count = Count::new(shape);
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
    pub(crate) fn tally_when_empty(&self, shape: ShapeIdx) -> Tally {
        let shape = self.cluster.shape(shape);
        let mut count = Count::new(shape);
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
        match self.text(code, count.shape, node, room) {
            Some((text, left)) if has_text(code) => count.add_text(code, text, nodes, left),
            _ => count.add(code, nodes, amount(code, count.shape, room)),
        }
    }

    /// What one node lacks, with numbers.
    pub(crate) fn lack_of(&self, shape: ShapeIdx, node: NodeIdx) -> Option<Lack> {
        let shape = self.cluster.shape(shape);
        let room = self.cluster.room(node);
        let code = match fit::standing(shape, &self.cluster.host(node).spec, room) {
            Standing::No(code) => code,
            Standing::Yes(_) => fit::lack(shape, room)?,
        };
        match self.text(code, shape, node, room) {
            Some((text, left)) if has_text(code) => Some(worded(code, &text, shape, left)),
            _ => Some(plain(code, shape, amount(code, shape, room).unwrap_or(0))),
        }
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
                let held = |token: &&(TokenName, TokenUse)| !fit::token_free(room, token);
                let cluster_wide = |token: &&(TokenName, TokenUse)| self.terms.is_held(&token.0);
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
    nodes: [u32; CODES],
    most: [i64; CODES],
    texts: BTreeMap<(Code, String), (u32, i64)>,
}

impl<'a> Count<'a> {
    fn new(shape: &'a Shape) -> Self {
        Self { shape, nodes: [0; CODES], most: [0; CODES], texts: BTreeMap::new() }
    }

    fn add(&mut self, code: Code, nodes: u32, amount: Option<i64>) {
        self.nodes[code as usize] += nodes;
        let most = &mut self.most[code as usize];
        *most = (*most).max(amount.unwrap_or(0));
    }

    fn add_text(&mut self, code: Code, text: String, nodes: u32, left: i64) {
        let entry = self.texts.entry((code, text)).or_default();
        *entry = (entry.0 + nodes, entry.1.max(left));
    }

    fn tally(self, nodes: usize) -> Tally {
        let counted = ALL_CODES.into_iter().filter(|code| self.nodes[*code as usize] > 0);
        let plain = counted.map(|code| {
            (plain(code, self.shape, self.most[code as usize]), self.nodes[code as usize])
        });
        let worded = self
            .texts
            .iter()
            .map(|((code, text), (count, most))| (worded(*code, text, self.shape, *most), *count));
        let mut lacks: Vec<(Lack, u32)> = plain.chain(worded).collect();
        lacks.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        Tally { nodes: nodes as u32, lacks }
    }
}

const ALL_CODES: [Code; CODES] = [
    Code::Down,
    Code::Closed,
    Code::OtherNode,
    Code::Selector,
    Code::NodeAffinity,
    Code::Taint,
    Code::NoGpu,
    Code::Model,
    Code::ModelQuota,
    Code::GpuSize,
    Code::GpuCount,
    Code::Unshared,
    Code::NoMig,
    Code::FreeGpus,
    Code::GpuShare,
    Code::GpuMemory,
    Code::MigSlice,
    Code::NvLink,
    Code::Cpu,
    Code::Memory,
    Code::Storage,
    Code::Jobs,
    Code::Named,
    Code::Token,
    Code::Near,
    Code::Away,
    Code::Spread,
];

fn has_text(code: Code) -> bool {
    matches!(code, Code::Taint | Code::ModelQuota | Code::Named | Code::Token)
}

/// The lack of something that has a name.
fn worded(code: Code, text: &str, shape: &Shape, most: i64) -> Lack {
    match code {
        Code::Taint => Lack::Taint(text.to_owned()),
        Code::ModelQuota => Lack::ModelQuota(text.into()),
        Code::Named => {
            let request = &shape.key.request;
            let need = request
                .resources
                .iter()
                .find(|(name, _)| name.as_str() == text)
                .map_or(0, |(_, n)| *n);
            Lack::Resource { name: text.into(), need, most: most.max(0) as u64 }
        }
        _ => Lack::Token(text.into()),
    }
}

/// How much this node has of what it lacks.
fn amount(code: Code, shape: &Shape, room: &Room) -> Option<i64> {
    let serving = || room.devices.iter().filter(|d| fit::serves(shape, d));
    let shareable = || serving().filter(|d| d.is_shareable() && !(shape.exclusive && d.users > 0));
    Some(match code {
        Code::GpuSize => room
            .devices
            .iter()
            .filter(|d| shape.accepts(d.model))
            .map(|d| d.total)
            .max()
            .unwrap_or(0)
            .into(),
        Code::GpuCount => serving().filter(|d| d.geometry.is_none()).count() as i64,
        Code::FreeGpus if room.uniform => room.whole.into(),
        Code::FreeGpus => fit::whole_devices(shape, room).count() as i64,
        Code::GpuShare => shareable().map(|d| d.milli).max().unwrap_or(0).into(),
        Code::GpuMemory => shareable().map(|d| d.mib).max().unwrap_or(0).into(),
        Code::MigSlice => fit::mig_copies(shape, room, u32::MAX).into(),
        Code::NvLink => fit::largest_link(shape, room) as i64,
        Code::Cpu => room.free[CPU],
        Code::Memory => room.free[MEMORY],
        Code::Storage => room.free[STORAGE],
        _ => return None,
    })
}

/// The lack in words that need no look at other nodes.
fn plain(code: Code, shape: &Shape, most: i64) -> Lack {
    let most = most.max(0) as u64;
    let amounts = shape.need.amounts.map(|amount| amount as u64);
    let count = |need: u16| (u32::from(need), most as u32);
    match (code, shape.ask) {
        (Code::Down, _) => Lack::Down,
        (Code::OtherNode, _) => Lack::OtherNode,
        (Code::Selector, _) => Lack::Selector,
        (Code::NodeAffinity, _) => Lack::NodeAffinity,
        (Code::NoGpu, _) => Lack::NoGpu,
        (Code::Model, _) => Lack::Model,
        (Code::GpuSize, Ask::Memory(mib)) => {
            let need = mib.max(shape.min_memory);
            Lack::GpuSize { need: MiB(need as u64), largest: MiB(most) }
        }
        (Code::GpuSize, _) => {
            Lack::GpuSize { need: MiB(shape.min_memory as u64), largest: MiB(most) }
        }
        (Code::GpuCount, ask) => {
            let need = if let Ask::Whole(need) = ask { need.into() } else { 1 };
            Lack::GpuCount { need, most: most as u32 }
        }
        (Code::NoMig, Ask::Mig(profile, _)) => Lack::NoMig(profile),
        (Code::FreeGpus, Ask::Whole(need)) => {
            Lack::FreeGpus { need: count(need).0, most: count(need).1 }
        }
        (Code::GpuShare, Ask::Share(milli)) => {
            Lack::GpuShare { need: milli as u32, most: most as u32 }
        }
        (Code::GpuMemory, Ask::Memory(mib)) => {
            Lack::GpuMemory { need: MiB(mib as u64), most: MiB(most) }
        }
        (Code::MigSlice, Ask::Mig(profile, need)) => mig_lack(profile, need, most),
        (Code::NvLink, Ask::Whole(need)) => Lack::NvLink { need: need.into(), most: most as u32 },
        (Code::Cpu, _) => Lack::Cpu { need: MilliCpu(amounts[CPU]), most: MilliCpu(most) },
        (Code::Memory, _) => Lack::Memory { need: MiB(amounts[MEMORY]), most: MiB(most) },
        (Code::Storage, _) => Lack::Storage { need: MiB(amounts[STORAGE]), most: MiB(most) },
        (Code::Unshared, _) => Lack::Unshared,
        (Code::Jobs, _) => Lack::Jobs,
        (Code::Near, _) => Lack::Near,
        (Code::Away, _) => Lack::Away,
        (Code::Spread, _) => Lack::Spread,
        _ => Lack::Closed,
    }
}

fn mig_lack(profile: MigProfile, need: u16, most: u64) -> Lack {
    Lack::MigSlice { profile, need: need.into(), most: most as u32 }
}
