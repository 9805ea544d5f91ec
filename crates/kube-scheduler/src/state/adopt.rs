//! Pods that are bound already: found at the start, or bound by the last leader. The engine adopts them as facts.

use agentaflow_engine::{
    AdoptedLoss, AdoptedTask, AdoptedWorkload, Event, GpuId, NodeId, Request, WorkloadId,
};
use agentaflow_kube_core::slim::Pod;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::ClusterState;
use super::action::Key;
use super::gang_table::{Gang, LostMember, set_roles};
use super::losses::Departure;
use super::membership::Membership;
use super::pod_entry::{
    BindingState, PodEntry, PodState, allocated_devices, engine_time, is_finished, is_terminating,
};
use super::units::fits_place_of;
use super::volume_ledger::{takes_volumes, without_volumes};
use super::work_queue::WorkItem;

/// A bound pod with the request that it would have if it were pending.
struct BoundPod {
    key: Key,
    pod: Arc<Pod>,
    node: Arc<str>,
    request: Arc<Request>,
}

impl ClusterState {
    /// Adopts a pod that is bound to a node where the engine does not have it; else accounts for it as foreign usage.
    pub(super) fn adopt_bound_pod(&mut self, key: &Key, pod: &Pod, node: &Arc<str>) {
        if !self.started {
            return;
        }
        let request = self.bound_request(key, pod).filter(|_| self.nodes.is_known(node));
        let adopted = request.is_some_and(|(mut membership, request)| {
            if membership.min_members > 1 || self.gangs.contains(&membership.id) {
                membership.detach(key);
            }
            let pod = Arc::new(pod.clone());
            let bound = BoundPod { key: key.clone(), pod, node: node.clone(), request };
            let adopted = self.adopt(&membership, vec![bound], Vec::new());
            // Its gang may wait for it: the API server executed a binding after its response was lost.
            if let Some(gang) = membership.detached_from.filter(|_| adopted) {
                self.work.push(WorkItem::SyncGang(gang));
            }
            adopted
        });
        if !adopted {
            self.record_foreign_use(key, pod, node);
        }
    }

    /// Adopts at the start every gang that has bound pods.
    pub(super) fn adopt_gangs(&mut self) {
        let mut gangs: BTreeMap<WorkloadId, (Membership, Vec<BoundPod>)> = BTreeMap::new();
        for (key, entry) in self.pods.iter() {
            let Some(pod) = entry.pod.as_ref().filter(|pod| !is_finished(pod)) else { continue };
            let Some(node) = pod.spec.node_name.as_deref().map(Arc::from) else { continue };
            let Some((membership, request)) = self.bound_request(key, pod) else { continue };
            if self.nodes.is_known(&node) && membership.min_members > 1 {
                let bound = BoundPod { key: key.clone(), pod: pod.clone(), node, request };
                let gang = gangs.entry(membership.id.clone());
                gang.or_insert_with(|| (membership, Vec::new())).1.push(bound);
            }
        }
        for (membership, mut bound) in gangs.into_values() {
            bound.sort_by(|a, b| a.key.cmp(&b.key));
            // `reconcile_pod` adopts the rest as single pods.
            bound.truncate(membership.min_members as usize);
            let split = self.is_split(&membership, &bound);
            let lost = if split { Vec::new() } else { self.lost_at_start(&membership, &bound) };
            if self.adopt(&membership, bound, lost)
                && let Some(gang) = self.gangs.get_mut(&membership.id)
            {
                gang.split = split;
            }
        }
    }

