//! Resources that the node offers: a pure function of the node and its pods.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use agentaflow_engine::{Gpu, GpuHealth};
use agentaflow_gpu::catalog::gpu_named;
use agentaflow_kube_core::translate::{self, Namespaces, TranslationContext, Volumes};
use agentaflow_kube_core::{names as kube_names, slim};
use thiserror::Error;

use crate::names;

/// Allocatable amount, and the part that foreign pods do not request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Capacity {
    pub(crate) total: u64,
    pub(crate) free: u64,
}

/// Reason for which the node accepts no new Jobs.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum NodeClosed {
    #[error("node was removed from the cluster")]
    Removed,
    #[error("node is cordoned")]
    Cordoned,
    #[error("node is not ready")]
    NotReady,
    #[error("node has the taint `{0}`, which jobs do not tolerate")]
    Taint(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Offer {
    /// The kubelet chooses the GPU of a pod: only the number of GPUs counts.
    pub(crate) gpus: Vec<Gpu>,
    /// Positions of faulty or cordoned GPUs.
    pub(crate) closed_gpus: BTreeSet<usize>,
    /// Number of GPUs that foreign pods use.
    pub(crate) foreign_gpus: usize,
    /// Thousandths of cores.
    pub(crate) cpu: Capacity,
    /// MiB.
    pub(crate) memory: Capacity,
    /// MiB.
    pub(crate) storage: Capacity,
    pub(crate) closed: Option<NodeClosed>,
}

/// Offer for the agent whose Jobs have the label value `owner`.
pub(crate) fn offer(node: &slim::Node, pods: &[Arc<slim::Pod>], owner: &str) -> Offer {
    let view = translate::node(node, None, None);
    let (volumes, namespaces) = (Volumes::default(), Namespaces::default());
    let around = TranslationContext { volumes: &volumes, namespaces: &namespaces };
    let (mut gpus, mut cpu, mut memory, mut storage) = (0_u64, 0_u64, 0_u64, 0_u64);
    for pod in pods.iter().filter(|pod| !has_ended(pod) && !is_ours(pod, owner)) {
        let uses = translate::foreign(pod, &around);
        gpus += u64::from(uses.gpu_count);
        cpu = cpu.saturating_add(uses.cpu.0);
        memory = memory.saturating_add(uses.memory.0);
        storage = storage.saturating_add(uses.storage.0);
    }
    let unusable =
        |(at, (_, health)): (usize, &(_, GpuHealth))| (*health != GpuHealth::Healthy).then_some(at);
    let capacity =
        |total: u64, foreign: u64| Capacity { total, free: total.saturating_sub(foreign) };
    Offer {
        closed_gpus: view.health.iter().enumerate().filter_map(unusable).collect(),
        foreign_gpus: usize::try_from(gpus).unwrap_or(usize::MAX),
        cpu: capacity(view.node.cpu.0, cpu),
        memory: capacity(view.node.memory.0, memory),
        storage: capacity(view.node.storage.0, storage),
        gpus: view.node.gpus.into_iter().map(with_memory).collect(),
        closed: closed(node),
    }
}

impl Offer {
    /// Keeps GPUs that the node reported before, marked as used by foreign pods. A restarting kubelet or device plugin
    /// reports none for a while, although the jobs on them keep running.
    pub(crate) fn with_known(mut self, known: &[Gpu]) -> Self {
        if self.gpus.len() < known.len() {
            self.foreign_gpus = self.foreign_gpus.saturating_add(known.len() - self.gpus.len());
            self.gpus = known.to_vec();
        }
        self
    }

    /// Positions of GPUs that foreign pods use or that are cordoned. The devices of foreign pods are unknown: they count
    /// from the last GPU down, skipping GPUs of the agent's tasks.
    pub(crate) fn unavailable(&self, ours: &BTreeSet<usize>) -> BTreeSet<usize> {
        let mut gone: BTreeSet<usize> = self.closed_gpus.difference(ours).copied().collect();
        let free = (0..self.gpus.len()).rev().filter(|at| !ours.contains(at) && !gone.contains(at));
        let taken: Vec<usize> = free.take(self.foreign_gpus).collect();
        gone.extend(taken);
        gone
    }
}

/// Adds the memory of a known model if the node has no memory label.
fn with_memory(mut gpu: Gpu) -> Gpu {
    if gpu.memory.0 <= 1
        && let Some(known) = gpu_named(gpu.model.as_str())
    {
        gpu.memory.0 = u64::from(known.memory_gib) << 10;
    }
    gpu
}

fn closed(node: &slim::Node) -> Option<NodeClosed> {
    if node.spec.unschedulable == Some(true) {
        return Some(NodeClosed::Cordoned);
    }
    let ready = node.status.conditions.iter().flatten().find(|found| found.kind == "Ready");
    if ready.is_none_or(|ready| ready.status != "True") {
        return Some(NodeClosed::NotReady);
    }
    let taints = node.spec.taints.iter().flatten();
    let mut untolerated = taints.filter(|taint| {
        taint.key != kube_names::GPU_RESOURCE && taint.effect != "PreferNoSchedule"
    });
    untolerated.next().map(|taint| NodeClosed::Taint(taint.key.clone()))
}

fn has_ended(pod: &slim::Pod) -> bool {
    matches!(pod.status.phase.as_deref(), Some("Succeeded" | "Failed"))
}

fn is_ours(pod: &slim::Pod, owner: &str) -> bool {
    let labels: Option<&BTreeMap<String, String>> = pod.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(names::AGENT)).is_some_and(|agent| agent == owner)
}

#[cfg(test)]
#[path = "offer_tests.rs"]
mod tests;
