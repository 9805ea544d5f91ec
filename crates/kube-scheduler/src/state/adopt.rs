//! Work that is bound already: found when we begin, or bound by somebody who led before. It is a fact.

use agentaflow_engine::{AdoptedTask, AdoptedWorkload, Event, GpuId, NodeId, Request, WorkloadId};
use agentaflow_kube_core::slim::Pod;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::gangs::Gang;
use super::membership::Membership;
use super::pod_entry::{BindingState, PodEntry, PodState, is_finished, is_leaving, moment};
use super::static_volumes::without_volumes;
use super::{ClusterState, Key};

/// A pod of a gang that is on a node.
struct BoundPod {
    key: Key,
    pod: Arc<Pod>,
    node: Arc<str>,
    request: Arc<Request>,
}

impl ClusterState {
    /// A pod of ours is on a node where the engine does not have it.
    pub(super) fn find_bound(&mut self, key: &Key, pod: &Pod, node: &Arc<str>) {
        if !self.begun {
            return;
        }
        let known = self.nodes.get(node).is_some_and(super::NodeEntry::is_known);
        let asked = self.request_of_bound(key, pod).filter(|_| known);
        let adopted = asked.is_some_and(|(mut belonging, request)| {
            if belonging.need > 1 || self.groups.contains_key(&belonging.id) {
                belonging.part(key);
            }
            let found = BoundPod {
                key: key.clone(),
                pod: Arc::new(pod.clone()),
                node: node.clone(),
                request,
            };
            let adopted = self.adopt(&belonging, vec![found]);
            // Its gang may wait for it: a binding of which nobody heard was carried out after all.
            if let Some(gang) = belonging.gang.filter(|_| adopted) {
                self.regroup(&gang);
            }
            adopted
        });
        if !adopted {
            self.count_as_foreign(key, pod, node);
        }
    }

    /// Gangs of which something runs are taken over whole.
    pub(super) fn adopt_gangs(&mut self) {
        let mut gangs: BTreeMap<WorkloadId, (Membership, Vec<BoundPod>)> = BTreeMap::new();
        let bound = self.pods.iter().filter_map(|(key, entry)| {
            let pod = entry.pod.as_ref().filter(|pod| !is_finished(pod))?;
            let node: Arc<str> = pod.spec.node_name.as_deref()?.into();
            let known = self.nodes.get(&node).is_some_and(super::NodeEntry::is_known);
            let (belonging, request) = self.request_of_bound(key, pod)?;
            (known && belonging.need > 1).then(|| {
                (belonging, BoundPod { key: key.clone(), pod: pod.clone(), node, request })
            })
        });
        for (belonging, found) in bound {
            let gang = gangs.entry(belonging.id.clone());
            gang.or_insert_with(|| (belonging, Vec::new())).1.push(found);
        }
        for (belonging, mut found) in gangs.into_values() {
            found.sort_by(|a, b| a.key.cmp(&b.key));
            // More than the gang needs are by themselves; `settle` finds them.
            found.truncate(belonging.need as usize);
            let cut = self.is_cut(&belonging, &found);
            if self.adopt(&belonging, found)
                && let Some(group) = self.groups.get_mut(&belonging.id)
            {
                group.cut = cut;
            }
        }
    }

    /// A pod that runs takes something else than before: the engine learns it of the whole workload, which stays one.
    pub(super) fn adopt_anew(&mut self, key: &Key, workload: &WorkloadId) {
        let rests = |group: &&Gang| !group.stopping && !group.breaking;
        let Some(group) = self.groups.get(workload).filter(rests) else { return };
        let (cut, members) = (group.cut, group.members.values().cloned().collect::<Vec<_>>());
        let found: Option<Vec<BoundPod>> =
            members.iter().map(|member| self.found(member)).collect();
        let belonging = self.pods[key].pod.clone().and_then(|pod| self.belonging(key, &pod).ok());
        let (Some(found), Some(mut belonging)) = (found, belonging) else { return };
        if *workload != belonging.id {
            belonging.part(key);
        }
        for member in &members {
            self.leave(member);
        }
        // What was a gang, and is none any more, goes on as single pods.
        let is_one = members.len() == 1 || *workload == belonging.id;
        if !(is_one && self.adopt(&belonging, found)) {
            for member in &members {
                self.settle(member);
            }
        } else if let Some(group) = self.groups.get_mut(&belonging.id) {
            group.cut = cut;
        }
    }