    /// Sends the requests of a running workload again: a pod was resized, or its volumes do not count any more.
    pub(super) fn readopt(&mut self, id: &WorkloadId) {
        let is_stable = |gang: &&Gang| !gang.stopping && !gang.tearing_down;
        let Some(gang) = self.gangs.get(id).filter(is_stable) else { return };
        let is_waiting =
            |(task, key): &(&u32, &Key)| gang.lost.contains_key(task) && self.pods.is_pending(key);
        let replacements = gang.members.iter().filter(is_waiting).map(|(_, key)| key.clone());
        let replacements: Vec<Key> = replacements.collect();
        let members = gang.members.values().filter(|key| !replacements.contains(key));
        let (split, members) = (gang.split, members.cloned().collect::<Vec<_>>());
        let lost = self.adopted_losses(id);
        let bound: Option<Vec<BoundPod>> = members.iter().map(|key| self.bound_pod(key)).collect();
        let Some(first) = bound.as_ref().and_then(|bound| bound.first()) else { return };
        let Ok(mut membership) = self.lookup().membership(&first.key, &first.pod) else { return };
        if *id != membership.id {
            membership.detach(&first.key);
        }
        for member in replacements.iter().chain(&members) {
            self.detach_pod(member);
        }
        self.work.push_pods(replacements);
        // A dissolved gang continues as single pods.
        let is_one = members.len() == 1 || *id == membership.id;
        if !(is_one && self.adopt(&membership, bound.unwrap_or_default(), lost)) {
            self.work.push_pods(members);
        } else if let Some(gang) = self.gangs.get_mut(&membership.id) {
            gang.split = split;
        }
    }

    /// When all of a workload is bound, its requests stop taking pre-provisioned volumes from the nodes.
    pub(super) fn release_volumes(&mut self, id: &WorkloadId) {
        // The last member that is bound enqueues this again.
        if !self.gangs.members(id).all(|key| self.pods.is_bound(key)) {
            return;
        }
        let members: Vec<Key> = self.gangs.members(id).cloned().collect();
        self.readopt(id);
        for key in &members {
            let request = self.pods.get(key).and_then(|entry| entry.request.as_ref());
            if request.is_some_and(|request| !takes_volumes(request)) {
                self.set_volume_claims(key, &[]);
            }
        }
    }

    fn bound_pod(&self, key: &Key) -> Option<BoundPod> {
        let entry = self.pods.get(key)?;
        let Some(BindingState::Bound(node)) = entry.state.binding() else { return None };
        let pod = entry.pod.clone()?;
        // Until the watch reports its volumes, the pod keeps its request, except for the volumes.
        let request = self.bound_request(key, &pod).map(|(_, request)| request);
        let request = request.or_else(|| Some(without_volumes(entry.request.as_ref()?)))?;
        Some(BoundPod { key: key.clone(), pod, node: node.clone(), request })
    }

    /// Returns true if pods of a gang are pending that existed before the bound ones started: the last leader did not bind
    /// them.
    fn is_split(&self, membership: &Membership, bound: &[BoundPod]) -> bool {
        let started = bound.iter().filter_map(|member| member.pod.status.start_time.as_ref());
        let started = started.map(|time| engine_time(time.0)).min();
        let lookup = self.lookup();
        (bound.len() as u32) < membership.min_members
            && self.pods.iter().any(|(key, entry)| {
                !entry.is_on_node()
                    && started.is_none_or(|started| entry.created <= started)
                    && entry.pod.as_ref().is_some_and(|pod| {
                        let same = |other: Membership| other.id == membership.id;
                        !is_terminating(pod)
                            && !is_finished(pod)
                            && lookup.membership(key, pod).is_ok_and(same)
                    })
            })
    }

    /// The rest of a split gang finds no room: its running pods are stopped, so that all start together.
    pub(super) fn restart_split_gang(&mut self, key: &Key) {
        let Some(id) = self.pods.get(key).and_then(|entry| entry.detached_from.clone()) else {
            return;
        };
        let Some(gang) = self.gangs.get_mut(&id).filter(|gang| gang.split) else { return };
        gang.split = false;
        gang.stopping = true;
        let placed = self.gangs.detached(&id).filter(|key| self.pods.is_placed(key));
        let running: Vec<Key> = self.gangs.members(&id).chain(placed).cloned().collect();
        let why = "The rest of its gang finds no room; a gang starts whole or not at all";
        self.stop_pods(&id, &running, "GangBroken", why);
        self.work.push_pods(self.gangs.detached(&id).cloned());
    }

    /// The request of a bound pod as if it were pending; none if it cannot be translated.
    fn bound_request(&self, key: &Key, pod: &Pod) -> Option<(Membership, Arc<Request>)> {
        let lookup = self.lookup();
        let membership = lookup.membership(key, pod).ok()?;
        let request = lookup.request(pod, &membership).ok()?.request;
        Some((membership, Arc::new(request)))
    }

