//! Pending workloads, grouped by request.
//!
//! Workloads of one queue with equal requests and equal preemption rules form a group: when its first member
//! does not fit, none does, and the group is blocked until room or quota is freed. A pass over 100,000
//! pending workloads with 50 distinct requests examines 50 groups.

use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::labels::Labels;
use crate::model::units::Priority;
use crate::model::wait::{WaitClass, WaitReason};
use crate::model::workload::Topology;
use crate::quota::queues::{QueueIdx, Queues};
use crate::state::cluster::NodeIdx;
use crate::state::cluster::shape::ShapeIdx;
use crate::state::workloads::{RoleShape, WorkloadIdx};
use crate::strategy::Strategy;

/// Limit of the list of unreported members; a longer one is replaced by all members.
const MAX_UNREPORTED: usize = 256;

/// Dense index of a group.
pub(crate) type GroupIdx = u32;

/// Sort key within a queue; smaller first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    /// Priority and precedence of a strict order; equal for all workloads otherwise.
    pub(crate) level: Reverse<(Priority, u8)>,
    /// Submission time, moved by ageing, or the amount that the order sorts by.
    pub(crate) amount: i64,
    pub(crate) serial: u64,
}

/// Common properties of a group's members.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GroupKey {
    pub(crate) queue: QueueIdx,
    pub(crate) shape: ShapeIdx,
    /// Labels that selectors use.
    pub(crate) term_labels: Option<Arc<Labels>>,
    pub(crate) tasks: u32,
    pub(crate) role_shapes: Option<Arc<[RoleShape]>>,
    pub(crate) topology: Option<Topology>,
    pub(crate) preferred_topology: Vec<String>,
    pub(crate) strategy: Option<Strategy>,
    pub(crate) priority: Priority,
    pub(crate) may_preempt: bool,
    pub(crate) avoid: Option<NodeIdx>,
}

/// Workloads with equal keys.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) key: GroupKey,
    pub(crate) members: BTreeMap<Rank, WorkloadIdx>,
    /// Reason that blocks all members; `None` when the group is ready.
    pub(crate) blocked: Option<Arc<WaitReason>>,
    /// Members to which the next pass may have to report a reason: the members in `unreported`, or all of them without `reported`.
    unreported: Vec<(u64, WorkloadIdx)>,
    /// Class of the reason that all other members were told. A pass that blocks the group again for a reason of this class
    /// skips them: a group may have 100,000 members.
    reported: Option<WaitClass>,
}

impl Group {
    /// Returns false if the group skips this member, whose last report has another class.
    pub(crate) fn knows_report(&self, member: WorkloadIdx, class: Option<WaitClass>) -> bool {
        let is_listed = || self.unreported.iter().any(|(_, listed)| *listed == member);
        self.reported.is_none() || self.reported == class || is_listed()
    }

    fn add_unreported(&mut self, rank: Rank, workload: WorkloadIdx) {
        if self.reported.is_none() {
            return;
        }
        self.unreported.push((rank.serial, workload));
        // Removals search the list, so it stays short.
        if self.unreported.len() > MAX_UNREPORTED {
            self.forget_reported();
        }
    }

    /// The next report considers all members.
    fn forget_reported(&mut self) {
        self.reported = None;
        self.unreported.clear();
    }

    /// Members that may not have been told a reason of this class.
    fn take_unreported(&mut self, class: WaitClass) -> Vec<(u64, WorkloadIdx)> {
        let fresh = std::mem::take(&mut self.unreported);
        if self.reported.replace(class).is_some() {
            return fresh;
        }
        self.members.iter().map(|(rank, workload)| (rank.serial, *workload)).collect()
    }
}

/// Serial number, workload and index of the reason.
pub(crate) type UnreportedMember = (u64, WorkloadIdx, usize);

