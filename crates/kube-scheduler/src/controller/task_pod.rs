//! One pod of a workload, and what has become of it.

use agentaflow_kube_core::names;
use agentaflow_kube_core::pod_end;
use agentaflow_kube_core::slim::Pod;
use jiff::{SignedDuration, Timestamp};

/// How long a pod may outstay the time in which it should have stopped. Past it nobody answers on its node, and
/// the task is done elsewhere: waiting for a node that is gone would be waiting for ever.
const OVERDUE: SignedDuration = SignedDuration::from_secs(30);

/// A pod of a workload.
#[derive(Clone, Copy, Debug)]
pub(super) struct TaskPod<'a> {
    pub(super) pod: &'a Pod,
    pub(super) task: u32,
    pub(super) attempt: u32,
    /// The retries that were spent when it was made: its round.
    pub(super) round: u32,
    pub(super) state: TaskPodState,
}

/// What has become of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskPodState {
    /// It waits or runs.
    Live,
    /// It is being stopped, and should be gone by then.
    Ending(Timestamp),
    /// It ended well.
    Done,
    /// It failed by its own doing.
    Broken,
    /// It ended through no fault of its own.
    Lost,
}

impl<'a> TaskPod<'a> {
    /// Reads a pod of ours; none when its labels do not say which task it does.
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

/// The node that a pod is bound to.
pub(super) fn node(pod: &Pod) -> Option<&str> {
    pod.spec.node_name.as_deref().filter(|node| !node.is_empty())
}

/// Whether somebody asked for it to stop.
pub(super) fn terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Whether it neither runs nor will.
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
        // What was told to stop ends with a signal: that is not a failure of its own.
        ("Failed", None) if pod_end::own_fault(pod) => TaskPodState::Broken,
        ("Failed", _) => TaskPodState::Lost,
        (_, None) => TaskPodState::Live,
        (_, Some(time)) => {
            // The time of deletion is when the grace period ends.
            let until = time.0.checked_add(OVERDUE).unwrap_or(Timestamp::MAX);
            if now < until { TaskPodState::Ending(until) } else { TaskPodState::Lost }
        }
    }
}
