//! What we know of the cluster, and the engine that decides: changes in, acts out. No I/O, no clock.
//!
//! The API server is the truth. Every change is recorded first; what it means to the engine follows from the
//! recorded objects, so that a fresh start ([`ClusterState::begin`]) and a later change take the same way. A pod of ours is
//! a *member* of a workload of the engine: alone, of a `GPUWorkload`, or of a pod group. Pods of others, and ours
//! that the engine cannot know, are use by others.
//!
//! Where to look first: `pods.rs` is the life of a pod, `groups.rs` that of a workload.

mod action;
mod adopt;
mod change;
mod evictions;
mod explain;
mod foreign;
mod gang_teardown;
mod gangs;
mod membership;
mod nodes;
mod owners;
mod plan;
mod pod_entry;
mod pods;
mod queue_status;
mod queues;
mod settings;
mod static_volumes;
#[cfg(test)]
mod tests;
mod volume_reservations;
mod what_if;
mod workloads;

pub use action::{
    Action, ActionResult, Bind, BindResult, ClaimAction, EventRecord, Key, ObjectRef, Owner,
    PendingCondition, PodRef,
};
pub use change::{Change, Object};
pub use explain::{ClusterSummary, WorkloadExplanation};
pub use settings::{Settings, SettingsError, node_selector, percent, strategy};

use agentaflow_engine::{Event, NodeRanking, Rejected, Scheduler, Snapshot, Time, WorkloadId};
use agentaflow_kube_core::slim::DisruptionBudget;
use agentaflow_kube_core::translate::{Namespaces, Volumes};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gangs::Gang;
use nodes::NodeEntry;
use owners::{OwnerEntry, OwnerKey};
use pod_entry::PodEntry;
use queues::Queues;
use static_volumes::VolumeWaiters;
use volume_reservations::VolumeReservations;
use workloads::WorkloadEntry;

/// What is to be done now, and when to ask again.
#[derive(Clone, Debug, Default)]
pub struct StepOutput {
    /// What to do, in order.
    pub acts: Vec<Action>,
    /// When to ask again even if nothing happens.
    pub wake: Option<Time>,
}

/// What we know of the cluster, and the engine that decides.
#[derive(Debug)]
pub struct ClusterState {
    settings: Settings,
    engine: Scheduler,
    now: Time,
    /// Everything has been listed once; before that changes are only recorded.
    begun: bool,
    pods: FxHashMap<Key, PodEntry>,
    groups: BTreeMap<WorkloadId, Gang>,
    /// Pods of gangs that are placed by themselves or done, by gang.
    strays: BTreeMap<WorkloadId, BTreeSet<Key>>,
    nodes: BTreeMap<Arc<str>, NodeEntry>,
    workloads: BTreeMap<Key, WorkloadEntry>,
    /// Least number of pods of groups, by namespace and name.
    pod_groups: BTreeMap<Key, u32>,
    queues: Queues,
    volumes: Volumes,
    /// What bindings under way do with claims.
    promises: VolumeReservations,
    /// Pods that wait for volumes that people made.
    takers: VolumeWaiters,
    namespaces: Namespaces,
    budgets: BTreeMap<Key, DisruptionBudget>,
    /// What owners of pods say.
    owners: FxHashMap<OwnerKey, OwnerEntry>,
    /// Pods of workloads, those that are over included; also of workloads that are not known yet.
    owned: BTreeMap<Key, BTreeSet<Key>>,
    /// Pods that are set aside with a reason.
    asides: BTreeSet<Key>,
    /// Pods that wait until others of their workload are placed or gone.
    waiters: BTreeMap<WorkloadId, BTreeSet<Key>>,
    /// Something changed after which pods that are set aside are worth a look.
    again: bool,
    /// Workloads whose pods name a node on which others are being stopped for them.
    renominate: BTreeSet<WorkloadId>,
    /// Placements that cannot be carried out: pod, workload, task and node.
    failed: Vec<(Key, WorkloadId, u32, Arc<str>)>,
    /// When workloads are to be looked at although nothing happened.
    wakes: BTreeSet<(Time, Key)>,
    /// Pods whose eviction was refused, and of which the engine does not know it yet.
    unmoved: BTreeSet<Key>,
    /// Pods that are not asked to go for a while, because their eviction was refused.
    spared: BTreeMap<Key, evictions::EvictionBackoff>,
    /// Pods that were told to go because their gang must start whole, and when they are told again.
    sent_away: BTreeMap<Key, Time>,
    /// Workloads whose objects are to be looked at.
    dirty: BTreeSet<Key>,
    /// Pods that wait for something that may have changed.
    stuck: BTreeSet<Key>,
    acts: Vec<Action>,
    plan: u64,
    /// Events that the engine did not take, for the log.
    rejected: Vec<(Event, Rejected)>,
}

