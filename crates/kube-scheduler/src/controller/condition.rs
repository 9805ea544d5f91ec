//! The conditions of a workload, rewritten only when status or reason changes.

use agentaflow_kube_core::pod_end::{clip, stuck};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::assignment::Assignment;
use super::task_pod::{self, TaskPod};
use super::task_table::TaskSlot;
use super::{PendingReason, SchedulerView};

/// Condition: the workload can be placed.
pub(super) const SCHEDULABLE: &str = "Schedulable";
/// Condition: every task has GPUs.
pub(super) const ASSIGNED: &str = "Assigned";
/// Condition: every task runs.
pub(super) const READY: &str = "Ready";

/// Condition: `spec.suspend` is set.
pub(super) const SUSPENDED: &str = "Suspended";

/// Reasons of [`SCHEDULABLE`] that the controller sets, not the scheduler: they are removed with their cause.
pub(super) const INVALID_SPEC: &str = "InvalidSpec";
pub(super) const INVALID_TEMPLATE: &str = "InvalidTemplate";
pub(super) const POD_REJECTED: &str = "PodRejected";
/// The API server refused pods of several gangs, and another gang creates its pods first.
pub(crate) const WAITING_FOR_QUOTA: &str = "WaitingForQuota";
const BACK_OFF: &str = "BackOff";
/// Reason of a gang with missing pods; its message has their number.
const GATED: &str = "Gated";
const PREDECESSOR: &str = "PredecessorEnding";

/// Reason of a running gang without one of its pods. Its message names the reserved place.
pub(crate) const WAITING_FOR_REPLACEMENT: &str = "WaitingForReplacement";

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

pub(super) struct ConditionWriter<'a> {
    pub(super) conditions: &'a mut Vec<Condition>,
    pub(super) generation: Option<i64>,
    pub(super) at: Time,
}

impl ConditionWriter<'_> {
    /// Sets a condition. The same reason for the same generation keeps its message: numbers in the message change all the time
    /// and are not worth a write, except the number of created pods of a gang. The transition time changes only with the status, as in Kubernetes.
    pub(super) fn set(&mut self, kind: &str, update: ConditionUpdate) {
        let old = self.conditions.iter_mut().find(|condition| condition.type_ == kind);
        let Some(old) = old else {
            self.conditions.push(Condition {
                type_: kind.to_owned(),
                status: update.status.to_owned(),
                reason: update.reason,
                message: update.message,
                observed_generation: self.generation,
                last_transition_time: self.at.clone(),
            });
            return;
        };
        let counts = [GATED, WAITING_FOR_REPLACEMENT].contains(&update.reason.as_str());
        let exact = !counts || old.message == update.message;
        let known = old.status == update.status && old.reason == update.reason && exact;
        if known && old.observed_generation == self.generation {
            return;
        }
        if old.status != update.status {
            old.last_transition_time = self.at.clone();
        }
        update.status.clone_into(&mut old.status);
        old.reason = update.reason;
        old.message = update.message;
        old.observed_generation = self.generation;
    }

    /// Sets a condition that is absent.
    pub(super) fn set_if_absent(&mut self, kind: &str, update: ConditionUpdate) {
        if find(self.conditions, kind).is_none() {
            self.set(kind, update);
        }
    }
}

pub(super) fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

pub(super) fn has_reason(conditions: &[Condition], kind: &str, reason: &str) -> bool {
    find(conditions, kind).is_some_and(|condition| condition.reason == reason)
}

/// Reason for which missing pods are not created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CreationBlocker {
    /// Condition reason and message.
    Rejected(&'static str, String),
    /// Pods are created after this time.
    Delay(Time),
    /// Number of pods of a deleted workload of the same name.
    Predecessors(usize),
}

