//! How nodes look from outside.

use agentaflow_api::node::{GpuInstance, GpuStatus, Health, Node, NodeStatus};
use agentaflow_api::units::Cores;

use super::describe::{gpu_id, instances};
use super::state::State;
use crate::store::SeatState;

impl State {
    /// A node.
    pub(crate) fn show_node(&self, id: i64) -> Option<Node> {
        let node = self.nodes.get(&id)?;
        let row = &node.row;
        let spec = &row.spec;
        let (mut gpu, mut cpu, mut memory, mut storage) = (0, 0, 0, 0);
        for job in node.jobs.iter().filter_map(|job| self.jobs.get(job)) {
            for seat in job
                .state
                .seats
                .iter()
                .filter(|seat| seat.node == id && seat.state != SeatState::Ended)
            {
                gpu += seat.grants.iter().map(|grant| grant.memory).sum::<u64>();
                cpu += job.spec.cpu_cores_required.unwrap_or_default().0;
                memory += job.spec.memory_required.unwrap_or(0);
                storage += job.spec.storage_required.unwrap_or(0);
            }
        }
        // The smaller of what the node says and what is not booked.
        let free = |total: u64, booked: u64, said: Option<u64>| {
            if node.is_kubernetes() {
                return said.map_or(total, |said| said.min(total)).saturating_sub(booked);
            }
            let unbooked = total.saturating_sub(booked);
            said.map_or(unbooked, |said| said.min(unbooked))
        };
        let reported: Vec<u64> =
            node.readings.iter().filter_map(|reading| reading.gpu_memory_available).collect();
        let said_gpu =
            node.said_free[0].or_else(|| (!reported.is_empty()).then(|| reported.iter().sum()));
        let mut spec = spec.clone();
        if !node.readings.is_empty() {
            spec.gpu_instances = self.merged_readings(id);
        }
        Some(Node {
            id,
            node_id: row.node_id.clone(),
            gpu_memory_available: free(
                spec.gpu_memory_total,
                gpu,
                said_gpu.filter(|_| !spec.simulated),
            ),
            cpu_cores_available: Cores(free(spec.cpu_cores.0, cpu, node.said_free[1])),
            memory_available: free(spec.memory_total, memory, node.said_free[2]),
            storage_available: free(spec.storage_total, storage, node.said_free[3]),
            status: self.status_of(id),
            health_status: row.health,
            last_heartbeat: node.beat_at,
            current_jobs: node.jobs.len() as u32,
            registered_at: row.registered_at,
            last_seen: node.beat_at.max(Some(row.registered_at)),
            created_at: row.created_at,
            updated_at: row.updated_at,
            price_source: row.price_source,
            cordoned_gpus: row.overrides.cordoned_gpus.iter().cloned().collect(),
            draining_gpus: row.overrides.draining_gpus.iter().cloned().collect(),
            cordoned: row.cordoned,
            draining: row.draining,
            reachable: node.reachable(),
            api_key: None,
            spec,
        })
    }

    fn status_of(&self, id: i64) -> NodeStatus {
        let Some(node) = self.nodes.get(&id) else { return NodeStatus::Inactive };
        if node.row.cordoned || node.row.draining {
            NodeStatus::Maintenance
        } else if node.lost {
            NodeStatus::Inactive
        } else if node.alive() {
            match node.row.health {
                Health::Unhealthy => NodeStatus::Error,
                _ => NodeStatus::Active,
            }
        } else if node.beat_at.is_none() {
            NodeStatus::Pending
        } else {
            NodeStatus::Inactive
        }
    }

    /// A node's GPUs with their last readings. What is given out is known before a node says that it is used.
    pub(crate) fn merged_readings(&self, id: i64) -> Vec<GpuInstance> {
        let Some(node) = self.nodes.get(&id) else { return Vec::new() };
        let mut all = instances(&node.row.spec);
        let booked = self.booked(id);
        for (position, gpu) in all.iter_mut().enumerate() {
            let wanted = gpu_id(gpu, position);
            let mut readings = node.readings.iter().enumerate();
            let reading = readings.find(|(at, reading)| gpu_id(reading, *at) == wanted);
            let Some((_, reading)) = reading else { continue };
            *gpu = with_reading(gpu, reading);
            if node.is_kubernetes() {
                // Which devices work has there, the kubelet decides.
                continue;
            }
            let given = booked.get(&gpu.gpu_index.unwrap_or(position as u32)).copied();
            gpu.status = match (gpu.status, given) {
                (None | Some(GpuStatus::Available), Some(_)) => Some(GpuStatus::Busy),
                // Our agents call busy what we gave out; workers of others may mean more.
                (Some(GpuStatus::Busy), None) if node.stream.is_some() => {
                    Some(GpuStatus::Available)
                }
                (said, _) => said,
            };
            if node.row.spec.simulated {
                let given = given.unwrap_or(0);
                gpu.gpu_memory_available = gpu.gpu_memory.map(|all| all.saturating_sub(given));
            }
        }
        all
    }
}

/// A reading, with what is known for good about its GPU.
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
        ..reading
    }
}
