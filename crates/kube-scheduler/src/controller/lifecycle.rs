//! When pods are made again, and how a workload ends.

use agentaflow_kube_core::crd::{BackOff, WorkloadPhase};
use agentaflow_kube_core::pod_end::{clip, ended_at, story};
use jiff::{SignedDuration, Timestamp, Unit};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::task_pod::TaskPod;
use super::task_table::{TaskSlot, TaskTable};
use super::{EventType, WorkloadEvent};

/// The longest wait before pods are made again.
const LONGEST: SignedDuration = SignedDuration::from_mins(5);
/// What has lived this long since its pods were made is no loop any more.
const SETTLED: SignedDuration = SignedDuration::from_mins(10);

/// The wait after a failure: 10 s, doubling with each retry, to 5 min.
pub(super) fn after_failure(retries_before: u32, now: Timestamp) -> BackOff {
    BackOff { until: later(now, doubled(10, retries_before)), count: 0 }
}

/// The wait after pods were made: short at first, and longer each time that they do not last.
pub(super) fn after_making(old: Option<&BackOff>, now: Timestamp) -> BackOff {
    let before =
        old.map_or(0, |old| if now.duration_since(old.until.0) >= SETTLED { 0 } else { old.count });
    let count = before.saturating_add(1);
    BackOff { until: later(now, doubled(1, count)), count }
}

/// Whether a wait is not over yet. One that is longer than any was written by somebody whose clock was ahead.
pub(super) fn is_waiting(wait: &BackOff, now: Timestamp) -> bool {
    now < wait.until.0 && wait.until.0 <= later(now, LONGEST).0
}

/// Times are written in whole seconds, as Kubernetes does.
pub(super) fn whole_second(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// When a finished workload was over.
pub(super) fn completion(roster: &TaskTable<'_>, now: Timestamp) -> Time {
    let done = roster.seats.iter().filter_map(|seat| match seat {
        TaskSlot::Done(Some(member)) => ended_at(member.pod),
        _ => None,
    });
    let cause = roster.cause.filter(|_| roster.failed).and_then(|one| ended_at(one.pod));
    let ended = cause.or_else(|| done.max()).unwrap_or(now);
    whole_second(ended.min(now))
}

/// When the first pod began to run, as far as it is known.
pub(super) fn start(roster: &TaskTable<'_>, now: Timestamp) -> Option<Time> {
    let begun = |member: &TaskPod<'_>| {
        let known = member.pod.status.start_time.as_ref().map_or(now, |time| time.0);
        whole_second(known.min(now))
    };
    let seats = roster.seats.iter().filter_map(|seat| match seat {
        TaskSlot::Done(Some(member)) => Some(begun(member)),
        TaskSlot::Held(member) if member.running() => Some(begun(member)),
        _ => None,
    });
    seats.chain(roster.cause.as_ref().map(begun)).min()
}

/// The sentence about a workload that failed.
pub(super) fn failure(cause: &TaskPod<'_>, tasks: usize, retries: u32) -> String {
    let who = subject(cause.task, tasks);
    let tried = match retries {
        0 => String::new(),
        1 => " after 1 retry".to_owned(),
        retries => format!(" after {retries} retries"),
    };
    format!("{who} failed{tried}: {}.", story(cause.pod))
}

/// The sentence about a workload that ended well.
pub(super) fn success(tasks: usize) -> String {
    if tasks == 1 { "It succeeded.".to_owned() } else { format!("All {tasks} tasks succeeded.") }
}

/// The Event about a retry.
pub(super) fn retrying(
    roster: &TaskTable<'_>,
    allowed: u32,
    until: &BackOff,
) -> Option<WorkloadEvent> {
    let cause = roster.cause?;
    let who = subject(cause.task, roster.seats.len());
    let message = format!(
        "{who} failed: {}. Retry {} of {allowed} begins after {}.",
        story(cause.pod),
        roster.spent,
        until.until.0
    );
    Some(WorkloadEvent { kind: EventType::Warning, reason: "Retrying", message })
}

/// The Event about pods that are made in place of lost ones.
pub(super) fn rescheduling(roster: &TaskTable<'_>, missing: &[u32]) -> Option<WorkloadEvent> {
    let first = *missing.first()?;
    let who = subject(first, roster.seats.len());
    let how = match roster.seats.get(first as usize) {
        Some(TaskSlot::Empty(Some(lost))) => {
            format!("its pod {}: {}", lost.name(), story(lost.pod))
        }
        _ => "its pod is gone".to_owned(),
    };
    let others = match missing.len() {
        0 | 1 => String::new(),
        many => format!(" The same goes for {} more.", many - 1),
    };
    let message = format!("{who} is made again without spending a retry: {how}.{others}");
    Some(WorkloadEvent { kind: EventType::Normal, reason: "Rescheduling", message })
}

/// The Events about having got further.
pub(super) fn progress(
    old: Option<WorkloadPhase>,
    new: WorkloadPhase,
    nodes: Option<&str>,
) -> Vec<WorkloadEvent> {
    use WorkloadPhase::{Running, Scheduled};
    let normal =
        |reason, message: String| WorkloadEvent { kind: EventType::Normal, reason, message };
    let mut all = Vec::new();
    if matches!(new, Scheduled | Running) && !matches!(old, Some(Scheduled | Running)) {
        let nodes = clip(nodes.unwrap_or("its nodes"), 500);
        all.push(normal("Scheduled", format!("Placed on {nodes}.")));
    }
    if new == Running && old != Some(Running) {
        all.push(normal("Started", "Every task runs.".to_owned()));
    }
    all
}

fn subject(task: u32, tasks: usize) -> String {
    if tasks == 1 { "It".to_owned() } else { format!("Task {task}") }
}

fn doubled(seconds: i64, times: u32) -> SignedDuration {
    // Past 2^9 even a second is longer than the longest wait.
    SignedDuration::from_secs(seconds << times.min(9)).min(LONGEST)
}

fn later(now: Timestamp, wait: SignedDuration) -> Time {
    let then = now.checked_add(wait).unwrap_or(Timestamp::MAX);
    let rounded = jiff::TimestampRound::new().smallest(Unit::Second).mode(jiff::RoundMode::Ceil);
    Time(then.round(rounded).unwrap_or(then))
}