/// None if the present condition still holds.
pub(super) fn schedulable(
    old: &[Condition],
    slots: &[TaskSlot<'_>],
    assignment: &Assignment,
    view: &SchedulerView,
    blocker: Option<&CreationBlocker>,
) -> Option<ConditionUpdate> {
    match blocker {
        Some(CreationBlocker::Rejected(reason, message)) => {
            return Some(ConditionUpdate::new("False", reason, message.clone()));
        }
        Some(CreationBlocker::Delay(until)) => {
            let message = format!("Creating pods again after {}.", until.0);
            return Some(ConditionUpdate::new("False", BACK_OFF, message));
        }
        Some(CreationBlocker::Predecessors(count)) => {
            let pods = super::reconcile::count_pods(*count);
            let message = format!("Waiting for {pods} of a deleted workload of this name to end.");
            return Some(ConditionUpdate::new("False", PREDECESSOR, message));
        }
        None => {}
    }
    if placed(slots) || (view.reason.is_none() && assignment.complete) {
        return Some(ConditionUpdate::new("True", "Scheduled", "All tasks are placed."));
    }
    if let Some(PendingReason { code, message }) = &view.reason {
        return Some(ConditionUpdate::new("False", code, message.clone()));
    }
    let ours = [
        INVALID_SPEC,
        INVALID_TEMPLATE,
        POD_REJECTED,
        WAITING_FOR_QUOTA,
        SUSPENDED,
        BACK_OFF,
        PREDECESSOR,
    ];
    let kept = find(old, SCHEDULABLE).is_some_and(|condition| {
        condition.status != "True" && !ours.contains(&condition.reason.as_str())
    });
    let update = || ConditionUpdate::new("Unknown", "Pending", "Not yet seen by the scheduler.");
    (!kept).then(update)
}

pub(super) fn assigned(assignment: &Assignment) -> ConditionUpdate {
    match assignment {
        Assignment { complete: false, .. } => {
            ConditionUpdate::new("False", "Pending", "Not all tasks have GPUs.")
        }
        Assignment { confirmed: true, .. } => {
            ConditionUpdate::new("True", "Confirmed", "The kubelet allocated these GPUs.")
        }
        _ => ConditionUpdate::new(
            "True",
            "Planned",
            "Planned GPUs; the kubelet may allocate others.",
        ),
    }
}

pub(super) fn ready(slots: &[TaskSlot<'_>], retrying: bool) -> ConditionUpdate {
    if retrying {
        return ConditionUpdate::new("False", "Retrying", "Failed; retrying.");
    }
    let moved =
        |slot: &TaskSlot<'_>| matches!(slot, TaskSlot::Ending(_) | TaskSlot::Empty(Some(_)));
    if let Some(task) = slots.iter().position(moved) {
        let message = format!("Task {task} lost its pod; creating another.");
        return ConditionUpdate::new("False", "Rescheduling", message);
    }
    if running(slots) {
        return ConditionUpdate::new("True", "Running", "All tasks are running.");
    }
    if placed(slots) {
        let stuck = held(slots).filter(|member| !member.running()).find_map(|one| stuck(one.pod));
        return match stuck {
            Some((word, message)) => ConditionUpdate::new("False", &word, message),
            None => ConditionUpdate::new("False", "Starting", "Placed; starting."),
        };
    }
    ConditionUpdate::new("False", "Pending", "Waiting for placement.")
}

/// Every task has a node or is finished.
pub(super) fn placed(slots: &[TaskSlot<'_>]) -> bool {
    all(slots, |member: &TaskPod<'_>| task_pod::node(member.pod).is_some())
}

/// Every task runs or is finished.
pub(super) fn running(slots: &[TaskSlot<'_>]) -> bool {
    all(slots, |member| member.bound() && member.running())
}

fn all(slots: &[TaskSlot<'_>], so: impl Fn(&TaskPod<'_>) -> bool) -> bool {
    slots.iter().all(|slot| match slot {
        TaskSlot::Done(_) => true,
        TaskSlot::Held(member) => so(member),
        TaskSlot::Ending(_) | TaskSlot::Empty(_) => false,
    })
}

fn held<'s, 'a>(slots: &'s [TaskSlot<'a>]) -> impl Iterator<Item = &'s TaskPod<'a>> {
    slots.iter().filter_map(|slot| match slot {
        TaskSlot::Held(member) => Some(member),
        _ => None,
    })
}
