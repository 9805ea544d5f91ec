//! The life of a workload: gathering its pods, handed to the engine whole, placed, over.

use agentaflow_engine::{Event, Request, Role, WorkloadId};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::acts::{Act, Key};
use super::identity::{Belonging, Kind, Traits, alone, because, incomplete, names_group};
use super::pods::{Aside, Place, Seat};
use super::{World, key_of};
use crate::names;
use crate::slim::Pod;
use crate::translate::{self, Obstacle, Surroundings};
use crate::workload;

/// A workload of the engine and its pods.
#[derive(Debug)]
pub(super) struct Group {
    need: u32,
    pub(super) traits: Traits,
    /// Pods by task; those that are over have left.
    pub(super) members: BTreeMap<u32, Key>,
    /// What the engine was told that the tasks ask for; empty while the gang is not complete.
    asked: Vec<Arc<Request>>,
    pub(super) known: bool,
    gated: bool,
    /// The engine has placed it.
    pub(super) placed: bool,
    /// One of its pods could not be bound: the others go, and it is planned again.
    pub(super) breaking: bool,
    /// It is being stopped for another.
    pub(super) stopping: bool,
    pub(super) reason: Option<super::show::Reason>,
    /// Its pods were told where others are being stopped for them.
    pub(super) nominated: bool,
}

impl World {
    /// A pod of ours that is not bound: part of a workload, or set aside with a reason.
    pub(super) fn join(&mut self, key: &Key, pod: &Arc<Pod>) {
        if let Some(owner) = self.owner_to_ask(pod) {
            self.ask_owner(key, owner);
            return;
        }
        let joined = self.belonging(key, pod).and_then(|belonging| {
            let asked = self.ask(pod, &belonging)?;
            Ok((self.seat_for(belonging, key)?, asked))
        });
        let (belonging, asked) = match joined {
            Ok(joined) => joined,
            Err(aside) => {
                self.leave(key);
                self.set_aside(key, aside);
                return;
            }
        };
        let Some(entry) = self.pods.get_mut(key) else { return };
        let request = Arc::new(asked.request);
        let stays = match (&entry.place, self.groups.get(&belonging.id)) {
            (Place::Member { workload, .. }, Some(group)) => {
                *workload == belonging.id
                    && entry.asked.as_ref() == Some(&request)
                    && group.traits == belonging.traits
                    && group.need == belonging.need
            }
            _ => false,
        };
        (entry.claims, entry.depends) = (asked.claims, asked.depends);
        if stays {
            return;
        }
        self.leave(key);
        if let Some(entry) = self.pods.get_mut(key) {
            entry.asked = Some(request);
        }
        self.enter(key, belonging);
    }

    /// What a pod asks for, with what is said beside it.
    pub(super) fn ask(&self, pod: &Pod, belonging: &Belonging) -> Result<translate::Asked, Aside> {
        let around = Surroundings { volumes: &self.volumes, namespaces: &self.namespaces };
        let mut asked = translate::pod(pod, &around).map_err(|obstacle| match obstacle {
            Obstacle::Unsupported { field, why } => {
                because("Unsupported", format!("{field}: {why}"))
            }
            Obstacle::NotYet { why } => because("WaitingForVolume", why),
            Obstacle::Gated(gates) => because(
                "SchedulingGated",
                format!("held by scheduling gates: {}", gates.join(", ")),
            ),
        })?;
        if let Kind::Workload(owner) = &belonging.kind
            && let Some(spec) = self.spec_of(owner)
        {
            workload::ask(spec, &mut asked.request);
        }
        if let Some(memory) = self.least_memory(pod) {
            let least = &mut asked.request.min_gpu_memory;
            *least = (*least).max(memory);
        }
        // Numbers of tasks and attempts are ours: no term of anybody asks about them.
        asked.request.labels.remove(names::POD_TASK);
        asked.request.labels.remove(names::POD_ATTEMPT);
        Ok(asked)
    }

    /// A pod that comes when its gang runs already is placed alone; while the old gang is being stopped it waits.
    fn seat_for(&self, mut belonging: Belonging, key: &Key) -> Result<Belonging, Aside> {
        let Some(group) = self.groups.get(&belonging.id) else { return Ok(belonging) };
        let is_member = group.members.values().any(|member| member == key);
        if is_member || !(group.placed || group.members.len() as u32 >= group.need) {
            return Ok(belonging);
        }
        if group.stopping || group.breaking {
            return Err(because("Stopping", "waits until the pods that it replaces are gone"));
        }
        if !group.placed {
            let message = format!("waits for the first {} pods of its group", group.need);
            return Err(because("GangFirst", message));
        }
        (belonging.id, belonging.kind, belonging.need) = (alone(key), Kind::Pod, 1);
        belonging.traits.topology = None;
        Ok(belonging)
    }

    fn ask_owner(&mut self, key: &Key, owner: super::Owner) {
        self.leave(key);
        self.set_aside(key, Aside::LookingUp);
        if !self.owners.contains_key(&owner.uid) {
            self.owners.insert(owner.uid.clone(), None);
            self.acts.push(Act::LookUp(owner));
        }
    }

