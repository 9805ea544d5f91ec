//! The life of a pod: seen, joined to a workload, placed, bound, over.

use agentaflow_engine::{Event, GpuId, WorkloadId};
use agentaflow_kube_core::slim::Pod;
use std::sync::Arc;

use super::action::{Action, BindResult, Key, PodRef};
use super::membership::because;
use super::pod_entry::{
    BindingState, Parked, PendingBinding, PodEntry, PodState, devices, is_finished, is_leaving,
    is_same_to_us, node_of, takes_otherwise, workload_owner,
};
use super::{ClusterState, EventRecord, key_of};

impl ClusterState {
    pub(super) fn see_pod(&mut self, pod: Pod) {
        let key = key_of(&pod.metadata);
        let uid: Arc<str> = pod.metadata.uid.as_deref().unwrap_or_default().into();
        if self.pods.get(&key).is_some_and(|old| old.uid != uid) {
            self.forget_pod(&key);
        }
        let ours = self.is_ours(&pod);
        let finished = is_finished(&pod);
        let owner = ours.then(|| workload_owner(&pod)).flatten();
        if !self.pods.contains_key(&key) && !ours && (finished || node_of(&pod).is_none()) {
            return;
        }
        let entry = self.pods.entry(key.clone()).or_insert_with(|| PodEntry::new(&pod, uid));
        entry.nominated = pod.status.nominated_node_name.as_deref().map(Arc::from);
        let same = entry.pod.as_deref().is_some_and(|old| is_same_to_us(old, &pod));
        let arrives = pod.spec.node_name.is_some() && entry.heading.take().is_some();
        let other = entry.pod.as_deref().is_some_and(|old| takes_otherwise(old, &pod));
        if ours {
            entry.pod = Some(Arc::new(pod));
        } else {
            self.see_foreign(&key, pod);
            return;
        }
        if let Some(workload) = owner {
            self.own_pod(&workload, &key, finished);
        }
        match self.pods[&key].place.clone() {
            PodState::Foreign(_) if arrives || other => self.leave(&key),
            PodState::Member { workload, seat: BindingState::Bound(_), .. } if other => {
                self.adopt_anew(&key, &workload);
            }
            _ => {}
        }
        if self.begun && !same {
            self.settle(&key);
        }
        self.check_nomination(&key);
    }

    pub(super) fn lose_pod(&mut self, pod: &Pod) {
        self.forget_pod(&key_of(&pod.metadata));
    }

    fn forget_pod(&mut self, key: &Key) {
        self.leave(key);
        self.spare_no_more(key);
        self.promises.withdraw(key);
        self.take_volumes(key, &[]);
        self.stuck.remove(key);
        self.unmoved.remove(key);
        self.sent_away.remove(key);
        let Some(pod) = self.pods.remove(key).and_then(|entry| entry.pod) else { return };
        self.forget_owner(key, &pod);
        if let Some(workload) = workload_owner(&pod) {
            self.disown_pod(&workload, key);
        }
    }

    /// Makes what the engine knows of a pod of ours agree with the pod.
    pub(super) fn settle(&mut self, key: &Key) {
        let Some(entry) = self.pods.get(key) else { return };
        let Some(pod) = entry.pod.clone() else {
            // A pod of others that was recorded before everything was known.
            if let PodState::Foreign(node) = entry.place.clone() {
                self.count_again(key);
                self.tell_foreign(key, &node);
            }
            return;
        };
        if is_finished(&pod) || (pod.spec.node_name.is_none() && is_leaving(&pod)) {
            self.leave(key);
            self.take_volumes(key, &[]);
            self.retire(key, &pod);
        } else if let Some(node) = &pod.spec.node_name {
            self.settle_on_node(key, &pod, &Arc::from(node.as_str()));
        } else {
            self.join(key, &pod);
        }
        if let Some(workload) = workload_owner(&pod) {
            self.dirty.insert(workload);
        }
    }

