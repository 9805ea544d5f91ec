//! All pods of a workload by task: the pod of each task in the current round, and leftovers.
//!
//! A round lasts from one retry to the next. A gang restarts whole, so that a failed pod ends the round for all.

use agentaflow_kube_core::crd::{GpuWorkloadSpec, GpuWorkloadStatus};
use agentaflow_kube_core::names;
use agentaflow_kube_core::slim::Pod;
use agentaflow_kube_core::{gpu_workload, pod_end};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::DeletePod;
use super::task_pod::{self, TaskPod, TaskPodState};

#[derive(Debug)]
pub(super) struct TaskTable<'a> {
    members: Vec<TaskPod<'a>>,
    surplus: Vec<&'a Pod>,
    /// By task.
    pub(super) slots: Vec<TaskSlot<'a>>,
    /// Retries spent, this round's failure included.
    pub(super) spent: u32,
    /// The failure that ended the last round; its pod is kept for its logs.
    pub(super) cause: Option<TaskPod<'a>>,
    /// No retry was left for that failure.
    pub(super) failed: bool,
}

/// The pod of a task.
#[derive(Clone, Copy, Debug)]
pub(super) enum TaskSlot<'a> {
    /// Succeeded; the pod may be deleted.
    Done(Option<TaskPod<'a>>),
    /// Pending or running.
    Held(TaskPod<'a>),
    /// Terminating until this time.
    Ending(Timestamp),
    /// No pod; the lost one if it still exists.
    Empty(Option<TaskPod<'a>>),
}

impl<'a> TaskSlot<'a> {
    fn holder(&self) -> Option<&TaskPod<'a>> {
        match self {
            Self::Held(member) => Some(member),
            _ => None,
        }
    }
}

impl<'a> TaskTable<'a> {
    pub(super) fn new(
        pods: &[&'a Pod],
        spec: &GpuWorkloadSpec,
        status: &GpuWorkloadStatus,
        now: Timestamp,
    ) -> Self {
        let tasks = spec.gang_size;
        let (mut members, surplus) = sort(pods, tasks, now);
        let most = spec.retries.max(status.retries);
        for member in &mut members {
            member.round = member.round.min(most);
        }
        let newest = members.iter().map(|member| member.round).max().unwrap_or(0);
        let round = newest.max(status.retries);
        let completed = completed_in(round, status);
        let done = done(&members, round, completed);
        let failures = cause(&members, round, &done);
        let failed = failures.is_some() && round >= spec.retries;
        let spent = if failures.is_some() && !failed { round + 1 } else { round };
        let done = if spent == round { done } else { BTreeSet::new() };
        let cause = failures.or_else(|| cause(&members, round.checked_sub(1)?, &BTreeSet::new()));
        let slots = slots(&members, tasks, spent, &done);
        Self { members, surplus, slots, spent, cause, failed }
    }

    /// Attempt number of the next pod: never that of an existing pod.
    pub(super) fn next_attempt(&self, task: u32) -> u32 {
        let seen = self.of_task(task).iter().map(|member| member.attempt).max();
        seen.map_or(self.spent, |seen| seen.saturating_add(1).max(self.spent))
    }

    pub(super) fn round_has_begun(&self) -> bool {
        self.members.iter().any(|member| member.round == self.spent)
    }

    /// Returns true if pods of the last round are terminating: two concurrent rounds would disturb each other, and the new
    /// pods would wait for the GPUs of the old ones.
    pub(super) fn last_round_is_ending(&self) -> bool {
        !self.round_has_begun() && self.slots.iter().any(|slot| matches!(slot, TaskSlot::Ending(_)))
    }

    pub(super) fn succeeded(&self) -> bool {
        self.slots.iter().all(|slot| matches!(slot, TaskSlot::Done(_)))
    }

    /// Succeeded tasks, such as `0,2-5`.
    pub(super) fn completed(&self) -> Option<String> {
        let done = |(task, slot): (usize, &TaskSlot<'_>)| {
            matches!(slot, TaskSlot::Done(_)).then_some(task as u32)
        };
        ranges(self.slots.iter().enumerate().filter_map(done))
    }

    /// Passes the slots as they were at the last failure: the failed pod still has its slot.
    pub(super) fn last_places<T>(&self, look: impl FnOnce(&[TaskSlot<'a>]) -> T) -> T {
        match self.cause.filter(|_| self.failed) {
            None => look(&self.slots),
            Some(cause) => {
                let mut slots = self.slots.clone();
                if let Some(slot) = slots.get_mut(cause.task as usize) {
                    *slot = TaskSlot::Done(Some(cause));
                }
                look(&slots)
            }
        }
    }

    /// Pods to delete: of earlier rounds, duplicates, and all failures except the last.
    pub(super) fn leftovers(&self) -> Vec<DeletePod> {
        let mut all: Vec<DeletePod> =
            self.surplus.iter().filter_map(|pod| delete(pod, "Surplus")).collect();
        for member in &self.members {
            let why = match (self.slots.get(member.task as usize), member.state) {
                (_, TaskPodState::Live) if member.round < self.spent => "Restart",
                (Some(TaskSlot::Held(holder) | TaskSlot::Done(Some(holder))), state) => {
                    if same(holder, member)
                        || (state != TaskPodState::Live && self.is_cause(member))
                    {
                        continue;
                    }
                    if state == TaskPodState::Live { "Duplicate" } else { "Superseded" }
                }
                (Some(TaskSlot::Done(None)), TaskPodState::Live) => "Duplicate",
                _ => continue,
            };
            all.extend(delete(member.pod, why));
        }
        all
    }

    /// Pending pods created for another priority than the workload has now. The class of a pod cannot change; admission decides
    /// about new pods.
    pub(super) fn of_other_priority(&self, spec: &GpuWorkloadSpec) -> Vec<DeletePod> {
        let held = || self.slots.iter().filter_map(TaskSlot::holder);
        let priority = spec.priority.to_string();
        let other = |pod: &Pod| {
            let created_for = pod.metadata.annotations.as_ref()?.get(names::POD_PRIORITY)?;
            (*created_for != priority).then_some(())
        };
        if gpu_workload::names_class(spec) || held().any(TaskPod::bound) {
            return Vec::new();
        }
        let pods = held().map(|member| member.pod).filter(|pod| other(pod).is_some());
        pods.filter_map(|pod| delete(pod, "PriorityChanged")).collect()
    }

    /// Pending and running pods.
    pub(super) fn live(&self, why: &'static str) -> Vec<DeletePod> {
        let held = self.slots.iter().filter_map(TaskSlot::holder);
        held.filter_map(|member| delete(member.pod, why)).collect()
    }

    /// Pods without a node.
    pub(super) fn unbound(&self) -> Vec<DeletePod> {
        let held = self.slots.iter().filter_map(TaskSlot::holder).filter(|member| !member.bound());
        held.filter_map(|member| delete(member.pod, "QuotaTurn")).collect()
    }

    /// Running pods of a finished workload, and failures that a success supersedes.
    pub(super) fn remains(&self, succeeded: bool) -> Vec<DeletePod> {
        let live = self.surplus.iter().filter(|pod| !task_pod::finished(pod));
        let mut all: Vec<DeletePod> =
            live.filter_map(|pod| delete(pod, "WorkloadFinished")).collect();
        for member in &self.members {
            let is_end_cause = !succeeded && self.is_cause(member);
            let old = member.round < self.spent && !is_end_cause;
            let why = match member.state {
                TaskPodState::Live => "WorkloadFinished",
                TaskPodState::Done if !old => continue,
                _ if succeeded || old => "Superseded",
                _ => continue,
            };
            all.extend(delete(member.pod, why));
        }
        all
    }

    fn is_cause(&self, member: &TaskPod<'_>) -> bool {
        self.cause.as_ref().is_some_and(|cause| same(cause, member))
    }

    fn of_task(&self, task: u32) -> &[TaskPod<'a>] {
        let start = self.members.partition_point(|member| member.task < task);
        let end = self.members.partition_point(|member| member.task <= task);
        &self.members[start..end]
    }
}

/// Returns true if the status lists a task as succeeded.
pub(crate) fn is_completed(status: &GpuWorkloadStatus, task: u32) -> bool {
    status.completed_tasks.as_deref().is_some_and(|text| parse_ranges(text).contains(&task))
}

/// None if the pod is terminating already.
pub(super) fn delete(pod: &Pod, why: &'static str) -> Option<DeletePod> {
    if task_pod::terminating(pod) {
        return None;
    }
    let name = pod.metadata.name.clone()?;
    let uid = pod.metadata.uid.clone()?;
    Some(DeletePod { name, uid, why, grace: None })
}

fn sort<'a>(pods: &[&'a Pod], tasks: u32, now: Timestamp) -> (Vec<TaskPod<'a>>, Vec<&'a Pod>) {
    let mut members = Vec::with_capacity(pods.len());
    let mut surplus = Vec::new();
    for pod in pods {
        match TaskPod::read(pod, now).filter(|member| member.task < tasks) {
            Some(member) => members.push(member),
            None => surplus.push(*pod),
        }
    }
    members.sort_by_key(|member| (member.task, member.attempt, member.name()));
    (members, surplus)
}

/// Completed tasks in the status count for the round in which they were written.
fn completed_in(round: u32, status: &GpuWorkloadStatus) -> BTreeSet<u32> {
    match &status.completed_tasks {
        Some(text) if status.retries == round => parse_ranges(text),
        _ => BTreeSet::new(),
    }
}

fn done(members: &[TaskPod<'_>], round: u32, mut done: BTreeSet<u32>) -> BTreeSet<u32> {
    let ended = members.iter().filter(|one| one.round == round && one.state == TaskPodState::Done);
    done.extend(ended.map(|member| member.task));
    done
}

/// The first failure of a round: later ones are mostly its consequences.
fn cause<'a>(members: &[TaskPod<'a>], round: u32, done: &BTreeSet<u32>) -> Option<TaskPod<'a>> {
    let failures = members.iter().filter(|member| {
        member.round == round
            && member.state == TaskPodState::Failed
            && !done.contains(&member.task)
    });
    failures.copied().min_by_key(|member| {
        (
            pod_end::ended_at(member.pod).unwrap_or(Timestamp::MAX),
            member.task,
            Reverse(member.attempt),
        )
    })
}

