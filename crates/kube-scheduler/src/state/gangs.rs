//! Gangs: gathering their pods, submission to the engine, and teardown. A gang starts whole or not at all.

use agentaflow_engine::{Event, Request, Span, WaitReason, WorkloadId};
use agentaflow_kube_core::slim::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::sync::Arc;

use super::action::{Action, Key};
use super::explain::ReportedReason;
use super::gang_table::{Gang, incomplete, set_roles};
use super::losses::Departure;
use super::membership::{Membership, is_in_pod_group};
use super::parked::Parked;
use super::pod_entry::{BindingState, PodState};
use super::unit_table::Unit;
use super::work_queue::WorkItem;
use super::{ClusterState, key_of};
use crate::controller::EventType;

/// Members up to which the conditions of a gang follow each new pod.
const MAX_RECOUNTED: usize = 64;
/// Shortest time between two writes of the count to all members of a larger gang, and the time per member: a gang causes at
/// most a hundred writes a second.
const RECOUNT_INTERVAL: u64 = 1000;
const RECOUNT_PER_MEMBER: u64 = 10;

impl ClusterState {
    /// Makes a pod without a node a member of a gang, or parks it.
    pub(super) fn reconcile_pending_pod(&mut self, key: &Key, pod: &Arc<Pod>) {
        let Some(entry) = self.pods.get(key) else { return };
        if let Some(binding) = &entry.pending_binding {
            // The binding in flight has precedence: changes of the pod count only if it fails.
            let node = binding.node.clone();
            let is_member = matches!(entry.state, PodState::Member { .. });
            if !is_member && entry.state != PodState::Foreign(node.clone()) {
                self.detach_pod(key);
                self.adopt_bound_pod(key, pod, &node);
            }
            return;
        }
        if self.park_until_job_is_reported(key, pod) {
            return;
        }
        if let Some(owner) = self.owners.unread(pod) {
            self.detach_pod(key);
            self.set_parked(key, Parked::ReadingOwner);
            if self.owners.request(key, &owner) {
                self.actions.push(Action::LookUpOwner(owner));
            }
            return;
        }
        let lookup = self.lookup();
        let joined = lookup.membership(key, pod).and_then(|membership| {
            let asked = lookup.request(pod, &membership)?;
            Ok((membership, asked))
        });
        let joined = joined
            .and_then(|(membership, asked)| Ok((self.admit_to_gang(membership, key)?, asked)));
        let (membership, mut asked) = match joined {
            Ok(joined) => joined,
            Err(reason) => {
                self.set_volume_claims(key, &[]);
                self.park_pod(key, reason);
                return;
            }
        };
        self.set_volume_claims(key, &asked.claims);
        self.volumes.request_volumes(&mut asked);
        let request = Arc::new(asked.request);
        let stays = self.is_unchanged_member(key, &membership, &request);
        if let Some(entry) = self.pods.get_mut(key) {
            entry.claims = asked.claims;
            entry.depends = asked.depends;
        }
        if stays {
            return;
        }
        self.detach_pod(key);
        if let Some(entry) = self.pods.get_mut(key) {
            entry.request = Some(request);
        }
        self.add_member(key, membership);
    }

    fn is_unchanged_member(
        &self,
        key: &Key,
        membership: &Membership,
        request: &Arc<Request>,
    ) -> bool {
        let Some(entry) = self.pods.get(key) else { return false };
        let Some(gang) = self.gangs.get(&membership.id) else { return false };
        matches!(&entry.state, PodState::Member { workload, .. } if *workload == membership.id)
            && entry.request.as_ref() == Some(request)
            && gang.traits == membership.traits.since(gang.traits.submitted)
            && gang.min_members == membership.min_members
    }