    /// A pod of ours is bound.
    fn settle_on_node(&mut self, key: &Key, pod: &Pod, node: &Arc<str>) {
        let place = self.pods.get(key).map(|entry| entry.place.clone()).unwrap_or_default();
        match place.clone() {
            PodState::Member { workload, task, seat: BindingState::Bound(at) } if at == *node => {
                self.tell_state(&workload, task, pod);
            }
            PodState::Member { workload, task, seat: BindingState::Binding { node: at, .. } }
                if at == *node =>
            {
                self.confirm(key, &workload, task, node);
                self.tell_state(&workload, task, pod);
            }
            PodState::Foreign(at) if at == *node => {}
            _ => {
                self.leave(key);
                self.take_volumes(key, &[]);
                self.find_bound(key, pod, node);
            }
        }
        let exists = self.nodes.get(node).is_some_and(super::NodeEntry::exists);
        if !exists && !matches!(&place, PodState::Foreign(at) if at == node) {
            self.lose_ground(key, node, true);
        }
    }

    /// A binding of ours is carried out.
    fn confirm(&mut self, key: &Key, workload: &WorkloadId, task: u32, node: &Arc<str>) {
        self.tell(Event::PlacementConfirmed { workload: workload.clone(), task });
        self.set_seat(key, BindingState::Bound(node.clone()));
        self.has_volumes(key, workload);
        self.note_pod(key, false, "Scheduled", format!("bound to node {node}"));
        if self.groups.get(workload).is_some_and(|group| group.breaking) {
            self.delete_pod(key, None);
        }
        // Its gang may have waited for it.
        if let Some(gang) = self.pods.get(key).and_then(|entry| entry.gang.clone()) {
            self.regroup(&gang);
        }
        self.touch_workload_of(key);
    }

    /// Devices and the beginning of the end of a pod that runs.
    fn tell_state(&mut self, workload: &WorkloadId, task: u32, pod: &Pod) {
        if is_leaving(pod) {
            self.tell(Event::TaskTerminating { workload: workload.clone(), task });
            return;
        }
        let devices = devices(pod);
        if devices.is_empty() || !self.knows_devices(pod, &devices) {
            return;
        }
        let gpus: Vec<GpuId> = devices.iter().map(|id| GpuId::from(id.as_str())).collect();
        let known = self.engine.workload(workload).is_some_and(|view| {
            view.tasks.iter().any(|seat| {
                seat.task == task
                    && matches!(&seat.gpus, agentaflow_engine::GpuAssignment::Devices(parts)
                        if parts.iter().map(|part| &part.gpu).eq(gpus.iter()))
            })
        });
        if !known {
            self.tell(Event::DevicesReported { workload: workload.clone(), task, gpus });
        }
    }

    /// The answer to a binding.
    pub(super) fn bound(&mut self, pod: &PodRef, plan: u64, result: BindResult) {
        let Some(entry) = self.pods.get(&pod.key).filter(|entry| entry.uid == pod.uid) else {
            return;
        };
        if entry.heading.as_ref().is_none_or(|heading| heading.plan != plan) {
            return;
        }
        let planned = match entry.place.clone() {
            PodState::Member {
                workload,
                task,
                seat: BindingState::Binding { node, plan: current },
            } => (current == plan).then_some((workload, task, node)),
            _ => None,
        };
        let key = &pod.key;
        match (result, planned) {
            (BindResult::Bound, Some((workload, task, node))) => {
                self.confirm(key, &workload, task, &node);
            }
            (BindResult::Bound, None) => {
                self.stuck.insert(key.clone());
            }
            (BindResult::Elsewhere(node), _) => {
                self.leave(key);
                self.promises.withdraw(key);
                self.head_for(key, Some(PendingBinding { node, plan }));
                self.stuck.insert(key.clone());
            }
            (BindResult::Gone, _) => {
                self.head_for(key, None);
                self.put_aside(key, because("Gone", "it is being deleted"));
            }
            (BindResult::Refused(why), Some((workload, task, node))) => {
                self.head_for(key, None);
                self.refuse(key, &workload, task, &node, &why);
            }
            (BindResult::Refused(_), None) => {
                self.head_for(key, None);
                self.leave(key);
                self.stuck.insert(key.clone());
            }
        }
    }

    pub(super) fn head_for(&mut self, key: &Key, heading: Option<PendingBinding>) {
        if heading.is_none() {
            self.promises.withdraw(key);
        }
        if let Some(entry) = self.pods.get_mut(key) {
            entry.heading = heading;
        }
    }

