//! What queues use and whether they are in force, told on the queues themselves.

use agentaflow_kube_core::crd::GpuQueueStatus;
use agentaflow_kube_core::names;
use agentaflow_kube_core::slim::Queue;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use std::collections::BTreeMap;
use std::sync::Arc;

use super::action::Action;
use super::queues::Queues;
use super::workloads::timestamp;
use super::{ClusterState, names_of};

/// A queue as people see it.
#[derive(Debug, Default)]
pub(super) struct QueueStatusEntry {
    generation: Option<i64>,
    /// What the API server has, or will have when our last word is written.
    status: GpuQueueStatus,
    /// Work of it is ours, or was when we last spoke.
    ours: bool,
}

impl ClusterState {
    /// The status of every queue that is not as it was last told.
    pub fn queue_statuses(&mut self) -> Vec<Action> {
        if !self.begun {
            return Vec::new();
        }
        if self.queues.is_leaving() {
            self.apply_queues();
        }
        let used: BTreeMap<Arc<str>, u64> = self
            .engine
            .queues()
            .into_iter()
            .map(|queue| (queue.id.as_str().into(), queue.used[3].max(0) as u64))
            .collect();
        let past: BTreeMap<Arc<str>, u64> = self
            .engine
            .usage_history()
            .queues
            .iter()
            .map(|facts| (facts.queue.id.as_str().into(), f64::from_bits(facts.past[1][3]) as u64))
            .collect();
        let counts = self.count_by_queue();
        let now = timestamp(self.now);
        let at = Time(jiff::Timestamp::from_second(now.as_second()).unwrap_or(now));
        let mut acts = Vec::new();
        let mut shown = std::mem::take(&mut self.queues.shown);
        for (queue, entry) in &mut shown {
            let (running, pending) = counts.get(queue).copied().unwrap_or_default();
            let used_milli_gpus = used.get(queue).copied().unwrap_or_default();
            let busy = running > 0 || pending > 0 || used_milli_gpus > 0;
            let mut status = entry.status.clone();
            status.observed_generation = entry.generation;
            // Where another scheduler has work in the queue, its word stands.
            if busy || entry.ours || self.settings.scheduler_name == names::SCHEDULER_NAME {
                (status.running, status.pending) = (running, pending);
                status.used_milli_gpus = used_milli_gpus;
            }
            entry.ours = busy;
            settle(&mut status.conditions, self.queues.readiness(queue), entry.generation, &at);
            if status != entry.status {
                // It moves all the time, and is no reason to write by itself.
                status.past_milli_gpus = past.get(queue).copied().unwrap_or_default();
                entry.status = status.clone();
                acts.push(Action::QueueStatus { queue: queue.clone(), status: Box::new(status) });
            }
        }
        self.queues.shown = shown;
        acts
    }

    /// Workloads that run and that wait, by queue.
    fn count_by_queue(&self) -> BTreeMap<Arc<str>, (u32, u32)> {
        let mut counts: BTreeMap<Arc<str>, (u32, u32)> = BTreeMap::new();
        for group in self.groups.values() {
            let count = counts.entry(group.traits.queue.as_str().into()).or_default();
            if group.placed {
                count.0 += 1;
            } else {
                count.1 += 1;
            }
        }
        counts
    }
}

impl Queues {
    /// A queue was seen.
    pub(super) fn show(&mut self, queue: &Queue) {
        let entry = self.shown.entry(names_of(&queue.metadata).1.into()).or_default();
        (entry.generation, entry.status) = (queue.metadata.generation, queue.status.clone());
    }

    /// Status, reason and sentence of the condition `Ready`.
    fn readiness(&self, queue: &str) -> (&'static str, &'static str, String) {
        match self.faults.get(queue) {
            Some(why) => ("False", "Invalid", why.clone()),
            None if self.is_in_force(queue) => ("True", "InForce", "It is in force.".to_owned()),
            None => ("False", "ParentMissing", "The queue above it is not in force.".to_owned()),
        }
    }
}

fn settle(
    conditions: &mut Vec<Condition>,
    (status, reason, message): (&str, &str, String),
    observed_generation: Option<i64>,
    at: &Time,
) {
    let old = conditions.iter().position(|condition| condition.type_ == "Ready");
    let old = old.map(|index| conditions.remove(index));
    let since = old.filter(|old| old.status == status).map(|old| old.last_transition_time);
    conditions.push(Condition {
        type_: "Ready".to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation,
        last_transition_time: since.unwrap_or_else(|| at.clone()),
    });
}