    /// The owner of some pods has answered; where it could not be asked, it is asked again.
    pub(super) fn see_owner(&mut self, uid: Arc<str>, said: Option<BTreeMap<String, String>>) {
        match said {
            Some(annotations) => self.owners.insert(uid.clone(), Some(Arc::new(annotations))),
            None => self.owners.remove(&uid),
        };
        let waiting = self.pods.iter().filter(|(_, entry)| {
            entry.place == Place::Aside(Aside::LookingUp)
                && entry.pod.as_ref().is_some_and(|pod| {
                    pod.metadata.owner_references.iter().flatten().any(|owner| *owner.uid == *uid)
                })
        });
        let waiting: Vec<Key> = waiting.map(|(key, _)| key.clone()).collect();
        self.stuck.extend(waiting);
    }

    fn enter(&mut self, key: &Key, belonging: Belonging) {
        let Belonging { id, need, traits, .. } = belonging;
        let group =
            self.groups.entry(id.clone()).or_insert_with(|| Group::new(need, traits.clone()));
        (group.need, group.traits) = (need, traits);
        let free = (0..=group.members.len() as u32).find(|task| !group.members.contains_key(task));
        let task = free.unwrap_or_default();
        group.members.insert(task, key.clone());
        if let Some(entry) = self.pods.get_mut(key) {
            entry.place = Place::Member { workload: id.clone(), task, seat: Seat::Waiting };
        }
        self.regroup(&id);
    }

    /// Makes what the engine knows of a waiting workload agree with its pods.
    fn regroup(&mut self, id: &WorkloadId) {
        let Some(group) = self.groups.get(id) else { return };
        if group.placed || group.breaking {
            return;
        }
        let (have, need) = (group.members.len(), group.need);
        if have == 0 {
            if group.known {
                self.tell(Event::Cancelled(id.clone()));
            }
            self.groups.remove(id);
            return;
        }
        if (have as u32) < need {
            self.gate(id, have, need);
        } else {
            self.hand_in(id);
        }
    }

    fn gate(&mut self, id: &WorkloadId, have: usize, need: u32) {
        let Some(group) = self.groups.get_mut(id) else { return };
        let gate = Some(incomplete(have, need));
        group.gated = true;
        if group.known {
            self.tell(Event::Gate { workload: id.clone(), gate });
            return;
        }
        group.asked.clear();
        let Some(first) = group.members.values().next().cloned() else { return };
        let Some(request) = self.pods.get(&first).and_then(|entry| entry.asked.clone()) else {
            return;
        };
        let Some(group) = self.groups.get(id) else { return };
        let mut workload = group.traits.workload(id.clone(), need, request);
        workload.gate = gate;
        self.submit(id, workload);
    }

    /// Hands a complete workload to the engine.
    fn hand_in(&mut self, id: &WorkloadId) {
        let asked = self.order_members(id);
        let Some(group) = self.groups.get_mut(id) else { return };
        if group.known && group.asked == asked {
            if std::mem::take(&mut group.gated) {
                self.tell(Event::Gate { workload: id.clone(), gate: None });
            }
            return;
        }
        let known = std::mem::take(&mut group.known);
        group.asked.clone_from(&asked);
        group.gated = false;
        let mut workload = group.traits.workload(id.clone(), 1, asked[0].clone());
        roles(&mut workload, &asked);
        let first = group.members.values().next().cloned();
        if known {
            self.tell(Event::Cancelled(id.clone()));
        }
        workload.budgets = first.map(|key| self.budgets_of(&key)).unwrap_or_default();
        self.submit(id, workload);
    }

    fn submit(&mut self, id: &WorkloadId, workload: agentaflow_engine::Workload) {
        match self.engine.apply(self.now, Event::Submit(Box::new(workload))) {
            Ok(()) => {
                if let Some(group) = self.groups.get_mut(id) {
                    group.known = true;
                }
            }
            Err(why) => {
                let Some(group) = self.groups.remove(id) else { return };
                for key in group.members.into_values() {
                    if let Some(entry) = self.pods.get_mut(&key) {
                        entry.place = Place::Nowhere;
                    }
                    self.set_aside(&key, because("Refused", why.to_string()));
                }
            }
        }
    }

    /// Numbers the pods of a complete gang so that equal ones stand together; returns what each asks for.
    fn order_members(&mut self, id: &WorkloadId) -> Vec<Arc<Request>> {
        let Some(group) = self.groups.get_mut(id) else { return Vec::new() };
        let pods = &mut self.pods;
        let mut members: Vec<(Arc<Request>, Key)> = std::mem::take(&mut group.members)
            .into_values()
            .filter_map(|key| Some((pods.get(&key)?.asked.clone()?, key)))
            .collect();
        let mut kinds: Vec<Arc<Request>> = Vec::new();
        for (asked, _) in &members {
            if !kinds.contains(asked) {
                kinds.push(asked.clone());
            }
        }
        let kind = |asked: &Arc<Request>| kinds.iter().position(|known| known == asked);
        members.sort_by(|a, b| (kind(&a.0), &a.1).cmp(&(kind(&b.0), &b.1)));
        let mut requests = Vec::with_capacity(members.len());
        for (number, (asked, key)) in (0..).zip(members) {
            if let Some(entry) = pods.get_mut(&key)
                && let Place::Member { task, .. } = &mut entry.place
            {
                *task = number;
            }
            group.members.insert(number, key);
            requests.push(asked);
        }
        requests
    }