    /// A pod of a gang that runs already is placed alone; while the old gang is being stopped, the pod waits.
    fn admit_to_gang(
        &mut self,
        mut membership: Membership,
        key: &Key,
    ) -> Result<Membership, Parked> {
        let Some(gang) = self.gangs.get(&membership.id) else { return Ok(membership) };
        let state = self.pods.get(key).map(|entry| &entry.state);
        let is_member = matches!(
            state,
            Some(PodState::Member { workload, .. }) if *workload == membership.id
        );
        let have = gang.members.len() as u32 + self.placed_detached(&membership.id);
        if is_member || !(gang.placed || have >= gang.min_members) {
            return Ok(membership);
        }
        let stopping = gang.stopping || gang.tearing_down;
        if !stopping && self.can_replace(&membership.id, key) {
            return Ok(membership);
        }
        let (placed, min_members) = (gang.placed, gang.min_members);
        if stopping || !placed {
            self.pods.wait_for_gang(&membership.id, key);
        }
        if stopping {
            return Err(Parked::GangStopping);
        }
        if !placed {
            return Err(Parked::GangFirst { min_members });
        }
        membership.detach(key);
        Ok(membership)
    }

    /// Number of pods of the same run that the gang need not wait for: placed apart from it, or finished.
    pub(super) fn placed_detached(&self, id: &WorkloadId) -> u32 {
        let first = self.gangs.get(id).and_then(Gang::first_member);
        let run = first.and_then(|key| self.pods.retries(key));
        let counts = |key: &&Key| !self.pods.is_pending(key) && self.pods.retries(key) == run;
        self.gangs.detached(id).filter(counts).count() as u32
    }

    /// A finished pod of a gang: the gang does not wait for it.
    pub(super) fn record_finished_member(&mut self, key: &Key, pod: &Pod) {
        if pod.status.phase.as_deref() == Some("Succeeded")
            && let Ok(Membership { id, min_members: 2.., .. }) = self.lookup().membership(key, pod)
        {
            self.record_detached(key, &id);
            self.work.push(WorkItem::SyncGang(id));
        }
    }

    /// Records a pod placed apart from its gang.
    pub(super) fn record_detached(&mut self, key: &Key, gang: &WorkloadId) {
        if let Some(entry) = self.pods.get_mut(key) {
            self.gangs.add_detached(gang, key);
            entry.detached_from = Some(gang.clone());
        }
    }

    /// Removes a gang without members. Pods that are placed apart from it and pending belong to the next one.
    fn remove_gang(&mut self, id: &WorkloadId) {
        self.gangs.remove(id);
        self.work.push_pods(self.gangs.detached(id).cloned());
        if self.units.root(id).is_some() {
            self.work.push(WorkItem::SyncGang(id.clone()));
        }
    }

    /// Reconciles pods that wait until other pods of a gang are placed or gone.
    pub(super) fn requeue_gang_waiters(&mut self, id: &WorkloadId) {
        self.work.push_pods(self.pods.take_gang_waiters(id));
    }

    fn add_member(&mut self, key: &Key, membership: Membership) {
        let Membership { id, min_members, traits, detached_from, .. } = membership;
        if let Some(gang) = &detached_from {
            self.record_detached(key, gang);
        }
        let gang = self.gangs.get_or_insert(&id, || Gang::new(min_members, traits.clone()));
        let traits = traits.since(gang.traits.submitted);
        if gang.traits != traits {
            // Submitted again with the new traits.
            gang.submitted_requests.clear();
        }
        gang.min_members = min_members;
        gang.traits = traits;
        let request = self.pods.get(key).and_then(|entry| entry.request.clone());
        let replaced = request.as_ref().filter(|_| gang.placed);
        let replaced = replaced.and_then(|request| gang.replaced_task(key, request));
        let task = replaced.unwrap_or_else(|| gang.free_task());
        gang.members.insert(task, key.clone());
        let state = PodState::Member { workload: id.clone(), task, binding: BindingState::Pending };
        self.pods.set_state(key, state);
        if let (Some(task), Some(request)) = (replaced, &request) {
            self.start_replacement(&id, task, request);
            return;
        }
        if let Some(gang) = self.gangs.get_mut(&id) {
            gang.unexplained.push(key.clone());
        }
        if self.pods.get(key).is_some_and(|entry| entry.nominated.is_some()) {
            self.work.push(WorkItem::RebuildHold(id.clone()));
        }
        self.work.push(WorkItem::SyncGang(id));
    }

