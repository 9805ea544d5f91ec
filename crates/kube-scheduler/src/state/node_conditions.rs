//! Conditions of a `GPUNode` that the scheduler writes beside the conditions of its monitor. Pure.

use agentaflow_kube_core::crd::GpuNode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::foreign_report::{FOREIGN_GPU_PODS, ForeignPods, RACE_LOST};

/// Reason of the conditions and of the Event of a lost monitor.
pub(super) const MONITOR_LOST: &str = "MonitorLost";

/// Conditions with unknown health, and their message; none if they are unknown already.
pub(super) fn lost(devices: &GpuNode, now: jiff::Timestamp) -> Option<(Vec<Condition>, String)> {
    let status = devices.status.as_ref()?;
    let since = status.last_updated.as_ref().map(|time| format!(" since {}", time.0));
    let message = format!("No report of the node's monitor{}.", since.unwrap_or_default());
    let mut conditions = status.conditions.clone();
    let mut changed = false;
    for kind in ["Ready", "Healthy"] {
        let unknown = Condition {
            type_: kind.to_owned(),
            status: "Unknown".to_owned(),
            reason: MONITOR_LOST.to_owned(),
            message: message.clone(),
            last_transition_time: whole_second(now),
            observed_generation: devices.metadata.generation,
        };
        match conditions.iter_mut().find(|condition| condition.type_ == kind) {
            Some(known) if known.status == "Unknown" && known.reason == MONITOR_LOST => {}
            Some(known) => {
                *known = unknown;
                changed = true;
            }
            None => {
                conditions.push(unknown);
                changed = true;
            }
        }
    }
    changed.then_some((conditions, message))
}

/// Times of conditions have whole seconds.
fn whole_second(now: jiff::Timestamp) -> Time {
    Time(jiff::Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// Conditions with `ForeignGpuPods`; none if it has this reason already, or was never needed.
pub(super) fn foreign_pods(
    devices: &GpuNode,
    found: Option<&ForeignPods>,
    now: jiff::Timestamp,
) -> Option<Vec<Condition>> {
    let mut conditions = devices.status.as_ref()?.conditions.clone();
    let known = conditions.iter().position(|condition| condition.type_ == FOREIGN_GPU_PODS);
    let known = known.map(|at| conditions.remove(at));
    let (status, reason, message) = match found {
        Some(found) => ("True", found.reason, &*found.message),
        None if known.is_none() => return None,
        None => ("False", "NoForeignPods", "No GPU pod of another scheduler races for this node."),
    };
    if known.as_ref().is_some_and(|known| known.reason == reason && known.message == message) {
        return None;
    }
    let since = known.filter(|known| known.status == status);
    conditions.push(Condition {
        type_: FOREIGN_GPU_PODS.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: since
            .map_or_else(|| whole_second(now), |known| known.last_transition_time),
        observed_generation: devices.metadata.generation,
    });
    Some(conditions)
}

/// Message of a published race.
pub(super) fn published_race(devices: &GpuNode) -> Option<&str> {
    let conditions = &devices.status.as_ref()?.conditions;
    let known = conditions.iter().find(|condition| condition.type_ == FOREIGN_GPU_PODS)?;
    (known.status == "True" && known.reason == RACE_LOST).then_some(&*known.message)
}
