//! What a pod's status says of its task: what keeps it from beginning, that it runs, how it ended.

use std::time::Duration;

use agentaflow_agent::runtime::stopped::Stopped;
use agentaflow_agent::runtime::{Exit, StartError};
use agentaflow_api::end::{EndReason, StartFailure};
use agentaflow_api::link::StopCause;
use agentaflow_api::units::Stamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// How far a task is that is being started.
#[derive(Debug)]
pub(crate) enum Stage {
    /// Nothing is wrong so far; what it waits for, if that is known.
    Waits(Option<String>),
    /// No scheduler finds room for it, in the scheduler's words.
    NoRoom(String),
    /// It cannot begin.
    Failed(StartError),
    /// It runs, or ran.
    Began(Stamp),
}

/// How far a task is that is being started.
pub(crate) fn stage(job: Option<&Job>, pod: Option<&Pod>) -> Stage {
    let Some(pod) = pod else {
        let why = job.and_then(|job| condition(job, "Failed"));
        return why.map_or(Stage::Waits(None), |why| Stage::Failed(StartError::Node(why)));
    };
    let container = container(pod);
    let state = container.and_then(|container| container.state.as_ref());
    if let Some(running) = state.and_then(|state| state.running.as_ref()) {
        return Stage::Began(running.started_at.as_ref().map_or_else(Stamp::now, stamp));
    }
    if let Some(end) = state.and_then(|state| state.terminated.as_ref()) {
        return ended(end);
    }
    if phase(pod) == "Failed" {
        // The kubelet would not have it: out of devices, a taint, a node that goes down.
        return Stage::Failed(StartError::Node(story(pod)));
    }
    if let Some(waiting) = state.and_then(|state| state.waiting.as_ref()) {
        let (word, text) = (waiting.reason.as_deref(), waiting.message.as_deref());
        return waits(word.unwrap_or_default(), text.unwrap_or_default(), pod);
    }
    match unscheduled(pod) {
        Some(why) => Stage::NoRoom(why),
        None => Stage::Waits(None),
    }
}

/// How a task ended, if it has. `stopped`: that and why it was told to.
pub(crate) fn exit(pod: &Pod, stopped: Option<Stopped>) -> Option<Exit> {
    let end = container(pod).and_then(|container| container.state.as_ref()?.terminated.as_ref());
    if end.is_none() && !matches!(phase(pod), "Succeeded" | "Failed") {
        return None;
    }
    let started_at = end.and_then(|end| end.started_at.as_ref()).map(stamp);
    let ended_at = end.and_then(|end| end.finished_at.as_ref()).map(stamp);
    let ran = started_at.zip(ended_at).map_or(0, |(began, ended)| ended.0 - began.0);
    let code = end.map(code);
    // The kubelet's clock knows seconds only.
    let was_stopped = |stopped: &Stopped| ended_at.is_none_or(|at| at.0 + 1000 > stopped.at.0);
    let taken = taken(pod).filter(|_| code != Some(0));
    Some(Exit {
        code,
        signal: code.filter(|code| (129..=192).contains(code)).map(|code| code - 128),
        out_of_memory: end.is_some_and(|end| end.reason.as_deref() == Some("OOMKilled")),
        stopped: stopped.filter(was_stopped).map(|stopped| stopped.cause).or(taken),
        ran: Duration::from_millis(u64::try_from(ran).unwrap_or(0)),
        started_at,
    })
}

/// What the container left as its result.
pub(crate) fn result(pod: &Pod) -> Option<&str> {
    let end = container(pod)?.state.as_ref()?.terminated.as_ref()?;
    // The kubelet writes its own words there when it could not even start it.
    let own = matches!(end.reason.as_deref(), Some("Completed" | "Error" | "OOMKilled"));
    end.message.as_deref().filter(|_| own).filter(|text| !text.trim().is_empty())
}

/// When it began to run, if it has.
pub(crate) fn began(pod: &Pod) -> Option<Stamp> {
    let state = container(pod)?.state.as_ref()?;
    let running = state.running.as_ref().and_then(|running| running.started_at.as_ref());
    let ended = state.terminated.as_ref().and_then(|end| end.started_at.as_ref());
    running.or(ended).map(stamp)
}