    /// Makes the engine's workload agree with the pods of a gang.
    pub(super) fn sync_gang(&mut self, id: &WorkloadId) {
        self.reassemble_gang(id);
        self.settle_losses(id);
        if self.sync_unit(id) {
            return;
        }
        let Some(gang) = self.gangs.get(id) else { return };
        if !gang.placed && !gang.tearing_down {
            let (have, need) = (gang.members.len(), gang.min_members);
            if have == 0 {
                if gang.submitted {
                    self.engine.send(Event::Cancelled(id.clone()));
                }
                self.remove_gang(id);
                return;
            }
            if (have as u32) + self.placed_detached(id) < need {
                self.gate_gang(id, have, need);
            } else {
                self.submit_gang(id);
            }
        }
        self.explain_to_new_members(id);
    }

    /// A torn down gang gathers again when none of its pods has a node.
    fn reassemble_gang(&mut self, id: &WorkloadId) {
        let Some(gang) = self.gangs.get_mut(id).filter(|gang| gang.tearing_down) else { return };
        if gang.members.values().any(|key| !self.pods.is_pending(key)) {
            return;
        }
        gang.tearing_down = false;
        gang.placed = false;
        if self.units.get(id).is_some_and(Unit::is_suspending) {
            self.withdraw_pending(id);
        }
        self.requeue_gang_waiters(id);
    }

    /// The engine reports a reason once for a gang; members that came later have not got it.
    fn explain_to_new_members(&mut self, id: &WorkloadId) {
        let Some(gang) = self.gangs.get_mut(id) else { return };
        let unexplained = std::mem::take(&mut gang.unexplained);
        let Some(reason) = &gang.reason else { return };
        for key in unexplained {
            if let Some(entry) = self.pods.get_mut(&key) {
                let message = reason.message.clone();
                self.actions.extend(entry.write_condition(&key, reason.condition(), message));
            }
        }
    }

    fn gate_gang(&mut self, id: &WorkloadId, have: usize, need: u32) {
        let now = self.engine.now();
        let gate = incomplete(have, need);
        let mut reason = ReportedReason::new(&WaitReason::Gated(gate.clone()), now);
        reason.add_quota(self.full_quota_of_group(id));
        self.recount(id, reason);
        let Some(gang) = self.gangs.get_mut(id) else { return };
        gang.gated = true;
        if gang.submitted {
            self.engine.send(Event::GateChanged { workload: id.clone(), gate: Some(gate) });
            return;
        }
        gang.submitted_requests.clear();
        let first = gang.first_member().and_then(|key| self.pods.get(key));
        let Some(request) = first.and_then(|entry| entry.request.clone()) else { return };
        let mut workload = gang.traits.workload(id.clone(), need, request);
        workload.gate = Some(gate);
        self.submit(id, workload);
    }

    /// Replaces the count in the reason of an incomplete gang. Members that have the old count get the new one, the ones of a large
    /// gang after a while.
    fn recount(&mut self, id: &WorkloadId, current: ReportedReason) {
        let now = self.engine.now();
        let Some(gang) = self.gangs.get_mut(id) else { return };
        let Some(reason) = &mut gang.reason else { return };
        gang.count_is_stale |= *reason != current;
        *reason = current;
        if !gang.count_is_stale {
            return;
        }
        let members = gang.members.len();
        if members > MAX_RECOUNTED && now < gang.recount_at {
            let due = gang.recount_at;
            self.gangs.recount_later(id, due);
            return;
        }
        let interval = RECOUNT_INTERVAL.max(RECOUNT_PER_MEMBER * members as u64);
        gang.recount_at = now.after(Span(interval));
        gang.count_is_stale = false;
        gang.unexplained = gang.members.values().cloned().collect();
    }

