//! Carrying out what the engine decided.

use agentaflow_engine::{
    Decision, Event, GpuAssignment, Placement, Victim, WaitReason, WorkloadId,
};
use agentaflow_explain as words;
use agentaflow_kube_core::names;
use agentaflow_kube_core::translate;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::ClusterState;
use super::action::{Action, Bind, Key, PodRef};
use super::explain::PendingReason;
use super::pod_entry::{BindingState, PendingBinding, PodState, is_leaving};

impl ClusterState {
    pub(super) fn carry_out(&mut self, decisions: Vec<Decision>) {
        self.promises.settle(&self.volumes);
        for decision in decisions {
            match decision {
                Decision::Place(placement) => self.place(placement),
                Decision::Preempt { victims, beneficiary, .. } => {
                    self.preempt(&victims, &beneficiary);
                }
                // Gangs that break are taken care of where the binding fails; a pod whose node or GPU fails is
                // Kubernetes' business.
                Decision::Displace { .. } => {}
                Decision::Wait { workload, reason } => self.wait(&workload, &reason),
            }
        }
        for (key, id, task, node) in std::mem::take(&mut self.failed) {
            self.take_back(&key, &id, task, &node);
        }
    }

    /// A placement cannot be carried out; what of its gang is decided and not done yet is not done.
    fn take_back(&mut self, key: &Key, id: &WorkloadId, task: u32, node: &str) {
        let members = self.groups.get(id).map(|group| group.members.clone()).unwrap_or_default();
        self.refuse(key, id, task, node, "no volume for its claim there");
        for (task, sibling) in members.iter().filter(|(_, sibling)| *sibling != key) {
            let decided = self.acts.len();
            self.acts.retain(|act| !matches!(act, Action::Bind(bind) if bind.pod.key == *sibling));
            if self.acts.len() < decided {
                self.head_for(sibling, None);
                self.refuse(sibling, id, *task, node, "another pod of its gang has no place");
            }
        }
    }

    fn place(&mut self, placement: Placement) {
        let Placement { workload, task, node, gpus } = placement;
        let node: Arc<str> = node.as_str().into();
        let Some(group) = self.groups.get_mut(&workload) else {
            self.tell(Event::PlacementRefused { workload, task });
            return;
        };
        let Some(key) = group.members.get(&task).cloned() else {
            self.tell(Event::PlacementRefused { workload, task });
            return;
        };
        (group.placed, group.reason) = (true, None);
        self.plan += 1;
        let plan = self.plan;
        if let Some(bind) = self.bind(&key, &workload, task, &node, &gpus, plan) {
            self.promises.make(&bind);
            self.head_for(&key, Some(PendingBinding { node: node.clone(), plan }));
            self.set_seat(&key, BindingState::Binding { node, plan });
            self.acts.push(Action::Bind(Box::new(bind)));
            self.withdraw_nomination(&key);
        } else {
            self.set_seat(&key, BindingState::Binding { node: node.clone(), plan });
            self.failed.push((key.clone(), workload.clone(), task, node));
        }
        self.wake_waiters(&workload);
        self.touch_workload_of(&key);
    }

    /// What is written when a pod is bound; none when a claim has no volume on that node after all.
    fn bind(
        &self,
        key: &Key,
        workload: &WorkloadId,
        task: u32,
        node: &Arc<str>,
        gpus: &GpuAssignment,
        plan: u64,
    ) -> Option<Bind> {
        let entry = self.pods.get(key)?;
        let pod = entry.pod.as_ref()?;
        let claims = self.claim_acts(&entry.claims, workload, node)?;
        let assigned = self.assigned(workload, task, node, gpus);
        let mut annotations = self.inherited(pod);
        annotations.insert(names::POD_ASSIGNED_NODE.to_owned(), node.to_string());
        if !assigned.is_empty() {
            annotations.insert(names::POD_ASSIGNED_GPU.to_owned(), assigned.join(","));
        }
        let price = self.nodes.get(node).map(|entry| entry.hourly(pod)).unwrap_or_default();
        if price.0 > 0 {
            annotations.insert(names::POD_PRICE.to_owned(), translate::dollars(price));
        }
        let labels = BTreeMap::from([(names::POD_MANAGED.to_owned(), "true".to_owned())]);
        let (pod, node) = (entry.reference(key), node.clone());
        Some(Bind { pod, node, annotations, labels, claims, plan })
    }

    /// The GPUs of a placement, `node/gpu-id`: what the engine assumes where the kubelet chooses.
    fn assigned(
        &self,
        workload: &WorkloadId,
        task: u32,
        node: &Arc<str>,
        gpus: &GpuAssignment,
    ) -> Vec<String> {
        let ids = match gpus {
            GpuAssignment::Devices(parts) => parts.iter().map(|part| part.gpu.clone()).collect(),
            GpuAssignment::Count(_) => self.engine.assumed_gpus(workload, task),
        };
        ids.iter().map(|gpu| format!("{node}/{gpu}")).collect()
    }

