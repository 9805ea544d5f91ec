//! The conditions of a `GPUNode`: `Ready`, `Healthy`, `Schedulable`. Pure.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::observation::{Observation, Unschedulable};
use super::observe::DeviceRecord;

/// Conditions of the node; the transition time changes only with the status.
pub(super) fn of(
    devices: &[DeviceRecord],
    seen: &Observation,
    before: &[Condition],
    now: Timestamp,
) -> Vec<Condition> {
    [
        ("Ready", ready(devices, seen)),
        ("Healthy", healthy(devices, seen)),
        ("Schedulable", schedulable(devices, seen)),
    ]
    .into_iter()
    .map(|(kind, (status, reason, message))| {
        let status = if status { "True" } else { "False" }.to_owned();
        let old = before.iter().find(|old| old.type_ == kind && old.status == status);
        Condition {
            type_: kind.into(),
            last_transition_time: old.map_or(Time(now), |old| old.last_transition_time.clone()),
            observed_generation: old.and_then(|old| old.observed_generation),
            reason: reason.into(),
            status,
            message,
        }
    })
    .collect()
}

type ConditionValue = (bool, &'static str, String);

/// True if the driver reports the GPUs.
fn ready(devices: &[DeviceRecord], seen: &Observation) -> ConditionValue {
    match &seen.gpus {
        Err(message) => (false, "DriverFailed", message.clone()),
        Ok(_) => (true, "GPUsReported", format!("{} reported", counted(devices.len()))),
    }
}

/// True if no GPU has a problem.
fn healthy(devices: &[DeviceRecord], seen: &Observation) -> ConditionValue {
    if let Err(message) = &seen.gpus {
        return (false, "DriverFailed", message.clone());
    }
    let text = |available: bool| -> Vec<String> {
        let troubled = devices.iter().filter(|known| known.reading.available == available);
        let message = |known: &DeviceRecord| {
            Some(format!("{}: {}", known.device.id, known.health.problem.as_ref()?.message))
        };
        troubled.filter_map(message).collect()
    };
    let (unhealthy, watched) = (text(false), text(true));
    match (unhealthy.is_empty(), watched.is_empty()) {
        (false, _) => (false, "GPUUnhealthy", unhealthy.join("; ")),
        (true, false) => (true, "GPUWatched", watched.join("; ")),
        (true, true) => (true, "AllHealthy", format!("{} healthy", counted(devices.len()))),
    }
}

/// True if the node accepts new work.
fn schedulable(devices: &[DeviceRecord], seen: &Observation) -> ConditionValue {
    let available = devices.iter().filter(|known| known.reading.available).count();
    match (seen.node.closed, &seen.gpus) {
        (Some(Unschedulable::Maintenance), _) => {
            (false, "Maintenance", "the node is in maintenance".into())
        }
        (Some(Unschedulable::Cordoned), _) => (false, "Cordoned", "the node is cordoned".into()),
        (None, Err(message)) => (false, "DriverFailed", message.clone()),
        (None, Ok(_)) if available == 0 => {
            (false, "NoHealthyGPU", "no GPU of the node is usable".into())
        }
        (None, Ok(_)) => {
            (true, "GPUsAvailable", format!("{available} of {} available", counted(devices.len())))
        }
    }
}

fn counted(number: usize) -> String {
    if number == 1 { "1 GPU".into() } else { format!("{number} GPUs") }
}