    /// Enqueues gangs whose members have an old count.
    pub(super) fn requeue_recounts(&mut self) {
        for id in self.gangs.take_recounts(self.engine.now()) {
            self.work.push(WorkItem::SyncGang(id));
        }
    }

    /// Submits a complete gang.
    fn submit_gang(&mut self, id: &WorkloadId) {
        let requests = self.order_members(id);
        let Some(gang) = self.gangs.get_mut(id) else { return };
        if gang.submitted && gang.submitted_requests == requests {
            if std::mem::take(&mut gang.gated) {
                self.engine.send(Event::GateChanged { workload: id.clone(), gate: None });
            }
            return;
        }
        let Some(first) = requests.first().cloned() else { return };
        let mut workload = gang.traits.workload(id.clone(), 1, first);
        set_roles(&mut workload, &requests);
        workload.budgets = self.evictions.budgets_of(gang.members.values(), &self.pods);
        gang.submitted_requests = requests;
        gang.gated = false;
        if std::mem::take(&mut gang.submitted) {
            self.engine.send(Event::Cancelled(id.clone()));
        }
        self.submit(id, workload);
    }

    fn submit(&mut self, id: &WorkloadId, workload: agentaflow_engine::Workload) {
        match self.engine.try_send(Event::Submitted(Box::new(workload))) {
            Ok(()) => {
                if let Some(gang) = self.gangs.get_mut(id) {
                    gang.submitted = true;
                }
            }
            Err(why) => {
                let Some(gang) = self.gangs.remove(id) else { return };
                for key in gang.members.into_values() {
                    self.set_parked(&key, Parked::Rejected(why.clone()));
                }
            }
        }
    }

    /// Numbers the pods of a complete gang so that equal requests are adjacent; returns the requests by task.
    fn order_members(&mut self, id: &WorkloadId) -> Vec<Arc<Request>> {
        let Some(gang) = self.gangs.get_mut(id) else { return Vec::new() };
        let members = std::mem::take(&mut gang.members).into_values();
        let mut members: Vec<(Arc<Request>, Key)> =
            members.filter_map(|key| Some((self.pods.get(&key)?.request.clone()?, key))).collect();
        let mut kinds: Vec<Arc<Request>> = Vec::new();
        for (request, _) in &members {
            if !kinds.contains(request) {
                kinds.push(request.clone());
            }
        }
        let kind = |request: &Arc<Request>| kinds.iter().position(|known| known == request);
        members.sort_by(|a, b| (kind(&a.0), &a.1).cmp(&(kind(&b.0), &b.1)));
        let mut requests = Vec::with_capacity(members.len());
        for (task, (request, key)) in (0..).zip(members) {
            self.pods.set_task(&key, task);
            gang.members.insert(task, key);
            requests.push(request);
        }
        requests
    }

    /// Removes a pod from its gang: the pod is finished, gone, or changed.
    pub(super) fn remove_member(
        &mut self,
        key: &Key,
        id: &WorkloadId,
        task: u32,
        binding: &BindingState,
        departure: Departure,
    ) {
        let Some(gang) = self.gangs.get_mut(id) else { return };
        if gang.members.get(&task) != Some(key) {
            return;
        }
        gang.members.remove(&task);
        if self.keep_place(key, id, task, binding, departure) {
            return;
        }
        let waits = *binding == BindingState::Pending && self.awaits(id, task);
        let Some(gang) = self.gangs.get_mut(id) else { return };
        let was_lost = gang.lost.remove(&task).is_some();
        // A pod that is deleted before it is bound breaks its gang: the rest must not start without it.
        let is_binding = matches!(binding, BindingState::Binding { .. }) && !was_lost;
        let breaks = gang.is_multi_pod() && !gang.tearing_down && is_binding;
        if breaks {
            gang.tearing_down = true;
            gang.placed = false;
        }
        let (tearing_down, placed) = (gang.tearing_down, gang.placed);
        let (empty, submitted) = (gang.members.is_empty() && gang.held.is_none(), gang.submitted);
        if (waits || *binding != BindingState::Pending) && submitted {
            let workload = id.clone();
            self.engine.send(if tearing_down {
                Event::TaskStopped { workload, task }
            } else {
                Event::TaskFinished { workload, task }
            });
        }
        if empty {
            self.remove_gang(id);
            if self.engine.scheduler().workload(id).is_some() {
                self.engine.send(Event::Cancelled(id.clone()));
            }
            self.requeue_gang_waiters(id);
            return;
        }
        if breaks {
            self.stop_bound_members(
                id,
                &format!("Pod {} was deleted before all started", key.name),
            );
        }
        self.work.push(WorkItem::SyncGang(id.clone()));
        if !tearing_down && !placed {
            // Pods that waited for the first pods of the gang may be among these now.
            self.requeue_gang_waiters(id);
        }
    }