impl ClusterState {
    /// An empty world. `memory` is what the last one left: past use and the round-robin cursor. Its clock may have been
    /// ahead of ours, and the engine would stand still until ours is there.
    pub fn new(settings: Settings, memory: Option<Snapshot>, now: Time) -> Self {
        let mut snapshot = memory.unwrap_or_default();
        snapshot.policy = settings.policy.clone();
        snapshot.queues.retain(|facts| facts.queue.validate().is_ok());
        let times = snapshot.queues.iter_mut().flat_map(|facts| &mut facts.as_of);
        for time in times.chain([&mut snapshot.now]) {
            *time = (*time).min(now);
        }
        let engine = Scheduler::restore(snapshot)
            .unwrap_or_else(|_| Scheduler::new(settings.policy.clone()));
        Self {
            settings,
            engine,
            now: Time(0),
            begun: false,
            pods: FxHashMap::default(),
            groups: BTreeMap::new(),
            strays: BTreeMap::new(),
            nodes: BTreeMap::new(),
            workloads: BTreeMap::new(),
            pod_groups: BTreeMap::new(),
            queues: Queues::default(),
            volumes: Volumes::default(),
            promises: VolumeReservations::default(),
            takers: VolumeWaiters::default(),
            namespaces: Namespaces::default(),
            budgets: BTreeMap::new(),
            owners: FxHashMap::default(),
            owned: BTreeMap::new(),
            asides: BTreeSet::new(),
            waiters: BTreeMap::new(),
            again: false,
            renominate: BTreeSet::new(),
            failed: Vec::new(),
            wakes: BTreeSet::new(),
            unmoved: BTreeSet::new(),
            spared: BTreeMap::new(),
            sent_away: BTreeMap::new(),
            dirty: BTreeSet::new(),
            stuck: BTreeSet::new(),
            acts: Vec::new(),
            plan: 0,
            rejected: Vec::new(),
        }
    }

    /// Records a change, and tells the engine what it means.
    pub fn apply(&mut self, now: Time, change: Change) {
        self.now = self.now.max(now);
        match change {
            Change::Applied(object) => self.see(*object),
            Change::Deleted(object) => self.lose(*object),
        }
    }

    fn see(&mut self, object: Object) {
        match object {
            Object::Pod(pod) => self.see_pod(pod),
            Object::Node(node) => self.see_node(node),
            Object::GpuNode(devices) => self.see_devices(devices),
            Object::Workload(workload) => self.see_workload(workload),
            Object::Queue(queue) => self.see_queue(&queue),
            Object::Claim(claim) => self.look_again(|world| world.volumes.set_claim(claim)),
            Object::Volume(volume) => self.look_again(|world| world.volumes.set_volume(volume)),
            Object::Class(class) => self.look_again(|world| world.volumes.set_class(class)),
            Object::CsiNode(node) => self.see_csi_node(node),
            Object::Driver(driver) => self.look_again(|world| world.volumes.set_driver(&driver)),
            Object::Capacity(told) => self.look_again(|world| world.volumes.set_capacity(told)),
            Object::Namespace(space) => self.look_again(|world| world.namespaces.set(&space)),
            // Pods carry the value of their class; classes themselves are not asked.
            Object::Priority(_) => {}
            Object::Budget(budget) => self.see_budget(budget),
            Object::PodGroup(group) => {
                let need = group.spec.min_member.unwrap_or(1).clamp(1, i64::from(u32::MAX)) as u32;
                self.see_pod_group(&group.metadata, need);
            }
            Object::NativeGroup(group) => {
                let need = group.min_count().unwrap_or(1);
                self.see_pod_group(&group.metadata, need);
            }
        }
    }

    fn lose(&mut self, object: Object) {
        match object {
            Object::Pod(pod) => self.lose_pod(&pod),
            Object::Node(node) => self.lose_node(&node),
            Object::GpuNode(devices) => self.lose_devices(&devices),
            Object::Workload(workload) => self.lose_workload(&workload),
            Object::Queue(queue) => self.lose_queue(&queue),
            Object::Claim(claim) => self.look_again(|world| {
                let (namespace, name) = names_of(&claim.metadata);
                world.volumes.remove_claim(namespace, name)
            }),
            Object::Volume(volume) => {
                self.look_again(|world| world.volumes.remove_volume(names_of(&volume.metadata).1));
            }
            Object::Class(class) => {
                self.look_again(|world| world.volumes.remove_class(names_of(&class.metadata).1));
            }
            Object::CsiNode(node) => self.lose_csi_node(&node),
            Object::Driver(driver) => {
                self.look_again(|world| world.volumes.remove_driver(names_of(&driver.metadata).1));
            }
            Object::Capacity(told) => self.look_again(|world| {
                let (namespace, name) = names_of(&told.metadata);
                world.volumes.remove_capacity(namespace, name)
            }),
            Object::Namespace(space) => {
                self.look_again(|world| world.namespaces.remove(names_of(&space.metadata).1));
            }
            Object::Priority(_) => {}
            Object::Budget(budget) => self.lose_budget(&budget),
            Object::PodGroup(group) => self.lose_pod_group(&group.metadata),
            Object::NativeGroup(group) => self.lose_pod_group(&group.metadata),
        }
    }