    /// A pod that is on a node, as it is now.
    fn found(&self, key: &Key) -> Option<BoundPod> {
        let entry = self.pods.get(key)?;
        let PodState::Member { seat: BindingState::Bound(node), .. } = &entry.place else {
            return None;
        };
        let pod = entry.pod.clone()?;
        // While it is not told yet that it has its volumes, it asks for what it asked before, but for those.
        let request = self.request_of_bound(key, &pod).map(|(_, request)| request);
        let request = request.or_else(|| Some(without_volumes(entry.asked.as_ref()?)))?;
        Some(BoundPod { key: key.clone(), pod, node: node.clone(), request })
    }

    /// Whether pods of a gang wait that were there before the others began: whoever bound these did not come to them.
    fn is_cut(&self, belonging: &Membership, found: &[BoundPod]) -> bool {
        let began = found.iter().filter_map(|member| member.pod.status.start_time.as_ref());
        let began = began.map(|time| moment(time.0)).min();
        (found.len() as u32) < belonging.need
            && self.pods.iter().any(|(key, entry)| {
                !entry.is_on_node()
                    && began.is_none_or(|began| entry.created <= began)
                    && entry.pod.as_ref().is_some_and(|pod| {
                        let same = |other: Membership| other.id == belonging.id;
                        !is_leaving(pod)
                            && !is_finished(pod)
                            && self.belonging(key, pod).is_ok_and(same)
                    })
            })
    }

    /// A pod finds no room. If it is the rest of a gang that was cut in two, the others go, and all start together.
    pub(super) fn reunite(&mut self, key: &Key) {
        let Some(id) = self.pods.get(key).and_then(|entry| entry.gang.clone()) else { return };
        let Some(gang) = self.groups.get_mut(&id).filter(|gang| gang.cut) else { return };
        (gang.cut, gang.stopping) = (false, true);
        let mut pods: Vec<Key> = gang.members.values().cloned().collect();
        let strays: Vec<Key> = self.strays.get(&id).into_iter().flatten().cloned().collect();
        let seated = |key: &&Key| {
            let place = self.pods.get(key).map(|entry| &entry.place);
            matches!(place, Some(PodState::Member { seat, .. }) if *seat != BindingState::Pending)
        };
        pods.extend(strays.iter().filter(seated).cloned());
        for pod in pods {
            let why = "the rest of its gang finds no room, and it starts whole or not at all";
            self.note_pod(&pod, true, "GangBroken", why.to_owned());
            self.delete_pod(&pod, None);
        }
        self.stuck.extend(strays);
    }

    /// What a bound pod asks for, as if it were to be placed; none when that cannot be told.
    fn request_of_bound(&self, key: &Key, pod: &Pod) -> Option<(Membership, Arc<Request>)> {
        let belonging = self.belonging(key, pod).ok()?;
        let request = self.ask(pod, &belonging).ok()?.request;
        Some((belonging, Arc::new(request)))
    }

