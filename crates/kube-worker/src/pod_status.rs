//! Interprets the status of a task's pod and Job: start state, exit, result. Reasons and messages of Kubernetes are
//! parsed here and nowhere else.

use agentaflow_agent::runtime::run_clock::wall_time;
use agentaflow_agent::runtime::stop_record::StopRecord;
use agentaflow_agent::runtime::{Exit, StartError};
use agentaflow_api::end::EndReason;
use agentaflow_api::link::StopCause;
use agentaflow_api::units::Stamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

#[derive(Debug)]
pub(crate) enum StartState {
    /// Not failed so far; waiting reason of the container, if known.
    Pending(Option<String>),
    /// Message of the scheduler.
    Unschedulable(String),
    Failed(StartError),
    /// The container runs or has run.
    Started(Stamp),
}

pub(crate) fn start_state(job: Option<&Job>, pod: Option<&Pod>) -> StartState {
    let Some(pod) = pod else {
        let failed = job.and_then(|job| condition(job, "Failed"));
        let failed = failed.map(|message| StartState::Failed(StartError::Node(message)));
        return failed.unwrap_or(StartState::Pending(None));
    };
    let container = container(pod);
    let state = container.and_then(|container| container.state.as_ref());
    if let Some(running) = state.and_then(|state| state.running.as_ref()) {
        return StartState::Started(running.started_at.as_ref().map_or_else(Stamp::now, stamp));
    }
    if let Some(end) = state.and_then(|state| state.terminated.as_ref()) {
        return ended(end);
    }
    if phase(pod) == "Failed" {
        // The kubelet rejected the pod: no devices, a taint, node shutdown.
        return StartState::Failed(StartError::Node(rejection(pod)));
    }
    if let Some(waiting) = state.and_then(|state| state.waiting.as_ref()) {
        let (reason, message) = (waiting.reason.as_deref(), waiting.message.as_deref());
        return waiting_state(reason.unwrap_or_default(), message.unwrap_or_default(), pod);
    }
    match unscheduled(pod) {
        Some(message) => StartState::Unschedulable(message),
        None => StartState::Pending(None),
    }
}

/// Exit of an ended task; `None` while the pod runs.
pub(crate) fn exit(pod: &Pod, stopped: Option<StopRecord>) -> Option<Exit> {
    let end = container(pod).and_then(|container| container.state.as_ref()?.terminated.as_ref());
    if end.is_none() && !matches!(phase(pod), "Succeeded" | "Failed") {
        return None;
    }
    let started_at = end.and_then(|end| end.started_at.as_ref()).map(stamp);
    let ended_at = end.and_then(|end| end.finished_at.as_ref()).map(stamp);
    let code = end.map(code);
    // The kubelet reports whole seconds.
    let was_stopped = |stopped: &StopRecord| ended_at.is_none_or(|at| at.0 + 1000 > stopped.at.0);
    let disrupted = disruption(pod).filter(|_| code != Some(0));
    Some(Exit {
        code,
        signal: code.filter(|code| (129..=192).contains(code)).map(|code| code - 128),
        out_of_memory: end.is_some_and(|end| end.reason.as_deref() == Some("OOMKilled")),
        stopped: stopped.filter(was_stopped).map(|stopped| stopped.cause).or(disrupted),
        ran: wall_time(started_at, ended_at),
        started_at,
    })
}

/// Result that the container wrote to its termination log.
pub(crate) fn result(pod: &Pod) -> Option<&str> {
    let end = container(pod)?.state.as_ref()?.terminated.as_ref()?;
    // For a failed start the kubelet writes its own message there.
    let own = matches!(end.reason.as_deref(), Some("Completed" | "Error" | "OOMKilled"));
    end.message.as_deref().filter(|_| own).filter(|text| !text.trim().is_empty())
}

pub(crate) fn started_at(pod: &Pod) -> Option<Stamp> {
    let state = container(pod)?.state.as_ref()?;
    let running = state.running.as_ref().and_then(|running| running.started_at.as_ref());
    let ended = state.terminated.as_ref().and_then(|end| end.started_at.as_ref());
    running.or(ended).map(stamp)
}

/// Success of a finished Job; `None` while the Job is active.
pub(crate) fn succeeded(job: &Job) -> Option<bool> {
    let has = |kind: &str| condition(job, kind).is_some();
    if has("Complete") { Some(true) } else { has("Failed").then_some(false) }
}