#[derive(Clone, Debug, Default)]
pub(crate) struct Pending {
    groups: Vec<Option<Group>>,
    vacant: Vec<GroupIdx>,
    by_key: FxHashMap<GroupKey, GroupIdx>,
    /// First members of ready groups, by queue; by the root alone with a global order.
    ready: BTreeMap<QueueIdx, BTreeSet<(Rank, GroupIdx)>>,
    blocked: BTreeSet<GroupIdx>,
    /// Groups with unreported members.
    pub(crate) unreported: BTreeSet<GroupIdx>,
    /// One order across all queues.
    pub(crate) global: bool,
    len: usize,
}

impl Pending {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn group(&self, group: GroupIdx) -> &Group {
        self.groups[group as usize].as_ref().expect("a group number in use has a group")
    }

    fn group_mut(&mut self, group: GroupIdx) -> &mut Group {
        self.groups[group as usize].as_mut().expect("a group number in use has a group")
    }

    pub(crate) fn groups(&self) -> impl Iterator<Item = (GroupIdx, &Group)> {
        self.groups
            .iter()
            .enumerate()
            .filter_map(|(index, group)| Some((index as GroupIdx, group.as_ref()?)))
    }

    pub(crate) fn find(&self, key: &GroupKey) -> Option<GroupIdx> {
        self.by_key.get(key).copied()
    }

    pub(crate) fn insert(
        &mut self,
        key: GroupKey,
        rank: Rank,
        workload: WorkloadIdx,
        queues: &mut Queues,
    ) -> GroupIdx {
        self.len += 1;
        let index = self.by_key.get(&key).copied().unwrap_or_else(|| self.create_group(key));
        let group = self.group_mut(index);
        let first = group.members.keys().next().copied();
        group.members.insert(rank, workload);
        group.add_unreported(rank, workload);
        if group.blocked.is_some() {
            self.unreported.insert(index);
        } else if first.is_none_or(|first| rank < first) {
            self.update_ready(index, first, Some(rank), queues);
        }
        index
    }

    pub(crate) fn remove(&mut self, key: &GroupKey, rank: Rank, queues: &mut Queues) {
        let Some(index) = self.by_key.get(key).copied() else { return };
        let group = self.group_mut(index);
        let first = group.members.keys().next().copied();
        let Some(workload) = group.members.remove(&rank) else { return };
        group.unreported.retain(|(_, fresh)| *fresh != workload);
        let blocked = group.blocked.is_some();
        let next = group.members.keys().next().copied();
        self.len -= 1;
        if !blocked && first == Some(rank) {
            self.update_ready(index, first, next, queues);
        }
        if next.is_none() {
            self.remove_group(index);
        }
    }

    /// Moves a member to another group. A ready member stays ready; a blocked member does not block a ready
    /// group.
    pub(crate) fn move_member(
        &mut self,
        from: &GroupKey,
        to: GroupKey,
        rank: Rank,
        workload: WorkloadIdx,
        queues: &mut Queues,
    ) {
        let reason = self.find(from).and_then(|group| self.group(group).blocked.clone());
        self.remove(from, rank, queues);
        let Some(reason) = reason else {
            let index = self.insert(to, rank, workload, queues);
            self.unblock(index, queues);
            return;
        };
        if self.find(&to).is_none() {
            let index = self.create_group(to.clone());
            self.block(index, reason, queues);
        }
        self.insert(to, rank, workload, queues);
    }

    /// The next ready group of the queue and its first member.
    pub(crate) fn next(&self, queue: QueueIdx) -> Option<(GroupIdx, WorkloadIdx)> {
        let (_, group) = self.ready.get(&queue)?.first()?;
        Some((*group, *self.group(*group).members.values().next()?))
    }

    pub(crate) fn block(&mut self, index: GroupIdx, reason: Arc<WaitReason>, queues: &mut Queues) {
        let group = self.group_mut(index);
        let first = group.members.keys().next().copied();
        if group.reported != Some(reason.class()) {
            group.forget_reported();
        }
        let was = group.blocked.replace(reason);
        self.unreported.insert(index);
        if was.is_none() {
            self.update_ready(index, first, None, queues);
            self.blocked.insert(index);
        }
    }

