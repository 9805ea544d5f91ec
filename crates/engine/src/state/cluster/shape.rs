//! Request shapes: equal requests are evaluated once, independent of the number of workloads.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::model::labels::Labels;
use crate::model::name::GpuModel;
use crate::model::request::{GpuRequest, MigProfile, Request};
use crate::state::cluster::room::{CPU, MEMORY, ModelIdx, Need, STORAGE, TASKS};

/// Dense index of a shape.
pub(crate) type ShapeIdx = u32;

/// Identity of a shape: the request and the models excluded by quota. The task's own labels are not part of
/// it, because nodes do not match on them and often no two tasks have equal labels.
#[derive(Clone, Debug)]
pub(crate) struct ShapeKey {
    pub(crate) request: Arc<Request>,
    /// Models excluded by the queue's quota.
    pub(crate) closed: Vec<ModelIdx>,
}

impl ShapeKey {
    fn parts(&self) -> impl PartialEq + Hash {
        let Request {
            gpu,
            exclusive,
            min_gpu_memory,
            models,
            preferred_model,
            nvlink,
            cpu,
            memory,
            storage,
            resources,
            tokens,
            node,
            node_selector,
            required_nodes,
            preferred_nodes,
            tolerations,
            labels: _,
            affinity,
            spread,
        } = &*self.request;
        let devices = (gpu, exclusive, min_gpu_memory, models, preferred_model, nvlink);
        let amounts = (cpu, memory, storage, resources, tokens);
        let nodes = (node, node_selector, required_nodes, preferred_nodes, tolerations);
        (devices, amounts, nodes, affinity, spread, &self.closed)
    }

    fn unlabelled(mut self) -> Self {
        if !self.request.labels.is_empty() {
            let request = Request { labels: Labels::new(), ..(*self.request).clone() };
            self.request = Arc::new(request);
        }
        self
    }
}

impl PartialEq for ShapeKey {
    fn eq(&self, other: &Self) -> bool {
        let same = Arc::ptr_eq(&self.request, &other.request) && self.closed == other.closed;
        same || self.parts() == other.parts()
    }
}

impl Eq for ShapeKey {}

impl Hash for ShapeKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

/// A preprocessed request.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) key: ShapeKey,
    pub(crate) need: Arc<Need>,
    pub(crate) gpu_need: GpuNeed,
    pub(crate) exclusive: bool,
    pub(crate) nvlink: bool,
    pub(crate) min_memory: i32,
    /// By model index.
    pub(crate) models: Vec<ModelVerdict>,
    /// A node name, selector or node affinity applies.
    pub(crate) has_node_terms: bool,
    pub(crate) users: u32,
    /// Distinguishes shapes that reuse an index.
    pub(crate) stamp: u64,
}

/// [`GpuRequest`] in internal units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GpuNeed {
    None,
    Whole(u16),
    Share(i32),
    Memory(i32),
    Mig(MigProfile, u16),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModelVerdict {
    No,
    /// Excluded by quota.
    Closed,
    Yes,
    Preferred,
}

impl Shape {
    pub(crate) fn new(key: ShapeKey, need: Need, models: &[GpuModel]) -> Self {
        let key = key.unlabelled();
        let request = &key.request;
        let gpu_need = match request.gpu {
            GpuRequest::None => GpuNeed::None,
            GpuRequest::Whole(count) => GpuNeed::Whole(count as u16),
            GpuRequest::Fraction(share) if share.get() == 1000 => GpuNeed::Whole(1),
            GpuRequest::Fraction(share) => GpuNeed::Share(share.get() as i32),
            GpuRequest::Memory(mib) => GpuNeed::Memory(mib.0 as i32),
            GpuRequest::Mig { profile, count } => GpuNeed::Mig(profile, count as u16),
        };
        let mut shape = Self {
            need: Arc::new(need),
            gpu_need,
            exclusive: request.exclusive,
            nvlink: request.nvlink,
            min_memory: request.min_gpu_memory.0 as i32,
            models: Vec::new(),
            has_node_terms: request.node.is_some()
                || !request.node_selector.is_empty()
                || !request.required_nodes.is_empty()
                || !request.preferred_nodes.is_empty(),
            users: 0,
            stamp: 0,
            key,
        };
        shape.learn_models(models);
        shape
    }

    /// Evaluates models that appeared since.
    pub(crate) fn learn_models(&mut self, models: &[GpuModel]) {
        for model in &models[self.models.len()..] {
            let request = &self.key.request;
            let wanted =
                request.models.is_empty() || request.models.iter().any(|m| model.serves(m));
            let preferred = request.preferred_model.as_ref().is_some_and(|m| model.serves(m));
            let index = self.models.len() as ModelIdx;
            self.models.push(if !wanted {
                ModelVerdict::No
            } else if self.key.closed.contains(&index) {
                ModelVerdict::Closed
            } else if preferred {
                ModelVerdict::Preferred
            } else {
                ModelVerdict::Yes
            });
        }
    }

    pub(crate) fn model(&self, model: ModelIdx) -> ModelVerdict {
        self.models[usize::from(model)]
    }

    pub(crate) fn accepts(&self, model: ModelIdx) -> bool {
        matches!(self.model(model), ModelVerdict::Yes | ModelVerdict::Preferred)
    }
}

/// CPU, memory, storage and tokens of a request; the cluster adds named resources.
pub(crate) fn plain_need(request: &Request) -> Need {
    let mut need = Need::default();
    need.amounts[CPU] = request.cpu.0 as i64;
    need.amounts[MEMORY] = request.memory.0 as i64;
    need.amounts[STORAGE] = request.storage.0 as i64;
    need.amounts[TASKS] = 1;
    need.tokens = request.tokens.iter().map(|(name, usage)| (name.clone(), *usage)).collect();
    need
}
