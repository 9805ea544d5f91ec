//! The engine's description of a node, and the events that keep it up to date.

use std::collections::{BTreeMap, BTreeSet};

use agentaflow_api::node::{GpuInstance, GpuStatus};
use agentaflow_engine::{Event, ForeignId, ForeignUse, GpuHealth, GpuId, NodeId, Percent};

use super::description::gpu_id;

/// Engine name of the use of a node by processes that the server did not start.
const OTHER_PROCESSES: &str = "other-processes";

#[derive(Clone, Debug, Default)]
pub(super) struct EngineReport {
    /// Description that the engine has; none before the node was reachable once.
    reported: Option<ReportedNode>,
    /// The engine considers the node lost and needs the whole description again.
    resend: bool,
    /// GPUs that the last readings report as unusable for new work.
    unusable_gpus: BTreeMap<GpuId, UnusableGpu>,
}

/// Description of a node that the engine has.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ReportedNode {
    pub(super) node: agentaflow_engine::Node,
    pub(super) foreign: ForeignUse,
    pub(super) cordoned: bool,
    pub(super) draining: bool,
    /// GPUs that an admin cordoned or drains.
    pub(super) closed_gpus: BTreeMap<GpuId, GpuHealth>,
}

/// Effect of new GPU readings.
#[derive(Debug, Default)]
pub(crate) struct GpuReadings {
    pub(crate) events: Vec<Event>,
    pub(crate) changed: Vec<GpuChange>,
}

/// Reading of a GPU that takes no new work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnusableGpu {
    /// Running tasks continue.
    Maintenance,
    /// Running tasks cannot continue.
    Failed,
}

impl UnusableGpu {
    fn of(reading: &GpuInstance) -> Option<Self> {
        match reading.status? {
            GpuStatus::Error => Some(Self::Failed),
            GpuStatus::Maintenance => Some(Self::Maintenance),
            GpuStatus::Available | GpuStatus::Busy => None,
        }
    }
}

/// A GPU that became unusable, or recovered.
#[derive(Debug)]
pub(crate) struct GpuChange {
    pub(crate) gpu: GpuId,
    /// None for a usable GPU.
    pub(crate) unusable: Option<UnusableGpu>,
    /// Message of the node.
    pub(crate) problem: Option<String>,
}

/// Description of a node with which the engine is restored.
#[derive(Debug)]
pub(crate) struct RestoredNode {
    pub(crate) node: agentaflow_engine::Node,
    pub(crate) closed_gpus: BTreeMap<GpuId, GpuHealth>,
    pub(crate) draining: bool,
    pub(crate) lost: bool,
}

impl EngineReport {
    pub(super) fn is_made(&self) -> bool {
        self.reported.is_some()
    }

    /// Returns true if the engine may place tasks on the node.
    pub(super) fn is_open(&self) -> bool {
        self.reported.as_ref().is_some_and(|reported| !reported.cordoned)
    }

    pub(super) fn has_gpu(&self, gpu: &GpuId) -> bool {
        let gpus = self.reported.iter().flat_map(|reported| &reported.node.gpus);
        gpus.into_iter().any(|known| known.id == *gpu)
    }

    /// Records a description that the engine received in another way.
    pub(super) fn set(&mut self, reported: ReportedNode) {
        self.reported = Some(reported);
    }

    pub(super) fn clear(&mut self) {
        self.reported = None;
    }

    pub(super) fn resend(&mut self) {
        self.resend = true;
    }

    pub(super) fn keep_resend(&mut self, old: &Self) {
        self.resend = old.resend;
    }

    /// Events that turn the engine's description into `current`.
    pub(super) fn update(&mut self, current: ReportedNode) -> Vec<Event> {
        let before = self.reported.take();
        let resend = std::mem::take(&mut self.resend);
        let events = if before.as_ref() == Some(&current) && !resend {
            Vec::new()
        } else {
            self.changes(before.as_ref(), &current, resend)
        };
        self.reported = Some(current);
        events
    }

