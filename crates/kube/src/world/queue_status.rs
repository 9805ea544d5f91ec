//! What queues show: how much they use, how many wait.

use agentaflow_engine::Time;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time as Moment};
use std::collections::BTreeMap;
use std::sync::Arc;

use super::World;
use super::acts::Act;
use super::workloads::timestamp;
use crate::crd::GpuQueueStatus;

/// How often queues are looked at, in milliseconds: their numbers change with every pod.
const PAUSE: u64 = 5_000;
/// The place of GPUs among the resources that queues are charged for.
const GPUS: usize = 3;

impl World {
    /// Writes the statuses of queues that changed.
    pub(super) fn show_queues(&mut self) {
        if self.queues.generations.is_empty() || self.now.0 < self.queues.shown.1.0 + PAUSE {
            return;
        }
        self.queues.shown.1 = self.now;
        let mut counts: BTreeMap<&str, (u32, u32)> = BTreeMap::new();
        for group in self.groups.values() {
            let (pending, running) = counts.entry(group.traits.queue.as_str()).or_default();
            *(if group.placed { running } else { pending }) += 1;
        }
        let memory = self.engine.memory();
        let past: BTreeMap<&str, f64> = memory
            .queues
            .iter()
            .map(|facts| (facts.queue.id.as_str(), f64::from_bits(facts.past[1][GPUS])))
            .collect();
        let used: BTreeMap<String, i64> = self
            .engine
            .queues()
            .into_iter()
            .map(|view| (view.id.to_string(), view.used[GPUS]))
            .collect();
        let mut acts = Vec::new();
        for (name, generation) in &self.queues.generations {
            let old = self.queues.shown.0.get(name).cloned().unwrap_or_default();
            let (pending, running) = counts.get(&**name).copied().unwrap_or_default();
            let status = GpuQueueStatus {
                used_milli_gpus: used.get(&**name).copied().unwrap_or_default().max(0) as u64,
                pending,
                running,
                past_milli_gpus: past.get(&**name).copied().unwrap_or_default().max(0.0) as u64,
                conditions: vec![self.condition(name, *generation, &old)],
                observed_generation: Some(*generation),
            };
            if status != old {
                acts.push((name.clone(), status));
            }
        }
        for (queue, status) in acts {
            self.queues.shown.0.insert(queue.clone(), status.clone());
            self.acts.push(Act::QueueStatus { queue, status: Box::new(status) });
        }
    }

    fn condition(&self, name: &Arc<str>, generation: i64, old: &GpuQueueStatus) -> Condition {
        let fault = self.queues.faults.get(name);
        let (status, reason, message) = match fault {
            Some(fault) => ("False", "Invalid", fault.clone()),
            None => ("True", "Accepted", "its share is in force".to_owned()),
        };
        let same =
            old.conditions.iter().find(|known| known.type_ == "Ready" && known.status == status);
        let now = Moment(timestamp(Time(self.now.0 / 1000 * 1000)));
        Condition {
            type_: "Ready".to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message,
            last_transition_time: same.map_or(now, |known| known.last_transition_time.clone()),
            observed_generation: Some(generation),
        }
    }
}
