//! `GPUQueue` objects as written, as the engine knows them, and their status.

use agentaflow_engine::{Event, Queue as EngineQueue, QueueId, Quota};
use agentaflow_kube_core::crd::{GpuQueueSpec, GpuQueueStatus, QueueAmounts};
use agentaflow_kube_core::names;
use agentaflow_kube_core::slim::{Decoded, Queue};
use agentaflow_kube_core::translate;
use agentaflow_units::QuantityError;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::action::Action;
use super::engine_link::EngineLink;
use super::gang_table::GangTable;
use super::names_of;
use super::parked::Parked;

/// The root of the engine's queue tree.
const ROOT: &str = "root";

/// In `spec.namespaces`: every namespace.
const ALL_NAMESPACES: &str = "*";

#[derive(Debug, Default)]
pub(super) struct QueueTable {
    specs: BTreeMap<Arc<str>, GpuQueueSpec>,
    /// Queues that the engine knows.
    active: BTreeMap<Arc<str>, EngineQueue>,
    /// Deleted queues that still have workloads.
    leaving: BTreeSet<Arc<str>>,
    /// Errors of specs; the last readable spec stays in force.
    faults: BTreeMap<Arc<str>, String>,
    /// Queues whose last update could not be read.
    unreadable: BTreeSet<Arc<str>>,
    statuses: BTreeMap<Arc<str>, QueueStatusEntry>,
}

#[derive(Debug, Default)]
struct QueueStatusEntry {
    generation: Option<i64>,
    /// Status on the API server after the last write.
    status: GpuQueueStatus,
    /// This scheduler had workloads in the queue when it last wrote the status.
    ours: bool,
}

impl QueueTable {
    pub(super) fn contains(&self, name: &str) -> bool {
        self.specs.contains_key(name)
    }

    /// The highest priority that a queue allows, from 0 to 10.
    pub(super) fn max_priority(&self, queue: &QueueId) -> u8 {
        let spec = self.specs.get(queue.as_str());
        spec.map_or(names::HIGHEST_PRIORITY, |spec| spec.max_priority)
    }

    /// Records a queue; returns true if the engine and pending pods must be updated.
    pub(super) fn record(&mut self, queue: &Queue) -> bool {
        let name: Arc<str> = names_of(&queue.metadata).1.into();
        let entry = self.statuses.entry(name.clone()).or_default();
        entry.generation = queue.metadata.generation;
        entry.status = queue.status.clone();
        match &queue.spec.0 {
            Ok(spec) => {
                let unchanged = self.specs.get(&name) == Some(spec);
                let is_settled = self.active.contains_key(&name) || self.faults.contains_key(&name);
                if self.unreadable.remove(&name) || !unchanged {
                    self.faults.remove(&name);
                } else if is_settled {
                    return false;
                }
                self.leaving.remove(&name);
                self.specs.insert(name, (**spec).clone());
                true
            }
            Err(why) => {
                self.faults.insert(name.clone(), format!("cannot read the spec: {why}"));
                self.unreadable.insert(name);
                false
            }
        }
    }

    pub(super) fn remove(&mut self, queue: &Queue) {
        let name: Arc<str> = names_of(&queue.metadata).1.into();
        self.specs.remove(&name);
        self.faults.remove(&name);
        self.unreadable.remove(&name);
        self.statuses.remove(&name);
        if self.active.contains_key(&name) {
            self.leaving.insert(name);
        }
    }

    /// Removes queues from the engine's memory that were deleted or moved while no scheduler led, leaves first.
    pub(super) fn remove_stale(&self, engine: &mut EngineLink) {
        let facts = engine.scheduler().usage_history().queues;
        for known in facts.iter().rev().filter(|known| known.queue.id.as_str() != ROOT) {
            let spec = self.specs.get(known.queue.id.as_str());
            let parent = spec.map(|spec| spec.parent.as_deref().unwrap_or(ROOT));
            if parent != Some(known.queue.parent.as_str()) {
                // A queue with children is removed after its children.
                let _ = engine.try_send(Event::QueueRemoved(known.queue.id.clone()));
            }
        }
    }

