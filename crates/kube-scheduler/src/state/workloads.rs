//! `GPUWorkload` objects: their pods are made and their status is kept here, placing them is the engine's business.

use agentaflow_engine::{Time, WorkloadId};
use agentaflow_kube_core::names;
use agentaflow_kube_core::slim::{Pod, Workload};
use std::collections::BTreeMap;
use std::sync::Arc;

use super::action::{Action, EventRecord, Key, ObjectRef, PodRef};
use super::pod_entry::{BindingState, PodState, is_leaving, moment, workload_owner};
use super::{ClusterState, key_of};
use crate::controller::{
    self, EventType, Finalizer, PendingReason as WorkloadPendingReason, PlannedTask, SchedulerView,
};

/// How long what was asked for, such as a new pod or the end of one, may take to be seen before it is asked for again, in
/// milliseconds: the API server may have refused it.
pub(super) const PATIENCE: u64 = 30_000;

/// How long a status that was written may take to be seen before it is written again, in milliseconds.
const ECHO: u64 = 5_000;

/// Each time a status was written again for nothing the wait doubles, so often at most: up to five minutes. A schema of
/// another version may lack a field of ours, and then no status ever comes back as it was written.
const MOST_DOUBLINGS: u32 = 6;

/// What is recorded about a `GPUWorkload`.
#[derive(Debug)]
pub(super) struct WorkloadEntry {
    pub(super) object: Workload,
    /// Pods that were asked for and not seen yet, and until when we wait for them.
    creating: BTreeMap<String, Time>,
    /// Pods whose deletion was asked for and that were not seen to end yet, and until when we wait for that.
    deleting: BTreeMap<String, Time>,
    /// PendingCondition the API server refused the last pod.
    rejected: Option<String>,
    /// When to look again.
    wake: Option<Time>,
    /// When we last wrote its status.
    spoken: Option<Time>,
    /// The API server has another status than we wrote: our own has not come back yet, or was overtaken by one that
    /// was long on its way.
    disputed: bool,
    /// How often the same status was written again and still did not come back.
    repeats: u32,
}

impl ClusterState {
    pub(super) fn see_workload(&mut self, workload: Workload) {
        let key = key_of(&workload.metadata);
        if !self.is_for_us(&workload) {
            return;
        }
        let uid = workload.metadata.uid.clone();
        let old = self.workloads.remove(&key);
        let (same, mut entry) = match old {
            Some(entry) if entry.object.metadata.uid == uid => (true, entry),
            _ => (false, WorkloadEntry::new(Workload::default())),
        };
        let spec_changed = !same
            || entry.object.metadata.generation != workload.metadata.generation
            || entry.object.spec.0.is_ok() != workload.spec.0.is_ok();
        // We alone write the status: our last word stands, however late the API server tells it back.
        let status = std::mem::take(&mut entry.object.status);
        entry.object = workload;
        if entry.spoken.is_some() {
            entry.disputed = entry.object.status != status;
            entry.object.status = status;
            entry.repeats = if entry.disputed { entry.repeats } else { 0 };
        }
        if spec_changed && self.begun {
            self.stuck.extend(self.pods_of_workload(&key));
        }
        self.workloads.insert(key.clone(), entry);
        self.dirty.insert(key);
    }

    /// Whether we look after this workload: its template names us, or nobody and we are the one by default.
    fn is_for_us(&self, workload: &Workload) -> bool {
        let template = workload.spec.0.as_ref().map(|spec| spec.pod_template.value());
        let named = template.ok().and_then(|template| {
            Some(template.pointer("/spec/schedulerName")?.as_str()?.to_owned())
        });
        named.as_deref().unwrap_or(names::SCHEDULER_NAME) == self.settings.scheduler_name
    }

    pub(super) fn lose_workload(&mut self, workload: &Workload) {
        let key = key_of(&workload.metadata);
        if let Some(entry) = self.workloads.remove(&key)
            && let Some(at) = entry.wake
        {
            self.wakes.remove(&(at, key.clone()));
        }
        self.dirty.remove(&key);
    }

    /// The pods of a workload.
    pub(super) fn pods_of_workload(&self, workload: &Key) -> Vec<Key> {
        self.owned.get(workload).into_iter().flatten().cloned().collect()
    }

    /// A pod of a workload was seen.
    pub(super) fn own_pod(&mut self, workload: &Key, pod: &Key, finished: bool) {
        self.owned.entry(workload.clone()).or_default().insert(pod.clone());
        let leaves =
            self.pods.get(pod).and_then(|entry| entry.pod.as_deref()).is_some_and(is_leaving);
        if let Some(entry) = self.workloads.get_mut(workload) {
            entry.creating.remove(&*pod.name);
            if leaves {
                entry.deleting.remove(&*pod.name);
            }
        }
        if finished && self.begun {
            // Fewer are needed to start the rest of the gang.
            let waiting = self.owned.get(workload).into_iter().flatten().filter(|pod| {
                let place = self.pods.get(*pod).map(|entry| &entry.place);
                matches!(place, Some(PodState::Member { seat: BindingState::Pending, .. }))
            });
            let waiting: Vec<Key> = waiting.cloned().collect();
            self.stuck.extend(waiting);
        }
        self.dirty.insert(workload.clone());
    }