    /// A binding failed for good: bound members of the gang are stopped, and the gang is placed again.
    pub(super) fn fail_binding(
        &mut self,
        key: &Key,
        id: &WorkloadId,
        task: u32,
        node: &str,
        why: &str,
    ) {
        let message = format!("Cannot bind to node {node}: {why}");
        let event = self.pods.event(key, EventType::Warning, "FailedBinding", message.clone());
        self.actions.extend(event);
        if self.is_replacement(id, task) {
            // The rest of the gang runs on; the engine places the pod again.
            self.set_binding(key, BindingState::Pending);
            self.engine.send(Event::PlacementRefused { workload: id.clone(), task });
            self.work.push(WorkItem::ReconcilePod(key.clone()));
            return;
        }
        let Some(gang) = self.gangs.get_mut(id) else { return };
        let was_tearing_down = gang.tearing_down;
        let breaks = gang.is_multi_pod() && !was_tearing_down;
        gang.tearing_down |= gang.is_multi_pod();
        gang.placed = false;
        self.set_binding(key, BindingState::Pending);
        let workload = id.clone();
        self.engine.send(if was_tearing_down {
            Event::TaskStopped { workload, task }
        } else {
            Event::PlacementRefused { workload, task }
        });
        if breaks {
            self.stop_bound_members(id, &format!("Pod {}: {message}", key.name));
        }
        self.work.push(WorkItem::SyncGang(id.clone()));
        self.work.push(WorkItem::ReconcilePod(key.clone()));
    }

    /// Stops the bound members of a torn down gang. A unit is suspended instead, and backs off: its controller would count
    /// deleted pods as failed.
    fn stop_bound_members(&mut self, id: &WorkloadId, why: &str) {
        if self.units.root(id).is_some() {
            self.units.back_off(id, self.engine.now());
            self.record_workload_event(id, EventType::Warning, "GangBroken", why.to_owned());
            self.suspend_unit(id, why);
            return;
        }
        let bound = self.gangs.members(id).filter(|key| self.pods.is_bound(key));
        for key in bound.cloned().collect::<Vec<_>>() {
            self.delete_pod(&key);
        }
    }

    pub(super) fn pod_group_applied(&mut self, meta: &ObjectMeta, min_members: u32) {
        let group = key_of(meta);
        if self.gangs.set_min_members(group.clone(), min_members.max(1)) {
            self.requeue_pod_group(&group);
        }
    }

    pub(super) fn pod_group_deleted(&mut self, meta: &ObjectMeta) {
        let group = key_of(meta);
        self.gangs.remove_pod_group(&group);
        self.requeue_pod_group(&group);
    }

    fn requeue_pod_group(&mut self, group: &Key) {
        if self.started {
            self.work.push_pods(self.pods.select(|entry| {
                entry.pod.as_ref().is_some_and(|pod| is_in_pod_group(pod, group))
                    && !matches!(entry.state.binding(), Some(BindingState::Bound(_)))
            }));
        }
    }
}
