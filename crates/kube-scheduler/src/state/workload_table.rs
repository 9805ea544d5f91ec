//! `GPUWorkload` objects: creation and deletion of their pods, and their status. The engine places the pods.

use agentaflow_backoff::BackoffPolicy;
use agentaflow_engine::Time;
use agentaflow_kube_core::crd::GpuWorkloadSpec;
use agentaflow_kube_core::slim::{Pod, Workload};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::action::{Action, EventRecord, Key, ObjectRef, PodRef, Urgency};
use super::evictions::RETRY_AFTER;
use super::key_of;
use super::pod_entry::engine_time;
use crate::controller::{self, EventType, Reconciled, SchedulerView};

/// Delays before a written status that the watch has not reported is written again. A schema of another version may lack a
/// field; the watch then never reports the written status.
const STATUS_RETRIES: BackoffPolicy =
    BackoffPolicy::new(Duration::from_secs(5), Duration::from_secs(320));

#[derive(Debug, Default)]
pub(super) struct WorkloadTable {
    entries: BTreeMap<Key, WorkloadEntry>,
    /// Times at which workloads are reconciled without an event.
    wakes: BTreeSet<(Time, Key)>,
}

#[derive(Debug, Default)]
struct WorkloadEntry {
    object: Arc<Workload>,
    /// Requested pods that the watch has not reported, and the time of the next request.
    creating: BTreeMap<String, Time>,
    /// Deleted pods that the watch has not reported as ending, and the time of the next request.
    deleting: BTreeMap<String, Time>,
    /// The API server's reason for refusing the last pod.
    rejected: Option<String>,
    /// Tasks lack pods.
    incomplete: bool,
    wake: Option<Time>,
    /// Time of the last status write.
    status_written: Option<Time>,
    /// The watch reports another status than the last write: the write is in flight, or an older write overtook it.
    status_differs: bool,
    /// Repeated writes of the same status that the watch has not reported.
    repeats: u32,
}

impl WorkloadEntry {
    /// Time at which a status write that the watch has not reported is repeated.
    fn echo_due(&self) -> Option<Time> {
        let written = self.status_written.filter(|_| self.status_differs);
        let delay = STATUS_RETRIES.delay(self.repeats).as_millis() as u64;
        written.map(|at| Time(at.0 + delay))
    }

    fn uid(&self) -> Arc<str> {
        self.object.metadata.uid.as_deref().unwrap_or_default().into()
    }
}

impl WorkloadTable {
    pub(super) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.entries.keys()
    }

    pub(super) fn objects(&self) -> impl Iterator<Item = &Arc<Workload>> {
        self.entries.values().map(|entry| &entry.object)
    }

    pub(super) fn object(&self, key: &Key) -> Option<&Workload> {
        self.entries.get(key).map(|entry| &*entry.object)
    }

    pub(super) fn spec(&self, key: &Key) -> Option<&GpuWorkloadSpec> {
        self.object(key)?.spec.0.as_deref().ok()
    }

    /// Records a workload; returns true if its spec changed. Only this scheduler writes the status: its last write is valid
    /// before the watch reports it.
    pub(super) fn record(&mut self, workload: Workload) -> bool {
        let key = key_of(&workload.metadata);
        let old = self.entries.remove(&key);
        let same = old.filter(|old| old.object.metadata.uid == workload.metadata.uid);
        let spec_changed = same.as_ref().is_none_or(|old| {
            old.object.metadata.generation != workload.metadata.generation
                || old.object.spec.0.is_ok() != workload.spec.0.is_ok()
        });
        let mut entry = same.unwrap_or_default();
        let last = std::mem::replace(&mut entry.object, Arc::new(workload));
        if entry.status_written.is_some() {
            entry.status_differs = entry.object.status != last.status;
            Arc::make_mut(&mut entry.object).status = last.status.clone();
            entry.repeats = if entry.status_differs { entry.repeats } else { 0 };
        }
        self.entries.insert(key, entry);
        spec_changed
    }

    pub(super) fn remove(&mut self, key: &Key) {
        if let Some(at) = self.entries.remove(key).and_then(|entry| entry.wake) {
            self.wakes.remove(&(at, key.clone()));
        }
    }

    /// The watch reported a pod of the workload.
    pub(super) fn pod_reported(&mut self, workload: &Key, pod: &str, terminating: bool) {
        if let Some(entry) = self.entries.get_mut(workload) {
            entry.creating.remove(pod);
            if terminating {
                entry.deleting.remove(pod);
            }
        }
    }

    pub(super) fn pod_removed(&mut self, workload: &Key, pod: &str) {
        if let Some(entry) = self.entries.get_mut(workload) {
            entry.deleting.remove(pod);
        }
    }

    /// Records the API server's response to a new pod; returns true if the workload must be reconciled.
    pub(super) fn pod_created(
        &mut self,
        workload: &Key,
        pod: &str,
        refused: Option<String>,
    ) -> bool {
        let Some(entry) = self.entries.get_mut(workload) else { return false };
        entry.rejected = refused;
        if entry.rejected.is_some() {
            entry.creating.remove(pod);
        }
        entry.rejected.is_some()
    }

    /// Gangs of a namespace of which tasks lack pods.
    pub(super) fn incomplete_gangs(&self, namespace: &str) -> impl Iterator<Item = &Key> {
        let is_gang = |entry: &WorkloadEntry| {
            entry.object.spec.0.as_ref().is_ok_and(|spec| spec.gang_size > 1)
        };
        let incomplete = self.entries.iter().filter(move |(key, entry)| {
            *key.namespace == *namespace && entry.incomplete && is_gang(entry)
        });
        incomplete.map(|(key, _)| key)
    }

    pub(super) fn is_incomplete(&self, key: &Key) -> bool {
        self.entries.get(key).is_some_and(|entry| entry.incomplete)
    }

    /// Removes and returns the workloads whose timer is due.
    pub(super) fn take_due(&mut self, now: Time) -> Vec<Key> {
        let mut due = Vec::new();
        while self.wakes.first().is_some_and(|(at, _)| *at <= now) {
            due.extend(self.wakes.pop_first().map(|(_, key)| key));
        }
        due
    }

    pub(super) fn next_wake(&self) -> Option<Time> {
        self.wakes.first().map(|(at, _)| *at)
    }

    /// Pod creation state for the controller, without the engine's part.
    pub(super) fn scheduler_view(&self, key: &Key, now: Time) -> SchedulerView {
        let Some(entry) = self.entries.get(key) else { return SchedulerView::default() };
        let deleting = entry.deleting.iter().filter(|(_, until)| **until > now);
        SchedulerView {
            rejected: entry.rejected.clone(),
            deleting: deleting.map(|(pod, _)| pod.clone()).collect(),
            ..SchedulerView::default()
        }
    }

    /// An Event about a workload; none if the workload is unknown.
    pub(super) fn event(
        &self,
        key: &Key,
        event_type: EventType,
        reason: &'static str,
        message: String,
    ) -> Option<Action> {
        let uid = self.entries.get(key)?.uid();
        let object = ObjectRef { kind: "GPUWorkload", key: key.clone(), uid };
        Some(Action::RecordEvent(EventRecord { object, event_type, reason, message }))
    }

    /// Returns true if the status contains this pending reason: the last leader has recorded the Event.
    pub(super) fn reports_pending(&self, key: &Key, reason: &str) -> bool {
        let conditions = self.object(key).into_iter().flat_map(|object| &object.status.conditions);
        conditions
            .into_iter()
            .any(|one| one.type_ == "Schedulable" && one.status == "False" && one.reason == reason)
    }

    /// Runs the controller for one workload.
    pub(super) fn reconcile(
        &mut self,
        key: &Key,
        pods: &[&Pod],
        view: &SchedulerView,
        (scheduler_name, priority): (&str, i32),
        now: Time,
        actions: &mut Vec<Action>,
    ) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let result =
            controller::reconcile(&entry.object, pods, view, scheduler_name, timestamp(now));
        let wake = entry.carry_out(key, result, priority, now, actions);
        if let Some(old) = std::mem::replace(&mut entry.wake, wake) {
            self.wakes.remove(&(old, key.clone()));
        }
        if let Some(at) = wake {
            self.wakes.insert((at, key.clone()));
        }
    }
}