    /// A pod of a workload is gone.
    pub(super) fn disown_pod(&mut self, workload: &Key, pod: &Key) {
        if let Some(pods) = self.owned.get_mut(workload) {
            pods.remove(pod);
            if pods.is_empty() {
                self.owned.remove(workload);
            }
        }
        if let Some(entry) = self.workloads.get_mut(workload) {
            entry.deleting.remove(&*pod.name);
        }
        self.dirty.insert(workload.clone());
    }

    /// Something about a pod changed that its workload's status shows.
    pub(super) fn touch_workload_of(&mut self, key: &Key) {
        let pod = self.pods.get(key).and_then(|entry| entry.pod.as_deref());
        if let Some(workload) = pod.and_then(workload_owner) {
            self.dirty.insert(workload);
        }
    }

    /// The API server answered to a new pod.
    pub(super) fn pod_created(&mut self, workload: &Key, name: &str, refused: Option<String>) {
        let Some(entry) = self.workloads.get_mut(workload) else { return };
        if refused.is_some() {
            entry.creating.remove(name);
            entry.rejected = refused;
            self.dirty.insert(workload.clone());
        } else {
            entry.rejected = None;
        }
    }

    /// Looks at every workload that changed or whose time has come; says when to look again.
    pub(super) fn reconcile(&mut self) -> Option<Time> {
        while let Some((at, key)) = self.wakes.first().cloned().filter(|(at, _)| *at <= self.now) {
            self.wakes.remove(&(at, key.clone()));
            self.dirty.insert(key);
        }
        for key in std::mem::take(&mut self.dirty) {
            self.reconcile_one(&key);
        }
        self.wakes.first().map(|(at, _)| *at)
    }

    fn reconcile_one(&mut self, key: &Key) {
        let outlook = self.outlook(key);
        let owned = self.owned.get(key).into_iter().flatten();
        let pods: Vec<Arc<Pod>> = owned.filter_map(|pod| self.pods.get(pod)?.pod.clone()).collect();
        let Some(entry) = self.workloads.get_mut(key) else { return };
        let pods: Vec<&Pod> = pods.iter().map(AsRef::as_ref).collect();
        let now = timestamp(self.now);
        let result = controller::reconcile(
            &entry.object,
            &pods,
            &outlook,
            &self.settings.scheduler_name,
            now,
        );
        let uid: Arc<str> = entry.object.metadata.uid.as_deref().unwrap_or_default().into();
        let patience = Time(self.now.0 + PATIENCE);
        entry.creating.retain(|_, until| *until > self.now);
        for new in result.create {
            if entry.creating.contains_key(&new.name) {
                continue;
            }
            entry.creating.insert(new.name.clone(), patience);
            let (workload, name) = (key.clone(), new.name);
            self.acts.push(Action::Create { workload, name, body: Box::new(new.body) });
        }
        entry.deleting.retain(|_, until| *until > self.now);
        for gone in result.delete {
            entry.deleting.insert(gone.name.clone(), patience);
            let pod =
                PodRef { key: Key::new(&key.namespace, &gone.name), uid: gone.uid.as_str().into() };
            self.acts.push(Action::Delete { pod, grace: gone.grace });
        }
        let overdue = entry.echo_due().is_some_and(|due| due <= self.now);
        let again = overdue.then(|| entry.object.status.clone());
        entry.repeats = match result.status {
            Some(_) => 0,
            None => (entry.repeats + u32::from(overdue)).min(MOST_DOUBLINGS),
        };
        if let Some(status) = result.status.or(again) {
            entry.object.status = status.clone();
            (entry.spoken, entry.disputed) = (Some(self.now), true);
            let (workload, uid) = (key.clone(), uid.clone());
            self.acts.push(Action::Status { workload, uid, status: Box::new(status) });
        }
        let finalizer = (result.finalizer != Finalizer::Keep).then_some(patience);
        if finalizer.is_some() {
            let present = entry.object.metadata.finalizers.clone().unwrap_or_default();
            let add = result.finalizer == Finalizer::Add;
            let version = entry.object.metadata.resource_version.clone().unwrap_or_default();
            let (workload, uid) = (key.clone(), uid.clone());
            self.acts.push(Action::Finalizer { workload, uid, version, add, present });
        }
        for note in result.notes {
            let about = ObjectRef { kind: "GPUWorkload", key: key.clone(), uid: uid.clone() };
            let warning = note.kind == EventType::Warning;
            let (reason, message) = (note.reason, note.message);
            self.acts.push(Action::RecordEvent(EventRecord { about, warning, reason, message }));
        }
        let asked = entry.creating.values().chain(entry.deleting.values()).copied();
        let asked = asked.chain(finalizer).min();
        let wake = [result.wake.map(moment), asked, entry.echo_due()].into_iter().flatten().min();
        if let Some(old) = std::mem::replace(&mut entry.wake, wake) {
            self.wakes.remove(&(old, key.clone()));
        }
        if let Some(at) = wake {
            self.wakes.insert((at, key.clone()));
        }
    }

