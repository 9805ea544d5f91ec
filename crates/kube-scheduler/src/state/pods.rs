//! Changes of pods: recorded here, reconciled with the engine by [`ClusterState::reconcile_pod`].

use agentaflow_engine::{Event, GpuAssignment, GpuId, WorkloadId};
use agentaflow_kube_core::pod_end;
use agentaflow_kube_core::slim::Pod;
use std::sync::Arc;

use super::action::{Action, BindResult, Key, PodRef};
use super::losses::Departure;
use super::parked::Parked;
use super::pod_entry::{
    BindingState, PendingBinding, PodEntry, PodState, allocated_devices, is_finished,
    is_irrelevant_update, is_resized, is_terminating, node_of, workload_owner,
};
use super::unit_table::Unit;
use super::work_queue::WorkItem;
use super::{ClusterState, key_of};
use crate::controller::EventType;

impl ClusterState {
    pub(super) fn pod_applied(&mut self, pod: Pod) {
        let key = key_of(&pod.metadata);
        let uid: Arc<str> = pod.metadata.uid.as_deref().unwrap_or_default().into();
        if self.pods.get(&key).is_some_and(|old| old.uid != uid) {
            self.remove_pod(&key);
        }
        let ours = self.settings.schedules(&pod);
        let finished = is_finished(&pod);
        if !ours && self.foreign_demand.observe(&key, &pod) {
            self.send_foreign_demand(&key);
        }
        if !ours && !self.pods.contains(&key) && (finished || node_of(&pod).is_none()) {
            return;
        }
        let entry = self.pods.get_or_insert(&key, || PodEntry::new(&pod, uid));
        entry.nominated = pod.status.nominated_node_name.as_deref().map(Arc::from);
        let irrelevant = entry.pod.as_deref().is_some_and(|old| is_irrelevant_update(old, &pod));
        let arrived = pod.spec.node_name.is_some() && entry.pending_binding.take().is_some();
        let resized = entry.pod.as_deref().is_some_and(|old| is_resized(old, &pod));
        if !ours {
            self.foreign_pod_applied(&key, pod);
            return;
        }
        let owner = workload_owner(&pod);
        let old = entry.pod.replace(Arc::new(pod));
        let detaches = matches!(entry.state, PodState::Foreign(_)) && (arrived || resized);
        let readopted = match &entry.state {
            PodState::Member { workload, binding: BindingState::Bound(_), .. } if resized => {
                Some(workload.clone())
            }
            _ => None,
        };
        self.observe_loss(&key, old.as_deref());
        if let Some(workload) = owner {
            self.record_workload_pod(&workload, &key, finished);
        }
        if detaches {
            self.detach_pod(&key);
        }
        if let Some(workload) = readopted {
            self.work.push(WorkItem::Readopt(workload));
        }
        if self.started && !irrelevant {
            self.work.push(WorkItem::ReconcilePod(key));
        } else {
            self.withdraw_stale_nomination(&key);
        }
    }

    pub(super) fn pod_deleted(&mut self, pod: &Pod) {
        let key = key_of(&pod.metadata);
        if self.foreign_demand.remove(&key) {
            self.send_foreign_demand(&key);
        }
        self.remove_pod(&key);
    }

    /// Records the age of a lost pod for its replacement, and reports a rejection by a kubelet.
    fn observe_loss(&mut self, key: &Key, old: Option<&Pod>) {
        let Some(entry) = self.pods.get(key) else { return };
        let Some(pod) = entry.pod.clone() else { return };
        self.replacements.observe(old, &pod, self.engine.now());
        if old.is_some_and(is_finished) || !self.started {
            return;
        }
        if let (Some(reason), Some(node)) = (pod_end::rejection(&pod), node_of(&pod)) {
            self.activity.kubelet_rejections += 1;
            let message = self.rejection_message(&pod, node, reason);
            self.actions.push(entry.event(key, EventType::Warning, "RejectedByKubelet", message));
        }
    }

    /// Message about a pod that the kubelet of its node rejected: cause, numbers, remedy.
    pub(super) fn rejection_message(&self, pod: &Pod, node: &str, reason: &str) -> String {
        let foreign = self.nodes.get(node).map_or(0, |entry| self.foreign_gpu_pods(entry));
        let cause = match foreign {
            0 => String::new(),
            1 => ". The node has 1 GPU pod of another scheduler".to_owned(),
            count => format!(". The node has {count} GPU pods of other schedulers"),
        };
        let remedy = if pod.metadata.owner_references.iter().flatten().next().is_some() {
            "Its owner replaces it"
        } else {
            "Create the pod again: it has no owner that replaces it"
        };
        let exclusive = if foreign > 0 { ". See `agentaflow exclusive`" } else { "" };
        format!(
            "The kubelet of node {node} rejected the pod: {reason}{cause}. {remedy}{exclusive}."
        )
    }