impl WorkloadEntry {
    /// Turns the controller's result into actions; returns the time of the next reconciliation.
    fn carry_out(
        &mut self,
        key: &Key,
        result: Reconciled,
        priority: i32,
        now: Time,
        actions: &mut Vec<Action>,
    ) -> Option<Time> {
        let uid = self.uid();
        self.incomplete = result.incomplete;
        let retry = Time(now.0 + RETRY_AFTER);
        self.creating.retain(|_, until| *until > now);
        if let Some(body) = result.service {
            actions.push(Action::CreateService { workload: key.clone(), body: Box::new(body) });
        }
        if result.expired {
            actions.push(Action::DeleteWorkload { workload: key.clone(), uid: uid.clone() });
        }
        for new in result.create {
            if self.creating.contains_key(&new.name) {
                continue;
            }
            self.creating.insert(new.name.clone(), retry);
            let (workload, name) = (key.clone(), new.name);
            actions.push(Action::Create { workload, name, body: Box::new(new.body) });
        }
        self.deleting.retain(|_, until| *until > now);
        for gone in result.delete {
            let pod =
                PodRef { key: Key::new(&key.namespace, &gone.name), uid: gone.uid.as_str().into() };
            self.deleting.insert(gone.name, retry);
            actions.push(Action::Delete { pod, grace: gone.grace });
        }
        let overdue = self.echo_due().is_some_and(|due| due <= now);
        self.repeats = match result.status {
            Some(_) => 0,
            None => self.repeats.saturating_add(u32::from(overdue)),
        };
        let status = result.status.or_else(|| overdue.then(|| self.object.status.clone()));
        if let Some(status) = status {
            let urgency = Urgency::new(status.phase == self.object.status.phase, priority);
            Arc::make_mut(&mut self.object).status = status.clone();
            self.status_written = Some(now);
            self.status_differs = true;
            let (workload, uid) = (key.clone(), uid.clone());
            let status = Box::new(status);
            actions.push(Action::WriteStatus { workload, uid, status, urgency });
        }
        if result.remove_finalizer {
            let metadata = &self.object.metadata;
            actions.push(Action::RemoveFinalizer {
                workload: key.clone(),
                uid: uid.clone(),
                version: metadata.resource_version.clone().unwrap_or_default(),
                present: metadata.finalizers.clone().unwrap_or_default(),
            });
        }
        for event in result.events {
            let object = ObjectRef { kind: "GPUWorkload", key: key.clone(), uid: uid.clone() };
            let (event_type, reason, message) = (event.event_type, event.reason, event.message);
            actions.push(Action::RecordEvent(EventRecord { object, event_type, reason, message }));
        }
        let requested = self.creating.values().chain(self.deleting.values()).copied();
        let repeats = result.remove_finalizer || result.expired;
        let requested = requested.chain(repeats.then_some(retry)).min();
        let wakes = [result.wake.map(engine_time), requested, self.echo_due()];
        wakes.into_iter().flatten().min()
    }
}

/// Engine time as a Kubernetes timestamp.
pub(super) fn timestamp(time: Time) -> jiff::Timestamp {
    jiff::Timestamp::from_millisecond(time.0 as i64).unwrap_or_default()
}
