//! The life of a node: its heartbeats and readings, how it is reached, and what the engine is told of that.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use agentaflow_api::event::EventKind;
use agentaflow_api::node::{GpuStatus, Health, Heartbeat};
use agentaflow_api::units::Stamp;
use agentaflow_engine::{Event, ForeignId, ForeignUse, GpuHealth, GpuId, NodeId, Percent};

use super::describe::{closed_gpus, describe, gpu_id};
use super::nodes::node_name;
use super::state::{State, Told};
use crate::store::SeatState;

/// Whose use it is, to the engine.
const OTHERS: &str = "other-processes";

impl State {
    /// A sign of life. Nothing is written for it.
    pub(crate) fn heartbeat(&mut self, id: i64, beat: Heartbeat) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let was_lost = node.lost;
        (node.beat, node.heard) = (Instant::now(), true);
        (node.beat_at, node.beat_flushed) = (Some(Stamp::now()), false);
        node.lost = false;
        node.said_free = [
            beat.gpu_memory_available.or(node.said_free[0]),
            beat.cpu_cores_available.map(|cores| cores.0).or(node.said_free[1]),
            beat.memory_available.or(node.said_free[2]),
            beat.storage_available.or(node.said_free[3]),
        ];
        node.row.health = beat.health_status.unwrap_or(node.row.health);
        if let Some(instances) = beat.gpu_instances {
            node.readings = instances;
        }
        if was_lost {
            // Telling the engine about a node again is how it comes back.
            node.retell = true;
            let name = node.row.spec.node_name.clone();
            self.node_event(id, EventKind::NodeBack, format!("node `{name}` is back"));
            self.batch.syncs.insert(id);
        }
        self.refresh_node(id);
        self.tell_readings(id);
    }

    /// Brings the engine's idea of a node up to date.
    pub(crate) fn refresh_node(&mut self, id: i64) {
        let booked = self.booked(id);
        let Some(node) = self.nodes.get(&id) else { return };
        if node.told.is_none() && !node.reachable() {
            return;
        }
        let (facts, foreign) = describe(node, &booked);
        let open = node.reachable()
            && node.alive()
            && !node.row.cordoned
            && !node.evacuating
            && node.row.health != Health::Unhealthy;
        let closed = closed_gpus(&node.row.overrides);
        let draining = node.row.draining;
        let told = Told { node: facts, foreign, cordoned: !open, draining, closed };
        let (before, again) = (node.told.clone(), node.retell);
        if before.as_ref() == Some(&told) && !again {
            return;
        }
        let name = told.node.id.clone();
        if again || before.as_ref().map(|told| &told.node) != Some(&told.node) {
            self.tell(Event::NodeUpdated(Box::new(told.node.clone())));
        }
        if before.as_ref().map(|told| &told.foreign) != Some(&told.foreign) {
            let id = ForeignId::from(OTHERS);
            if told.foreign != ForeignUse::default() {
                let uses = Box::new(told.foreign.clone());
                self.tell(Event::ForeignUseUpdated { node: name.clone(), id, usage: uses });
            } else if before.as_ref().is_some_and(|told| told.foreign != ForeignUse::default()) {
                self.tell(Event::ForeignUseRemoved { node: name.clone(), id });
            }
        }
        if again || before.as_ref().map(|told| told.cordoned) != Some(told.cordoned) {
            self.tell(Event::Cordon { node: name.clone(), on: told.cordoned });
        }
        if before.as_ref().map_or(told.draining, |before| before.draining != told.draining) {
            self.tell(Event::Drain { node: name.clone(), on: told.draining });
        }
        let before = before.map(|told| told.closed).unwrap_or_default();
        for gpu in before.keys().chain(told.closed.keys()).collect::<BTreeSet<_>>() {
            let closed = told.closed.get(gpu).copied();
            if again || before.get(gpu).copied() != closed {
                self.tell_gpu_health(id, &name, gpu.clone(), closed);
            }
        }
        if let Some(node) = self.nodes.get_mut(&id) {
            (node.told, node.retell) = (Some(told), false);
        }
    }

    /// GPU memory booked on each GPU of a node, in MiB.
    pub(crate) fn booked(&self, node: i64) -> BTreeMap<u32, u64> {
        let mut booked = BTreeMap::new();
        let jobs = self.nodes.get(&node).into_iter().flat_map(|node| &node.jobs);
        let seats = jobs.filter_map(|job| self.jobs.get(job)).flat_map(|job| &job.state.seats);
        for seat in seats.filter(|seat| seat.node == node && seat.state != SeatState::Ended) {
            for grant in &seat.grants {
                *booked.entry(grant.index).or_default() += grant.memory;
            }
        }
        booked
    }

    /// Utilisation and health of GPUs.
    fn tell_readings(&mut self, id: i64) {
        let Some(node) = self.nodes.get(&id).filter(|node| node.told.is_some()) else { return };
        let name = NodeId::from(node.row.node_id.as_str());
        let known: Vec<GpuId> =
            node.told.iter().flat_map(|told| &told.node.gpus).map(|gpu| gpu.id.clone()).collect();
        let mut readings = Vec::new();
        let mut health = Vec::new();
        for (index, reading) in node.readings.iter().enumerate() {
            let gpu = gpu_id(reading, index);
            if !known.contains(&gpu) {
                continue;
            }
            readings.extend(
                reading
                    .utilization
                    .and_then(|busy| Percent::new(busy).ok())
                    .map(|busy| (gpu.clone(), busy)),
            );
            let sick = reading.status == Some(GpuStatus::Error);
            if sick != node.sick.contains(gpu.as_str()) {
                health.push((gpu, sick));
            }
        }
        if !readings.is_empty() {
            self.tell(Event::Utilization { node: name.clone(), readings });
        }
        for (gpu, sick) in health {
            let (kind, verb) = if sick {
                (EventKind::GpuSick, "does not work")
            } else {
                (EventKind::GpuWell, "works again")
            };
            self.node_event(
                id,
                kind,
                format!("GPU {gpu} of node `{}` {verb}", node_name(self, id)),
            );
            if let Some(node) = self.nodes.get_mut(&id) {
                if sick {
                    node.sick.insert(gpu.to_string());
                } else {
                    node.sick.remove(gpu.as_str());
                }
            }
            let closed = self.nodes.get(&id).and_then(|node| node.told.as_ref());
            let closed = closed.and_then(|told| told.closed.get(&gpu)).copied();
            self.tell_gpu_health(id, &name, gpu, closed);
        }
    }

    /// Tells the engine whether a GPU can be used: one that does not work is sick, whoever closed it.
    fn tell_gpu_health(&mut self, id: i64, node: &NodeId, gpu: GpuId, closed: Option<GpuHealth>) {
        let sick = self.nodes.get(&id).is_some_and(|node| node.sick.contains(gpu.as_str()));
        let health = if sick { GpuHealth::Failed } else { closed.unwrap_or_default() };
        self.tell(Event::GpuHealth { node: node.clone(), gpu, health });
    }

    /// A node's stream was opened or closed, or its push endpoint began or ceased to answer.
    pub(crate) fn reach(&mut self, id: i64, way: Way) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        match way {
            Way::Stream(agent) => node.stream = agent,
            Way::Push(answers) => node.push_answers = answers,
        }
        if matches!(way, Way::Stream(Some(_)) | Way::Push(true)) {
            // Being reached is a sign of life too; leases are renewed by heartbeats alone.
            node.heard = true;
            if !node.lost {
                node.beat = node.beat.max(Instant::now());
            }
        }
        self.refresh_node(id);
    }
}

/// How work reaches a node.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    /// Over the stream of this agent, or no longer.
    Stream(Option<i64>),
    /// Its push endpoint answers, or does not.
    Push(bool),
}
