//! Lost members of running gangs. The engine reserves the place of a lost member for its replacement and restarts the gang
//! when none comes in time.

use agentaflow_engine::{Event, LostTaskView, Replacement, Request, WorkloadId};
use agentaflow_kube_core::crd::WorkloadPhase;
use agentaflow_kube_core::slim::Pod;
use std::sync::Arc;

use super::ClusterState;
use super::action::Key;
use super::gang_table::{Gang, LostMember};
use super::membership::controller;
use super::parked::Parked;
use super::pod_entry::{BindingState, is_terminating, workload_owner};
use super::unit_table::PodUnit;
use super::work_queue::WorkItem;
use super::workload_table::timestamp;
use crate::controller::{EventType, PendingReason, WAITING_FOR_REPLACEMENT};

/// Reason for which a pod leaves its gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Departure {
    /// Its work is done, or no replacement comes.
    Finished,
    /// It ended before its work was done.
    Lost,
    /// The pod stays, under another description.
    Changed,
}

impl ClusterState {
    /// Reason for which a pod that is gone or finished leaves its gang.
    pub(super) fn departure_of(&self, key: &Key) -> Departure {
        let Some(pod) = self.pods.get(key).and_then(|entry| entry.pod.as_deref()) else {
            return Departure::Finished;
        };
        let owner = workload_owner(pod);
        let is_over = |workload: &Key| {
            let object = self.workloads.object(workload);
            object.is_none_or(|object| {
                let phase = object.status.phase;
                object.metadata.deletion_timestamp.is_some()
                    || self.workloads.spec(workload).is_some_and(|spec| spec.suspend)
                    || matches!(phase, Some(WorkloadPhase::Succeeded | WorkloadPhase::Failed))
            })
        };
        let has_controller = owner.is_some() || controller(pod).is_some();
        // The controller of a suspended or ended job replaces no pod.
        let in_ended_unit = match self.units.of_pod(pod) {
            PodUnit::Of(id) => self.units.get(id).is_some_and(|unit| !unit.replaces_pods()),
            PodUnit::None | PodUnit::Unreported(_) => false,
        };
        match pod.status.phase.as_deref() {
            Some("Succeeded") => Departure::Finished,
            // Nothing replaces a failed pod without a controller. A deleted pod ends as failed, too.
            Some("Failed") if !has_controller && !is_terminating(pod) => Departure::Finished,
            _ if in_ended_unit || owner.is_some_and(|owner| is_over(&owner)) => Departure::Finished,
            _ => Departure::Lost,
        }
    }

    /// Keeps the place of a member that left a running gang; returns false if the gang needs no replacement. The
    /// member is already removed from the gang.
    pub(super) fn keep_place(
        &mut self,
        key: &Key,
        id: &WorkloadId,
        task: u32,
        binding: &BindingState,
        departure: Departure,
    ) -> bool {
        let Some(gang) = self.gangs.get(id) else { return false };
        let is_replacement = gang.lost.contains_key(&task);
        let left = match departure {
            Departure::Lost => is_replacement || matches!(binding, BindingState::Bound(_)),
            Departure::Changed => is_replacement,
            Departure::Finished => false,
        };
        let runs = gang.placed && !gang.stopping && !gang.tearing_down && gang.is_multi_pod();
        let others = gang.lost.len() as u32 - u32::from(is_replacement);
        if !left || !runs || self.missing_members(id) <= others {
            return false;
        }
        let request = self.pods.get(key).and_then(|entry| entry.request.clone());
        let Some(gang) = self.gangs.get_mut(id) else { return false };
        if !is_replacement {
            let Some(request) = request else { return false };
            gang.lost.insert(task, LostMember { pod: Some(key.clone()), request });
        }
        self.engine.send(Event::TaskLost { workload: id.clone(), task });
        self.work.push(WorkItem::SyncGang(id.clone()));
        // A pending pod of the gang may be the replacement.
        let pending = self.gangs.detached(id).filter(|pod| self.pods.is_pending(pod));
        self.work.push_pods(pending.cloned());
        true
    }