    /// Lost members of a gang with their places, to adopt them again.
    fn adopted_losses(&self, id: &WorkloadId) -> Vec<(LostMember, AdoptedLoss)> {
        let view = self.engine.scheduler().workload(id);
        let lost = view.into_iter().flat_map(|view| view.lost);
        let members = self.gangs.get(id).map(|gang| &gang.lost);
        lost.filter_map(|lost| {
            let member = members?.get(&lost.task)?.clone();
            let place = AdoptedLoss { task: 0, node: lost.node, until: Some(lost.until) };
            Some((member, place))
        })
        .collect()
    }

    /// Lost members of a gang that the last leader left running.
    fn lost_at_start(
        &self,
        membership: &Membership,
        bound: &[BoundPod],
    ) -> Vec<(LostMember, AdoptedLoss)> {
        let Some(first) = bound.iter().find(|member| !is_terminating(&member.pod)) else {
            return Vec::new();
        };
        let lost: Vec<LostMember> = if let Some(workload) = &membership.workload {
            let pods: Vec<&Pod> = bound.iter().map(|member| &*member.pod).collect();
            let missing = self.missing_at_start(workload, &pods).into_iter();
            let request = || first.request.clone();
            missing.map(|pod| LostMember { pod: Some(pod), request: request() }).collect()
        } else {
            let missing = self.missing_requests(membership, bound, &first.request).into_iter();
            missing.map(|request| LostMember { pod: None, request }).collect()
        };
        let place = || AdoptedLoss { task: 0, node: None, until: None };
        lost.into_iter().map(|member| (member, place())).collect()
    }

    /// Requests of the members that a pod group or a job lacks. The ones of a job follow from its templates; the members of a
    /// group are taken for equal.
    fn missing_requests(
        &self,
        membership: &Membership,
        bound: &[BoundPod],
        usual: &Arc<Request>,
    ) -> Vec<Arc<Request>> {
        let ended = self.units.root(&membership.id).is_some_and(|unit| !unit.replaces_pods());
        let have = bound.len() as u32;
        if ended || have >= membership.min_members {
            return Vec::new();
        }
        let finished = self.finished_members(&membership.id);
        let missing = membership.min_members.saturating_sub(have + finished.len() as u32) as usize;
        let mut open = self.unit_requests(&membership.id);
        for request in bound.iter().map(|member| &member.request).chain(&finished) {
            if let Some(place) = open.iter().position(|open| fits_place_of(request, open)) {
                open.remove(place);
            }
        }
        open.into_iter().chain(std::iter::repeat(usual.clone())).take(missing).collect()
    }

    /// Requests of the members of a gang that ended, and that nothing replaces.
    fn finished_members(&self, id: &WorkloadId) -> Vec<Arc<Request>> {
        let finished = self.pods.iter().filter(|(key, entry)| {
            entry.pod.as_deref().is_some_and(is_finished)
                && self.departure_of(key) == Departure::Finished
        });
        let requests = finished.filter_map(|(key, entry)| {
            let (membership, request) = self.bound_request(key, entry.pod.as_deref()?)?;
            (membership.id == *id).then_some(request)
        });
        requests.collect()
    }

