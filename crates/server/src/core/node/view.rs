//! Nodes as the API shows them.

use std::time::Instant;

use agentaflow_api::node::{GpuInstance, GpuStatus, Health, Node, NodeStatus};
use agentaflow_api::units::Cores;

use agentaflow_api::ids::{AgentId, JobId, UserId};
use agentaflow_engine::NodeRoom;

use super::LiveNode;
use super::description::{gpu_id, instances};

/// Published view of a node. The status depends on the time, because a silent node becomes inactive.
#[derive(Clone, Debug)]
pub(crate) struct NodeView {
    node: Node,
    /// End of the status in `node` without another heartbeat; none if time does not change it.
    alive_until: Option<Instant>,
    /// Agent with an open stream.
    stream: Option<AgentId>,
    /// The push agent answers.
    answers: bool,
    /// None if the engine does not know the node.
    room: Option<NodeRoom>,
    holders: Vec<GpuHolder>,
    /// The node made contact since the server started, or is lost.
    settled: bool,
}

/// A job that holds a GPU of a node, or a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GpuHolder {
    pub(crate) gpu: u32,
    pub(crate) job: JobId,
    pub(crate) user: UserId,
}

impl NodeView {
    /// View without status and readings, for names and ids.
    pub(crate) fn node(&self) -> &Node {
        &self.node
    }

    /// Free amounts; none if the engine does not know the node.
    pub(crate) fn room(&self) -> Option<NodeRoom> {
        self.room
    }

    /// Returns false while a server that has restarted waits for the first contact of the node.
    pub(crate) fn is_settled(&self) -> bool {
        self.settled
    }

    /// Jobs with GPUs of the node.
    pub(crate) fn holders(&self) -> &[GpuHolder] {
        &self.holders
    }

    /// The node as of now.
    pub(crate) fn shown(&self) -> Node {
        Node { status: self.status(), ..self.node.clone() }
    }

    /// Returns true if this agent is connected.
    pub(crate) fn is_connected(&self, agent: AgentId) -> bool {
        self.stream == Some(agent) || self.answers
    }

    /// Returns true if a task with this amount of memory on one GPU and these thousandths of a core fits.
    pub(crate) fn has_room(&self, gpu_memory: u64, cpu_milli: u64) -> bool {
        let fits = |free: i64, wanted: u64| u64::try_from(free).is_ok_and(|free| free >= wanted);
        let Some(room) = self.room else { return false };
        let gpu = room.gpu_memory_free.is_some_and(|free| fits(free.into(), gpu_memory));
        room.takes_tasks
            && (gpu_memory == 0 || gpu)
            && (cpu_milli == 0 || fits(room.cpu_free, cpu_milli))
    }

    pub(crate) fn status(&self) -> NodeStatus {
        match self.alive_until {
            Some(end) if end <= Instant::now() => silent_status(&self.node),
            _ => self.node.status,
        }
    }
}

fn silent_status(node: &Node) -> NodeStatus {
    let unapproved = node.pending_registration.as_ref().is_some_and(|claim| !claim.approved);
    if unapproved || node.last_heartbeat.is_none() {
        NodeStatus::Pending
    } else {
        NodeStatus::Inactive
    }
}

impl LiveNode {
    /// View for readers; `room` comes from the engine.
    pub(crate) fn view(&self, room: Option<NodeRoom>) -> NodeView {
        let node = self.api_node();
        let depends_on_time = matches!(node.status, NodeStatus::Active | NodeStatus::Error);
        let alive_until = self.alive_until().filter(|_| depends_on_time);
        let (stream, answers) = (self.stream, self.push.answers());
        let holders = self.tasks.iter().flat_map(|(task, booking)| {
            let holder = |index| GpuHolder { gpu: index, job: task.job, user: booking.user };
            booking.gpus.iter().map(move |gpu| holder(gpu.index))
        });
        let holders = holders.collect();
        let settled = self.was_contacted() || self.is_lost();
        NodeView { node, alive_until, stream, answers, room, holders, settled }
    }