    fn adopt(&mut self, belonging: &Membership, mut found: Vec<BoundPod>) -> bool {
        let mut kinds: Vec<Arc<Request>> = Vec::new();
        for member in &found {
            if !kinds.contains(&member.request) {
                kinds.push(member.request.clone());
            }
        }
        found.sort_by_key(|member| kinds.iter().position(|kind| *kind == member.request));
        let mut asked: Vec<Arc<Request>> =
            found.iter().map(|member| member.request.clone()).collect();
        let missing = (found.len() as u32)..belonging.need;
        // There may be more than are needed by now.
        asked.resize(found.len().max(belonging.need as usize), kinds[0].clone());
        let first = asked[0].clone();
        let mut engine = belonging.traits.workload(belonging.id.clone(), 1, first);
        super::gangs::roles(&mut engine, &asked);
        engine.budgets = self.budgets_of(found.iter().map(|member| &member.key));
        let seats = (0..).zip(&found).map(|(task, member)| self.seat_of(task, member)).collect();
        let started = found.iter().filter_map(|member| member.pod.status.start_time.as_ref());
        let placed_at = started.map(|time| moment(time.0)).min().unwrap_or(self.now);
        let finished: BTreeSet<u32> = missing.collect();
        let adopted = AdoptedWorkload { workload: engine, tasks: seats, finished, placed_at };
        if !self.tell(Event::Adopted(Box::new(adopted))) {
            return false;
        }
        let mut group = Gang::new(belonging.need, belonging.traits.clone());
        group.take_over();
        for (task, member) in (0..).zip(found) {
            group.members.insert(task, member.key.clone());
            if let Some(entry) = self.pods.get_mut(&member.key) {
                entry.asked = Some(member.request);
                entry.place = PodState::Member {
                    workload: belonging.id.clone(),
                    task,
                    seat: BindingState::Pending,
                };
            }
            self.stray(&member.key, belonging.gang.clone());
            self.set_seat(&member.key, BindingState::Bound(member.node));
        }
        self.groups.insert(belonging.id.clone(), group);
        true
    }

    fn seat_of(&self, task: u32, member: &BoundPod) -> AdoptedTask {
        let devices = super::pod_entry::devices(&member.pod);
        let known = !devices.is_empty() && self.knows_devices(&member.pod, &devices);
        AdoptedTask {
            task,
            node: NodeId::from(member.node.as_ref()),
            devices: known.then(|| devices.iter().map(|id| GpuId::from(id.as_str())).collect()),
            confirmed: true,
            terminating: is_leaving(&member.pod),
        }
    }

    /// Whether the engine knows the GPUs of a pod's node by these names.
    pub(super) fn knows_devices(&self, pod: &Pod, devices: &[String]) -> bool {
        let node = pod.spec.node_name.as_deref().and_then(|node| self.nodes.get(node));
        node.is_some_and(|node| devices.iter().all(|id| node.has_gpu(id)))
    }

    /// Nominations of pods that wait are room kept for them: the engine is told, and what it does not take is
    /// withdrawn.
    pub(super) fn rebuild_hold(&mut self, id: &WorkloadId) {
        let Some(group) = self.groups.get(id).filter(|group| !group.nominated) else { return };
        let members: Vec<Key> = group.members.values().cloned().collect();
        let nominated = members.iter().filter_map(|key| self.pods.get(key)?.nominated.as_ref());
        let nodes: Vec<NodeId> = nominated.map(|node| NodeId::from(node.as_ref())).collect();
        let event = Event::Nominated { workload: id.clone(), nodes };
        let held = self.engine.apply(self.now, event).is_ok();
        if let Some(group) = self.groups.get_mut(id) {
            group.nominated = held;
        }
        if !held {
            for key in members {
                self.withdraw_nomination(&key);
            }
        }
    }

    /// A nomination of ours that was long on its way, and is void by now, is withdrawn when it is seen: autoscalers take
    /// such a pod for placed. What others nominate is their business.
    pub(super) fn check_nomination(&mut self, key: &Key) {
        let ours = |entry: &&PodEntry| {
            entry.nominated.is_some() && entry.nominated == entry.nominated_by_us
        };
        let Some(entry) = self.pods.get(key).filter(ours) else { return };
        let PodState::Member { workload, seat: BindingState::Pending, .. } = &entry.place else {
            return;
        };
        let group = self.groups.get(workload);
        if group.is_some_and(|group| !group.nominated) && !self.renominate.contains(workload) {
            self.withdraw_nomination(key);
            if let Some(entry) = self.pods.get_mut(key) {
                entry.nominated_by_us = None;
            }
        }
    }
}