    pub(crate) fn unblock_all(&mut self, queues: &mut Queues) {
        for index in std::mem::take(&mut self.blocked) {
            let group = self.group_mut(index);
            group.blocked = None;
            let first = group.members.keys().next().copied();
            self.update_ready(index, None, first, queues);
        }
        self.unreported.clear();
    }

    pub(crate) fn blocked_groups(&self) -> Vec<GroupIdx> {
        self.blocked.iter().copied().collect()
    }

    pub(crate) fn unblock(&mut self, index: GroupIdx, queues: &mut Queues) {
        if !self.blocked.remove(&index) {
            return;
        }
        let group = self.group_mut(index);
        group.blocked = None;
        let first = group.members.keys().next().copied();
        self.update_ready(index, None, first, queues);
        self.unreported.remove(&index);
    }

    pub(crate) fn any_blocked(&self) -> bool {
        !self.blocked.is_empty()
    }

    /// Unreported members, oldest first, with their reasons.
    pub(crate) fn take_unreported(&mut self) -> (Vec<UnreportedMember>, Vec<Arc<WaitReason>>) {
        let (mut news, mut reasons) = (Vec::new(), Vec::new());
        for index in std::mem::take(&mut self.unreported) {
            let group = self.group_mut(index);
            if let Some(reason) = group.blocked.clone() {
                let fresh = group.take_unreported(reason.class());
                news.extend(
                    fresh.into_iter().map(|(serial, workload)| (serial, workload, reasons.len())),
                );
                reasons.push(reason);
            }
        }
        news.sort_unstable();
        (news, reasons)
    }

    /// Removes all members, in no particular order.
    pub(crate) fn drain(&mut self, queues: &mut Queues) -> Vec<WorkloadIdx> {
        self.unblock_all(queues);
        // A queue without ready groups may be removed already.
        for (queue, ready) in self.ready.iter().filter(|(_, ready)| !ready.is_empty()) {
            queues.mark_ready(*queue, -(ready.len() as i32));
        }
        let workloads =
            self.groups().flat_map(|(_, group)| group.members.values().copied()).collect();
        *self = Self { global: self.global, ..Self::default() };
        workloads
    }

