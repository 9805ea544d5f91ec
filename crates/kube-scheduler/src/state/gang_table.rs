//! Gangs: pods that start together and are one workload of the engine. A single pod is a gang of one.

use agentaflow_engine::{Gate, Placement, Request, Role, Time, WorkloadId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::action::Key;
use super::explain::ReportedReason;
use super::membership::Traits;

#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, not the states of one machine"
)]
pub(super) struct Gang {
    pub(super) min_members: u32,
    pub(super) traits: Traits,
    /// Pods by task; finished pods are removed.
    pub(super) members: BTreeMap<u32, Key>,
    /// Lost members of a running gang by task, until their replacements are bound.
    pub(super) lost: BTreeMap<u32, LostMember>,
    /// Requests by task as last submitted; empty while the gang is incomplete.
    pub(super) submitted_requests: Vec<Arc<Request>>,
    /// Places by task while the engine's workload is made of pod templates: its pods do not all exist.
    pub(super) held: Option<BTreeMap<u32, Placement>>,
    /// Members without a condition for the pending reason of the gang.
    pub(super) unexplained: Vec<Key>,
    /// Members have an old number of created pods in their conditions.
    pub(super) count_is_stale: bool,
    /// Time from which all members get a new number of created pods.
    pub(super) recount_at: Time,
    /// The engine knows the workload.
    pub(super) submitted: bool,
    pub(super) gated: bool,
    pub(super) placed: bool,
    /// A member could not be bound: bound members are deleted, and the gang is placed again.
    pub(super) tearing_down: bool,
    /// Its pods are being stopped, for a preemptor or to start together.
    pub(super) stopping: bool,
    /// The last leader bound only a part of its pods.
    pub(super) split: bool,
    pub(super) reason: Option<ReportedReason>,
    /// Its pods carry the nodes that are being freed for them.
    pub(super) nominated: bool,
    /// Nodes on which victims make room for the gang.
    pub(super) freed: Option<FreedRoom>,
    /// First ETA that a caller was given since the last placement.
    pub(super) given_eta: Option<Time>,
}

/// Nodes of a preemption, and its time.
#[derive(Clone, Debug)]
pub(super) struct FreedRoom {
    pub(super) since: Time,
    pub(super) nodes: BTreeSet<Arc<str>>,
}

/// A member that ended before its work was done; the engine reserves its place for a replacement.
#[derive(Clone, Debug)]
pub(super) struct LostMember {
    /// None if the pod was lost before this scheduler started, and its name does not follow from the gang.
    pub(super) pod: Option<Key>,
    pub(super) request: Arc<Request>,
}

impl LostMember {
    /// Words for users.
    pub(super) fn name(&self) -> String {
        self.pod.as_ref().map_or_else(|| "a pod".to_owned(), |pod| format!("pod {}", pod.name))
    }

    fn is(&self, pod: &Key) -> bool {
        self.pod.as_ref() == Some(pod)
    }
}

impl Gang {
    pub(super) fn new(min_members: u32, traits: Traits) -> Self {
        Self {
            min_members,
            traits,
            members: BTreeMap::new(),
            lost: BTreeMap::new(),
            submitted_requests: Vec::new(),
            held: None,
            unexplained: Vec::new(),
            count_is_stale: false,
            recount_at: Time(0),
            submitted: false,
            gated: false,
            placed: false,
            tearing_down: false,
            stopping: false,
            split: false,
            reason: None,
            nominated: false,
            freed: None,
            given_eta: None,
        }
    }

    /// A gang that runs already.
    pub(super) fn running(min_members: u32, traits: Traits) -> Self {
        Self { submitted: true, placed: true, ..Self::new(min_members, traits) }
    }

    pub(super) fn is_multi_pod(&self) -> bool {
        self.min_members > 1
    }

    /// The lowest task number without a member.
    pub(super) fn free_task(&self) -> u32 {
        let next = self.members.last_key_value().map_or(0, |(task, _)| task + 1);
        let has_holes = self.members.len() as u32 != next;
        let hole = (0..next).find(|task| has_holes && !self.members.contains_key(task));
        hole.unwrap_or(next)
    }

    /// Task of a lost member that a pod replaces: one of the same request or name if there is one.
    pub(super) fn replaced_task(&self, pod: &Key, request: &Arc<Request>) -> Option<u32> {
        let free = || self.lost.iter().filter(|(task, _)| !self.members.contains_key(task));
        let same_name = free().find(|(_, lost)| lost.is(pod) && lost.request == *request);
        let same_request = || free().find(|(_, lost)| lost.request == *request);
        let any = || free().find(|(_, lost)| lost.is(pod)).or_else(|| free().next());
        same_name.or_else(same_request).or_else(any).map(|(task, _)| *task)
    }

    pub(super) fn first_member(&self) -> Option<&Key> {
        self.members.values().next()
    }
}

