//! Changes of `GPUWorkload` objects and of their pods.

use agentaflow_engine::WorkloadId;
use agentaflow_kube_core::slim::{Pod, Workload};
use agentaflow_kube_core::{gpu_workload, names};

use super::action::{CreationRejection, Key, RejectionKind};
use super::membership::workload_id;
use super::pod_entry::{PodState, is_terminating, workload_owner};
use super::work_queue::WorkItem;
use super::{ClusterState, key_of};
use crate::controller::{EventType, PendingReason, PlannedTask, SchedulerView};

impl ClusterState {
    pub(super) fn workload_applied(&mut self, workload: Workload) {
        if !self.settings.manages(&workload) {
            return;
        }
        let key = key_of(&workload.metadata);
        if self.workloads.record(workload) && self.started {
            self.work.push_pods(self.pods.of_workload(&key).cloned());
        }
        self.work.push(WorkItem::ReconcileWorkload(key));
    }

    pub(super) fn workload_deleted(&mut self, workload: &Workload) {
        let key = key_of(&workload.metadata);
        self.workloads.remove(&key);
        self.end_quota_turn(&key);
        if self.started {
            // The garbage collector deletes them; until then no pod is placed.
            let pending = self.pods.of_workload(&key).filter(|pod| self.pods.is_pending(pod));
            self.work.push_pods(pending.cloned());
        }
        self.work.remove(&WorkItem::ReconcileWorkload(key));
    }

    pub(super) fn record_workload_pod(&mut self, workload: &Key, pod: &Key, finished: bool) {
        self.pods.add_to_workload(workload, pod);
        let object = self.pods.get(pod).and_then(|entry| entry.pod.as_deref());
        let terminating = object.is_some_and(is_terminating);
        self.workloads.pod_reported(workload, &pod.name, terminating);
        if finished {
            self.quota_freed(&workload.namespace);
        }
        if finished && self.started {
            // The rest of the gang needs fewer pods to start.
            let pending = self.pods.of_workload(workload).filter(|pod| self.pods.is_pending(pod));
            self.work.push_pods(pending.cloned());
        }
        self.work.push(WorkItem::ReconcileWorkload(workload.clone()));
    }

    pub(super) fn remove_workload_pod(&mut self, workload: &Key, pod: &Key, was_bound: bool) {
        if was_bound {
            self.quota_freed(&workload.namespace);
        }
        self.pods.remove_from_workload(workload, pod);
        self.workloads.pod_removed(workload, &pod.name);
        self.work.push(WorkItem::ReconcileWorkload(workload.clone()));
        // The gang that holds the turn waits until the other gangs have deleted their pods.
        self.requeue_contenders(&workload.namespace);
    }

    /// Enqueues the workload of a pod whose state its status shows.
    pub(super) fn requeue_workload_of(&mut self, pod: &Key) {
        let object = self.pods.get(pod).and_then(|entry| entry.pod.as_deref());
        if let Some(workload) = object.and_then(workload_owner) {
            self.work.push(WorkItem::ReconcileWorkload(workload));
        }
    }

    pub(super) fn reconcile_workload(&mut self, key: &Key) {
        let view = self.scheduler_view(key);
        let pods = self.pods.of_workload(key);
        let pods: Vec<&Pod> = pods.filter_map(|pod| self.pods.get(pod)?.pod.as_deref()).collect();
        let about = (&*self.settings.scheduler_name, self.workload_priority(key));
        let now = self.engine.now();
        self.workloads.reconcile(key, &pods, &view, about, now, &mut self.actions);
        if !self.workloads.is_incomplete(key) {
            self.end_quota_turn(key);
        }
    }

    /// Records the API server's response to a new pod.
    pub(super) fn creation_finished(
        &mut self,
        key: &Key,
        pod: &str,
        rejection: Option<CreationRejection>,
    ) {
        let over_quota = rejection
            .as_ref()
            .is_some_and(|rejection| rejection.kind == RejectionKind::QuotaExceeded);
        let message = rejection.map(|rejection| rejection.message);
        if self.workloads.pod_created(key, pod, message) {
            self.work.push(WorkItem::ReconcileWorkload(key.clone()));
        }
        if over_quota {
            self.record_quota_refusal(key);
        }
    }

    /// Value of the priority class of a workload's pods: as admission gave it to one of them, or as it will.
    pub(super) fn workload_priority(&self, key: &Key) -> i32 {
        let mut pods = self.pods.of_workload(key);
        let admitted = pods.find_map(|pod| self.pods.get(pod)?.pod.as_ref()?.spec.priority);
        admitted.unwrap_or_else(|| {
            let class = self.workloads.spec(key).and_then(gpu_workload::priority_class);
            self.priorities.priority(class.as_deref()).0
        })
    }

    /// The `GPUWorkload` behind a workload of the engine.
    pub(super) fn gpu_workload_of(&self, id: &WorkloadId) -> Option<Key> {
        let first = self.gangs.get(id)?.first_member()?;
        workload_owner(self.pods.get(first)?.pod.as_ref()?)
    }

    /// Records an Event on the `GPUWorkload` or job behind a workload of the engine; returns true if there is one.
    pub(super) fn record_workload_event(
        &mut self,
        id: &WorkloadId,
        event_type: EventType,
        reason: &'static str,
        message: String,
    ) -> bool {
        let event = match self.units.root(id) {
            Some(unit) => Some(unit.event(event_type, reason, message)),
            None => self
                .gpu_workload_of(id)
                .and_then(|key| self.workloads.event(&key, event_type, reason, message)),
        };
        let recorded = event.is_some();
        self.actions.extend(event);
        recorded
    }

    /// Placement and pending reason of a workload for the controller.
    fn scheduler_view(&self, key: &Key) -> SchedulerView {
        let id = workload_id(key);
        let mut view = self.workloads.scheduler_view(key, self.engine.now());
        view.turn = self.quota_turn(key);
        let parked = self.pods.of_workload(key).find_map(|pod| match &self.pods.get(pod)?.state {
            PodState::Parked(super::parked::Parked::ReadingOwner) => None,
            PodState::Parked(reason) => Some(PendingReason {
                code: reason.code().to_owned(),
                message: reason.message().to_string(),
            }),
            _ => None,
        });
        let Some(gang) = self.gangs.get(&id) else {
            view.reason = parked;
            return view;
        };
        view.reason = parked.or_else(|| self.loss_reason(&id)).or_else(|| {
            let reason = gang.reason.as_ref()?;
            let (code, message) = (reason.code().to_owned(), reason.message.to_string());
            Some(PendingReason { code, message })
        });
        for (task, member) in &gang.members {
            let Some(entry) = self.pods.get(member) else { continue };
            let Some(node) = entry.state.binding().and_then(|binding| binding.node()) else {
                continue;
            };
            let gpus = self.engine.scheduler().assumed_gpus(&id, *task);
            view.planned.push(PlannedTask {
                // The engine numbers the pods of a gang in its own order.
                task: entry.pod.as_deref().and_then(task_label).unwrap_or(*task),
                node: node.to_string(),
                gpus: gpus.iter().map(ToString::to_string).collect(),
            });
        }
        view
    }
}

/// Task number of a pod in its workload.
pub(super) fn task_label(pod: &Pod) -> Option<u32> {
    pod.metadata.labels.as_ref()?.get(names::POD_TASK)?.parse().ok()
}
