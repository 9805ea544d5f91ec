//! The state of the cluster and its reconciliation with the engine: watch events in, actions out. No I/O, no clock.
//!
//! The API server holds the truth. A watch event or the result of an action records facts and enqueues work;
//! [`ClusterState::step`] drains the work queue, asks the engine for decisions, and turns these into actions. The start
//! ([`ClusterState::start`]) takes the same path.
//!
//! A pod of this scheduler is a *member* of a gang, which is a workload of the engine: a single pod, the pods of a
//! `GPUWorkload`, or a pod group. Pods of other schedulers, and pods that the engine cannot know, are *foreign usage*.
//!
//! Each part owns its fields and offers a small interface (`pod_index`, `gang_table`, `node_table`, `workload_table`,
//! `queue_table`, `unit_table`, `volume_ledger`, `evictions`, `owner_index`, `replacements`, `foreign_demand`,
//! `foreign_report`, `monitor_watch`, `namespace_quotas`, `engine_link`, `work_queue`). The files with `impl ClusterState` combine the parts. Open `pods.rs` first.

mod action;
mod activity;
mod adopt;
mod alerts;
mod change;
mod engine_link;
mod evictions;
mod explain;
mod foreign_demand;
mod foreign_report;
mod gang_table;
mod gangs;
mod group_jobs;
mod losses;
mod membership;
mod monitor_watch;
mod namespace_quotas;
mod node_conditions;
mod node_table;
mod nodes;
mod owner_index;
mod parked;
mod plan;
mod pod_entry;
mod pod_index;
mod pods;
mod priority_classes;
mod queue_table;
mod quota;
mod replacements;
mod settings;
mod snapshot;
#[cfg(test)]
mod tests;
mod turns;
mod unit_pods;
mod unit_table;
mod units;
mod volume_ledger;
mod what_if;
mod work_queue;
mod workload_table;
mod workloads;

pub use action::{
    Action, ActionResult, Bind, BindResult, ClaimAction, CreationRejection, EventRecord, Key,
    ObjectRef, Owner, PendingCondition, PodRef, RejectionKind, Urgency,
};
pub use activity::Activity;
pub use change::{Change, Object};
pub use explain::{ClusterSummary, WorkloadExplanation};
pub use settings::{MONITOR_TIMEOUT, Settings, SettingsError, node_selector, percent, strategy};
pub use snapshot::{ClusterSnapshot, NodeSnapshot};

use agentaflow_engine::{Event, NodeRanking, Policy, Rejected, Snapshot, Time};
use agentaflow_kube_core::names;
use agentaflow_kube_core::translate::{Namespaces, TranslationContext};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::panic::Location;

use engine_link::EngineLink;
use evictions::Evictions;
use foreign_demand::PendingForeignPods;
use foreign_report::ForeignReports;
use gang_table::GangTable;
use membership::Lookup;
use monitor_watch::MonitorWatch;
use namespace_quotas::NamespaceQuotas;
use node_table::NodeTable;
use owner_index::OwnerIndex;
use pod_index::PodIndex;
use priority_classes::PriorityClasses;
use queue_table::QueueTable;
use replacements::Replacements;
use turns::Turns;
use unit_table::UnitTable;
use volume_ledger::VolumeLedger;
use work_queue::{WorkItem, WorkQueue};
use workload_table::WorkloadTable;

/// Result of one pass.
#[derive(Clone, Debug, Default)]
pub struct StepOutput {
    /// In the order of execution.
    pub actions: Vec<Action>,
    /// Time of the next pass if nothing happens before.
    pub wake: Option<Time>,
}

/// The reconciler over the parts of the cluster's state.
#[derive(Debug)]
pub struct ClusterState {
    settings: Settings,
    engine: EngineLink,
    /// Every kind was listed once; before that, events are only recorded.
    started: bool,
    pods: PodIndex,
    gangs: GangTable,
    nodes: NodeTable,
    monitors: MonitorWatch,
    workloads: WorkloadTable,
    queues: QueueTable,
    units: UnitTable,
    turns: Turns,
    priorities: PriorityClasses,
    volumes: VolumeLedger,
    namespaces: Namespaces,
    quotas: NamespaceQuotas,
    evictions: Evictions,
    owners: OwnerIndex,
    replacements: Replacements,
    foreign_demand: PendingForeignPods,
    foreign_reports: ForeignReports,
    activity: Activity,
    work: WorkQueue,
    /// Actions of the next [`StepOutput`].
    actions: Vec<Action>,
    /// Number of placements so far; answers to older ones are void.
    plans: u64,
}