    /// Sends every queue whose parent the engine knows, until no more can be sent; removes deleted queues that are empty.
    pub(super) fn sync(&mut self, engine: &mut EngineLink) {
        while let Some(name) = self.next_to_send() {
            let Some(spec) = self.specs.get(&name) else { break };
            let sent = engine_queue(&name, spec).and_then(|queue| {
                let event = Event::QueueUpdated(Box::new(queue.clone()));
                engine.try_send(event).map_err(|why| why.to_string())?;
                Ok(queue)
            });
            match sent {
                Ok(queue) => drop(self.active.insert(name, queue)),
                Err(why) => drop(self.faults.insert(name, why)),
            }
        }
        let active = &mut self.active;
        self.leaving.retain(|name| {
            let event = Event::QueueRemoved(QueueId::from(name.as_ref()));
            let removed = engine.try_send(event).is_ok();
            if removed {
                active.remove(name);
            }
            !removed
        });
    }

    fn next_to_send(&self) -> Option<Arc<str>> {
        let ready = self.specs.iter().find(|(name, spec)| {
            let parent = spec.parent.as_deref().unwrap_or(ROOT);
            (parent == ROOT || self.active.contains_key(parent))
                && !self.faults.contains_key(*name)
                && engine_queue(name, spec).as_ref().ok() != self.active.get(*name)
        });
        ready.map(|(name, _)| name.clone())
    }

    /// Queues with their specs and last statuses, without other metadata.
    pub(super) fn objects(&self) -> Vec<Queue> {
        let shown = |(name, spec): (&Arc<str>, &GpuQueueSpec)| Queue {
            metadata: ObjectMeta { name: Some(name.to_string()), ..ObjectMeta::default() },
            spec: Decoded(Ok(Box::new(spec.clone()))),
            status: self.statuses.get(name).map(|entry| entry.status.clone()).unwrap_or_default(),
        };
        self.specs.iter().map(shown).collect()
    }

    fn serves(&self, name: &str, namespace: &str) -> bool {
        let spec = self.specs.get(name);
        spec.is_some_and(|spec| {
            spec.namespaces.iter().any(|known| known == namespace || known == ALL_NAMESPACES)
        })
    }

    /// Queue of pods that name none: the only queue that lists the namespace, otherwise the only queue for all namespaces.
    fn default_of(&self, namespace: &str) -> Option<Arc<str>> {
        let naming = |wanted: &str| {
            let mut found = self.specs.iter().filter(|(name, spec)| {
                self.active.contains_key(*name)
                    && spec.namespaces.iter().any(|known| known == wanted)
            });
            found.next().filter(|_| found.next().is_none()).map(|(name, _)| name.clone())
        };
        naming(namespace).or_else(|| naming(ALL_NAMESPACES))
    }

    /// The queue of a workload in a namespace.
    pub(super) fn resolve(&self, named: Option<&str>, namespace: &str) -> Result<QueueId, Parked> {
        let Some(name) = named else { return self.resolve_default(namespace) };
        if !self.contains(name) {
            return Err(Parked::QueueMissing(name.to_owned()));
        }
        if !self.serves(name, namespace) {
            let (queue, namespace) = (name.to_owned(), namespace.to_owned());
            return Err(Parked::QueueForbidden { queue, namespace });
        }
        if !self.active.contains_key(name) {
            let fault = self.faults.get(name).cloned();
            return Err(Parked::QueueInvalid { queue: name.to_owned(), fault });
        }
        Ok(QueueId::from(name))
    }

    fn resolve_default(&self, namespace: &str) -> Result<QueueId, Parked> {
        if let Some(name) = self.default_of(namespace) {
            return Ok(QueueId::from(name.as_ref()));
        }
        let serving = self.specs.keys().filter(|name| self.serves(name, namespace));
        let mut queues: Vec<Arc<str>> = serving.cloned().collect();
        let namespace = namespace.to_owned();
        match queues.len() {
            0 => Ok(QueueId::from(ROOT)),
            1 => Err(Parked::QueueInactive { queue: queues.remove(0), namespace }),
            _ => Err(Parked::QueueAmbiguous { queues, namespace }),
        }
    }