    fn api_node(&self) -> Node {
        let row = &self.row;
        let booked =
            |amount: fn(&super::TaskBooking) -> u64| self.tasks.values().map(amount).sum::<u64>();
        let booked_gpu: u64 = self.booked_gpu_memory().values().sum();
        let reported = self.reported_free;
        let reported_gpu = reported.gpu_memory.or_else(|| self.free_gpu_memory_of_readings());
        let spec = &row.spec;
        let mut node = Node {
            id: row.id,
            node_id: row.node_id.clone(),
            gpu_memory_available: self.free(
                spec.gpu_memory_total,
                booked_gpu,
                reported_gpu.filter(|_| !spec.simulated),
            ),
            cpu_cores_available: Cores(self.free(
                spec.cpu_cores.0,
                booked(|task| task.cpu_milli),
                reported.cpu_milli,
            )),
            memory_available: self.free(
                spec.memory_total,
                booked(|task| task.memory),
                reported.memory,
            ),
            storage_available: self.free(
                spec.storage_total,
                booked(|task| task.storage),
                reported.storage,
            ),
            status: self.status(),
            health_status: row.health,
            last_heartbeat: self.last_heartbeat(),
            current_jobs: self.jobs().len() as u32,
            registered_at: row.registered_at,
            last_seen: self.last_heartbeat().max(Some(row.registered_at)),
            created_at: row.created_at,
            updated_at: row.updated_at,
            price_source: row.price_source,
            cordoned_gpus: row.overrides.cordoned_gpus.iter().cloned().collect(),
            draining_gpus: row.overrides.draining_gpus.iter().cloned().collect(),
            cordoned: row.cordoned,
            draining: row.draining,
            reachable: self.is_reachable(),
            lease_ms: None,
            pending_registration: row.claim.clone(),
            api_key: None,
            spec: spec.clone(),
        };
        // Existing clients require a text.
        node.spec.k8s_namespace.get_or_insert_with(|| "default".to_owned());
        if !self.readings.is_empty() {
            node.spec.gpu_instances = self.gpus_with_readings();
        }
        node
    }

    /// The smaller of the reported amount and the amount that is not booked.
    fn free(&self, total: u64, booked: u64, reported: Option<u64>) -> u64 {
        if self.is_kubernetes() {
            return reported.map_or(total, |free| free.min(total)).saturating_sub(booked);
        }
        let unbooked = total.saturating_sub(booked);
        reported.map_or(unbooked, |free| free.min(unbooked))
    }

    fn free_gpu_memory_of_readings(&self) -> Option<u64> {
        let mut reported =
            self.readings.iter().filter_map(|reading| reading.gpu_memory_available).peekable();
        reported.peek()?;
        Some(reported.sum())
    }

    fn status(&self) -> NodeStatus {
        if self.row.cordoned || self.row.draining {
            NodeStatus::Maintenance
        } else if self.is_lost() {
            self.silent_status()
        } else if self.is_alive() {
            match self.row.health {
                Health::Unhealthy => NodeStatus::Error,
                _ => NodeStatus::Active,
            }
        } else {
            self.silent_status()
        }
    }

    fn silent_status(&self) -> NodeStatus {
        let unapproved = self.row.claim.as_ref().is_some_and(|claim| !claim.approved);
        if unapproved || (!self.is_lost() && self.last_heartbeat().is_none()) {
            NodeStatus::Pending
        } else {
            NodeStatus::Inactive
        }
    }

    /// GPUs with their last readings. A booked GPU is busy before the node reports that it is used.
    pub(crate) fn gpus_with_readings(&self) -> Vec<GpuInstance> {
        let mut all = instances(&self.row.spec);
        let booked = self.booked_gpu_memory();
        for (position, gpu) in all.iter_mut().enumerate() {
            let wanted = gpu_id(gpu, position);
            let mut readings = self.readings.iter().enumerate();
            let reading = readings.find(|(at, reading)| gpu_id(reading, *at) == wanted);
            let Some((_, reading)) = reading else { continue };
            *gpu = with_reading(gpu, reading);
            if self.is_kubernetes() {
                // The kubelet assigns the devices.
                continue;
            }
            let given = booked.get(&gpu.gpu_index.unwrap_or(position as u32)).copied();
            gpu.status = match (gpu.status, given) {
                (None | Some(GpuStatus::Available), Some(_)) => Some(GpuStatus::Busy),
                // An agent of this project reports booked GPUs as busy; a push agent may mean foreign use.
                (Some(GpuStatus::Busy), None) if self.stream.is_some() => {
                    Some(GpuStatus::Available)
                }
                (reported, _) => reported,
            };
            if self.row.spec.simulated {
                let given = given.unwrap_or(0);
                gpu.gpu_memory_available = gpu.gpu_memory.map(|all| all.saturating_sub(given));
            }
        }
        all
    }
}

/// A reading, completed with the registered facts of its GPU.
fn with_reading(facts: &GpuInstance, reading: &GpuInstance) -> GpuInstance {
    let (facts, reading) = (facts.clone(), reading.clone());
    GpuInstance {
        gpu_index: facts.gpu_index.or(reading.gpu_index),
        gpu_uuid: facts.gpu_uuid.or(reading.gpu_uuid),
        gpu_name: facts.gpu_name.or(reading.gpu_name),
        gpu_type: facts.gpu_type.or(reading.gpu_type),
        gpu_memory: facts.gpu_memory.or(reading.gpu_memory),
        nvlink_group: facts.nvlink_group.or(reading.nvlink_group),
        pci_bus_id: facts.pci_bus_id.or(reading.pci_bus_id),
        mig: facts.mig.or(reading.mig),
        power_limit: reading.power_limit.or(facts.power_limit),
        ..reading
    }
}