    fn remove_pod(&mut self, key: &Key) {
        let departure = self.departure_of(key);
        self.release_pod(key, departure);
        self.evictions.pod_removed(key, &mut self.engine);
        self.volumes.release(key);
        self.set_volume_claims(key, &[]);
        self.work.remove(&WorkItem::ReconcilePod(key.clone()));
        self.work.remove(&WorkItem::KeepUnevictable(key.clone()));
        let Some(entry) = self.pods.remove(key) else { return };
        self.replacements.pod_removed(&entry.uid);
        let Some(pod) = entry.pod else { return };
        self.owners.pod_removed(key, &pod);
        if let Some(workload) = workload_owner(&pod) {
            self.remove_workload_pod(&workload, key, pod.spec.node_name.is_some());
        }
    }

    /// Makes the engine's knowledge of a pod agree with the pod.
    pub(super) fn reconcile_pod(&mut self, key: &Key) {
        let Some(entry) = self.pods.get(key) else { return };
        let Some(pod) = entry.pod.clone() else {
            self.refresh_foreign_pod(key, true);
            return;
        };
        if is_finished(&pod) || (pod.spec.node_name.is_none() && is_terminating(&pod)) {
            let departure = self.departure_of(key);
            self.release_pod(key, departure);
            self.set_volume_claims(key, &[]);
            self.record_finished_member(key, &pod);
        } else if let Some(node) = &pod.spec.node_name {
            self.reconcile_bound_pod(key, &pod, &Arc::from(node.as_str()));
        } else {
            self.reconcile_pending_pod(key, &pod);
        }
        if let Some(workload) = workload_owner(&pod) {
            self.work.push(WorkItem::ReconcileWorkload(workload));
        }
        self.withdraw_stale_nomination(key);
    }

    fn reconcile_bound_pod(&mut self, key: &Key, pod: &Pod, node: &Arc<str>) {
        let Some(entry) = self.pods.get(key) else { return };
        let was_foreign = matches!(&entry.state, PodState::Foreign(at) if at == node);
        match entry.state.clone() {
            PodState::Member { workload, task, binding: BindingState::Bound(at) }
                if at == *node =>
            {
                self.report_pod_state(&workload, task, pod);
            }
            PodState::Member {
                workload,
                task,
                binding: BindingState::Binding { node: at, .. },
            } if at == *node => {
                self.confirm_binding(key, &workload, task, node);
                self.report_pod_state(&workload, task, pod);
            }
            _ if was_foreign => {}
            _ => {
                self.detach_pod(key);
                self.set_volume_claims(key, &[]);
                self.adopt_bound_pod(key, pod, node);
            }
        }
        if !was_foreign && !self.nodes.exists(node) {
            self.release_pod_of_lost_node(key, node, true);
        }
    }

    fn confirm_binding(&mut self, key: &Key, workload: &WorkloadId, task: u32, node: &Arc<str>) {
        self.engine.send(Event::PlacementConfirmed { workload: workload.clone(), task });
        self.record_replacement(workload, task);
        self.set_binding(key, BindingState::Bound(node.clone()));
        let Some(entry) = self.pods.get(key) else { return };
        if super::volume_ledger::counted(&entry.claims).next().is_some() {
            self.work.push(WorkItem::ReleaseVolumes(workload.clone()));
        }
        let message = format!("Bound to node {node}");
        self.actions.push(entry.event(key, EventType::Normal, "Scheduled", message));
        // Its gang may have waited for it.
        if let Some(gang) = &entry.detached_from {
            self.work.push(WorkItem::SyncGang(gang.clone()));
        }
        if self.evictions.is_refused(key) {
            self.work.push(WorkItem::KeepUnevictable(key.clone()));
        }
        let is_torn_down = self.gangs.get(workload).is_some_and(|gang| gang.tearing_down);
        if is_torn_down && !self.units.get(workload).is_some_and(Unit::is_suspending) {
            self.delete_pod(key);
        }
        self.requeue_workload_of(key);
        self.refresh_unit_requests(workload);
    }

    /// Reports devices and termination of a running pod.
    fn report_pod_state(&mut self, workload: &WorkloadId, task: u32, pod: &Pod) {
        if is_terminating(pod) {
            self.engine.send(Event::TaskTerminating { workload: workload.clone(), task });
            self.settle_losses(workload);
            return;
        }
        let devices = allocated_devices(pod);
        if devices.is_empty() || !self.knows_devices(pod, &devices) {
            return;
        }
        let gpus: Vec<GpuId> = devices.iter().map(|id| GpuId::from(id.as_str())).collect();
        let known = self.engine.scheduler().workload(workload).is_some_and(|view| {
            view.tasks.iter().any(|placed| {
                placed.task == task
                    && matches!(&placed.gpus, GpuAssignment::Devices(parts)
                        if parts.iter().map(|part| &part.gpu).eq(gpus.iter()))
            })
        });
        if !known {
            self.engine.send(Event::DevicesReported { workload: workload.clone(), task, gpus });
        }
    }