impl ClusterState {
    /// An empty state. `memory` is the last leader's [`Self::memory`].
    pub fn new(settings: Settings, memory: Option<Snapshot>, now: Time) -> Self {
        let engine = EngineLink::restore(&settings.policy, memory, now);
        Self {
            settings,
            engine,
            started: false,
            pods: PodIndex::default(),
            gangs: GangTable::default(),
            nodes: NodeTable::default(),
            monitors: MonitorWatch::default(),
            workloads: WorkloadTable::default(),
            queues: QueueTable::default(),
            units: UnitTable::default(),
            turns: Turns::default(),
            priorities: PriorityClasses::default(),
            volumes: VolumeLedger::default(),
            namespaces: Namespaces::default(),
            quotas: NamespaceQuotas::default(),
            evictions: Evictions::default(),
            owners: OwnerIndex::default(),
            replacements: Replacements::default(),
            foreign_demand: PendingForeignPods::default(),
            foreign_reports: ForeignReports::default(),
            activity: Activity::default(),
            work: WorkQueue::default(),
            actions: Vec::new(),
            plans: 0,
        }
    }

    /// Records a watch event.
    pub fn apply(&mut self, now: Time, change: Change) {
        self.engine.advance(now);
        match change {
            Change::Applied(object) => self.object_applied(*object),
            Change::Deleted(object) => self.object_deleted(*object),
        }
    }

    fn object_applied(&mut self, object: Object) {
        let volumes = self.volumes.objects_mut();
        let dependency_changed = match object {
            Object::Pod(pod) => return self.pod_applied(pod),
            Object::Node(node) => return self.node_applied(node),
            Object::GpuNode(devices) => return self.gpu_node_applied(devices),
            Object::CsiNode(node) => return self.csi_node_applied(node),
            Object::Workload(workload) => return self.workload_applied(workload),
            Object::Queue(queue) => {
                if self.queues.record(&queue) {
                    self.queues_changed();
                }
                return;
            }
            Object::Budget(budget) => {
                let (started, engine) = (self.started, &mut self.engine);
                let (gangs, pods) = (&self.gangs, &self.pods);
                return self.evictions.budget_applied(budget, started, engine, gangs, pods);
            }
            Object::Quota(quota) => return self.quota_applied(quota),
            Object::PodGroup(group) => {
                let need = group.spec.min_member.unwrap_or(1).clamp(1, i64::from(u32::MAX)) as u32;
                return self.pod_group_applied(&group.metadata, need);
            }
            Object::NativeGroup(group) => {
                let need = group.min_count().unwrap_or(1);
                return self.pod_group_applied(&group.metadata, need);
            }
            // Pods carry the value of their class; templates of jobs do not.
            Object::Priority(class) => {
                if self.priorities.record(&class) {
                    self.queues_changed();
                    self.requeue_units();
                }
                return;
            }
            Object::Job(kind, object) => return self.job_applied(kind, object),
            Object::Claim(claim) => volumes.set_claim(claim),
            Object::Volume(volume) => volumes.set_volume(volume),
            Object::Class(class) => volumes.set_class(class),
            Object::Driver(driver) => volumes.set_driver(&driver),
            Object::Capacity(capacity) => volumes.set_capacity(capacity),
            Object::Namespace(namespace) => self.namespaces.set(&namespace),
        };
        self.record_dependency(dependency_changed);
    }