    fn preempt(&mut self, victims: &[Victim], beneficiary: &WorkloadId) {
        for Victim { workload: victim, reason: right } in victims {
            let Some(group) = self.groups.get_mut(victim) else {
                // Nothing of it is left: it only has to be forgotten.
                self.tell(Event::Cancelled(victim.clone()));
                continue;
            };
            group.stopping = true;
            let members: Vec<Key> = group.members.values().cloned().collect();
            let why = words::stopped_for(&words::quoted(beneficiary), *right);
            self.note_workload(victim, true, "Preempted", why.clone());
            for key in members {
                self.evict(&key, victim, &why);
            }
        }
        let stopped: Vec<String> =
            victims.iter().map(|victim| format!("`{}`", victim.workload)).collect();
        let message = format!("stops {} for it", stopped.join(", "));
        if !self.note_workload(beneficiary, false, "Preempting", message.clone()) {
            let first =
                self.groups.get(beneficiary).and_then(|group| group.members.values().next());
            if let Some(key) = first.cloned() {
                self.note_pod(&key, false, "Preempting", message);
            }
        }
        self.nominate(beneficiary);
    }

    fn evict(&mut self, key: &Key, victim: &WorkloadId, why: &str) {
        let Some(entry) = self.pods.get(key) else { return };
        let PodState::Member { seat, task, .. } = entry.place.clone() else { return };
        let leaving = entry.pod.as_ref().is_some_and(|pod| is_leaving(pod));
        if let BindingState::Pending = seat {
            self.tell(Event::TaskStopped { workload: victim.clone(), task });
            return;
        }
        if !leaving {
            self.acts.push(Action::Evict { pod: entry.reference(key), why: why.to_owned() });
            self.note_pod(key, true, "Preempted", why.to_owned());
        }
    }

    /// Says on the pods of a workload where others are being stopped for them.
    fn nominate(&mut self, beneficiary: &WorkloadId) {
        let nodes = self.engine.nominated_nodes(beneficiary);
        let Some(group) = self.groups.get_mut(beneficiary) else { return };
        group.nominated = true;
        let members: Vec<Key> = group.members.values().cloned().collect();
        for (key, node) in members.iter().zip(nodes) {
            let node: Arc<str> = node.as_str().into();
            let Some(entry) = self.pods.get_mut(key) else { continue };
            if entry.nominated.as_ref() != Some(&node) {
                entry.nominated = Some(node.clone());
                entry.nominated_by_us = Some(node.clone());
                let pod = entry.reference(key);
                self.acts.push(Action::Nominate { pod, node: Some(node) });
            }
        }
    }

    pub(super) fn withdraw_nomination(&mut self, key: &Key) {
        let Some(entry) = self.pods.get_mut(key) else { return };
        if entry.nominated.take().is_some() {
            let pod = entry.reference(key);
            self.acts.push(Action::Nominate { pod, node: None });
        }
    }

    /// A workload waits for a new sort of reason: its pods say so.
    fn wait(&mut self, id: &WorkloadId, reason: &Arc<WaitReason>) {
        let told = PendingReason {
            word: reason.kind(),
            message: words::reason(reason, self.now).into(),
            resolved_by_nodes: reason.resolved_by_nodes(),
        };
        let Some(group) = self.groups.get_mut(id) else { return };
        let preempting = matches!(**reason, WaitReason::Preempting { .. });
        let stale = group.nominated && !preempting;
        group.nominated &= preempting;
        group.reason = Some(told.clone());
        // A gang that gathers says so on its pods; that is soon over.
        if !matches!(**reason, WaitReason::Gated(_)) && !self.is_known_to_wait(id, told.word) {
            self.note_workload(id, true, names::FAILED_SCHEDULING, told.message.to_string());
        }
        let Some(group) = self.groups.get(id) else { return };
        let members: Vec<Key> = group.members.values().cloned().collect();
        let passing = preempting || matches!(**reason, WaitReason::BackingOff { .. });
        for key in members {
            if stale {
                self.withdraw_nomination(&key);
            }
            if !passing {
                self.reunite(&key);
            }
            self.explain_pod(&key, &told);
            self.touch_workload_of(&key);
        }
    }

    /// Says on a pod why it waits.
    pub(super) fn explain_pod(&mut self, key: &Key, told: &PendingReason) {
        if let Some(entry) = self.pods.get_mut(key) {
            self.acts.extend(entry.explain(key, told.condition(), told.message.clone()));
        }
    }

    /// An eviction was refused for good: the pod stays, and whoever waited for it looks for others.
    pub(super) fn eviction_failed(&mut self, pod: &PodRef, why: String) {
        if self.pods.get(&pod.key).is_some_and(|entry| entry.uid == pod.uid) {
            self.note_pod(&pod.key, true, "EvictionFailed", why);
            self.unmoved.insert(pod.key.clone());
        }
    }

    /// Those who could not be evicted run on, and are facts again; what their budgets were charged comes back. Who is
    /// being bound meanwhile is one as soon as it is bound.
    pub(super) fn let_unmoved_stay(&mut self) {
        for key in std::mem::take(&mut self.unmoved) {
            let Some(entry) = self.pods.get(&key) else { continue };
            let (place, object) = (entry.place.clone(), entry.pod.clone());
            let (PodState::Member { workload, seat, .. }, Some(object)) = (place, object) else {
                continue;
            };
            match seat {
                BindingState::Bound(node) if !is_leaving(&object) => {
                    if let Some(group) = self.groups.get_mut(&workload) {
                        group.stopping = false;
                    }
                    self.leave(&key);
                    self.spare(&key);
                    self.find_bound(&key, &object, &node);
                    self.tell_budgets();
                }
                BindingState::Binding { .. } => {
                    self.unmoved.insert(key);
                }
                BindingState::Bound(_) | BindingState::Pending => {}
            }
        }
    }
}