    /// Tells people about a `GPUWorkload`; says whether there is one behind what the engine calls so.
    pub(super) fn note_workload(
        &mut self,
        id: &WorkloadId,
        warning: bool,
        reason: &'static str,
        message: String,
    ) -> bool {
        let Some((key, entry)) = self.behind(id) else { return false };
        let uid = entry.object.metadata.uid.as_deref().unwrap_or_default().into();
        let about = ObjectRef { kind: "GPUWorkload", key, uid };
        self.acts.push(Action::RecordEvent(EventRecord { about, warning, reason, message }));
        true
    }

    /// The `GPUWorkload` behind what the engine calls so.
    fn behind(&self, id: &WorkloadId) -> Option<(Key, &WorkloadEntry)> {
        let first = self.groups.get(id)?.members.values().next()?;
        let key = workload_owner(self.pods.get(first)?.pod.as_ref()?)?;
        let entry = self.workloads.get(&key)?;
        Some((key, entry))
    }

    /// Whether a `GPUWorkload` says of itself that it waits for this reason: whoever led before us has told people.
    pub(super) fn is_known_to_wait(&self, id: &WorkloadId, word: &str) -> bool {
        let conditions =
            self.behind(id).into_iter().flat_map(|(_, entry)| &entry.object.status.conditions);
        conditions
            .into_iter()
            .any(|one| one.type_ == "Schedulable" && one.status == "False" && one.reason == word)
    }

    /// What the scheduler thinks of a workload.
    fn outlook(&self, key: &Key) -> SchedulerView {
        let id = WorkloadId::from(key.to_string());
        let rejected = self.workloads.get(key).and_then(|entry| entry.rejected.clone());
        let deleting = self.workloads.get(key).into_iter().flat_map(|entry| &entry.deleting);
        let deleting = deleting.filter(|(_, until)| **until > self.now);
        let deleting = deleting.map(|(pod, _)| pod.clone()).collect();
        let mut outlook = SchedulerView { rejected, deleting, ..SchedulerView::default() };
        let aside = self.owned.get(key).into_iter().flatten().find_map(|pod| {
            match &self.pods.get(pod)?.place {
                PodState::Parked(super::pod_entry::Parked::Because(word, message)) => {
                    Some(WorkloadPendingReason {
                        word: (*word).to_owned(),
                        message: message.to_string(),
                    })
                }
                _ => None,
            }
        });
        let Some(group) = self.groups.get(&id) else {
            outlook.reason = aside;
            return outlook;
        };
        outlook.reason = aside.or_else(|| {
            let reason = group.reason.as_ref()?;
            Some(WorkloadPendingReason {
                word: reason.word.to_owned(),
                message: reason.message.to_string(),
            })
        });
        for (task, member) in &group.members {
            let Some(entry) = self.pods.get(member) else { continue };
            let PodState::Member {
                seat: BindingState::Binding { node, .. } | BindingState::Bound(node),
                ..
            } = &entry.place
            else {
                continue;
            };
            let gpus = self.engine.assumed_gpus(&id, *task);
            outlook.planned.push(PlannedTask {
                // The engine counts the pods of a gang in an order of its own.
                task: entry.pod.as_deref().and_then(task_label).unwrap_or(*task),
                node: node.to_string(),
                gpus: gpus.iter().map(ToString::to_string).collect(),
            });
        }
        outlook
    }
}

impl WorkloadEntry {
    fn new(object: Workload) -> Self {
        Self {
            object,
            creating: BTreeMap::new(),
            deleting: BTreeMap::new(),
            rejected: None,
            wake: None,
            spoken: None,
            disputed: false,
            repeats: 0,
        }
    }

    /// When a status that was written should have been seen; none when it was.
    fn echo_due(&self) -> Option<Time> {
        self.spoken.filter(|_| self.disputed).map(|at| Time(at.0 + (ECHO << self.repeats)))
    }
}

/// Which task of its workload a pod does.
fn task_label(pod: &Pod) -> Option<u32> {
    pod.metadata.labels.as_ref()?.get(names::POD_TASK)?.parse().ok()
}

/// The engine's time as Kubernetes writes it.
pub(super) fn timestamp(time: Time) -> jiff::Timestamp {
    jiff::Timestamp::from_millisecond(time.0 as i64).unwrap_or_default()
}
