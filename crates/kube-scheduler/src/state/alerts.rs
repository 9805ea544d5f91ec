//! Facts for the alert rules. The rules are in the crate `agentaflow-alerts`.

use agentaflow_alerts::SchedulerFacts;
use agentaflow_alerts::{ClusterFacts, Facts, GpuFacts, JobFacts, NodeFacts, QueueFacts};
use agentaflow_api::units::Stamp;
use agentaflow_engine::Time;
use agentaflow_kube_core::crd::{GpuDevice, GpuNode, GpuNodePhase, GpuStatus};
use std::collections::BTreeMap;

use super::ClusterState;
use super::gang_table::Gang;

impl ClusterState {
    /// The cluster as of now; the time is the start of the current turn.
    pub fn alert_facts(&self, now: Time) -> Facts {
        let mut facts = Facts {
            scheduler: Some(SchedulerFacts { last_turn: stamp(now) }),
            queues: self.queue_facts(),
            ..Facts::default()
        };
        for (devices, lost) in self.nodes.reports() {
            add_node(&mut facts, devices, lost);
        }
        let readings = facts.gpus.iter().filter(|gpu| !gpu.stale);
        let readings: Vec<f64> = readings.filter_map(|gpu| gpu.utilization).collect();
        let mean = readings.iter().sum::<f64>() / (readings.len().max(1) as f64);
        let pending = self.gangs.iter().filter(|(_, gang)| !gang.placed).count() as u64;
        let utilization = Some(mean).filter(|_| !readings.is_empty());
        facts.cluster = Some(ClusterFacts { utilization, pending });
        facts
    }

    /// Oldest pending workload of each queue.
    fn queue_facts(&self) -> Vec<QueueFacts> {
        let mut oldest: BTreeMap<&str, Time> = BTreeMap::new();
        for (_, gang) in self.gangs.iter().filter(|(_, gang)| !gang.placed && !gang.gated) {
            let Some(created) = self.created(gang) else { continue };
            let first = oldest.entry(gang.traits.queue.as_str()).or_insert(created);
            *first = (*first).min(created);
        }
        let queue = |(name, created): (&str, Time)| QueueFacts {
            name: name.to_owned(),
            oldest_pending: Some(stamp(created)),
        };
        oldest.into_iter().map(queue).collect()
    }

    /// Creation time of the oldest pod of a gang.
    fn created(&self, gang: &Gang) -> Option<Time> {
        let pods = gang.members.values().filter_map(|key| self.pods.get(key));
        pods.map(|pod| pod.created).min()
    }
}

fn add_node(facts: &mut Facts, devices: &GpuNode, lost: bool) {
    let status = devices.status.clone().unwrap_or_default();
    let maintenance = status.phase == Some(GpuNodePhase::Maintenance);
    let name = &devices.spec.node_name;
    facts.nodes.push(NodeFacts {
        name: name.clone(),
        // A node in maintenance may be powered off.
        silent: lost && !maintenance,
        unknown: false,
        last_report: status.last_updated.as_ref().map(|time| Stamp(time.0.as_millisecond())),
    });
    for reading in &status.gpu_status {
        let device = devices.spec.gpu_devices.iter().find(|device| device.id == reading.id);
        facts.gpus.push(gpu_facts(name, reading, device, lost));
    }
}

fn gpu_facts(node: &str, reading: &GpuStatus, device: Option<&GpuDevice>, stale: bool) -> GpuFacts {
    let workload = reading.current_workload.as_ref();
    let job = workload.map(|job| JobFacts {
        job: job.clone(),
        user: job.split_once('/').map(|(namespace, _)| namespace.to_owned()),
    });
    GpuFacts {
        node: node.to_owned(),
        gpu: reading.id.clone(),
        stale,
        lost: reading.lost,
        problem: reading.reason.clone(),
        xid: reading.xid,
        ecc_errors: reading.ecc_errors,
        // The readings of a lost device are zero.
        temperature: Some(reading.temperature).filter(|_| !reading.lost),
        power: Some(reading.power_usage).filter(|_| !reading.lost),
        power_limit: reading.power_limit,
        utilization: Some(reading.utilization).filter(|_| !reading.lost),
        memory_used: Some(reading.memory_used),
        memory_total: device.map(|device| device.memory_total),
        job,
    }
}

fn stamp(time: Time) -> Stamp {
    Stamp(i64::try_from(time.0).unwrap_or(i64::MAX))
}
