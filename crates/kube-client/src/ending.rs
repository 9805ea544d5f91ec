//! End of a pod, as the end reason of the REST API.

use agentaflow_api::end::{EndCause, EndReason};

use agentaflow_kube_core::pod_end;
use agentaflow_kube_core::slim::{ContainerStatus, Pod, Terminated};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ending {
    pub(super) reason: Option<EndReason>,
    pub(super) exit_code: Option<i32>,
    /// Message of the kubelet.
    pub(super) message: Option<String>,
}

/// End of a pod, or the obstacle to its start; empty for a running pod.
pub(super) fn of(pod: &Pod) -> Ending {
    let failed = pod.status.phase.as_deref() == Some("Failed");
    let text = pod.status.reason.as_deref().unwrap_or_default();
    if !failed {
        let (word, message) = pod_end::stuck(pod).unzip();
        let reason = word.as_deref().and_then(of_waiting);
        let exit_code = ends(pod).map(|end| end.exit_code).find(|code| *code == 0);
        return Ending { reason, message: message.filter(|_| reason.is_some()), exit_code };
    }
    let end = ends(pod).find(|end| end.exit_code != 0).or_else(|| ends(pod).next());
    let waiting = statuses(pod)
        .find_map(|status| of_waiting(status.state.as_ref()?.waiting.as_ref()?.reason.as_deref()?));
    let reason = match (text, end) {
        ("DeadlineExceeded", _) => waiting.unwrap_or(EndReason::TimedOut),
        ("NodeLost" | "NodeShutdown" | "Shutdown" | "Terminated", _) => EndReason::NodeLost,
        ("Evicted" | "Preempting" | "Preempted", _) => EndReason::Evicted,
        (_, Some(end)) => of_container(end),
        (_, None) => waiting.unwrap_or(EndReason::StartFailed),
    };
    let exit_code = end.map(code);
    Ending { reason: Some(reason), exit_code, message: Some(pod_end::end_message(pod)) }
}

/// Exit code; 128 plus the signal number if only the signal is known, as in shells.
fn code(end: &Terminated) -> i32 {
    match end.signal.filter(|signal| *signal > 0) {
        Some(signal) if end.exit_code == 0 => 128_i32.saturating_add(signal),
        _ => end.exit_code,
    }
}

fn of_container(end: &Terminated) -> EndReason {
    match end.reason.as_deref().unwrap_or_default() {
        "OOMKilled" => EndReason::OutOfMemory,
        "StartError" | "ContainerCannotRun" | "CreateContainerError" => EndReason::StartFailed,
        "DeadlineExceeded" => EndReason::TimedOut,
        // The end of the output, if it is the termination message, is more specific than the exit code.
        _ if shows_gpu_out_of_memory(end) => EndReason::GpuOutOfMemory,
        _ if (129..=192).contains(&code(end)) => EndReason::Signalled,
        _ => EndReason::Exited,
    }
}

/// True if the termination message, often the end of the output, shows exhausted GPU memory.
fn shows_gpu_out_of_memory(end: &Terminated) -> bool {
    let message = end.message.as_deref().unwrap_or_default();
    agentaflow_explain::find_cause(message) == Some(EndCause::GpuOutOfMemory)
}

fn of_waiting(word: &str) -> Option<EndReason> {
    match word {
        "ImagePullBackOff"
        | "ErrImagePull"
        | "InvalidImageName"
        | "ErrImageNeverPull"
        | "RegistryUnavailable"
        | "ImageInspectError" => Some(EndReason::ImagePull),
        "CreateContainerConfigError"
        | "CreateContainerError"
        | "RunContainerError"
        | "CrashLoopBackOff" => Some(EndReason::StartFailed),
        _ => None,
    }
}

fn ends(pod: &Pod) -> impl Iterator<Item = &Terminated> {
    statuses(pod).filter_map(|status| status.state.as_ref()?.terminated.as_ref())
}

fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let init = pod.status.init_container_statuses.iter().flatten();
    pod.status.container_statuses.iter().flatten().chain(init)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "values are written where they are used")]
    fn check(status: Value, reason: Option<EndReason>, exit_code: Option<i32>) {
        let pod: Pod = serde_json::from_value(json!({"status": status})).unwrap();
        let ending = of(&pod);
        assert_eq!((ending.reason, ending.exit_code), (reason, exit_code), "{status}");
        assert_eq!(ending.message.is_some(), reason.is_some(), "{status}");
    }

    #[test]
    fn a_reason_of_the_kubelet_becomes_one_word_of_the_api() {
        let ended = |end: Value| json!({"phase": "Failed", "containerStatuses": [{"name": "c", "state": {"terminated": end}}]});
        let waits = |phase: &str, reason: &str| json!({"phase": phase, "containerStatuses": [{"name": "c", "state": {"waiting": {"reason": reason}}}]});
        check(ended(json!({"exitCode": 1, "reason": "Error"})), Some(EndReason::Exited), Some(1));
        check(
            ended(json!({"exitCode": 137, "reason": "OOMKilled"})),
            Some(EndReason::OutOfMemory),
            Some(137),
        );
        let last = "Traceback\ntorch.OutOfMemoryError: CUDA out of memory.";
        check(
            ended(json!({"exitCode": 1, "reason": "Error", "message": last})),
            Some(EndReason::GpuOutOfMemory),
            Some(1),
        );
        check(
            ended(json!({"exitCode": 139, "reason": "Error"})),
            Some(EndReason::Signalled),
            Some(139),
        );
        check(ended(json!({"exitCode": 0, "signal": 9})), Some(EndReason::Signalled), Some(137));
        check(
            ended(json!({"exitCode": 128, "reason": "StartError"})),
            Some(EndReason::StartFailed),
            Some(128),
        );
        check(
            json!({"phase": "Failed", "reason": "DeadlineExceeded"}),
            Some(EndReason::TimedOut),
            None,
        );
        check(json!({"phase": "Failed", "reason": "NodeLost"}), Some(EndReason::NodeLost), None);
        check(
            json!({"phase": "Failed", "reason": "Evicted", "message": "m"}),
            Some(EndReason::Evicted),
            None,
        );
        check(json!({"phase": "Failed"}), Some(EndReason::StartFailed), None);
        check(waits("Failed", "ImagePullBackOff"), Some(EndReason::ImagePull), None);
        check(waits("Pending", "ErrImagePull"), Some(EndReason::ImagePull), None);
        check(waits("Pending", "ContainerCreating"), None, None);
        check(json!({"phase": "Running"}), None, None);
    }
}