fn slots<'a>(
    members: &[TaskPod<'a>],
    tasks: u32,
    round: u32,
    done: &BTreeSet<u32>,
) -> Vec<TaskSlot<'a>> {
    let mut by_task: BTreeMap<u32, Vec<TaskPod<'a>>> = BTreeMap::new();
    for member in members {
        by_task.entry(member.task).or_default().push(*member);
    }
    let none = Vec::new();
    (0..tasks)
        .map(|task| {
            let own = by_task.get(&task).unwrap_or(&none);
            slot(own, round, done.contains(&task))
        })
        .collect()
}

fn slot<'a>(own: &[TaskPod<'a>], round: u32, done: bool) -> TaskSlot<'a> {
    let current = || own.iter().filter(move |member| member.round == round);
    if done {
        return TaskSlot::Done(
            current().find(|member| member.state == TaskPodState::Done).copied(),
        );
    }
    // Of duplicate pods, the most advanced stays.
    let rank = |member: &&TaskPod<'_>| (member.running(), member.bound(), Reverse(member.attempt));
    if let Some(holder) =
        current().filter(|member| member.state == TaskPodState::Live).max_by_key(rank)
    {
        return TaskSlot::Held(*holder);
    }
    // A pod of an earlier round counts, too: while it may run, the task does not start again.
    let ending = own.iter().filter_map(|member| match member.state {
        TaskPodState::Ending(until) => Some(until),
        TaskPodState::Live => Some(Timestamp::MAX),
        _ => None,
    });
    match ending.max() {
        Some(until) => TaskSlot::Ending(until),
        None => TaskSlot::Empty(current().next_back().copied()),
    }
}