    /// Records the API server's answer to a binding.
    pub(super) fn binding_finished(&mut self, pod: &PodRef, plan: u64, result: BindResult) {
        let Some(entry) = self.pods.get(&pod.key).filter(|entry| entry.uid == pod.uid) else {
            return;
        };
        if entry.pending_binding.as_ref().is_none_or(|binding| binding.plan != plan) {
            return;
        }
        let planned = match &entry.state {
            PodState::Member {
                workload,
                task,
                binding: BindingState::Binding { node, plan: current },
            } if *current == plan => Some((workload.clone(), *task, node.clone())),
            _ => None,
        };
        let key = &pod.key;
        match (result, planned) {
            (BindResult::Bound, Some((workload, task, node))) => {
                self.confirm_binding(key, &workload, task, &node);
            }
            (BindResult::Bound, None) => self.work.push(WorkItem::ReconcilePod(key.clone())),
            (BindResult::BoundToOther(node), _) => {
                self.detach_pod(key);
                self.volumes.release(key);
                self.pods.set_pending_binding(key, Some(PendingBinding { node, plan }));
                self.work.push(WorkItem::ReconcilePod(key.clone()));
            }
            (BindResult::Gone, _) => {
                self.clear_pending_binding(key);
                self.park_pod(key, Parked::Deleting);
            }
            (BindResult::Refused(why), Some((workload, task, node))) => {
                self.clear_pending_binding(key);
                self.fail_binding(key, &workload, task, &node, &why);
            }
            (BindResult::Refused(_), None) => {
                self.clear_pending_binding(key);
                self.detach_pod(key);
                self.work.push(WorkItem::ReconcilePod(key.clone()));
            }
        }
    }

    /// Ends a binding in flight, and releases its volumes.
    pub(super) fn clear_pending_binding(&mut self, key: &Key) {
        self.volumes.release(key);
        self.pods.set_pending_binding(key, None);
    }

    /// Removes a pod from the engine's knowledge because it changed: the caller adds it again.
    pub(super) fn detach_pod(&mut self, key: &Key) {
        self.release_pod(key, Departure::Changed);
    }

    /// Removes a pod from the engine's knowledge: from its gang, or from foreign usage.
    pub(super) fn release_pod(&mut self, key: &Key, departure: Departure) {
        let Some(entry) = self.pods.get_mut(key) else { return };
        if let Some(gang) = entry.detached_from.take() {
            self.gangs.remove_detached(&gang, key);
        }
        match self.pods.set_state(key, PodState::Untracked) {
            PodState::Untracked | PodState::Parked(_) => {}
            PodState::Foreign(node) => {
                self.nodes.remove_foreign_use(key, &node, &mut self.engine);
            }
            PodState::Member { workload, task, binding } => {
                self.remove_member(key, &workload, task, &binding, departure);
                if let Some(node) = binding.node() {
                    self.nodes.remove_member(node, key);
                }
            }
        }
    }

    /// Changes the binding of a member, and the members of its old and new node.
    pub(super) fn set_binding(&mut self, key: &Key, binding: BindingState) {
        if let Some(node) = binding.node() {
            self.nodes.add_member(node, key);
        }
        let node = binding.node().cloned();
        let old = self.pods.set_binding(key, binding);
        if let Some(old) = old.as_ref().and_then(BindingState::node)
            && Some(old) != node.as_ref()
        {
            self.nodes.remove_member(old, key);
        }
    }

    /// Replaces the claims for which a pod waits; pods that share one of them are reconciled.
    pub(super) fn set_volume_claims(
        &mut self,
        key: &Key,
        claims: &[agentaflow_kube_core::translate::ClaimToBind],
    ) {
        self.work.push_pods(self.volumes.set_waiting(key, claims));
    }

    /// Parks a pod; writes the reason once, even if the pod is reconciled several times.
    pub(super) fn park_pod(&mut self, key: &Key, reason: Parked) {
        let parked =
            |entry: &PodEntry| matches!(&entry.state, PodState::Parked(known) if *known == reason);
        if !self.pods.get(key).is_some_and(parked) {
            self.detach_pod(key);
            self.set_parked(key, reason);
        }
    }

    /// Marks a detached pod as parked, and writes the reason as its condition.
    pub(super) fn set_parked(&mut self, key: &Key, reason: Parked) {
        if let Some(entry) = self.pods.get_mut(key)
            && reason != Parked::ReadingOwner
        {
            self.actions.extend(entry.write_condition(key, reason.code(), reason.message()));
        }
        self.pods.set_state(key, PodState::Parked(reason));
    }

    /// Requests the deletion of a pod; the request is repeated until the watch reports it.
    pub(super) fn delete_pod(&mut self, key: &Key) {
        if let Some(entry) = self.pods.get(key) {
            self.actions.push(Action::Delete { pod: entry.reference(key), grace: None });
            self.evictions.record_deletion(key, self.engine.now());
        }
    }
}