    /// A pod leaves its workload: it is over, gone, or changed.
    pub(super) fn leave_group(&mut self, key: &Key, id: &WorkloadId, task: u32, seat: &Seat) {
        let Some(group) = self.groups.get_mut(id) else { return };
        if group.members.get(&task) != Some(key) {
            return;
        }
        group.members.remove(&task);
        let (empty, breaking) = (group.members.is_empty(), group.breaking);
        if *seat != Seat::Waiting {
            let (workload, known) = (id.clone(), group.known);
            let event = if breaking {
                Event::Gone { workload, task }
            } else {
                Event::TaskFinished { workload, task }
            };
            if known {
                self.tell(event);
            }
        }
        if empty {
            self.groups.remove(id);
            if self.engine.workload(id).is_some() {
                self.tell(Event::Cancelled(id.clone()));
            }
            self.look_again(|_| true);
        } else if breaking {
            self.mend(id);
        } else {
            self.regroup(id);
        }
    }

    /// A binding failed for good. A gang starts whole or not at all: what is bound of it goes.
    pub(super) fn refuse(&mut self, key: &Key, id: &WorkloadId, task: u32, node: &str, why: &str) {
        self.note_pod(key, true, "FailedBinding", format!("cannot be bound to node {node}: {why}"));
        let Some(group) = self.groups.get_mut(id) else { return };
        let (gang, was_breaking) = (group.need > 1, group.breaking);
        group.breaking |= gang;
        group.placed = false;
        let others: Vec<Key> =
            group.members.values().filter(|other| *other != key).cloned().collect();
        self.set_seat(key, Seat::Waiting);
        let (workload, task) = (id.clone(), task);
        self.tell(if was_breaking {
            Event::Gone { workload, task }
        } else {
            Event::Refused { workload, task }
        });
        if gang && !was_breaking {
            for other in others {
                if self.is_bound(&other) {
                    self.delete_pod(&other, None);
                }
            }
        }
        if gang {
            self.mend(id);
        }
    }

    fn is_bound(&self, key: &Key) -> bool {
        let place = self.pods.get(key).map(|entry| &entry.place);
        matches!(place, Some(Place::Member { seat: Seat::Bound(_), .. }))
    }

    /// When nothing of a broken gang is on a node any more, it gathers again.
    fn mend(&mut self, id: &WorkloadId) {
        let Some(group) = self.groups.get_mut(id) else { return };
        let seated = group.members.values().any(|key| {
            let place = self.pods.get(key).map(|entry| &entry.place);
            !matches!(place, Some(Place::Member { seat: Seat::Waiting, .. }))
        });
        if !seated {
            (group.breaking, group.placed) = (false, false);
            self.regroup(id);
            self.look_again(|_| true);
        }
    }

    pub(super) fn see_pod_group(&mut self, meta: &ObjectMeta, need: u32) {
        let key = key_of(meta);
        if self.pod_groups.insert(key.clone(), need.max(1)) != Some(need.max(1)) {
            self.regroup_pods(&key);
        }
    }

    pub(super) fn lose_pod_group(&mut self, meta: &ObjectMeta) {
        let key = key_of(meta);
        self.pod_groups.remove(&key);
        self.regroup_pods(&key);
    }

    fn regroup_pods(&mut self, group: &Key) {
        if self.begun {
            let named = self.pods.iter().filter(|(_, entry)| {
                entry.pod.as_ref().is_some_and(|pod| names_group(pod, group))
                    && !matches!(entry.place, Place::Member { seat: Seat::Bound(_), .. })
            });
            let named: Vec<Key> = named.map(|(key, _)| key.clone()).collect();
            self.stuck.extend(named);
        }
    }
}

impl Group {
    /// It runs already.
    pub(super) fn take_over(&mut self) {
        (self.known, self.placed) = (true, true);
    }

    pub(super) fn new(need: u32, traits: Traits) -> Self {
        Self {
            need,
            traits,
            members: BTreeMap::new(),
            asked: Vec::new(),
            known: false,
            gated: false,
            placed: false,
            breaking: false,
            stopping: false,
            reason: None,
            nominated: false,
        }
    }
}

/// Makes a workload of one task a gang of tasks that ask for these things, equal ones side by side.
pub(super) fn roles(workload: &mut agentaflow_engine::Workload, asked: &[Arc<Request>]) {
    let mut roles: Vec<Role> = Vec::new();
    for request in asked {
        match roles.last_mut() {
            Some(last) if last.request == *request => last.tasks += 1,
            _ => roles.push(Role { tasks: 1, request: request.clone() }),
        }
    }
    if !roles.is_empty() {
        let first = roles.remove(0);
        (workload.tasks, workload.request) = (first.tasks, first.request);
    }
    workload.roles = roles;
}