    fn object_deleted(&mut self, object: Object) {
        let volumes = self.volumes.objects_mut();
        let dependency_changed = match object {
            Object::Pod(pod) => return self.pod_deleted(&pod),
            Object::Node(node) => return self.node_deleted(&node),
            Object::GpuNode(devices) => return self.gpu_node_deleted(&devices),
            Object::CsiNode(node) => return self.csi_node_deleted(&node),
            Object::Workload(workload) => return self.workload_deleted(&workload),
            Object::Queue(queue) => {
                self.queues.remove(&queue);
                return self.queues_changed();
            }
            Object::Budget(budget) => {
                let (started, engine) = (self.started, &mut self.engine);
                let (gangs, pods) = (&self.gangs, &self.pods);
                return self.evictions.budget_deleted(&budget, started, engine, gangs, pods);
            }
            Object::Quota(quota) => return self.quota_deleted(&quota.metadata),
            Object::PodGroup(group) => return self.pod_group_deleted(&group.metadata),
            Object::NativeGroup(group) => return self.pod_group_deleted(&group.metadata),
            Object::Priority(class) => {
                if self.priorities.remove(names_of(&class.metadata).1) {
                    self.queues_changed();
                    self.requeue_units();
                }
                return;
            }
            Object::Job(kind, object) => return self.job_deleted(kind, &object.metadata),
            Object::Claim(claim) => {
                let (namespace, name) = names_of(&claim.metadata);
                volumes.remove_claim(namespace, name)
            }
            Object::Volume(volume) => volumes.remove_volume(names_of(&volume.metadata).1),
            Object::Class(class) => volumes.remove_class(names_of(&class.metadata).1),
            Object::Driver(driver) => volumes.remove_driver(names_of(&driver.metadata).1),
            Object::Capacity(capacity) => {
                let (namespace, name) = names_of(&capacity.metadata);
                volumes.remove_capacity(namespace, name)
            }
            Object::Namespace(space) => self.namespaces.remove(names_of(&space.metadata).1),
        };
        self.record_dependency(dependency_changed);
    }

    /// Enqueues all items computed from storage objects and namespaces.
    fn record_dependency(&mut self, changed: bool) {
        if changed {
            self.work.push(WorkItem::RefreshDependents);
        }
    }

    /// Pending pods may belong to another queue or have another limit of their priority now.
    fn queues_changed(&mut self) {
        if self.started {
            self.work.push(WorkItem::SyncQueues);
            self.requeue_units();
            self.work.push_pods(self.pods.select(|entry| {
                entry.pod.as_ref().is_some_and(|pod| pod.spec.node_name.is_none())
            }));
        }
    }

    /// Called after all kinds are listed: sends the cluster to the engine, and adopts running workloads.
    pub fn start(&mut self, now: Time) {
        self.engine.advance(now);
        self.started = true;
        self.queues.remove_stale(&mut self.engine);
        self.queues.sync(&mut self.engine);
        for node in self.nodes.names() {
            self.update_node(&node);
        }
        self.evictions.publish_budgets(&mut self.engine);
        self.publish_foreign_demand();
        self.adopt_foreign_reports();
        let pods = self.pods.iter();
        let mut keys: Vec<(bool, Time, Key)> =
            pods.map(|(key, entry)| (!entry.is_on_node(), entry.created, key.clone())).collect();
        keys.sort();
        self.adopt_gangs();
        for (_, _, key) in keys {
            self.reconcile_pod(&key);
        }
        self.work.remove(&WorkItem::RefreshDependents);
        self.requeue_units();
        for key in self.workloads.keys() {
            self.work.push(WorkItem::ReconcileWorkload(key.clone()));
        }
    }

    /// One pass: drains the work queue, asks the engine for decisions, and returns the actions.
    pub fn step(&mut self, now: Time) -> StepOutput {
        if !self.started {
            return StepOutput::default();
        }
        self.engine.advance(now);
        let now = self.engine.now();
        self.work.begin_pass();
        self.requeue_due_units();
        self.requeue_recounts();
        self.report_lost_monitors();
        self.report_foreign_pods();
        while let Some(item) = self.work.next_before_decisions() {
            self.process(item);
        }
        self.publish_free_volumes();
        let backoff = self.evictions.expire_backoffs(&mut self.engine);
        let deletion = self.evictions.retry_deletions(now, &self.pods, &mut self.actions);
        let (decisions, wake) = self.engine.decide();
        self.execute_plan(decisions);
        for workload in self.workloads.take_due(now) {
            self.work.push(WorkItem::ReconcileWorkload(workload));
        }
        while let Some(item) = self.work.next_after_decisions() {
            self.process(item);
        }
        let wakes = [
            wake,
            backoff,
            deletion,
            self.workloads.next_wake(),
            self.units.next_wake(),
            self.gangs.next_recount(),
            self.monitors.next(),
            self.foreign_reports.next(),
        ];
        StepOutput {
            actions: std::mem::take(&mut self.actions),
            wake: wakes.into_iter().flatten().min(),
        }
    }

