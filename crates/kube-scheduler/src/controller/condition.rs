//! The conditions of a workload, rewritten only when the kind of news changes.

use agentaflow_kube_core::pod_end::{clip, stuck};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::assignment::Assignment;
use super::task_pod::{self, TaskPod};
use super::task_table::TaskSlot;
use super::{PendingReason, SchedulerView};

/// Can it be placed?
pub(super) const SCHEDULABLE: &str = "Schedulable";
/// Has it GPUs?
pub(super) const ASSIGNED: &str = "Assigned";
/// Does all of it run?
pub(super) const READY: &str = "Ready";

/// Reasons of [`SCHEDULABLE`] that are ours and not the scheduler's: they go when their cause goes.
pub(super) const INVALID_SPEC: &str = "InvalidSpec";
pub(super) const INVALID_TEMPLATE: &str = "InvalidTemplate";
pub(super) const POD_REJECTED: &str = "PodRejected";
const BACK_OFF: &str = "BackOff";

/// ConditionUpdate for a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ConditionUpdate {
    pub(super) status: &'static str,
    pub(super) reason: String,
    pub(super) message: String,
}

impl ConditionUpdate {
    pub(super) fn new(status: &'static str, reason: &str, message: impl Into<String>) -> Self {
        Self { status, reason: reason.to_owned(), message: clip(&message.into(), 1_000) }
    }
}

/// Writes conditions into a list.
pub(super) struct ConditionWriter<'a> {
    pub(super) conditions: &'a mut Vec<Condition>,
    pub(super) generation: Option<i64>,
    pub(super) at: Time,
}

impl ConditionWriter<'_> {
    /// Writes news down. The same word about the same generation keeps its sentence: numbers in it move all the
    /// time and are not worth a write. The time of transition moves only with the status, as everywhere.
    pub(super) fn settle(&mut self, kind: &str, news: ConditionUpdate) {
        let old = self.conditions.iter_mut().find(|condition| condition.type_ == kind);
        let Some(old) = old else {
            self.conditions.push(Condition {
                type_: kind.to_owned(),
                status: news.status.to_owned(),
                reason: news.reason,
                message: news.message,
                observed_generation: self.generation,
                last_transition_time: self.at.clone(),
            });
            return;
        };
        let known = old.status == news.status && old.reason == news.reason;
        if known && old.observed_generation == self.generation {
            return;
        }
        if old.status != news.status {
            old.last_transition_time = self.at.clone();
        }
        news.status.clone_into(&mut old.status);
        old.reason = news.reason;
        old.message = news.message;
        old.observed_generation = self.generation;
    }

    /// Writes news down only where there is nothing yet.
    pub(super) fn begin(&mut self, kind: &str, news: ConditionUpdate) {
        if find(self.conditions, kind).is_none() {
            self.settle(kind, news);
        }
    }
}

/// The condition of a kind.
pub(super) fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

/// Whether the condition of a kind has this reason.
pub(super) fn says(conditions: &[Condition], kind: &str, reason: &str) -> bool {
    find(conditions, kind).is_some_and(|condition| condition.reason == reason)
}

/// What stands in the way of making pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CreationBlocker {
    /// Pods cannot be made, and why: one of our own reasons and a sentence.
    Trouble(&'static str, String),
    /// Pods are made again later.
    Delay(Time),
}

/// ConditionUpdate about whether it can be placed; none when nobody has news and what is there still holds.
pub(super) fn schedulable(
    old: &[Condition],
    seats: &[TaskSlot<'_>],
    assignment: &Assignment,
    outlook: &SchedulerView,
    obstacle: Option<&CreationBlocker>,
) -> Option<ConditionUpdate> {
    match obstacle {
        Some(CreationBlocker::Trouble(reason, message)) => {
            return Some(ConditionUpdate::new("False", reason, message.clone()));
        }
        Some(CreationBlocker::Delay(until)) => {
            let message = format!("Its pods are made again after {}.", until.0);
            return Some(ConditionUpdate::new("False", BACK_OFF, message));
        }
        None => {}
    }
    if placed(seats) || (outlook.reason.is_none() && assignment.complete) {
        return Some(ConditionUpdate::new("True", "Scheduled", "Every task has a place."));
    }
    if let Some(PendingReason { word, message }) = &outlook.reason {
        return Some(ConditionUpdate::new("False", word, message.clone()));
    }
    let ours = [INVALID_SPEC, INVALID_TEMPLATE, POD_REJECTED, BACK_OFF];
    let kept = find(old, SCHEDULABLE).is_some_and(|condition| {
        condition.status != "True" && !ours.contains(&condition.reason.as_str())
    });
    let news =
        || ConditionUpdate::new("Unknown", "Pending", "The scheduler has not looked at it yet.");
    (!kept).then(news)
}

/// ConditionUpdate about its GPUs.
pub(super) fn assigned(assignment: &Assignment) -> ConditionUpdate {
    match assignment {
        Assignment { complete: false, .. } => {
            ConditionUpdate::new("False", "PendingReason", "Not every task has GPUs yet.")
        }
        Assignment { confirmed: true, .. } => {
            ConditionUpdate::new("True", "Confirmed", "The kubelet has handed out these GPUs.")
        }
        _ => ConditionUpdate::new(
            "True",
            "PlannedTask",
            "These GPUs are planned; the kubelet has the last word.",
        ),
    }
}

/// ConditionUpdate about whether all of it runs.
pub(super) fn ready(seats: &[TaskSlot<'_>], retrying: bool) -> ConditionUpdate {
    if retrying {
        return ConditionUpdate::new("False", "Retrying", "It failed and is made again.");
    }
    let moved =
        |seat: &TaskSlot<'_>| matches!(seat, TaskSlot::Ending(_) | TaskSlot::Empty(Some(_)));
    if let Some(task) = seats.iter().position(moved) {
        let message = format!("Task {task} lost its pod and is made again.");
        return ConditionUpdate::new("False", "Rescheduling", message);
    }
    if running(seats) {
        return ConditionUpdate::new("True", "Running", "Every task runs.");
    }
    if placed(seats) {
        let stuck = held(seats).filter(|member| !member.running()).find_map(|one| stuck(one.pod));
        return match stuck {
            Some((word, message)) => ConditionUpdate::new("False", &word, message),
            None => ConditionUpdate::new("False", "Starting", "It has its places and starts."),
        };
    }
    ConditionUpdate::new("False", "Pending", "It waits for its places.")
}

/// Every task has a node or is done.
pub(super) fn placed(seats: &[TaskSlot<'_>]) -> bool {
    all(seats, |member: &TaskPod<'_>| task_pod::node(member.pod).is_some())
}

/// Every task runs or is done.
pub(super) fn running(seats: &[TaskSlot<'_>]) -> bool {
    all(seats, |member| member.bound() && member.running())
}

fn all(seats: &[TaskSlot<'_>], so: impl Fn(&TaskPod<'_>) -> bool) -> bool {
    seats.iter().all(|seat| match seat {
        TaskSlot::Done(_) => true,
        TaskSlot::Held(member) => so(member),
        TaskSlot::Ending(_) | TaskSlot::Empty(_) => false,
    })
}

fn held<'s, 'a>(seats: &'s [TaskSlot<'a>]) -> impl Iterator<Item = &'s TaskPod<'a>> {
    seats.iter().filter_map(|seat| match seat {
        TaskSlot::Held(member) => Some(member),
        _ => None,
    })
}
