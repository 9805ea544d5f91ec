//! The life of a workload: gathering its pods, handed to the engine whole, placed, over.

use agentaflow_engine::{Event, Request, Role, WaitReason, WorkloadId};
use agentaflow_explain as words;
use agentaflow_kube_core::gpu_workload;
use agentaflow_kube_core::names;
use agentaflow_kube_core::slim::Pod;
use agentaflow_kube_core::translate::{self, Obstacle, Surroundings};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::action::Key;
use super::membership::{Membership, MembershipKind, Traits, because, incomplete, names_group};
use super::pod_entry::{BindingState, Parked, PodState};
use super::{ClusterState, key_of};

/// A workload of the engine and its pods.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, and not the states of one thing"
)]
pub(super) struct Gang {
    pub(super) need: u32,
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
    /// It is being stopped, for another or to start whole.
    pub(super) stopping: bool,
    /// Whoever led before us had bound only some of its pods.
    pub(super) cut: bool,
    pub(super) reason: Option<super::explain::PendingReason>,
    /// Its pods were told where others are being stopped for them.
    pub(super) nominated: bool,
}

impl ClusterState {
    /// A pod of ours that is not bound: part of a workload, or set aside with a reason.
    pub(super) fn join(&mut self, key: &Key, pod: &Arc<Pod>) {
        let Some(entry) = self.pods.get(key) else { return };
        if let Some(heading) = entry.heading.clone() {
            // It is being bound as it was, or is bound and we are told late: what is new counts only if that fails.
            let is_member = matches!(entry.place, PodState::Member { .. });
            if !is_member && entry.place != PodState::Foreign(heading.node.clone()) {
                self.leave(key);
                self.find_bound(key, pod, &heading.node);
            }
            return;
        }
        if let Some(owner) = self.owner_to_ask(pod) {
            self.ask_owner(key, owner);
            return;
        }
        let joined = self.belonging(key, pod).and_then(|belonging| {
            let asked = self.ask(pod, &belonging)?;
            Ok((belonging, asked))
        });
        let joined =
            joined.and_then(|(belonging, asked)| Ok((self.seat_for(belonging, key)?, asked)));
        let (belonging, mut asked) = match joined {
            Ok(joined) => joined,
            Err(aside) => {
                self.take_volumes(key, &[]);
                self.put_aside(key, aside);
                return;
            }
        };
        self.take_volumes(key, &asked.claims);
        self.ask_for_volumes(&mut asked);
        let Some(entry) = self.pods.get_mut(key) else { return };
        let request = Arc::new(asked.request);
        let stays = match (&entry.place, self.groups.get(&belonging.id)) {
            (PodState::Member { workload, .. }, Some(group)) => {
                *workload == belonging.id
                    && entry.asked.as_ref() == Some(&request)
                    && group.traits == belonging.traits.since(group.traits.submitted)
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
    pub(super) fn ask(
        &self,
        pod: &Pod,
        belonging: &Membership,
    ) -> Result<translate::Asked, Parked> {
        let around = Surroundings { volumes: &self.volumes, namespaces: &self.namespaces };
        let mut asked = translate::pod(pod, &around).map_err(|obstacle| match obstacle {
            Obstacle::Unsupported { field, why } => {
                because("Unsupported", format!("{field}: {why}"))
            }
            Obstacle::NotYet { why } => because("WaitingForVolume", why),
            Obstacle::NoStorage { why } => because("Unschedulable", why),
            Obstacle::Gated(gates) => because(
                "SchedulingGated",
                format!("held by scheduling gates: {}", gates.join(", ")),
            ),
        })?;
        if let MembershipKind::Workload(owner) = &belonging.kind
            && let Some(spec) = self.spec_of(owner)
        {
            gpu_workload::ask(spec, &mut asked.request);
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
    fn seat_for(&mut self, mut belonging: Membership, key: &Key) -> Result<Membership, Parked> {
        let Some(group) = self.groups.get(&belonging.id) else { return Ok(belonging) };
        let place = self.pods.get(key).map(|entry| &entry.place);
        let is_member =
            matches!(place, Some(PodState::Member { workload, .. }) if *workload == belonging.id);
        let have = group.members.len() as u32 + self.seated_strays(&belonging.id);
        if is_member || !(group.placed || have >= group.need) {
            return Ok(belonging);
        }
        if group.stopping || group.breaking || !group.placed {
            self.waiters.entry(belonging.id.clone()).or_default().insert(key.clone());
        }
        let Some(group) = self.groups.get(&belonging.id) else { return Ok(belonging) };
        if group.stopping || group.breaking {
            return Err(because("Stopping", "waits until the pods that it replaces are gone"));
        }
        if !group.placed {
            let message = format!("waits for the first {} pods of its group", group.need);
            return Err(because("GangFirst", message));
        }
        belonging.part(key);
        Ok(belonging)
    }

    /// How many pods that a gang would wait for have a place of their own, or have done their part already.
    fn seated_strays(&self, id: &WorkloadId) -> u32 {
        let Some(strays) = self.strays.get(id) else { return 0 };
        let first = self.groups.get(id).and_then(|group| group.members.values().next());
        let round = first.and_then(|key| self.round(key));
        let seated = |key: &&Key| !self.is_waiting(key) && self.round(key) == round;
        strays.iter().filter(seated).count() as u32
    }

    /// Which start of its workload a pod belongs to.
    fn round(&self, key: &Key) -> Option<&str> {
        let annotations = self.pods.get(key)?.pod.as_ref()?.metadata.annotations.as_ref()?;
        annotations.get(names::POD_RETRIES).map(String::as_str)
    }

    /// A pod of a gang has done its part: the gang does not wait for it.
    pub(super) fn retire(&mut self, key: &Key, pod: &Pod) {
        if pod.status.phase.as_deref() == Some("Succeeded")
            && let Ok(Membership { id, need: 2.., .. }) = self.belonging(key, pod)
        {
            self.stray(key, Some(id.clone()));
            // Fewer are needed to start the rest.
            self.regroup(&id);
        }
    }

    pub(super) fn is_waiting(&self, key: &Key) -> bool {
        let place = self.pods.get(key).map(|entry| &entry.place);
        matches!(place, Some(PodState::Member { seat: BindingState::Pending, .. }))
    }

    /// Remembers a pod that stands apart from its gang.
    pub(super) fn stray(&mut self, key: &Key, gang: Option<WorkloadId>) {
        if let (Some(gang), Some(entry)) = (gang, self.pods.get_mut(key)) {
            self.strays.entry(gang.clone()).or_default().insert(key.clone());
            entry.gang = Some(gang);
        }
    }

    /// A gang is over: pods of it that wait by themselves belong to the next.
    pub(super) fn forget_group(&mut self, id: &WorkloadId) {
        self.groups.remove(id);
        self.stuck.extend(self.strays.get(id).into_iter().flatten().cloned());
    }

    /// Wakes pods that wait until others of a workload are placed or gone.
    pub(super) fn wake_waiters(&mut self, id: &WorkloadId) {
        if let Some(waiters) = self.waiters.remove(id) {
            self.stuck.extend(waiters);
        }
    }

    fn enter(&mut self, key: &Key, belonging: Membership) {
        let Membership { id, need, traits, gang, .. } = belonging;
        self.stray(key, gang);
        let group =
            self.groups.entry(id.clone()).or_insert_with(|| Gang::new(need, traits.clone()));
        let traits = traits.since(group.traits.submitted);
        if group.traits != traits {
            // Handed in anew with what is said now.
            group.asked.clear();
        }
        (group.need, group.traits) = (need, traits);
        let last = group.members.last_key_value().map_or(0, |(task, _)| task + 1);
        let holes = group.members.len() as u32 != last;
        let free = (0..last).find(|task| holes && !group.members.contains_key(task));
        let task = free.unwrap_or(last);
        group.members.insert(task, key.clone());
        if let Some(entry) = self.pods.get_mut(key) {
            entry.place =
                PodState::Member { workload: id.clone(), task, seat: BindingState::Pending };
            if entry.nominated.is_some() {
                self.renominate.insert(id.clone());
            }
        }
        self.regroup(&id);
        // A group says why it waits once; who comes later has not heard it.
        if let Some(reason) = self.groups.get(&id).and_then(|group| group.reason.clone()) {
            self.explain_pod(key, &reason);
        }
    }

    /// Makes what the engine knows of a waiting workload agree with its pods.
    pub(super) fn regroup(&mut self, id: &WorkloadId) {
        let Some(group) = self.groups.get(id) else { return };
        if group.placed || group.breaking {
            return;
        }
        let (have, need) = (group.members.len(), group.need);
        if have == 0 {
            if group.known {
                self.tell(Event::Cancelled(id.clone()));
            }
            self.forget_group(id);
            return;
        }
        if (have as u32) + self.seated_strays(id) < need {
            self.gate(id, have, need);
        } else {
            self.hand_in(id);
        }
    }

    fn gate(&mut self, id: &WorkloadId, have: usize, need: u32) {
        let Some(group) = self.groups.get_mut(id) else { return };
        let gate = incomplete(have, need);
        if let Some(reason) = &mut group.reason {
            let latest = WaitReason::Gated(gate.clone());
            (reason.word, reason.resolved_by_nodes) = (latest.kind(), latest.resolved_by_nodes());
            reason.message = words::reason(&latest, self.now).into();
        }
        let gate = Some(gate);
        group.gated = true;
        if group.known {
            self.tell(Event::GateChanged { workload: id.clone(), gate });
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
                self.tell(Event::GateChanged { workload: id.clone(), gate: None });
            }
            return;
        }
        let known = std::mem::take(&mut group.known);
        group.asked.clone_from(&asked);
        group.gated = false;
        let mut workload = group.traits.workload(id.clone(), 1, asked[0].clone());
        roles(&mut workload, &asked);
        let members: Vec<Key> = group.members.values().cloned().collect();
        if known {
            self.tell(Event::Cancelled(id.clone()));
        }
        workload.budgets = self.budgets_of(&members);
        self.submit(id, workload);
    }

    fn submit(&mut self, id: &WorkloadId, workload: agentaflow_engine::Workload) {
        match self.engine.apply(self.now, Event::Submitted(Box::new(workload))) {
            Ok(()) => {
                if let Some(group) = self.groups.get_mut(id) {
                    group.known = true;
                }
            }
            Err(why) => {
                let Some(group) = self.groups.remove(id) else { return };
                for key in group.members.into_values() {
                    if let Some(entry) = self.pods.get_mut(&key) {
                        entry.place = PodState::Untracked;
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
                && let PodState::Member { task, .. } = &mut entry.place
            {
                *task = number;
            }
            group.members.insert(number, key);
            requests.push(asked);
        }
        requests
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
                    && !matches!(entry.place, PodState::Member { seat: BindingState::Bound(_), .. })
            });
            let named: Vec<Key> = named.map(|(key, _)| key.clone()).collect();
            self.stuck.extend(named);
        }
    }
}

impl Gang {
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
            cut: false,
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
