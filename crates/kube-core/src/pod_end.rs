//! End of a pod: cause and message.

use jiff::Timestamp;

use crate::slim::{ContainerStatus, Pod, Terminated};

/// True if the container caused the failure of the pod. Preemption, a lost or full node and a rejecting kubelet are other
/// causes.
pub fn own_fault(pod: &Pod) -> bool {
    if disrupted(pod) {
        return false;
    }
    let reason = pod.status.reason.as_deref().unwrap_or_default();
    match reason {
        "" | "DeadlineExceeded" => true,
        "Evicted" => over_its_own_limit(pod),
        _ => !REFUSED_OR_TAKEN.contains(&reason) && !reason.starts_with("OutOf") && started(pod),
    }
}

/// Reasons of kubelets and controllers for rejected and evicted pods.
const REFUSED_OR_TAKEN: [&str; 15] = [
    "Preempting",
    "Preempted",
    "NodeLost",
    "NodeShutdown",
    "Shutdown",
    "Terminated",
    "DeletionByTaintManager",
    "UnexpectedAdmissionError",
    "TopologyAffinityError",
    "NodeAffinity",
    "NodeName",
    "NodePorts",
    "TaintToleration",
    "InvalidNodeInfo",
    "UnexpectedPredicateFailureType",
];

/// Reason of the kubelet that rejected a pod: none of its containers started, because another pod took its resources.
pub fn rejection(pod: &Pod) -> Option<&str> {
    let reason = pod.status.reason.as_deref()?;
    let rejected = reason.starts_with("OutOf")
        || ["UnexpectedAdmissionError", "TopologyAffinityError"].contains(&reason);
    let failed = pod.status.phase.as_deref() == Some("Failed");
    (failed && rejected && !started(pod)).then_some(reason)
}

fn disrupted(pod: &Pod) -> bool {
    let conditions = pod.status.conditions.iter().flatten();
    conditions.into_iter().any(|one| one.kind == "DisruptionTarget" && one.status == "True")
}

/// Kubelets also evict a pod that exceeds its own storage limit: a retry would fail again.
fn over_its_own_limit(pod: &Pod) -> bool {
    let message = pod.status.message.as_deref().unwrap_or_default();
    message.contains("exceed") && message.contains("limit")
}

/// Returns true if a container was started: a kubelet that rejects a pod starts none.
fn started(pod: &Pod) -> bool {
    statuses(pod).any(|status| ended(status).is_some())
}

/// Message about the end of a pod, without a subject.
pub fn end_message(pod: &Pod) -> String {
    let failed = statuses(pod)
        .filter_map(|status| ended(status).map(|end| (status, end)))
        .find(|(_, end)| end.exit_code != 0 || end.signal.is_some());
    let reason = pod.status.reason.as_deref().unwrap_or_default();
    let message = pod.status.message.as_deref().unwrap_or_default();
    match failed {
        _ if reason == "DeadlineExceeded" => "ran longer than its activeDeadlineSeconds".to_owned(),
        // The exit code after a requested termination is meaningless.
        _ if disrupted(pod) => taken(pod),
        Some((status, end)) => format!("container `{}` {}", status.name, ending(end)),
        None if rejection(pod).is_some() => {
            let more = if message.is_empty() { String::new() } else { format!(": {message}") };
            clip(&format!("was rejected by the kubelet ({reason}){more}"), 500)
        }
        None if reason.is_empty() => "ended without saying why".to_owned(),
        None if message.is_empty() => format!("ended with {reason}"),
        None => clip(&format!("ended with {reason}: {message}"), 500),
    }
}

/// Message of the cluster about an evicted pod.
fn taken(pod: &Pod) -> String {
    let conditions = pod.status.conditions.iter().flatten();
    let why = conditions.into_iter().find(|one| one.kind == "DisruptionTarget");
    let text = |part: Option<&String>| part.map(String::as_str).unwrap_or_default().to_owned();
    let (reason, message) =
        why.map(|one| (text(one.reason.as_ref()), text(one.message.as_ref()))).unwrap_or_default();
    match reason.as_str() {
        "EvictionByEvictionAPI" => "was evicted".to_owned(),
        "" => "was stopped by the cluster".to_owned(),
        reason => clip(&format!("was stopped by the cluster ({reason}: {message})"), 500),
    }
}

fn ending(end: &Terminated) -> String {
    let reason = end.reason.as_deref().unwrap_or_default();
    let mut text = match (reason, signal(end)) {
        ("OOMKilled", _) => {
            format!("ran out of memory (OOMKilled, exit code {})", end.exit_code)
        }
        (_, Some(signal)) => format!("was ended by signal {signal} (exit code {})", end.exit_code),
        _ => format!("exited with code {}", end.exit_code),
    };
    if !matches!(reason, "" | "Error" | "OOMKilled" | "Completed") {
        text.push_str(", ");
        text.push_str(reason);
    }
    if let Some(message) = end.message.as_deref().map(str::trim).filter(|text| !text.is_empty()) {
        text.push_str(": ");
        text.push_str(&clip_front(message, 300));
    }
    text
}

/// Signal, also from an exit code of a shell.
fn signal(end: &Terminated) -> Option<i32> {
    end.signal
        .filter(|signal| *signal != 0)
        .or_else(|| (129..=159).contains(&end.exit_code).then(|| end.exit_code - 128))
}

/// End of the last container, if known.
pub fn ended_at(pod: &Pod) -> Option<Timestamp> {
    statuses(pod).filter_map(|status| Some(ended(status)?.finished_at.as_ref()?.0)).max()
}

/// Reason and message of containers that cannot start, such as `ImagePullBackOff`.
pub fn stuck(pod: &Pod) -> Option<(String, String)> {
    let waiting = statuses(pod).find_map(|status| {
        let waiting = status.state.as_ref()?.waiting.as_ref()?;
        let word = waiting.reason.as_deref().filter(|word| proper(word))?;
        Some((status, word, waiting.message.as_deref().unwrap_or_default()))
    });
    let (status, word, message) = waiting?;
    // The kubelet alternates between the two.
    let word = if word == "ErrImagePull" { "ImagePullBackOff" } else { word };
    let mut text = format!("Container `{}` cannot start", status.name);
    if !message.is_empty() {
        text = clip(&format!("{text}: {message}"), 500);
    }
    Some((word.to_owned(), text))
}

/// Valid condition reason that is more specific than the start of the container.
fn proper(word: &str) -> bool {
    !matches!(word, "ContainerCreating" | "PodInitializing")
        && word.len() <= 64
        && word.starts_with(|c: char| c.is_ascii_alphabetic())
        && word.chars().all(|c| c.is_ascii_alphanumeric())
}

/// Beginning of foreign text.
pub fn clip(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// End of a text: programs report errors in their last lines.
fn clip_front(text: &str, characters: usize) -> String {
    match text.char_indices().nth_back(characters.saturating_sub(1)) {
        Some((start, _)) if start > 0 => format!("…{}", &text[start..]),
        _ => text.to_owned(),
    }
}

fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let init = pod.status.init_container_statuses.iter().flatten();
    init.chain(pod.status.container_statuses.iter().flatten())
}

fn ended(status: &ContainerStatus) -> Option<&Terminated> {
    status.state.as_ref()?.terminated.as_ref()
}
