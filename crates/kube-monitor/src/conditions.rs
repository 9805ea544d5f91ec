//! The conditions of a `GPUNode`: `Ready`, `Healthy`, `Schedulable`. Pure.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::observe::Known;
use super::seen::{Closed, Seen};

/// The conditions; a time of change is kept while the status stays the same.
pub(super) fn of(
    devices: &[Known],
    seen: &Seen,
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

type Told = (bool, &'static str, String);

/// The GPUs answer.
fn ready(devices: &[Known], seen: &Seen) -> Told {
    match &seen.gpus {
        Err(words) => (false, "DriverFailed", words.clone()),
        Ok(_) => (true, "GPUsReported", format!("{} reported", counted(devices.len()))),
    }
}

/// None of them is sick.
fn healthy(devices: &[Known], seen: &Seen) -> Told {
    if let Err(words) = &seen.gpus {
        return (false, "DriverFailed", words.clone());
    }
    let told = |available: bool| -> Vec<String> {
        let troubled = devices.iter().filter(|known| known.reading.available == available);
        let words = |known: &Known| {
            Some(format!("{}: {}", known.device.id, known.health.trouble.as_ref()?.words))
        };
        troubled.filter_map(words).collect()
    };
    let (sick, watched) = (told(false), told(true));
    match (sick.is_empty(), watched.is_empty()) {
        (false, _) => (false, "GPUUnhealthy", sick.join("; ")),
        (true, false) => (true, "GPUWatched", watched.join("; ")),
        (true, true) => (true, "AllHealthy", format!("{} healthy", counted(devices.len()))),
    }
}

/// New work may go there.
fn schedulable(devices: &[Known], seen: &Seen) -> Told {
    let available = devices.iter().filter(|known| known.reading.available).count();
    match (seen.node.closed, &seen.gpus) {
        (Some(Closed::Maintenance), _) => (false, "Maintenance", "people work on its GPUs".into()),
        (Some(Closed::Cordoned), _) => (false, "Cordoned", "the node is cordoned".into()),
        (None, Err(words)) => (false, "DriverFailed", words.clone()),
        (None, Ok(_)) if available == 0 => {
            (false, "NoHealthyGPU", "none of its GPUs can be used".into())
        }
        (None, Ok(_)) => {
            (true, "GPUsAvailable", format!("{available} of {} available", counted(devices.len())))
        }
    }
}

fn counted(number: usize) -> String {
    if number == 1 { "1 GPU".into() } else { format!("{number} GPUs") }
}