    /// A change after which pods that wait for something may be worth another look.
    fn look_again(&mut self, change: impl FnOnce(&mut Self) -> bool) {
        self.again |= change(self);
    }

    /// Everything has been listed: tells the engine all of it, running work as facts.
    pub fn begin(&mut self, now: Time) {
        self.now = self.now.max(now);
        self.begun = true;
        self.forget_queues();
        self.apply_queues();
        let nodes: Vec<Arc<str>> = self.nodes.keys().cloned().collect();
        for node in &nodes {
            self.tell_node(node);
        }
        self.tell_budgets();
        let mut keys: Vec<(bool, Time, Key)> = self
            .pods
            .iter()
            .map(|(key, entry)| (!entry.is_on_node(), entry.created, key.clone()))
            .collect();
        keys.sort();
        self.adopt_gangs();
        for (_, _, key) in keys {
            self.settle(&key);
        }
        self.again = false;
        self.dirty.extend(self.workloads.keys().cloned());
    }

    /// What is to be done now.
    pub fn step(&mut self, now: Time) -> StepOutput {
        if !self.begun {
            return StepOutput::default();
        }
        self.now = self.now.max(now);
        if std::mem::take(&mut self.again) {
            self.recount();
            self.stuck.extend(self.dependants());
        }
        for key in std::mem::take(&mut self.stuck) {
            self.settle(&key);
        }
        for id in std::mem::take(&mut self.renominate) {
            self.rebuild_hold(&id);
        }
        self.let_unmoved_stay();
        self.count_volumes();
        let spared = self.spare_until();
        let sent_away = self.send_away_again();
        let plan = self.engine.decide(self.now);
        let wake = plan.wake_at;
        self.carry_out(plan.decisions);
        let looked = self.reconcile();
        StepOutput {
            acts: std::mem::take(&mut self.acts),
            wake: [wake, looked, spared, sent_away].into_iter().flatten().min(),
        }
    }

    /// What came of an act.
    pub fn done(&mut self, now: Time, outcome: ActionResult) {
        self.now = self.now.max(now);
        match outcome {
            ActionResult::Bind { pod, plan, result } => self.bound(&pod, plan, result),
            ActionResult::Owner { namespace, uid, annotations } => {
                self.see_owner(&(namespace, uid), annotations);
            }
            ActionResult::Created { workload, name, refused } => {
                self.pod_created(&workload, &name, refused);
            }
            ActionResult::EvictionFailed { pod, why } => self.eviction_failed(&pod, why),
        }
    }

    /// What must outlive us and no object of the cluster tells.
    pub fn memory(&self) -> Snapshot {
        self.engine.usage_history()
    }

    /// Other settings; nothing that waits is lost by it.
    pub fn set_settings(&mut self, settings: Settings) {
        let policy = settings.policy.clone();
        self.settings = settings;
        self.tell(Event::PolicyUpdated(Box::new(policy)));
    }

    /// Kueue has come: its label names a queue of ours no more.
    pub fn leave_queues_to_kueue(&mut self) {
        self.settings.kueue = true;
        let labelled = self.pods.iter().filter(|(_, entry)| {
            let labels = entry.pod.as_ref().and_then(|pod| pod.metadata.labels.as_ref());
            labels
                .is_some_and(|labels| labels.contains_key(agentaflow_kube_core::names::KUEUE_QUEUE))
        });
        let labelled: Vec<Key> = labelled.map(|(key, _)| key.clone()).collect();
        self.stuck.extend(labelled);
    }

    /// Keeps the best `most` nodes with their scores for everything that is placed.
    pub fn keep_rankings(&mut self, most: usize) {
        self.engine.record_rankings(most);
    }

    /// How the nodes stood for what was placed since the last call.
    pub fn take_rankings(&mut self) -> Vec<NodeRanking> {
        self.engine.take_rankings()
    }

    /// Events that the engine did not take since the last call: a mistake of ours, for the log.
    pub fn take_rejected(&mut self) -> Vec<(Event, Rejected)> {
        std::mem::take(&mut self.rejected)
    }

    /// Tells the engine; what it does not take is remembered and says so.
    fn tell(&mut self, event: Event) -> bool {
        match self.engine.apply(self.now, event.clone()) {
            Ok(()) => true,
            Err(why) => {
                self.rejected.push((event, why));
                false
            }
        }
    }
}

/// Namespace and name, empty where absent.
fn names_of(meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> (&str, &str) {
    (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

/// The name of a namespaced object.
fn key_of(meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> Key {
    let (namespace, name) = names_of(meta);
    Key::new(namespace, name)
}