    /// Writes of the statuses that changed.
    pub(super) fn status_writes(
        &mut self,
        engine: &mut EngineLink,
        gangs: &GangTable,
        scheduler_name: &str,
        now: jiff::Timestamp,
    ) -> Vec<Action> {
        if !self.leaving.is_empty() {
            self.sync(engine);
        }
        let used: BTreeMap<Arc<str>, u64> = engine
            .scheduler()
            .queues()
            .into_iter()
            .map(|queue| (queue.id.as_str().into(), queue.used.gpu_milli.max(0) as u64))
            .collect();
        let past: BTreeMap<Arc<str>, u64> = engine
            .scheduler()
            .usage_history()
            .queues
            .iter()
            .map(|facts| (facts.queue.id.as_str().into(), f64::from_bits(facts.past[1][3]) as u64))
            .collect();
        let counts = count_by_queue(gangs);
        let at = Time(jiff::Timestamp::from_second(now.as_second()).unwrap_or(now));
        let mut actions = Vec::new();
        for (queue, entry) in &mut self.statuses {
            let (running, pending) = counts.get(queue).copied().unwrap_or_default();
            let used_milli_gpus = used.get(queue).copied().unwrap_or_default();
            let busy = running > 0 || pending > 0 || used_milli_gpus > 0;
            let mut status = entry.status.clone();
            status.observed_generation = entry.generation;
            // Numbers of another scheduler with workloads in the queue stay.
            if busy || entry.ours || scheduler_name == names::SCHEDULER_NAME {
                status.running = running;
                status.pending = pending;
                status.used_milli_gpus = used_milli_gpus;
            }
            entry.ours = busy;
            let fault = self.faults.get(queue);
            let ready = readiness(fault, self.active.contains_key(queue));
            set_ready(&mut status.conditions, ready, entry.generation, &at);
            if status != entry.status {
                // Changes all the time, and is no reason for a write by itself.
                status.past_milli_gpus = past.get(queue).copied().unwrap_or_default();
                entry.status = status.clone();
                let (queue, status) = (queue.clone(), Box::new(status));
                actions.push(Action::WriteQueueStatus { queue, status });
            }
        }
        actions
    }
}

/// Running and pending workloads by queue.
fn count_by_queue(gangs: &GangTable) -> BTreeMap<Arc<str>, (u32, u32)> {
    let mut counts: BTreeMap<Arc<str>, (u32, u32)> = BTreeMap::new();
    for (_, gang) in gangs.iter() {
        let count = counts.entry(gang.traits.queue.as_str().into()).or_default();
        if gang.placed {
            count.0 += 1;
        } else {
            count.1 += 1;
        }
    }
    counts
}

/// Status, reason and message of the condition `Ready`.
fn readiness(fault: Option<&String>, active: bool) -> (&'static str, &'static str, String) {
    match fault {
        Some(why) => ("False", "Invalid", why.clone()),
        None if active => ("True", "InForce", "The queue is in force.".to_owned()),
        None => ("False", "ParentMissing", "The parent queue is not in force.".to_owned()),
    }
}

fn set_ready(
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

fn engine_queue(name: &str, spec: &GpuQueueSpec) -> Result<EngineQueue, String> {
    if name == ROOT {
        return Err("`root` is the name of the root queue; choose another".to_owned());
    }
    Ok(EngineQueue {
        parent: QueueId::from(spec.parent.as_deref().unwrap_or(ROOT)),
        weight: spec.weight,
        guaranteed: quota(&spec.guaranteed)?,
        limit: quota(&spec.limit)?,
        borrow: spec.borrow,
        ..EngineQueue::new(name)
    })
}

fn quota(amounts: &QueueAmounts) -> Result<Quota, String> {
    let read = |text: &Option<String>, read: fn(&str) -> Result<u64, QuantityError>| {
        text.as_deref().map(read).transpose().map_err(|error| error.to_string())
    };
    let milli = |gpus: u32| u64::from(gpus) * 1000;
    let models = amounts.models.iter();
    let resources = amounts.resources.iter();
    Ok(Quota {
        cpu: read(&amounts.cpu, translate::milli_cpu)?,
        memory: read(&amounts.memory, translate::mebibytes)?,
        storage: None,
        gpu: amounts.gpus.map(milli),
        models: models.map(|(model, gpus)| (model.as_str().into(), milli(*gpus))).collect(),
        resources: resources.map(|(name, amount)| (name.as_str().into(), *amount)).collect(),
    })
}
