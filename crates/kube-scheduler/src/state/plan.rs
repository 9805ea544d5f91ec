//! Turns the engine's decisions into actions.

use agentaflow_engine::{
    Decision, Event, Fault, Gate, GpuAssignment, Placement, Victim, WaitReason, WorkloadId,
};
use agentaflow_explain as explain;
use agentaflow_kube_core::names;
use agentaflow_kube_core::translate;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::ClusterState;
use super::action::{Action, Bind, Key, PodRef};
use super::explain::{Cause, PREEMPTED_ROOM_TAKEN, ReportedReason, TakenRoom};
use super::gang_table::{FreedRoom, Gang};
use super::pod_entry::{BindingState, PendingBinding, PodState, is_terminating};
use super::work_queue::WorkItem;
use crate::controller::EventType;

/// Reaction of the driver to a new wait reason, besides the condition of the pods.
struct WaitReaction {
    /// The nominated nodes stay valid while victims terminate on them.
    keeps_nomination: bool,
    /// A split gang restarts unless the engine is about to place the rest.
    restarts_split_gang: bool,
    /// The workload gets an event.
    records_event: bool,
}

impl WaitReaction {
    fn to(reason: &WaitReason) -> Self {
        let keeps_nomination = false;
        let (restarts_split_gang, records_event) = (true, true);
        match reason {
            WaitReason::Preempting { .. } => {
                Self { keeps_nomination: true, restarts_split_gang: false, records_event }
            }
            WaitReason::BackingOff { .. } => {
                Self { keeps_nomination, restarts_split_gang: false, records_event }
            }
            // An incomplete gang is a short state; its pods have the reason.
            WaitReason::Gated(_) => {
                Self { keeps_nomination, restarts_split_gang, records_event: false }
            }
            WaitReason::NoNodes
            | WaitReason::NoRoom(_)
            | WaitReason::NeverFits(_)
            | WaitReason::Gang { .. }
            | WaitReason::Quota { .. }
            | WaitReason::Reserved { .. } => {
                Self { keeps_nomination, restarts_split_gang, records_event }
            }
        }
    }
}

impl ClusterState {
    pub(super) fn execute_plan(&mut self, decisions: Vec<Decision>) {
        self.volumes.drop_reported();
        for decision in decisions {
            match decision {
                Decision::Place(placement) => self.place_pod(placement),
                Decision::Preempt { victims, beneficiary, .. } => {
                    self.preempt(&victims, &beneficiary);
                }
                Decision::AwaitReplacement { workload, task, .. } => {
                    self.report_loss(&workload, task);
                }
                Decision::Displace {
                    workload, cause: Fault::ReplacementMissing { .. }, ..
                } => {
                    self.activity.displacements += 1;
                    self.restart_gang(&workload);
                }
                // A gang breaks where its binding fails; Kubernetes handles a pod whose node or GPU fails.
                Decision::Displace { .. } => self.activity.displacements += 1,
                Decision::Wait { workload, reason } => self.record_wait(&workload, &reason),
            }
        }
    }

    /// Rejects a placement that cannot be executed, and all placements of its gang that are not executed yet.
    pub(super) fn undo_placement(&mut self, key: &Key, id: &WorkloadId, task: u32, node: &str) {
        self.fail_binding(key, id, task, node, "no volume for its claim on that node");
        let mut siblings = Vec::new();
        let gang = self.gangs.get(id).into_iter().flat_map(|gang| &gang.members);
        for (task, sibling) in gang.filter(|(_, sibling)| *sibling != key) {
            let before = self.actions.len();
            self.actions
                .retain(|action| !matches!(action, Action::Bind(bind) if bind.pod.key == *sibling));
            if self.actions.len() < before {
                siblings.push((*task, sibling.clone()));
            }
        }
        for (task, sibling) in siblings {
            self.clear_pending_binding(&sibling);
            self.fail_binding(&sibling, id, task, node, "another pod of its gang has no place");
        }
    }

