//! What a node of the cluster has to offer: a plain function of the node and of the pods on it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use agentaflow_engine::{Gpu, GpuHealth};
use agentaflow_kube_core::translate::{self, Namespaces, Surroundings, Volumes};
use agentaflow_kube_core::{names as kube_names, slim};
use agentaflow_manifest::cloud::gpu_named;

use crate::names;

/// What a node has, and how much of it is left for us.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Offer {
    /// Its GPUs. Which of them a pod gets is the kubelet's choice: only their number counts.
    pub(crate) gpus: Vec<Gpu>,
    /// Those that take no work, by position: sick, or closed by people.
    pub(crate) closed_gpus: BTreeSet<usize>,
    /// How many the pods of others have.
    pub(crate) taken_gpus: usize,
    /// Thousandths of cores that pods may use, and of them not asked for by others.
    pub(crate) cpu: (u64, u64),
    /// MiB of memory.
    pub(crate) memory: (u64, u64),
    /// MiB of local storage.
    pub(crate) storage: (u64, u64),
    /// Why it takes no work now.
    pub(crate) closed: Option<String>,
}

/// What a node offers to the agent whose Jobs carry this label.
pub(crate) fn offer(node: &slim::Node, pods: &[Arc<slim::Pod>], owner: &str) -> Offer {
    let view = translate::node(node, None, None);
    let (volumes, namespaces) = (Volumes::default(), Namespaces::default());
    let around = Surroundings { volumes: &volumes, namespaces: &namespaces };
    let (mut gpus, mut cpu, mut memory, mut storage) = (0_u64, 0_u64, 0_u64, 0_u64);
    for pod in pods.iter().filter(|pod| !is_over(pod) && !is_ours(pod, owner)) {
        let uses = translate::foreign(pod, &around);
        gpus += u64::from(uses.gpu_count);
        cpu = cpu.saturating_add(uses.cpu.0);
        memory = memory.saturating_add(uses.memory.0);
        storage = storage.saturating_add(uses.storage.0);
    }
    let unusable =
        |(at, (_, health)): (usize, &(_, GpuHealth))| (*health != GpuHealth::Healthy).then_some(at);
    let left = |all: u64, taken: u64| (all, all.saturating_sub(taken));
    Offer {
        closed_gpus: view.health.iter().enumerate().filter_map(unusable).collect(),
        taken_gpus: usize::try_from(gpus).unwrap_or(usize::MAX),
        cpu: left(view.node.cpu.0, cpu),
        memory: left(view.node.memory.0, memory),
        storage: left(view.node.storage.0, storage),
        gpus: view.node.gpus.into_iter().map(sized).collect(),
        closed: closed(node),
    }
}

impl Offer {
    /// With the GPUs that were there before, if fewer are now. A kubelet or a device plugin that starts anew hands out
    /// none for a while, and the jobs on them run on: those that are missing are kept, and taken.
    pub(crate) fn with_known(mut self, known: &[Gpu]) -> Self {
        if self.gpus.len() < known.len() {
            self.taken_gpus = self.taken_gpus.saturating_add(known.len() - self.gpus.len());
            self.gpus = known.to_vec();
        }
        self
    }

    /// The GPUs, by position, that others have or that take no work. Which devices the kubelet gave to whom is not
    /// known: those that none of our tasks was given are counted first, the last ones before the others.
    pub(crate) fn unavailable(&self, ours: &BTreeSet<usize>) -> BTreeSet<usize> {
        let mut gone: BTreeSet<usize> = self.closed_gpus.difference(ours).copied().collect();
        let free = (0..self.gpus.len()).rev().filter(|at| !ours.contains(at) && !gone.contains(at));
        let taken: Vec<usize> = free.take(self.taken_gpus).collect();
        gone.extend(taken);
        gone
    }
}

/// A GPU of a model that we know has its memory also where no label tells how much.
fn sized(mut gpu: Gpu) -> Gpu {
    if gpu.memory.0 <= 1
        && let Some(known) = gpu_named(gpu.model.as_str())
    {
        gpu.memory.0 = u64::from(known.memory_gib) << 10;
    }
    gpu
}

/// Why the node takes no new pods of ours.
fn closed(node: &slim::Node) -> Option<String> {
    if node.spec.unschedulable == Some(true) {
        return Some("it is cordoned".to_owned());
    }
    let ready = node.status.conditions.iter().flatten().find(|found| found.kind == "Ready");
    if ready.is_none_or(|ready| ready.status != "True") {
        return Some("it is not ready".to_owned());
    }
    let taints = node.spec.taints.iter().flatten();
    let mut strange = taints.filter(|taint| {
        taint.key != kube_names::GPU_RESOURCE && taint.effect != "PreferNoSchedule"
    });
    strange.next().map(|taint| format!("jobs do not tolerate its taint `{}`", taint.key))
}

fn is_over(pod: &slim::Pod) -> bool {
    matches!(pod.status.phase.as_deref(), Some("Succeeded" | "Failed"))
}

fn is_ours(pod: &slim::Pod, owner: &str) -> bool {
    let labels: Option<&BTreeMap<String, String>> = pod.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(names::AGENT)).is_some_and(|agent| agent == owner)
}

#[cfg(test)]
#[path = "offer_tests.rs"]
mod tests;
