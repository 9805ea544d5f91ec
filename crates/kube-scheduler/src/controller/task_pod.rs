//! One pod of a workload and its state.

use agentaflow_kube_core::names;
use agentaflow_kube_core::pod_end;
use agentaflow_kube_core::slim::Pod;
use jiff::{SignedDuration, Timestamp};

/// Time beyond the grace period after which a terminating pod counts as lost: its node does not answer, and the task runs
/// elsewhere.
const OVERDUE: SignedDuration = SignedDuration::from_secs(30);

#[derive(Clone, Copy, Debug)]
pub(super) struct TaskPod<'a> {
    pub(super) pod: &'a Pod,
    pub(super) task: u32,
    pub(super) attempt: u32,
    /// Retries of the workload when the pod was created: pods of one round run together.
    pub(super) round: u32,
    pub(super) state: TaskPodState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskPodState {
    /// Pending or running.
    Live,
    /// Terminating; lost after this time.
    Ending(Timestamp),
    /// Succeeded.
    Done,
    /// The program failed.
    Failed,
    /// The cluster ended the pod.
    Lost,
}

impl<'a> TaskPod<'a> {
    /// None if the labels of the pod name no task.
    pub(super) fn read(pod: &'a Pod, now: Timestamp) -> Option<Self> {
        let labels = pod.metadata.labels.as_ref()?;
        let number = |text: &String| text.parse::<u32>().ok();
        let annotations = pod.metadata.annotations.as_ref();
        Some(Self {
            pod,
            task: labels.get(names::POD_TASK).and_then(number)?,
            attempt: labels.get(names::POD_ATTEMPT).and_then(number).unwrap_or(0),
            round: annotations
                .and_then(|all| all.get(names::POD_RETRIES))
                .and_then(number)
                .unwrap_or(0),
            state: state(pod, now),
        })
    }

    pub(super) fn name(&self) -> &'a str {
        self.pod.metadata.name.as_deref().unwrap_or_default()
    }

    pub(super) fn bound(&self) -> bool {
        node(self.pod).is_some()
    }

    pub(super) fn running(&self) -> bool {
        phase(self.pod) == "Running"
    }
}

pub(super) fn node(pod: &Pod) -> Option<&str> {
    pod.spec.node_name.as_deref().filter(|node| !node.is_empty())
}

pub(super) fn terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

pub(super) fn finished(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

fn phase(pod: &Pod) -> &str {
    pod.status.phase.as_deref().unwrap_or_default()
}

fn state(pod: &Pod, now: Timestamp) -> TaskPodState {
    let deleted = pod.metadata.deletion_timestamp.as_ref();
    match (phase(pod), deleted) {
        ("Succeeded", _) => TaskPodState::Done,
        // A deleted pod ends with a signal: the program did not fail.
        ("Failed", None) if pod_end::own_fault(pod) => TaskPodState::Failed,
        ("Failed", _) => TaskPodState::Lost,
        (_, None) => TaskPodState::Live,
        (_, Some(time)) => {
            // The deletion timestamp is the end of the grace period.
            let until = time.0.checked_add(OVERDUE).unwrap_or(Timestamp::MAX);
            if now < until { TaskPodState::Ending(until) } else { TaskPodState::Lost }
        }
    }
}