    fn process(&mut self, item: WorkItem) {
        match item {
            WorkItem::SyncQueues => self.queues.sync(&mut self.engine),
            WorkItem::RefreshDependents => {
                self.refresh_foreign_use();
                self.publish_foreign_demand();
                self.work.push_pods(self.pods.dependents());
                self.requeue_units();
            }
            WorkItem::Readopt(id) => self.readopt(&id),
            WorkItem::SyncGang(id) => self.sync_gang(&id),
            WorkItem::ReconcilePod(key) => self.reconcile_pod(&key),
            WorkItem::RebuildHold(id) => self.rebuild_hold(&id),
            WorkItem::KeepUnevictable(key) => self.keep_unevictable_pod(&key),
            WorkItem::ReleaseVolumes(id) => self.release_volumes(&id),
            WorkItem::UndoPlacement { pod, workload, task, node } => {
                self.undo_placement(&pod, &workload, task, &node);
            }
            WorkItem::ReconcileWorkload(key) => self.reconcile_workload(&key),
        }
    }

    /// Records the result of an action.
    pub fn action_finished(&mut self, now: Time, result: ActionResult) {
        self.engine.advance(now);
        match result {
            ActionResult::Bind { pod, plan, result } => self.binding_finished(&pod, plan, result),
            ActionResult::Owner { namespace, uid, annotations } => {
                let pods = self.owners.record(namespace, uid, annotations);
                self.work.push_pods(pods.cloned());
            }
            ActionResult::Created { workload, name, rejection } => {
                self.creation_finished(&workload, &name, rejection);
            }
            ActionResult::SuspendRefused { kind, unit, uid, message } => {
                self.suspend_refused(kind, &unit, &uid, message);
            }
            ActionResult::EvictionFailed { pod, message } => self.eviction_failed(&pod, message),
        }
    }

    /// Writes of queue statuses that changed.
    pub fn queue_statuses(&mut self) -> Vec<Action> {
        if !self.started {
            return Vec::new();
        }
        let now = workload_table::timestamp(self.engine.now());
        let name = &self.settings.scheduler_name;
        self.queues.status_writes(&mut self.engine, &self.gangs, name, now)
    }

    /// Engine state that no object of the cluster holds: past usage and the round-robin cursor.
    pub fn memory(&self) -> Snapshot {
        self.engine.scheduler().usage_history()
    }

    /// Policy in force.
    pub fn policy(&self) -> &Policy {
        &self.settings.policy
    }

    /// Pending workloads stay.
    pub fn set_settings(&mut self, settings: Settings) {
        let policy = settings.policy.clone();
        self.settings = settings;
        self.engine.send(Event::PolicyUpdated(Box::new(policy)));
    }

    /// Kueue was installed: its queue label does not name a queue of this scheduler any more.
    pub fn kueue_installed(&mut self) {
        self.settings.kueue = true;
        self.requeue_units();
        self.work.push_pods(self.pods.select(|entry| {
            let labels = entry.pod.as_ref().and_then(|pod| pod.metadata.labels.as_ref());
            labels.is_some_and(|labels| labels.contains_key(names::KUEUE_QUEUE))
        }));
    }

    /// Keeps the scores of the best `most` nodes of every placement.
    pub fn keep_rankings(&mut self, most: usize) {
        self.engine.keep_rankings(most);
    }

    /// Scores of placements since the last call.
    pub fn take_rankings(&mut self) -> Vec<NodeRanking> {
        self.engine.take_rankings()
    }

    /// Activity since the last call.
    pub fn take_activity(&mut self) -> Activity {
        std::mem::take(&mut self.activity)
    }

    /// Senders of events that the engine rejected since the last call; each is a bug of this crate.
    pub fn take_rejected(&mut self) -> Vec<(&'static Location<'static>, Rejected)> {
        self.engine.take_rejected()
    }

    fn translation_context(&self) -> TranslationContext<'_> {
        TranslationContext { volumes: self.volumes.objects(), namespaces: &self.namespaces }
    }

    fn lookup(&self) -> Lookup<'_> {
        Lookup {
            settings: &self.settings,
            owners: &self.owners,
            replacements: &self.replacements,
            workloads: &self.workloads,
            gangs: &self.gangs,
            queues: &self.queues,
            units: &self.units,
            priorities: &self.priorities,
            translation: self.translation_context(),
            now: self.engine.now(),
        }
    }
}

/// Namespace and name, empty if absent.
fn names_of(meta: &ObjectMeta) -> (&str, &str) {
    (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

fn key_of(meta: &ObjectMeta) -> Key {
    let (namespace, name) = names_of(meta);
    Key::new(namespace, name)
}
