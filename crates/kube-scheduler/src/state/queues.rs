//! Queues: shares of the cluster for some namespaces.

use agentaflow_engine::{Event, Queue as EngineQueue, QueueId, Quota};
use agentaflow_kube_core::crd::{GpuQueueSpec, QueueAmounts};
use agentaflow_kube_core::names;
use agentaflow_kube_core::slim::Queue;
use agentaflow_kube_core::translate;
use agentaflow_units::QuantityError;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::membership::because;
use super::pod_entry::Parked;
use super::queue_status::QueueStatusEntry;
use super::{ClusterState, names_of};

/// The queue above all.
const ROOT: &str = "root";

/// Every namespace.
const ALL: &str = "*";

/// The queues as people wrote them, and what the engine was told.
#[derive(Debug, Default)]
pub(super) struct Queues {
    specs: BTreeMap<Arc<str>, GpuQueueSpec>,
    told: BTreeMap<Arc<str>, EngineQueue>,
    /// Gone, but work of theirs is still there.
    leaving: BTreeSet<Arc<str>>,
    /// What is wrong with a queue.
    pub(super) faults: BTreeMap<Arc<str>, String>,
    /// Queues that could not be read when they were last seen.
    unread: BTreeSet<Arc<str>>,
    /// What is told on the queues themselves.
    pub(super) shown: BTreeMap<Arc<str>, QueueStatusEntry>,
}

impl Queues {
    pub(super) fn contains(&self, name: &str) -> bool {
        self.specs.contains_key(name)
    }

    pub(super) fn is_in_force(&self, name: &str) -> bool {
        self.told.contains_key(name)
    }

    /// The highest priority in a queue, those above it included.
    pub(super) fn highest_priority(&self, queue: &QueueId) -> u8 {
        self.told.get(queue.as_str()).map_or(10, |queue| queue.max_priority)
    }

    fn names_namespace(&self, name: &str, namespace: &str) -> bool {
        let spec = self.specs.get(name);
        spec.is_some_and(|spec| {
            spec.namespaces.iter().any(|known| known == namespace || known == ALL)
        })
    }

    /// Whether a queue is to go as soon as its work is gone.
    pub(super) fn is_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// The queues that are meant for a namespace.
    fn naming(&self, namespace: &str) -> Vec<&Arc<str>> {
        self.specs.keys().filter(|name| self.names_namespace(name, namespace)).collect()
    }

    /// The queue of a namespace that names none: the only one that names it, else the only one for all.
    fn default_of(&self, namespace: &str) -> Option<Arc<str>> {
        let naming = |wanted: &str| {
            let mut found = self.specs.iter().filter(|(name, spec)| {
                self.told.contains_key(*name) && spec.namespaces.iter().any(|known| known == wanted)
            });
            found.next().filter(|_| found.next().is_none()).map(|(name, _)| name.clone())
        };
        naming(namespace).or_else(|| naming(ALL))
    }
}

impl ClusterState {
    pub(super) fn see_queue(&mut self, queue: &Queue) {
        let name: Arc<str> = names_of(&queue.metadata).1.into();
        self.queues.show(queue);
        match &queue.spec.0 {
            Ok(spec) => {
                let same = self.queues.specs.get(&name) == Some(spec);
                let judged =
                    self.queues.told.contains_key(&name) || self.queues.faults.contains_key(&name);
                if self.queues.unread.remove(&name) || !same {
                    self.queues.faults.remove(&name);
                } else if judged {
                    return;
                }
                self.queues.leaving.remove(&name);
                self.queues.specs.insert(name, (**spec).clone());
            }
            Err(why) => {
                // What was last understood stays in force.
                self.queues.faults.insert(name.clone(), format!("cannot be read: {why}"));
                self.queues.unread.insert(name);
                return;
            }
        }
        if self.begun {
            self.apply_queues();
            self.requeue_pods();
        }
    }

    pub(super) fn lose_queue(&mut self, queue: &Queue) {
        let name: Arc<str> = names_of(&queue.metadata).1.into();
        self.queues.specs.remove(&name);
        self.queues.faults.remove(&name);
        self.queues.unread.remove(&name);
        self.queues.shown.remove(&name);
        if self.queues.told.contains_key(&name) {
            self.queues.leaving.insert(name);
        }
        if self.begun {
            self.requeue_pods();
            self.apply_queues();
        }
    }