    fn changes(
        &self,
        before: Option<&ReportedNode>,
        current: &ReportedNode,
        resend: bool,
    ) -> Vec<Event> {
        let mut events = Vec::new();
        let name = &current.node.id;
        if resend || before.map(|before| &before.node) != Some(&current.node) {
            events.push(Event::NodeUpdated(Box::new(current.node.clone())));
        }
        if before.map(|before| &before.foreign) != Some(&current.foreign) {
            let id = ForeignId::from(OTHER_PROCESSES);
            if current.foreign != ForeignUse::default() {
                let uses = Box::new(current.foreign.clone());
                events.push(Event::ForeignUseUpdated { node: name.clone(), id, usage: uses });
            } else if before.is_some_and(|before| before.foreign != ForeignUse::default()) {
                events.push(Event::ForeignUseRemoved { node: name.clone(), id });
            }
        }
        if resend || before.map(|before| before.cordoned) != Some(current.cordoned) {
            events.push(Event::Cordon { node: name.clone(), on: current.cordoned });
        }
        if before.is_some_and(|before| before.draining) != current.draining {
            events.push(Event::Drain { node: name.clone(), on: current.draining });
        }
        let none = BTreeMap::new();
        let closed_before = before.map_or(&none, |before| &before.closed_gpus);
        let gpus = closed_before.keys().chain(current.closed_gpus.keys());
        for gpu in gpus.collect::<BTreeSet<_>>() {
            let closed = current.closed_gpus.get(gpu).copied();
            if resend || closed_before.get(gpu).copied() != closed {
                events.push(self.gpu_health(name, gpu.clone(), closed));
            }
        }
        events
    }

    /// Health of a GPU for the engine: a failed GPU is unhealthy even if an admin closed it.
    fn gpu_health(&self, node: &NodeId, gpu: GpuId, closed: Option<GpuHealth>) -> Event {
        let health = match self.unusable_gpus.get(&gpu) {
            Some(UnusableGpu::Failed) => GpuHealth::Failed,
            Some(UnusableGpu::Maintenance) => closed.unwrap_or(GpuHealth::Cordoned),
            None => closed.unwrap_or_default(),
        };
        Event::GpuHealth { node: node.clone(), gpu, health }
    }

    /// Utilisation and health changes of the last readings, for GPUs that the engine knows.
    pub(super) fn read_gpus(&mut self, readings: &[GpuInstance]) -> GpuReadings {
        let Some(reported) = &self.reported else { return GpuReadings::default() };
        let node = reported.node.id.clone();
        let known: Vec<GpuId> = reported.node.gpus.iter().map(|gpu| gpu.id.clone()).collect();
        let closed = reported.closed_gpus.clone();
        let mut utilization = Vec::new();
        let mut changed = Vec::new();
        for (index, reading) in readings.iter().enumerate() {
            let gpu = gpu_id(reading, index);
            if !known.contains(&gpu) {
                continue;
            }
            let busy = reading.utilization.and_then(|busy| Percent::new(busy).ok());
            utilization.extend(busy.map(|busy| (gpu.clone(), busy)));
            let unusable = UnusableGpu::of(reading);
            if unusable != self.unusable_gpus.get(&gpu).copied() {
                changed.push(GpuChange { gpu, unusable, problem: reading.problem.clone() });
            }
        }
        let mut events = Vec::new();
        if !utilization.is_empty() {
            events.push(Event::Utilization { node: node.clone(), readings: utilization });
        }
        for GpuChange { gpu, unusable, .. } in &changed {
            match unusable {
                Some(unusable) => self.unusable_gpus.insert(gpu.clone(), *unusable),
                None => self.unusable_gpus.remove(gpu),
            };
            events.push(self.gpu_health(&node, gpu.clone(), closed.get(gpu).copied()));
        }
        GpuReadings { events, changed }
    }
}