#[derive(Debug, Default)]
pub(super) struct GangTable {
    gangs: BTreeMap<WorkloadId, Gang>,
    /// Pods of a gang that are placed apart from it, or finished.
    detached: BTreeMap<WorkloadId, BTreeSet<Key>>,
    /// Minimum members of pod groups, by namespace and name.
    pod_groups: BTreeMap<Key, u32>,
    /// Large gangs whose members get a new number of created pods at a time.
    recounts: BTreeSet<(Time, WorkloadId)>,
}

impl GangTable {
    pub(super) fn get(&self, id: &WorkloadId) -> Option<&Gang> {
        self.gangs.get(id)
    }

    pub(super) fn get_mut(&mut self, id: &WorkloadId) -> Option<&mut Gang> {
        self.gangs.get_mut(id)
    }

    pub(super) fn contains(&self, id: &WorkloadId) -> bool {
        self.gangs.contains_key(id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&WorkloadId, &Gang)> {
        self.gangs.iter()
    }

    /// Pod groups of a namespace that wait for pods.
    pub(super) fn incomplete_groups(&self, namespace: &str) -> impl Iterator<Item = &WorkloadId> {
        let prefix = format!("{namespace}/group/");
        let first = WorkloadId::from(prefix.as_str());
        let groups = self.gangs.range(first..);
        let groups = groups.take_while(move |(id, _)| id.as_str().starts_with(&prefix));
        groups.filter(|(_, gang)| gang.gated).map(|(id, _)| id)
    }

    pub(super) fn get_or_insert(
        &mut self,
        id: &WorkloadId,
        new: impl FnOnce() -> Gang,
    ) -> &mut Gang {
        self.gangs.entry(id.clone()).or_insert_with(new)
    }

    pub(super) fn insert(&mut self, id: WorkloadId, gang: Gang) {
        self.gangs.insert(id, gang);
    }

    pub(super) fn remove(&mut self, id: &WorkloadId) -> Option<Gang> {
        self.gangs.remove(id)
    }

    /// Members of a gang in the order of their tasks.
    pub(super) fn members(&self, id: &WorkloadId) -> impl Iterator<Item = &Key> {
        self.gangs.get(id).into_iter().flat_map(|gang| gang.members.values())
    }

    pub(super) fn detached(&self, gang: &WorkloadId) -> impl Iterator<Item = &Key> {
        self.detached.get(gang).into_iter().flatten()
    }

    pub(super) fn add_detached(&mut self, gang: &WorkloadId, pod: &Key) {
        self.detached.entry(gang.clone()).or_default().insert(pod.clone());
    }

    pub(super) fn remove_detached(&mut self, gang: &WorkloadId, pod: &Key) {
        if let Some(pods) = self.detached.get_mut(gang) {
            pods.remove(pod);
            if pods.is_empty() {
                self.detached.remove(gang);
            }
        }
    }

    pub(super) fn recount_later(&mut self, id: &WorkloadId, at: Time) {
        self.recounts.insert((at, id.clone()));
    }

    /// Removes and returns the gangs whose time has come.
    pub(super) fn take_recounts(&mut self, now: Time) -> Vec<WorkloadId> {
        let mut due = Vec::new();
        while self.recounts.first().is_some_and(|(at, _)| *at <= now) {
            due.extend(self.recounts.pop_first().map(|(_, id)| id));
        }
        due
    }

    pub(super) fn next_recount(&self) -> Option<Time> {
        self.recounts.first().map(|(at, _)| *at)
    }

    /// Minimum members of a pod group; none if the group is unknown.
    pub(super) fn min_members(&self, group: &Key) -> Option<u32> {
        self.pod_groups.get(group).copied()
    }

    /// Returns true if the number changed.
    pub(super) fn set_min_members(&mut self, group: Key, min_members: u32) -> bool {
        self.pod_groups.insert(group, min_members) != Some(min_members)
    }

    pub(super) fn remove_pod_group(&mut self, group: &Key) {
        self.pod_groups.remove(group);
    }
}

/// Makes a workload of one task a gang of tasks with these requests; equal requests must be adjacent.
pub(super) fn set_roles(workload: &mut agentaflow_engine::Workload, requests: &[Arc<Request>]) {
    let mut roles: Vec<Role> = Vec::new();
    for request in requests {
        match roles.last_mut() {
            Some(last) if last.request == *request => last.tasks += 1,
            _ => roles.push(Role { tasks: 1, request: request.clone() }),
        }
    }
    if !roles.is_empty() {
        let first = roles.remove(0);
        workload.tasks = first.tasks;
        workload.request = first.request;
    }
    workload.roles = roles;
}

/// The gate of an incomplete gang.
pub(super) fn incomplete(have: usize, need: u32) -> Gate {
    Gate::PodsMissing { have: have as u32, need }
}
