//! Backoffs of pod creation, and messages about start and end of a workload.

use agentaflow_backoff::BackoffPolicy;
use agentaflow_kube_core::crd::{BackOff, GpuWorkloadSpec, GpuWorkloadStatus, WorkloadPhase};
use agentaflow_kube_core::pod_end::{clip, end_message, ended_at};
use jiff::{SignedDuration, Timestamp, Unit};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::time::Duration;

use super::task_pod::TaskPod;
use super::task_table::{TaskSlot, TaskTable};
use super::{EventType, WorkloadEvent};

/// Longest backoff.
const LONGEST: SignedDuration = SignedDuration::from_mins(5);
/// A workload that lived this long after the creation of its pods does not crash in a loop.
const SETTLED: SignedDuration = SignedDuration::from_mins(10);

/// Backoff after a failure: 10 s, doubled with each retry, up to 5 min.
pub(super) fn after_failure(retries_before: u32, now: Timestamp) -> BackOff {
    BackOff { until: later(now, doubled(10, retries_before)), count: 0 }
}

/// Backoff after a creation: 2 s, doubled each time that the pods do not last.
pub(super) fn after_creation(old: Option<&BackOff>, now: Timestamp) -> BackOff {
    let before =
        old.map_or(0, |old| if now.duration_since(old.until.0) >= SETTLED { 0 } else { old.count });
    let count = before.saturating_add(1);
    BackOff { until: later(now, doubled(1, count)), count }
}

/// Returns true if a backoff is running. A backoff beyond the maximum was written by a client with a fast clock.
pub(super) fn is_backing_off(wait: &BackOff, now: Timestamp) -> bool {
    now < wait.until.0 && wait.until.0 <= later(now, LONGEST).0
}

/// Kubernetes writes times in whole seconds.
pub(super) fn whole_second(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

pub(super) fn completion(table: &TaskTable<'_>, now: Timestamp) -> Time {
    let done = table.slots.iter().filter_map(|slot| match slot {
        TaskSlot::Done(Some(member)) => ended_at(member.pod),
        _ => None,
    });
    let cause = table.cause.filter(|_| table.failed).and_then(|one| ended_at(one.pod));
    let ended = cause.or_else(|| done.max()).unwrap_or(now);
    whole_second(ended.min(now))
}

/// Time at which a finished workload is deleted.
pub(super) fn expiry(spec: &GpuWorkloadSpec, status: &GpuWorkloadStatus) -> Option<Timestamp> {
    let ttl = SignedDuration::from_secs(spec.ttl_seconds_after_finished?.into());
    status.completion_time.as_ref()?.0.checked_add(ttl).ok()
}

/// Start of the first pod, if known.
pub(super) fn start(table: &TaskTable<'_>, now: Timestamp) -> Option<Time> {
    let begun = |member: &TaskPod<'_>| {
        let known = member.pod.status.start_time.as_ref().map_or(now, |time| time.0);
        whole_second(known.min(now))
    };
    let slots = table.slots.iter().filter_map(|slot| match slot {
        TaskSlot::Done(Some(member)) => Some(begun(member)),
        TaskSlot::Held(member) if member.running() => Some(begun(member)),
        _ => None,
    });
    slots.chain(table.cause.as_ref().map(begun)).min()
}

pub(super) fn failure(cause: &TaskPod<'_>, tasks: usize, retries: u32) -> String {
    let who = subject(cause.task, tasks);
    let tried = match retries {
        0 => String::new(),
        1 => " after 1 retry".to_owned(),
        retries => format!(" after {retries} retries"),
    };
    format!("{who} failed{tried}: {}.", end_message(cause.pod))
}

pub(super) fn success(tasks: usize) -> String {
    if tasks == 1 { "Completed.".to_owned() } else { format!("All {tasks} tasks completed.") }
}

pub(super) fn retrying(
    table: &TaskTable<'_>,
    allowed: u32,
    until: &BackOff,
) -> Option<WorkloadEvent> {
    let cause = table.cause?;
    let who = subject(cause.task, table.slots.len());
    let message = format!(
        "{who} failed: {}. Retry {} of {allowed} starts after {}.",
        end_message(cause.pod),
        table.spent,
        until.until.0
    );
    Some(WorkloadEvent { event_type: EventType::Warning, reason: "Retrying", message })
}

/// The Event about pods that replace lost ones.
pub(super) fn rescheduling(table: &TaskTable<'_>, missing: &[u32]) -> Option<WorkloadEvent> {
    let first = *missing.first()?;
    let who = subject(first, table.slots.len());
    let how = match table.slots.get(first as usize) {
        Some(TaskSlot::Empty(Some(lost))) => {
            format!("pod {}: {}", lost.name(), end_message(lost.pod))
        }
        _ => "its pod was deleted".to_owned(),
    };
    let others = match missing.len() {
        0 | 1 => String::new(),
        many => format!(" {} more tasks likewise.", many - 1),
    };
    let message = format!("{who} gets a new pod without spending a retry: {how}.{others}");
    Some(WorkloadEvent { event_type: EventType::Normal, reason: "Rescheduling", message })
}

/// Events about a new phase.
pub(super) fn progress(
    old: Option<WorkloadPhase>,
    new: WorkloadPhase,
    nodes: Option<&str>,
) -> Vec<WorkloadEvent> {
    use WorkloadPhase::{Running, Scheduled};
    let normal =
        |reason, message: String| WorkloadEvent { event_type: EventType::Normal, reason, message };
    let mut all = Vec::new();
    if matches!(new, Scheduled | Running) && !matches!(old, Some(Scheduled | Running)) {
        let nodes = clip(nodes.unwrap_or("its nodes"), 500);
        all.push(normal("Scheduled", format!("Placed on {nodes}.")));
    }
    if new == Running && old != Some(Running) {
        all.push(normal("Started", "All tasks are running.".to_owned()));
    }
    all
}

fn subject(task: u32, tasks: usize) -> String {
    if tasks == 1 { "The workload".to_owned() } else { format!("Task {task}") }
}

fn doubled(seconds: u64, times: u32) -> SignedDuration {
    let first = Duration::from_secs(seconds);
    let delay = BackoffPolicy::new(first, LONGEST.unsigned_abs()).delay(times);
    SignedDuration::try_from(delay).unwrap_or(LONGEST)
}

fn later(now: Timestamp, wait: SignedDuration) -> Time {
    let then = now.checked_add(wait).unwrap_or(Timestamp::MAX);
    let rounded = jiff::TimestampRound::new().smallest(Unit::Second).mode(jiff::RoundMode::Ceil);
    Time(then.round(rounded).unwrap_or(then))
}