    /// Number of members that a running gang lacks; none if all its pods are terminating.
    fn missing_members(&self, id: &WorkloadId) -> u32 {
        let Some(gang) = self.gangs.get(id) else { return 0 };
        let is_live = |key: &Key| {
            let pod = self.pods.get(key).and_then(|entry| entry.pod.as_deref());
            !self.pods.is_pending(key) && pod.is_some_and(|pod| !is_terminating(pod))
        };
        if !gang.members.values().any(is_live) {
            return 0;
        }
        let open = |(task, _): &(&u32, &Key)| !gang.lost.contains_key(task);
        let here = gang.members.iter().filter(open).count() as u32;
        gang.min_members.saturating_sub(here + self.placed_detached(id))
    }

    /// Ends reservations that a gang does not need any more: pods beside it make up for the lost ones, or the gang ends.
    pub(super) fn settle_losses(&mut self, id: &WorkloadId) {
        let Some(gang) = self.gangs.get(id).filter(|gang| !gang.lost.is_empty()) else { return };
        let needed = self.missing_members(id) as usize;
        let surplus = gang.lost.len().saturating_sub(needed);
        let is_free = |task: &&u32| !gang.members.contains_key(task);
        let ended: Vec<u32> =
            gang.lost.keys().rev().filter(is_free).take(surplus).copied().collect();
        for task in ended {
            self.end_loss(id, task);
        }
    }

    /// The engine releases the place of a lost member.
    fn end_loss(&mut self, id: &WorkloadId, task: u32) {
        let lost = self.gangs.get_mut(id).and_then(|gang| gang.lost.remove(&task));
        if lost.is_some() && self.awaits(id, task) {
            self.engine.send(Event::TaskFinished { workload: id.clone(), task });
        }
    }

    /// The engine's view of a lost member.
    fn loss(&self, id: &WorkloadId, task: u32) -> Option<LostTaskView> {
        let view = self.engine.scheduler().workload(id)?;
        view.lost.into_iter().find(|lost| lost.task == task)
    }

    /// Returns true if the engine waits for a replacement of the task.
    pub(super) fn awaits(&self, id: &WorkloadId, task: u32) -> bool {
        self.loss(id, task).is_some()
    }

    /// Returns true if a pending pod can replace a lost member.
    pub(super) fn can_replace(&self, id: &WorkloadId, key: &Key) -> bool {
        let Some(gang) = self.gangs.get(id).filter(|gang| gang.placed) else { return false };
        let first = gang.first_member();
        let same_run =
            first.is_some_and(|first| self.pods.retries(first) == self.pods.retries(key));
        same_run && gang.lost.keys().any(|task| !gang.members.contains_key(task))
    }

    /// Sends the replacement of a lost member to the engine; with another request, the gang is adopted again first.
    pub(super) fn start_replacement(&mut self, id: &WorkloadId, task: u32, request: &Arc<Request>) {
        let Some(gang) = self.gangs.get_mut(id) else { return };
        let Some(lost) = gang.lost.get_mut(&task) else { return };
        if lost.request == *request {
            self.engine.send(Event::TaskReplaced { workload: id.clone(), task });
        } else {
            lost.request = request.clone();
            self.work.push(WorkItem::Readopt(id.clone()));
        }
    }

    /// The replacement of a lost member is bound. Other replacements may have waited for a new adoption of the gang.
    pub(super) fn record_replacement(&mut self, id: &WorkloadId, task: u32) {
        let Some(gang) = self.gangs.get_mut(id) else { return };
        if gang.lost.remove(&task).is_some() && !gang.lost.is_empty() {
            self.work.push(WorkItem::Readopt(id.clone()));
        }
    }

    /// Reports a new place of a lost member, or its end.
    pub(super) fn report_loss(&mut self, id: &WorkloadId, task: u32) {
        let Some(message) = self.loss_message(id, task) else { return };
        let reason = WAITING_FOR_REPLACEMENT;
        let event = EventType::Warning;
        if !self.record_workload_event(id, event, reason, message.clone()) {
            let first = self.gangs.get(id).and_then(Gang::first_member);
            let event = first.and_then(|key| self.pods.event(key, event, reason, message.clone()));
            self.actions.extend(event);
        }
        let replacement = self.gangs.get(id).and_then(|gang| gang.members.get(&task)).cloned();
        if let Some(key) = replacement
            && let Some(entry) = self.pods.get_mut(&key)
        {
            // More nodes would help: the place is missing.
            self.actions.extend(entry.write_condition(&key, "Unschedulable", message.into()));
        }
        if let Some(workload) = self.gpu_workload_of(id) {
            self.work.push(WorkItem::ReconcileWorkload(workload));
        }
    }