    pub(super) fn place_pod(&mut self, placement: Placement) {
        if self.gangs.get(&placement.workload).is_some_and(|gang| gang.held.is_some()) {
            self.hold_place(placement);
            return;
        }
        let Placement { workload, task, node, gpus } = placement;
        let node: Arc<str> = node.as_str().into();
        let gang = self.gangs.get_mut(&workload);
        let Some((gang, key)) = gang.and_then(|gang| {
            let key = gang.members.get(&task)?.clone();
            Some((gang, key))
        }) else {
            self.engine.send(Event::PlacementRefused { workload, task });
            return;
        };
        gang.freed = None;
        if !gang.placed {
            let eta = gang.given_eta.take();
            self.activity.placed(gang.traits.submitted, eta, self.engine.now());
        }
        gang.placed = true;
        gang.reason = None;
        self.plans += 1;
        let plan = self.plans;
        let bind = self.binding_of(&key, &workload, task, &node, &gpus);
        self.set_binding(&key, BindingState::Binding { node: node.clone(), plan });
        if let Some(bind) = bind {
            self.volumes.reserve(&bind);
            self.pods.set_pending_binding(&key, Some(PendingBinding { node, plan }));
            self.actions.push(Action::Bind(Box::new(bind)));
            if let Some(entry) = self.pods.get_mut(&key) {
                self.actions.extend(entry.withdraw_nomination(&key));
            }
        } else {
            let (pod, workload) = (key.clone(), workload.clone());
            self.work.push(WorkItem::UndoPlacement { pod, workload, task, node });
        }
        self.requeue_gang_waiters(&workload);
        self.requeue_workload_of(&key);
    }

    /// The binding of a pod; none if a claim has no volume on that node after all.
    fn binding_of(
        &self,
        key: &Key,
        workload: &WorkloadId,
        task: u32,
        node: &Arc<str>,
        gpus: &GpuAssignment,
    ) -> Option<Bind> {
        let entry = self.pods.get(key)?;
        let pod = entry.pod.as_ref()?;
        let node_entry = self.nodes.get(node);
        let is_gang = self.gangs.get(workload).is_some_and(Gang::is_multi_pod);
        let labels = node_entry.and_then(|node| node.labels());
        let claims = self.volumes.bind_claims(&entry.claims, is_gang, node, labels)?;
        let mut annotations = self.lookup().inherited_annotations(pod);
        annotations.insert(names::POD_ASSIGNED_NODE.to_owned(), node.to_string());
        let assigned = self.assigned_gpus(workload, task, node, gpus);
        if !assigned.is_empty() {
            annotations.insert(names::POD_ASSIGNED_GPU.to_owned(), assigned.join(","));
        }
        let price = node_entry.map(|node| node.price_per_hour(pod)).unwrap_or_default();
        if price.0 > 0 {
            annotations.insert(names::POD_PRICE.to_owned(), translate::dollars(price));
        }
        let labels = BTreeMap::from([(names::POD_MANAGED.to_owned(), "true".to_owned())]);
        let (pod, node) = (entry.reference(key), node.clone());
        Some(Bind { pod, node, annotations, labels, claims, plan: self.plans })
    }

    /// The GPUs of a placement as `node/gpu-id`; the engine's assumption where the kubelet chooses.
    fn assigned_gpus(
        &self,
        workload: &WorkloadId,
        task: u32,
        node: &Arc<str>,
        gpus: &GpuAssignment,
    ) -> Vec<String> {
        let ids = match gpus {
            GpuAssignment::Devices(parts) => parts.iter().map(|part| part.gpu.clone()).collect(),
            GpuAssignment::Count(_) => self.engine.scheduler().assumed_gpus(workload, task),
        };
        ids.iter().map(|gpu| format!("{node}/{gpu}")).collect()
    }