fn same(one: &TaskPod<'_>, other: &TaskPod<'_>) -> bool {
    std::ptr::eq(one.pod, other.pod)
}

/// Numbers in ascending order as `0,2-5`.
fn ranges(numbers: impl Iterator<Item = u32>) -> Option<String> {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match parts.last_mut() {
            Some((_, end)) if *end + 1 == number => *end = number,
            _ => parts.push((number, number)),
        }
    }
    let text = |&(start, end): &(u32, u32)| {
        if start == end { start.to_string() } else { format!("{start}-{end}") }
    };
    (!parts.is_empty()).then(|| parts.iter().map(text).collect::<Vec<_>>().join(","))
}

fn parse_ranges(text: &str) -> BTreeSet<u32> {
    let mut all = BTreeSet::new();
    for part in text.split(',') {
        let (start, end) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(start), Ok(end)) = (start.trim().parse::<u32>(), end.trim().parse::<u32>()) {
            all.extend(start..=end.min(gpu_workload::MAX_GANG));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completed_tasks_are_written_short_and_read_back() {
        for numbers in [vec![], vec![0], vec![0, 1, 2], vec![0, 2, 3, 5, 9999]] {
            let text = ranges(numbers.iter().copied());
            let read = parse_ranges(text.as_deref().unwrap_or_default());
            assert_eq!(read.into_iter().collect::<Vec<_>>(), numbers, "{text:?}");
        }
        assert_eq!(ranges([0, 2, 3, 5].into_iter()).as_deref(), Some("0,2-3,5"));
        assert!(parse_ranges("x,5-,-3,9-2").is_empty());
        assert!(parse_ranges("0-4294967295").len() <= 10_001, "hostile ranges stay small");
    }
}