/// True if the Job exceeded its deadline: the agent did not renew the lease.
pub(crate) fn deadline_exceeded(job: &Job) -> bool {
    let conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions
        .filter(|condition| matches!(condition.type_.as_str(), "Failed" | "FailureTarget"))
        .any(|condition| condition.reason.as_deref() == Some("DeadlineExceeded"))
}

fn container(pod: &Pod) -> Option<&ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn reason(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.reason.as_deref()).unwrap_or_default()
}

fn ended(end: &ContainerStateTerminated) -> StartState {
    let reason = end.reason.as_deref().unwrap_or_default();
    if matches!(reason, "StartError" | "ContainerCannotRun") {
        let message = end.message.as_deref().unwrap_or("no message from the container runtime");
        let detail = format!("Cannot start the container: {message}");
        return StartState::Failed(StartError::job(EndReason::StartFailed, detail));
    }
    StartState::Started(end.started_at.as_ref().map_or_else(Stamp::now, stamp))
}

/// State of a waiting container. A first pull failure may be transient; after retries the kubelet reports `BackOff`.
fn waiting_state(reason: &str, message: &str, pod: &Pod) -> StartState {
    let image = pod.spec.as_ref().and_then(|spec| spec.containers.first()?.image.as_deref());
    let failed =
        |reason: EndReason, detail: String| StartState::Failed(StartError::job(reason, detail));
    match reason {
        "ImagePullBackOff" | "InvalidImageName" | "ErrImageNeverPull" | "ImageInspectError" => {
            let image = image.unwrap_or_default();
            failed(EndReason::ImagePull, format!("Cannot pull image `{image}`: {message}"))
        }
        "CreateContainerError" | "CreateContainerConfigError" | "RunContainerError" => {
            failed(EndReason::StartFailed, format!("Cannot start the container: {message}"))
        }
        _ => StartState::Pending(Some(reason.to_owned()).filter(|reason| !reason.is_empty())),
    }
}

/// 128 plus the signal number, as shells report it, if only the signal is known.
fn code(end: &ContainerStateTerminated) -> i32 {
    match end.signal.filter(|signal| *signal > 0) {
        Some(signal) if end.exit_code == 0 => 128_i32.saturating_add(signal),
        _ => end.exit_code,
    }
}

/// Cause of a disruption that the agent did not request.
fn disruption(pod: &Pod) -> Option<StopCause> {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let target = conditions
        .filter(|condition| condition.type_ == "DisruptionTarget" && condition.status == "True")
        .find_map(|condition| condition.reason.as_deref());
    match target.unwrap_or_else(|| reason(pod)) {
        "PreemptionByScheduler" | "Preempting" | "Preempted" => Some(StopCause::Preempted),
        "Evicted" | "EvictionByEvictionAPI" | "TerminationByKubelet" | "DeletionByTaintManager" => {
            Some(StopCause::Drained)
        }
        "NodeLost" | "NodeShutdown" | "Shutdown" | "Terminated" | "DeletionByPodGC" => {
            Some(StopCause::LeaseLost)
        }
        // A user deleted the pod or its Job.
        _ if pod.metadata.deletion_timestamp.is_some() => Some(StopCause::Drained),
        // The pod failed without a terminated container: a fault of the node.
        _ if phase(pod) == "Failed" && started_at(pod).is_none() => Some(StopCause::LeaseLost),
        _ => None,
    }
}

fn rejection(pod: &Pod) -> String {
    let message = pod.status.as_ref().and_then(|status| status.message.as_deref());
    let message = message.unwrap_or("no message from the kubelet");
    match reason(pod) {
        "" => format!("pod failed before it ran: {message}"),
        reason => format!("pod failed before it ran: {reason}: {message}"),
    }
}

fn unscheduled(pod: &Pod) -> Option<String> {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut scheduled = conditions.filter(|condition| condition.type_ == "PodScheduled");
    let pending = scheduled.find(|condition| condition.status == "False")?;
    Some(pending.message.clone().unwrap_or_else(|| "no message from the scheduler".to_owned()))
}

/// Message of a true condition.
fn condition(job: &Job, kind: &str) -> Option<String> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let found = conditions.iter().find(|c| c.type_ == kind && c.status == "True")?;
    Some(found.message.clone().or_else(|| found.reason.clone()).unwrap_or_default())
}

fn stamp(time: &Time) -> Stamp {
    Stamp(time.0.as_millisecond())
}

#[cfg(test)]
#[path = "pod_status_tests.rs"]
mod tests;