    fn preempt(&mut self, victims: &[Victim], preemptor: &WorkloadId) {
        if let Some(taken) = self.take_taken_room(preemptor) {
            self.report_taken_room(preemptor, &taken);
        }
        for Victim { workload: victim, reason: right } in victims {
            let Some(gang) = self.gangs.get_mut(victim) else {
                // All pods of the victim are gone.
                self.engine.send(Event::Cancelled(victim.clone()));
                continue;
            };
            let has_pods = gang.held.is_none();
            gang.stopping = has_pods;
            self.activity.preemptions.push(*right);
            let why = explain::preempted_by(&explain::quoted(preemptor), *right);
            self.record_workload_event(victim, EventType::Warning, "Preempted", why.clone());
            if has_pods {
                self.stop_pending_members(victim);
                let members: Vec<Key> = self.gangs.members(victim).cloned().collect();
                self.stop_pods(victim, &members, "Preempted", &why);
            } else {
                self.suspend_unit(victim, &why);
            }
        }
        let names: Vec<String> =
            victims.iter().map(|victim| format!("`{}`", victim.workload)).collect();
        let message = format!("Preempting {}", names.join(", "));
        let event_type = EventType::Normal;
        if !self.record_workload_event(preemptor, event_type, "Preempting", message.clone()) {
            let first = self.gangs.get(preemptor).and_then(|gang| gang.first_member());
            let event =
                first.and_then(|key| self.pods.event(key, event_type, "Preempting", message));
            self.actions.extend(event);
        }
        self.nominate(preemptor);
    }

    /// Members of a victim without a node hold nothing.
    fn stop_pending_members(&mut self, victim: &WorkloadId) {
        let Some(gang) = self.gangs.get(victim) else { return };
        for (task, _) in gang.members.iter().filter(|(_, key)| self.pods.is_pending(key)) {
            self.engine.send(Event::TaskStopped { workload: victim.clone(), task: *task });
        }
    }

    /// Stops the placed pods of a gang: by the suspension of their job if the gang is a unit, whose controller would count
    /// a deleted pod as failed; else by eviction.
    pub(super) fn stop_pods(
        &mut self,
        gang: &WorkloadId,
        pods: &[Key],
        reason: &'static str,
        why: &str,
    ) {
        let stopped = pods.iter().filter(|key| self.is_stoppable(key));
        let event = |key| self.pods.event(key, EventType::Warning, reason, why.to_owned());
        self.actions.extend(stopped.filter_map(event).collect::<Vec<_>>());
        if !self.suspend_unit(gang, why) {
            self.evict_pods(pods, why);
        }
    }

    pub(super) fn evict_pods(&mut self, pods: &[Key], why: &str) {
        let stopped = pods.iter().filter(|key| self.is_stoppable(key));
        let pods = stopped.filter_map(|key| Some(self.pods.get(key)?.reference(key)));
        let evict = |pod| Action::Evict { pod, reason: why.to_owned() };
        self.actions.extend(pods.map(evict).collect::<Vec<_>>());
    }

    /// A pod with a node that is not terminating.
    fn is_stoppable(&self, key: &Key) -> bool {
        let pod = self.pods.get(key).and_then(|entry| entry.pod.as_deref());
        self.pods.is_placed(key) && !pod.is_some_and(is_terminating)
    }

    /// Nominates the pods of a preemptor for the nodes that are being freed.
    fn nominate(&mut self, preemptor: &WorkloadId) {
        let nodes = self.engine.scheduler().nominated_nodes(preemptor);
        let Some(gang) = self.gangs.get_mut(preemptor) else { return };
        gang.nominated = true;
        let freed = nodes.iter().map(|node| Arc::from(node.as_str())).collect();
        gang.freed = Some(FreedRoom { since: self.engine.now(), nodes: freed });
        for (key, node) in gang.members.values().zip(nodes) {
            let node: Arc<str> = node.as_str().into();
            let Some(entry) = self.pods.get_mut(key) else { continue };
            if entry.nominated.as_ref() != Some(&node) {
                entry.nominated = Some(node.clone());
                entry.nominated_by_us = Some(node.clone());
                let pod = entry.reference(key);
                self.actions.push(Action::Nominate { pod, node: Some(node) });
            }
        }
    }

    /// Returns the pod of another scheduler that took room which a preemption made for this gang since the last call.
    fn take_taken_room(&mut self, id: &WorkloadId) -> Option<TakenRoom> {
        let freed = self.gangs.get_mut(id)?.freed.take()?;
        freed.nodes.iter().find_map(|node| {
            let mut pods = self.nodes.get(node)?.foreign();
            let pod = pods.find(|key| {
                self.pods.get(key).is_some_and(|entry| {
                    let uses = entry.foreign_use.as_ref();
                    entry.pod.is_none()
                        && entry.foreign_since > freed.since
                        && uses.is_some_and(|uses| uses.gpu_count > 0)
                })
            })?;
            Some(TakenRoom { pod: pod.clone(), node: node.clone() })
        })
    }