    /// Task numbers of the losses are set here.
    fn adopt(
        &mut self,
        membership: &Membership,
        mut bound: Vec<BoundPod>,
        lost: Vec<(LostMember, AdoptedLoss)>,
    ) -> bool {
        let mut kinds: Vec<Arc<Request>> = Vec::new();
        for member in &bound {
            if !kinds.contains(&member.request) {
                kinds.push(member.request.clone());
            }
        }
        let Some(first) = kinds.first().cloned() else { return false };
        bound.sort_by_key(|member| kinds.iter().position(|kind| *kind == member.request));
        let mut requests: Vec<Arc<Request>> =
            bound.iter().map(|member| member.request.clone()).collect();
        requests.extend(lost.iter().map(|(member, _)| member.request.clone()));
        // Other tasks without a pod count as finished. There may be more pods than the minimum by now.
        let known = requests.len();
        let finished: BTreeSet<u32> = (known as u32..membership.min_members).collect();
        requests.resize(known.max(membership.min_members as usize), first);
        let lost: BTreeMap<u32, (LostMember, AdoptedLoss)> =
            (bound.len() as u32..).zip(lost).collect();
        let mut workload =
            membership.traits.workload(membership.id.clone(), 1, requests[0].clone());
        set_roles(&mut workload, &requests);
        let keys = bound.iter().map(|member| &member.key);
        workload.budgets = self.evictions.budgets_of(keys, &self.pods);
        let tasks = (0..).zip(&bound).map(|(task, member)| self.adopted_task(task, member));
        let started = bound.iter().filter_map(|member| member.pod.status.start_time.as_ref());
        let started = started.map(|time| engine_time(time.0)).min();
        let placed_at = started.unwrap_or(self.engine.now());
        let losses =
            lost.iter().map(|(task, (_, loss))| AdoptedLoss { task: *task, ..loss.clone() });
        let adopted = AdoptedWorkload {
            workload,
            tasks: tasks.collect(),
            finished,
            lost: losses.collect(),
            placed_at,
        };
        if !self.engine.send(Event::Adopted(Box::new(adopted))) {
            return false;
        }
        let mut gang = Gang::running(membership.min_members, membership.traits.clone());
        gang.lost = lost.into_iter().map(|(task, (member, _))| (task, member)).collect();
        for (task, BoundPod { key, node, request, .. }) in (0..).zip(bound) {
            if let Some(entry) = self.pods.get_mut(&key) {
                entry.request = Some(request);
            }
            let (workload, binding) = (membership.id.clone(), BindingState::Pending);
            self.pods.set_state(&key, PodState::Member { workload, task, binding });
            if let Some(gang) = &membership.detached_from {
                self.record_detached(&key, gang);
            }
            self.set_binding(&key, BindingState::Bound(node));
            gang.members.insert(task, key);
        }
        self.gangs.insert(membership.id.clone(), gang);
        true
    }

    fn adopted_task(&self, task: u32, member: &BoundPod) -> AdoptedTask {
        let devices = allocated_devices(&member.pod);
        let known = !devices.is_empty() && self.knows_devices(&member.pod, &devices);
        AdoptedTask {
            task,
            node: NodeId::from(member.node.as_ref()),
            devices: known.then(|| devices.iter().map(|id| GpuId::from(id.as_str())).collect()),
            confirmed: true,
            terminating: is_terminating(&member.pod),
        }
    }

    /// Returns true if the engine knows all these GPUs of the pod's node.
    pub(super) fn knows_devices(&self, pod: &Pod, devices: &[String]) -> bool {
        let node = pod.spec.node_name.as_deref().and_then(|node| self.nodes.get(node));
        node.is_some_and(|node| devices.iter().all(|id| node.has_gpu(id)))
    }

    /// Reserves the nodes that pending pods of a workload are nominated for; withdraws nominations that the engine rejects.
    pub(super) fn rebuild_hold(&mut self, id: &WorkloadId) {
        let Some(gang) = self.gangs.get_mut(id).filter(|gang| !gang.nominated) else { return };
        let nodes = self.pods.nominations(gang.members.values());
        let nodes: Vec<NodeId> = nodes.map(|node| NodeId::from(node.as_ref())).collect();
        let event = Event::Nominated { workload: id.clone(), nodes };
        gang.nominated = self.engine.try_send(event).is_ok();
        if !gang.nominated {
            for key in gang.members.values() {
                if let Some(entry) = self.pods.get_mut(key) {
                    self.actions.extend(entry.withdraw_nomination(key));
                }
            }
        }
    }

    /// Withdraws a void nomination of this scheduler when the watch reports it late: autoscalers take a nominated pod for
    /// placed. Nominations of other schedulers stay.
    pub(super) fn withdraw_stale_nomination(&mut self, key: &Key) {
        let ours = |entry: &&mut PodEntry| {
            entry.nominated.is_some() && entry.nominated == entry.nominated_by_us
        };
        let Some(entry) = self.pods.get_mut(key).filter(ours) else { return };
        let PodState::Member { workload, binding: BindingState::Pending, .. } = &entry.state else {
            return;
        };
        let is_void = self.gangs.get(workload).is_some_and(|gang| !gang.nominated)
            && !self.work.contains(&WorkItem::RebuildHold(workload.clone()));
        if is_void {
            self.actions.extend(entry.withdraw_nomination(key));
            entry.nominated_by_us = None;
        }
    }
}