    fn create_group(&mut self, key: GroupKey) -> GroupIdx {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.groups.push(None);
            self.groups.len() as GroupIdx - 1
        });
        self.by_key.insert(key.clone(), index);
        let group = Group {
            key,
            members: BTreeMap::new(),
            blocked: None,
            unreported: Vec::new(),
            reported: None,
        };
        self.groups[index as usize] = Some(group);
        index
    }

    fn remove_group(&mut self, index: GroupIdx) {
        if let Some(group) = self.groups[index as usize].take() {
            self.by_key.remove(&group.key);
        }
        self.blocked.remove(&index);
        self.unreported.remove(&index);
        self.vacant.push(index);
    }

    /// Replaces a group's entry in the ready index.
    fn update_ready(
        &mut self,
        index: GroupIdx,
        old: Option<Rank>,
        new: Option<Rank>,
        queues: &mut Queues,
    ) {
        let queue =
            if self.global { crate::quota::queues::ROOT } else { self.group(index).key.queue };
        let ready = self.ready.entry(queue).or_default();
        let mut change = 0;
        if let Some(old) = old {
            change -= i32::from(ready.remove(&(old, index)));
        }
        if let Some(new) = new {
            change += i32::from(ready.insert((new, index)));
        }
        if change != 0 {
            queues.mark_ready(queue, change);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::Arc;

    use crate::{
        AffinityKind, Event, GpuRequest, Request, Scheduler, TaskAffinity, Time, WaitReason,
        Workload,
    };
    use crate::{ForeignUse, Node, labels::Selector};

    fn submit(scheduler: &mut Scheduler, name: &str, app: &str, affinity: Vec<TaskAffinity>) {
        let request = Request {
            gpu: GpuRequest::Whole(1),
            labels: [("index".into(), name.into()), ("app".into(), app.into())].into(),
            affinity,
            ..Request::default()
        };
        let event = Event::Submitted(Box::new(Workload::new(name, request)));
        scheduler.apply(Time(0), event).expect("valid");
    }

    fn anti_affinity() -> TaskAffinity {
        let selector =
            Selector { match_labels: [("app".into(), "a".into())].into(), ..Selector::default() };
        TaskAffinity {
            kind: AffinityKind::AntiAffinity,
            selector,
            key: "node".into(),
            weight: None,
        }
    }

    /// Number of groups, and number of shapes.
    fn groups(scheduler: &Scheduler) -> (usize, usize) {
        let shapes = (0..100).filter(|shape| scheduler.cluster.has_shape(*shape)).count();
        assert_eq!(scheduler.lint(), Vec::new());
        (scheduler.pending.groups().count(), shapes)
    }

    #[test]
    fn a_group_that_is_blocked_again_is_reported_to_its_new_members_only() {
        let mut scheduler = Scheduler::default();
        let unreported = |scheduler: &mut Scheduler, reason: WaitReason| {
            let (group, _) = scheduler.pending.groups().next().expect("workloads are pending");
            scheduler.pending.unblock_all(&mut scheduler.queues);
            scheduler.pending.block(group, Arc::new(reason), &mut scheduler.queues);
            scheduler.pending.take_unreported().0.len()
        };
        let submit_all = |scheduler: &mut Scheduler, names: Range<usize>| {
            for index in names {
                submit(scheduler, &format!("w{index}"), "a", Vec::new());
            }
        };
        submit_all(&mut scheduler, 0..50);
        scheduler.decide(Time(0));
        assert_eq!(unreported(&mut scheduler, WaitReason::NoNodes), 0);
        submit_all(&mut scheduler, 50..52);
        assert_eq!(unreported(&mut scheduler, WaitReason::NoNodes), 2);
        let backoff = || WaitReason::BackingOff { until: Time(1), refusals: 1 };
        assert_eq!(unreported(&mut scheduler, backoff()), 52, "another class");
        submit_all(&mut scheduler, 52..600);
        assert_eq!(unreported(&mut scheduler, backoff()), 600, "a long list is all members");
    }

    #[test]
    fn labels_split_groups_only_while_a_selector_uses_them() {
        let mut scheduler = Scheduler::default();
        for index in 0..50 {
            let app = ["a", "b"][index % 2];
            submit(&mut scheduler, &format!("w{index}"), app, Vec::new());
        }
        assert_eq!(groups(&scheduler), (1, 1), "no workload selects the label");
        scheduler.decide(Time(0));
        submit(&mut scheduler, "shy", "c", vec![anti_affinity()]);
        assert_eq!(groups(&scheduler), (3, 2), "one asks for the app");
        let blocked = scheduler.pending.groups().filter(|(_, group)| group.blocked.is_some());
        assert_eq!(blocked.count(), 2, "what could not start cannot start now");
        scheduler.apply(Time(0), Event::Cancelled("shy".into())).expect("it is known");
        assert_eq!(groups(&scheduler).0, 1, "no workload selects the label any more");
        let plan = scheduler.decide(Time(0));
        assert_eq!(plan.decisions, Vec::new(), "no reason is reported again");

        let mut node = Node::new("n");
        node.resources.insert("x".into(), 1);
        scheduler.apply(Time(0), Event::NodeUpdated(Box::new(node))).expect("valid");
        let uses =
            Box::new(ForeignUse { anti_affinity: vec![anti_affinity()], ..ForeignUse::default() });
        let foreign = Event::ForeignUseUpdated { node: "n".into(), id: "f".into(), usage: uses };
        scheduler.apply(Time(0), foreign).expect("valid");
        assert_eq!(groups(&scheduler).0, 2, "a different workload selects the label");
        scheduler.apply(Time(0), Event::NodeRemoved("n".into())).expect("it is known");
        assert_eq!(groups(&scheduler).0, 1, "and is gone");
    }
}