    fn report_taken_room(&mut self, id: &WorkloadId, taken: &TakenRoom) {
        let (event_type, message) = (EventType::Warning, taken.to_string());
        self.foreign_reports.record_race(&taken.node, self.engine.now(), &message);
        if !self.record_workload_event(id, event_type, PREEMPTED_ROOM_TAKEN, message.clone()) {
            let first = self.gangs.get(id).and_then(Gang::first_member);
            let event = |key| self.pods.event(key, event_type, PREEMPTED_ROOM_TAKEN, message);
            self.actions.extend(first.and_then(event));
        }
    }

    /// Records a new pending reason of a workload on the workload and on its pods.
    fn record_wait(&mut self, id: &WorkloadId, reason: &Arc<WaitReason>) {
        let mut pending = ReportedReason::new(reason, self.engine.now());
        let reaction = WaitReaction::to(reason);
        self.activity.waits.push(pending.pending_code());
        if !reaction.keeps_nomination
            && let Some(taken) = self.take_taken_room(id)
        {
            self.report_taken_room(id, &taken);
            pending.add_cause(Cause::TakenRoom(taken));
        }
        if matches!(**reason, WaitReason::Gated(Gate::PodsMissing { .. })) {
            pending.add_quota(self.full_quota_of_group(id));
        }
        let Some(gang) = self.gangs.get_mut(id) else { return };
        let stale = gang.nominated && !reaction.keeps_nomination;
        gang.nominated &= reaction.keeps_nomination;
        gang.unexplained.clear();
        gang.reason = Some(pending.clone());
        let members: Vec<Key> = gang.members.values().cloned().collect();
        let is_reported = || {
            let workload = self.gpu_workload_of(id);
            workload.is_some_and(|key| self.workloads.reports_pending(&key, pending.code()))
        };
        if reaction.records_event && !is_reported() {
            let (event, message) = (names::FAILED_SCHEDULING, pending.message.to_string());
            self.record_workload_event(id, EventType::Warning, event, message);
        }
        self.write_unit_reason(id, &pending.message);
        for key in members {
            if reaction.restarts_split_gang {
                self.restart_split_gang(&key);
            }
            if let Some(entry) = self.pods.get_mut(&key) {
                if stale {
                    self.actions.extend(entry.withdraw_nomination(&key));
                }
                let message = pending.message.clone();
                self.actions.extend(entry.write_condition(&key, pending.condition(), message));
            }
            self.requeue_workload_of(&key);
        }
    }

    /// The API server refused an eviction permanently: the pod stays, and its preemptor needs other victims.
    pub(super) fn eviction_failed(&mut self, pod: &PodRef, message: String) {
        if let Some(entry) = self.pods.get(&pod.key).filter(|entry| entry.uid == pod.uid) {
            let event = entry.event(&pod.key, EventType::Warning, "EvictionFailed", message);
            self.actions.push(event);
            self.evictions.record_refusal(&pod.key);
            self.work.push(WorkItem::KeepUnevictable(pod.key.clone()));
        }
    }

    /// Adopts a pod again that could not be evicted, and protects it for a while; budgets get their charge back. A pod that is
    /// being bound is adopted as soon as it is bound.
    pub(super) fn keep_unevictable_pod(&mut self, key: &Key) {
        let Some(entry) = self.pods.get(key) else { return };
        let Some(binding) = entry.state.binding() else { return };
        match (binding, &entry.pod) {
            (BindingState::Binding { .. }, Some(_)) => return,
            (BindingState::Bound(node), Some(object)) if !is_terminating(object) => {
                let (node, object) = (node.clone(), object.clone());
                if let PodState::Member { workload, .. } = &entry.state
                    && let Some(gang) = self.gangs.get_mut(workload)
                {
                    gang.stopping = false;
                }
                self.detach_pod(key);
                self.evictions.back_off(key, &mut self.engine);
                self.adopt_bound_pod(key, &object, &node);
                self.evictions.publish_budgets(&mut self.engine);
            }
            _ => {}
        }
        self.evictions.clear_refusal(key);
    }
}