/// Whether a Job that is over went well.
pub(crate) fn verdict(job: &Job) -> Option<bool> {
    let said = |kind: &str| condition(job, kind).is_some();
    if said("Complete") { Some(true) } else { said("Failed").then_some(false) }
}

/// The Job's time was up: nobody renewed it.
pub(crate) fn ran_out(job: &Job) -> bool {
    let conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions
        .filter(|condition| matches!(condition.type_.as_str(), "Failed" | "FailureTarget"))
        .any(|condition| condition.reason.as_deref() == Some("DeadlineExceeded"))
}

/// The pod's own container.
fn container(pod: &Pod) -> Option<&ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn reason(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.reason.as_deref()).unwrap_or_default()
}

fn ended(end: &ContainerStateTerminated) -> Stage {
    let word = end.reason.as_deref().unwrap_or_default();
    if matches!(word, "StartError" | "ContainerCannotRun") {
        let said = end.message.as_deref().unwrap_or("the container runtime did not say why");
        let detail = format!("The container could not be started: {said}");
        return Stage::Failed(StartError::Job(StartFailure::new(EndReason::StartFailed, detail)));
    }
    Stage::Began(end.started_at.as_ref().map_or_else(Stamp::now, stamp))
}

/// A container that waits. A first failure to pull may pass; the kubelet tries again, and then calls it `BackOff`.
fn waits(word: &str, text: &str, pod: &Pod) -> Stage {
    let image = pod.spec.as_ref().and_then(|spec| spec.containers.first()?.image.as_deref());
    let failed = |reason: EndReason, detail: String| {
        Stage::Failed(StartError::Job(StartFailure::new(reason, detail)))
    };
    match word {
        "ImagePullBackOff" | "InvalidImageName" | "ErrImageNeverPull" | "ImageInspectError" => {
            let image = image.unwrap_or_default();
            failed(EndReason::ImagePull, format!("The image `{image}` could not be pulled: {text}"))
        }
        "CreateContainerError" | "CreateContainerConfigError" | "RunContainerError" => {
            failed(EndReason::StartFailed, format!("The container could not be started: {text}"))
        }
        _ => Stage::Waits(Some(word.to_owned()).filter(|word| !word.is_empty())),
    }
}

/// The signal's number and 128, as shells tell it, where only the signal is known.
fn code(end: &ContainerStateTerminated) -> i32 {
    match end.signal.filter(|signal| *signal > 0) {
        Some(signal) if end.exit_code == 0 => 128_i32.saturating_add(signal),
        _ => end.exit_code,
    }
}

/// Why Kubernetes took a pod away that nobody told it to.
fn taken(pod: &Pod) -> Option<StopCause> {
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
        // Somebody deleted it, or its Job.
        _ if pod.metadata.deletion_timestamp.is_some() => Some(StopCause::Drained),
        // It failed without a container that ended: the node's doing.
        _ if phase(pod) == "Failed" && began(pod).is_none() => Some(StopCause::LeaseLost),
        _ => None,
    }
}

fn story(pod: &Pod) -> String {
    let said = pod.status.as_ref().and_then(|status| status.message.as_deref());
    let (word, said) = (reason(pod), said.unwrap_or("the cluster did not say why"));
    match word {
        "" => format!("its pod failed before it ran: {said}"),
        word => format!("its pod failed before it ran ({word}): {said}"),
    }
}

fn unscheduled(pod: &Pod) -> Option<String> {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut scheduled = conditions.filter(|condition| condition.type_ == "PodScheduled");
    let waits = scheduled.find(|condition| condition.status == "False")?;
    Some(waits.message.clone().unwrap_or_else(|| "no scheduler has placed its pod".to_owned()))
}

fn condition(job: &Job, kind: &str) -> Option<String> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let found = conditions.iter().find(|c| c.type_ == kind && c.status == "True")?;
    Some(found.message.clone().or_else(|| found.reason.clone()).unwrap_or_default())
}

fn stamp(time: &Time) -> Stamp {
    Stamp(time.0.as_millisecond())
}

#[cfg(test)]
#[path = "ending_tests.rs"]
mod tests;