    /// Text about a lost member.
    fn loss_message(&self, id: &WorkloadId, task: u32) -> Option<String> {
        let gang = self.gangs.get(id)?;
        let (lost, view) = (gang.lost.get(&task)?, self.loss(id, task)?);
        let (pod, until) = (lost.name(), timestamp(view.until));
        Some(match (&view.node, view.replacement) {
            (Some(node), Replacement::Missing) => format!(
                "Waiting for replacement of {pod}: place on node {node} reserved until {until}"
            ),
            (None, Replacement::Missing) => format!(
                "Waiting for replacement of {pod}: no node has room; the gang restarts at {until}"
            ),
            (Some(node), _) => format!("Starting the replacement of {pod} on node {node}"),
            (None, _) => format!(
                "No node has room for the replacement of {pod}; the gang restarts at {until}"
            ),
        })
    }

    /// Texts about all lost members of a gang.
    pub(super) fn loss_messages(&self, id: &WorkloadId) -> Vec<String> {
        let lost = self.gangs.get(id).into_iter().flat_map(|gang| gang.lost.keys());
        lost.filter_map(|task| self.loss_message(id, *task)).collect()
    }

    /// Pending reason of a gang with lost members.
    pub(super) fn loss_reason(&self, id: &WorkloadId) -> Option<PendingReason> {
        let message = self.loss_messages(id).into_iter().next()?;
        Some(PendingReason { code: WAITING_FOR_REPLACEMENT.to_owned(), message })
    }

    /// No replacement came in time: the rest of the gang is stopped, and all its pods start again together.
    pub(super) fn restart_gang(&mut self, id: &WorkloadId) {
        let Some(gang) = self.gangs.get_mut(id) else { return };
        gang.stopping = true;
        let lost = std::mem::take(&mut gang.lost);
        let names: Vec<String> = lost.values().map(LostMember::name).collect();
        let why =
            format!("No replacement of {} started in time: the gang restarts", names.join(", "));
        self.record_workload_event(id, EventType::Warning, "GangRestarted", why.clone());
        let pods: Vec<Key> =
            self.gangs.members(id).chain(self.gangs.detached(id)).cloned().collect();
        self.stop_pods(id, &pods, "GangRestarted", &why);
        for key in &pods {
            if self.pods.is_pending(key) {
                self.pods.wait_for_gang(id, key);
                self.park_pod(key, Parked::GangStopping);
            }
        }
    }

    /// The gang that lost this pod.
    pub(super) fn gang_without(&self, pod: &Key) -> Option<WorkloadId> {
        let mut gangs = self.gangs.iter();
        let found =
            gangs.find(|(_, gang)| gang.lost.values().any(|lost| lost.pod.as_ref() == Some(pod)));
        found.map(|(id, _)| id.clone())
    }

    /// Returns true if the task was lost, and its replacement is not bound yet.
    pub(super) fn is_replacement(&self, id: &WorkloadId, task: u32) -> bool {
        self.gangs.get(id).is_some_and(|gang| gang.lost.contains_key(&task))
    }

    /// Members that a restarted scheduler finds missing in a running gang of a `GPUWorkload`.
    pub(super) fn missing_at_start(&self, workload: &Key, bound: &[&Pod]) -> Vec<Key> {
        let Some(spec) = self.workloads.spec(workload) else { return Vec::new() };
        let Some(object) = self.workloads.object(workload) else { return Vec::new() };
        let over =
            matches!(object.status.phase, Some(WorkloadPhase::Succeeded | WorkloadPhase::Failed));
        if over || object.metadata.deletion_timestamp.is_some() {
            return Vec::new();
        }
        let is_done = |task: u32| crate::controller::is_completed(&object.status, task);
        let has = |task: u32, pod: &Pod| super::workloads::task_label(pod) == Some(task);
        let succeeded = |task: u32| {
            self.pods.of_workload(workload).any(|key| {
                let pod = self.pods.get(key).and_then(|entry| entry.pod.as_deref());
                pod.is_some_and(|pod| {
                    has(task, pod) && pod.status.phase.as_deref() == Some("Succeeded")
                })
            })
        };
        (0..spec.gang_size)
            .filter(|task| !bound.iter().any(|pod| has(*task, pod)))
            .filter(|task| !is_done(*task) && !succeeded(*task))
            .map(|task| {
                let name = agentaflow_kube_core::gpu_workload::pod_name(&workload.name, task, 0);
                Key::new(&workload.namespace, &name)
            })
            .collect()
    }
}