    /// What the engine remembers of queues that were removed or moved while nobody led is forgotten, leaves first.
    pub(super) fn forget_queues(&mut self) {
        let facts = self.engine.usage_history().queues;
        for known in facts.iter().rev().filter(|known| known.queue.id.as_str() != ROOT) {
            let spec = self.queues.specs.get(known.queue.id.as_str());
            let parent = spec.map(|spec| spec.parent.as_deref().unwrap_or(ROOT));
            if parent != Some(known.queue.parent.as_str()) {
                // One with others below it goes when they are gone.
                let _ = self.engine.apply(self.now, Event::QueueRemoved(known.queue.id.clone()));
            }
        }
    }

    /// Tells the engine every queue whose parent it knows, again and again until nothing more is possible.
    pub(super) fn apply_queues(&mut self) {
        loop {
            let ready = self.queues.specs.iter().find(|(name, spec)| {
                let parent = spec.parent.as_deref().unwrap_or(ROOT);
                let known = parent == ROOT || self.queues.told.contains_key(parent);
                let wanted = engine_queue(name, spec);
                known
                    && !self.queues.faults.contains_key(*name)
                    && wanted.as_ref().ok() != self.queues.told.get(*name)
            });
            let Some((name, spec)) = ready else { break };
            let name = name.clone();
            let told = engine_queue(&name, spec).and_then(|queue| {
                let event = Event::QueueUpdated(Box::new(queue.clone()));
                self.engine.apply(self.now, event).map_err(|why| why.to_string())?;
                Ok(queue)
            });
            match told {
                Ok(queue) => {
                    self.queues.told.insert(name, queue);
                }
                Err(why) => {
                    self.queues.faults.insert(name, why);
                }
            }
        }
        for name in self.queues.leaving.clone() {
            let event = Event::QueueRemoved(QueueId::from(name.as_ref()));
            if self.engine.apply(self.now, event).is_ok() {
                self.queues.leaving.remove(&name);
                self.queues.told.remove(&name);
            }
        }
    }

    /// Pods that wait may belong to another queue now.
    fn requeue_pods(&mut self) {
        let waiting = self.pods.iter().filter(|(_, entry)| {
            entry.pod.as_ref().is_some_and(|pod| pod.spec.node_name.is_none())
        });
        let waiting: Vec<_> = waiting.map(|(key, _)| key.clone()).collect();
        self.stuck.extend(waiting);
    }

    /// The queue of a workload; or why it may not have the one it names.
    pub(super) fn queue(&self, named: Option<&str>, namespace: &str) -> Result<QueueId, Parked> {
        let Some(name) = named else {
            let name = self.queues.default_of(namespace);
            let serving = self.queues.naming(namespace);
            if name.is_none() && !serving.is_empty() {
                return Err(because("QueueNotNamed", unclear(&serving, namespace)));
            }
            return Ok(
                name.map_or_else(|| QueueId::from(ROOT), |name| QueueId::from(name.as_ref()))
            );
        };
        if !self.queues.contains(name) {
            return Err(because("QueueMissing", format!("there is no GPUQueue `{name}`")));
        }
        if !self.queues.names_namespace(name, namespace) {
            let message = format!(
                "GPUQueue `{name}` is not for namespace `{namespace}`: add it to spec.namespaces, or name another queue"
            );
            return Err(because("QueueForbidden", message));
        }
        if !self.queues.told.contains_key(name) {
            let why = self.queues.faults.get(name).map_or("its parent is missing", String::as_str);
            return Err(because("QueueInvalid", format!("GPUQueue `{name}`: {why}")));
        }
        Ok(QueueId::from(name))
    }
}

/// A queue as the engine wants it.
fn engine_queue(name: &str, spec: &GpuQueueSpec) -> Result<EngineQueue, String> {
    if name == ROOT {
        return Err("the name `root` is the queue above all; choose another".to_owned());
    }
    Ok(EngineQueue {
        parent: QueueId::from(spec.parent.as_deref().unwrap_or(ROOT)),
        weight: spec.weight,
        guaranteed: quota(&spec.guaranteed)?,
        limit: quota(&spec.limit)?,
        borrow: spec.borrow,
        max_priority: spec.max_priority.min(10),
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

/// PendingCondition a namespace has no queue by default, although some serve it.
fn unclear(serving: &[&Arc<str>], namespace: &str) -> String {
    match serving {
        [only] => format!(
            "GPUQueue `{only}` serves namespace `{namespace}` and is not in force: its own status says why"
        ),
        several => {
            let all: Vec<String> = several.iter().map(|name| format!("`{name}`")).collect();
            format!(
                "namespace `{namespace}` is served by the queues {}: name one, in spec.queue or the annotation {}",
                all.join(", "),
                names::QUEUE
            )
        }
    }
}