    /// Takes a pod out of whatever the engine knows of it.
    pub(super) fn leave(&mut self, key: &Key) {
        let Some(entry) = self.pods.get_mut(key) else { return };
        if let Some(gang) = entry.gang.take()
            && let Some(strays) = self.strays.get_mut(&gang)
        {
            strays.remove(key);
            if strays.is_empty() {
                self.strays.remove(&gang);
            }
        }
        match std::mem::take(&mut entry.place) {
            PodState::Untracked => {}
            PodState::Parked(_) => {
                self.asides.remove(key);
            }
            PodState::Foreign(node) => self.end_foreign(key, &node),
            PodState::Member { workload, task, seat } => {
                self.leave_group(key, &workload, task, &seat);
                if let BindingState::Binding { node, .. } | BindingState::Bound(node) = &seat
                    && let Some(node) = self.nodes.get_mut(node)
                {
                    node.ours.remove(key);
                }
            }
        }
    }

    /// The node of a pod of ours is gone. A pod is bound once in its life, so that this one is over.
    pub(super) fn lose_ground(&mut self, key: &Key, node: &Arc<str>, vanished: bool) {
        self.leave(key);
        let Some(entry) = self.pods.get(key) else { return };
        let Some(pod) = entry.pod.clone().filter(|pod| !is_finished(pod)) else { return };
        if pod.spec.node_name.is_none() {
            // It was only about to be bound; should that have happened, the watch tells.
            self.stuck.insert(key.clone());
            return;
        }
        if vanished {
            let pod = entry.reference(key);
            self.acts.push(Action::DeleteOrphan { pod, node: node.clone() });
            self.note_pod(key, true, "NodeVanished", format!("node {node} is gone"));
        }
        // Should the node come back, what is on it counts.
        self.count_as_foreign(key, &pod, node);
    }

    pub(super) fn set_seat(&mut self, key: &Key, new: BindingState) {
        let node = match &new {
            BindingState::Pending => None,
            BindingState::Binding { node, .. } | BindingState::Bound(node) => Some(node.clone()),
        };
        if let Some(PodEntry { place: PodState::Member { seat, .. }, .. }) = self.pods.get_mut(key)
        {
            if let BindingState::Binding { node, .. } | BindingState::Bound(node) = &*seat
                && let Some(entry) = self.nodes.get_mut(node)
            {
                entry.ours.remove(key);
            }
            *seat = new;
        }
        if let Some(node) = node {
            self.nodes.entry(node).or_default().ours.insert(key.clone());
        }
    }

    /// A pod of ours cannot be handed to the engine. PendingCondition is said once, however often it is looked at.
    pub(super) fn put_aside(&mut self, key: &Key, aside: Parked) {
        let said =
            |entry: &PodEntry| matches!(&entry.place, PodState::Parked(known) if *known == aside);
        if !self.pods.get(key).is_some_and(said) {
            self.leave(key);
            self.set_aside(key, aside);
        }
    }

    /// Sets a pod aside and says why.
    pub(super) fn set_aside(&mut self, key: &Key, aside: Parked) {
        let Some(entry) = self.pods.get_mut(key) else { return };
        let place = PodState::Parked(aside.clone());
        if entry.place == place {
            return;
        }
        entry.place = place;
        self.asides.insert(key.clone());
        if let Parked::Because(reason, message) = aside {
            self.acts.extend(entry.explain(key, reason, message));
        }
    }

    /// Tells people about a pod.
    pub(super) fn note_pod(
        &mut self,
        key: &Key,
        warning: bool,
        reason: &'static str,
        message: String,
    ) {
        if let Some(entry) = self.pods.get(key) {
            let about = super::ObjectRef { kind: "Pod", key: key.clone(), uid: entry.uid.clone() };
            self.acts.push(Action::RecordEvent(EventRecord { about, warning, reason, message }));
        }
    }

    /// Pods of ours whose request depends on other objects, or that are set aside.
    pub(super) fn dependants(&self) -> Vec<Key> {
        let depends = |entry: &PodEntry| {
            matches!(&entry.place, PodState::Member { seat: BindingState::Pending, .. })
                && !entry.depends.is_empty()
        };
        let members = self.pods.iter().filter(|(_, entry)| depends(entry));
        let asides = self.asides.iter().filter(|key| {
            let place = self.pods.get(*key).map(|entry| &entry.place);
            matches!(place, Some(PodState::Parked(Parked::Because(..))))
        });
        members.map(|(key, _)| key).chain(asides).cloned().collect()
    }

    pub(super) fn is_ours(&self, pod: &Pod) -> bool {
        pod.spec.scheduler_name.as_deref() == Some(self.settings.scheduler_name.as_str())
    }
}
