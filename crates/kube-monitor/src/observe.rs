//! What is made of what was seen: the `GPUNode`, the labels and annotations of the node, and Events. Pure.

use agentaflow_kube_core::crd::{
    GpuDevice, GpuNode, GpuNodePhase, GpuNodeSpec, GpuNodeStatus, GpuStatus,
};
use agentaflow_kube_core::names;
use std::collections::BTreeMap;

use agentaflow_gpu::{Device, Sample};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::conditions;
use super::health::{Cause, Health, Look, Trouble};
use super::line::{DeviceLine, StatusLine};
use super::seen::{Gpus, Seen};

/// What is remembered from one turn to the next.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// The devices, in the order in which they were first seen.
    pub devices: Vec<Known>,
    /// The conditions as they were published.
    pub conditions: Vec<Condition>,
    /// Which start of the machine that was.
    pub boot: String,
    /// People had closed the node.
    pub closed: bool,
    /// The driver failed.
    pub driver_failed: bool,
}

/// A device that was seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Known {
    /// What it is.
    pub device: GpuDevice,
    /// How it is.
    pub health: Health,
    /// Its last readings.
    pub reading: GpuStatus,
}

/// Something that happened, for people who look at the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Happening {
    /// A problem.
    pub warning: bool,
    /// `GPULost`, `GPURecovered`, …
    pub reason: &'static str,
    /// One sentence.
    pub note: String,
}

/// What there is to publish.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The `GPUNode`'s spec.
    pub spec: GpuNodeSpec,
    /// The `GPUNode`'s status.
    pub status: GpuNodeStatus,
    /// Labels of the node.
    pub labels: BTreeMap<&'static str, String>,
    /// Annotations of the node.
    pub annotations: BTreeMap<&'static str, String>,
    /// What the annotation of the status says.
    pub line: StatusLine,
    /// What happened.
    pub events: Vec<Happening>,
    /// What to remember.
    pub memory: Memory,
}

/// Makes a report of what was seen.
pub fn observe(memory: &Memory, seen: &Seen, now: Timestamp) -> Report {
    let closed = seen.node.closed;
    let rebooted = !memory.boot.is_empty() && memory.boot != seen.boot;
    let fresh = rebooted || (memory.closed && closed.is_none());
    let mut events = Vec::new();
    let devices = match &seen.gpus {
        Ok(gpus) => look(memory, seen, gpus, fresh, &mut events),
        Err(words) => no_look(memory, words),
    };
    driver_events(memory, seen, &mut events);
    let line = line(&devices, seen);
    let conditions = conditions::of(&devices, seen, &memory.conditions, now);
    let status = GpuNodeStatus {
        phase: Some(line.phase),
        gpu_status: devices.iter().map(|known| known.reading.clone()).collect(),
        last_updated: Some(Time(now)),
        conditions: conditions.clone(),
    };
    let spec = GpuNodeSpec {
        node_name: seen.node.name.clone(),
        gpu_devices: devices.iter().map(|known| known.device.clone()).collect(),
    };
    Report {
        labels: labels(&line, mean(&devices)),
        annotations: annotations(&spec, &line, now),
        memory: Memory {
            devices,
            conditions,
            boot: seen.boot.clone(),
            closed: closed.is_some(),
            driver_failed: seen.gpus.is_err(),
        },
        spec,
        status,
        line,
        events,
    }
}

/// What an earlier monitor knew, from what it published.
pub fn restore(published: Option<&GpuNode>, line: Option<&str>) -> Memory {
    let line: StatusLine =
        line.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let Some(published) = published else { return Memory::default() };
    let status = published.status.clone().unwrap_or_default();
    let known = |device: &GpuDevice| {
        let told = line.devices.iter().find(|told| told.id == device.id);
        let reading = status.gpu_status.iter().find(|status| status.id == device.id);
        let trouble = told.and_then(|told| {
            let words = told.reason.clone().unwrap_or_default();
            Some(Trouble { cause: told.cause?, words, better: 0 })
        });
        Known {
            device: device.clone(),
            health: Health { trouble, xid: told.and_then(|told| told.xid) },
            reading: reading
                .cloned()
                .unwrap_or_else(|| GpuStatus { id: device.id.clone(), ..GpuStatus::default() }),
        }
    };
    Memory {
        devices: published.spec.gpu_devices.iter().map(known).collect(),
        conditions: status.conditions,
        closed: line.phase == GpuNodePhase::Maintenance,
        driver_failed: line.message.is_some(),
        boot: line.boot_id,
    }
}

/// `low`, `medium` or `high`.
fn tier(percent: f64) -> &'static str {
    match percent {
        ..25.0 => "low",
        25.0..75.0 => "medium",
        _ => "high",
    }
}

/// The devices after a look at all of them. A lost one stays in the list until the machine was restarted or looked
/// after; then what is there counts.
fn look(
    memory: &Memory,
    seen: &Seen,
    gpus: &Gpus,
    fresh: bool,
    events: &mut Vec<Happening>,
) -> Vec<Known> {
    let mut devices = Vec::new();
    let mut silent = 0;
    for known in &memory.devices {
        let found = gpus.devices.iter().find(|(device, _)| device.uuid == known.device.id);
        if found.is_none() && agentaflow_gpu::is_unreadable(&known.device.id) {
            // It has a name by now.
            continue;
        }
        if found.is_none() && fresh {
            let note = format!("{} is no longer in the machine", name(&known.device));
            events.push(Happening { warning: true, reason: "GPURemoved", note });
            continue;
        }
        silent += usize::from(found.is_none());
        devices.push(step(known, found, seen, gpus, fresh, events));
    }
    for found @ (device, _) in &gpus.devices {
        if memory.devices.iter().any(|known| known.device.id == device.uuid) {
            continue;
        }
        // A device that cannot tell its name is one of those that are missed.
        if silent > 0 && agentaflow_gpu::is_unreadable(&device.uuid) {
            silent -= 1;
            continue;
        }
        devices.push(step(&Known::default(), Some(found), seen, gpus, fresh, events));
    }
    devices
}

fn step(
    known: &Known,
    found: Option<&(Device, Sample)>,
    seen: &Seen,
    gpus: &Gpus,
    fresh: bool,
    events: &mut Vec<Happening>,
) -> Known {
    let look = found.map_or(Look::Gone, |(_, sample)| Look::Sample(sample));
    let health = known.health.after(look, fresh);
    let device = found.map_or_else(|| known.device.clone(), |(gpu, _)| describe(known, gpu, gpus));
    events.extend(change(&device, &known.health, &health));
    let id = device.id.clone();
    let reading = GpuStatus {
        available: health.is_available(),
        current_workload: seen.holders.of_device(&id),
        reason: health.words().map(|words| shortened(&words)),
        id,
        ..found.map(|(_, sample)| reading(sample)).unwrap_or_default()
    };
    Known { device, health, reading }
}

/// The devices as they were, none of them usable.
fn no_look(memory: &Memory, words: &str) -> Vec<Known> {
    let out = |known: &Known| {
        let health = known.health.after(Look::DriverFailed(words), false);
        let reading = GpuStatus {
            available: false,
            reason: health.words().map(|words| shortened(&words)),
            current_workload: known.reading.current_workload.clone(),
            id: known.device.id.clone(),
            ..GpuStatus::default()
        };
        Known { device: known.device.clone(), health, reading }
    };
    memory.devices.iter().map(out).collect()
}

/// What a device is. One that lost its voice keeps what was known of it.
fn describe(known: &Known, gpu: &Device, gpus: &Gpus) -> GpuDevice {
    if gpu.memory == 0 && !known.device.id.is_empty() {
        return known.device.clone();
    }
    GpuDevice {
        id: gpu.uuid.clone(),
        name: gpu.name.clone(),
        memory_total: gpu.memory,
        pci_bus_id: gpu.pci_bus_id.clone().unwrap_or_default(),
        driver_version: gpus.driver.clone(),
    }
}

/// Readings, rounded: nobody needs tenths, and every difference is a write.
fn reading(sample: &Sample) -> GpuStatus {
    GpuStatus {
        memory_used: sample.memory_used.unwrap_or(0),
        utilization: f64::from(sample.utilization.unwrap_or(0)),
        temperature: f64::from(sample.temperature.unwrap_or(0)),
        power_usage: sample.power.unwrap_or(0.0).max(0.0).round(),
        ..GpuStatus::default()
    }
}

/// What to tell people about a change of health.
fn change(device: &GpuDevice, old: &Health, new: &Health) -> Option<Happening> {
    let cause = |health: &Health| health.trouble.as_ref().map(|trouble| trouble.cause);
    let (before, after) = (cause(old), cause(new));
    let critical = before.is_some_and(Cause::is_critical);
    match (&new.trouble, before) {
        // The driver's failure and recovery is told once for all devices.
        (None, Some(Cause::Driver)) => None,
        (Some(trouble), _) if before != after => Some(Happening {
            warning: true,
            reason: trouble.cause.event(),
            note: shortened(&format!("{}: {}", name(device), trouble.words)),
        }),
        (None, Some(_)) if critical => Some(Happening {
            warning: false,
            reason: "GPURecovered",
            note: format!("{} is healthy again", name(device)),
        }),
        _ => None,
    }
}

fn driver_events(memory: &Memory, seen: &Seen, events: &mut Vec<Happening>) {
    match &seen.gpus {
        Err(words) if !memory.driver_failed => events.push(Happening {
            warning: true,
            reason: Cause::Driver.event(),
            note: shortened(words),
        }),
        Ok(_) if memory.driver_failed => events.push(Happening {
            warning: false,
            reason: "GPUDriverRecovered",
            note: "the driver answers again".into(),
        }),
        _ => {}
    }
}

fn name(device: &GpuDevice) -> String {
    format!("{} ({})", device.id, device.name)
}

fn line(devices: &[Known], seen: &Seen) -> StatusLine {
    let readings = || devices.iter().map(|known| &known.reading);
    let available = readings().filter(|reading| reading.available).count() as u32;
    let mean = mean(devices);
    let phase = match (seen.node.closed, &seen.gpus) {
        (Some(_), _) => GpuNodePhase::Maintenance,
        (None, Err(_)) => GpuNodePhase::Unavailable,
        (None, Ok(_)) if available == 0 => GpuNodePhase::Unavailable,
        (None, Ok(_)) => GpuNodePhase::Active,
    };
    StatusLine {
        phase,
        message: seen.gpus.as_ref().err().map(|words| shortened(words)),
        available,
        total: devices.len() as u32,
        utilization: (mean * 10.0).round() / 10.0,
        utilization_goal: seen.goal,
        above_goal: mean > f64::from(seen.goal),
        memory_used: readings().map(|reading| reading.memory_used).sum(),
        memory_total: devices.iter().map(|known| known.device.memory_total).sum(),
        temperature: readings().map(|reading| reading.temperature).fold(0.0, f64::max),
        power_usage: readings().map(|reading| reading.power_usage).sum(),
        replicas: seen.node.replicas,
        boot_id: seen.boot.clone(),
        devices: devices.iter().map(device_line).collect(),
    }
}

/// Percent of utilisation over all devices that answer.
fn mean(devices: &[Known]) -> f64 {
    let silent = |known: &&Known| {
        let cause = known.health.trouble.as_ref().map(|trouble| trouble.cause);
        matches!(cause, Some(Cause::Lost | Cause::Driver))
    };
    let answer = || devices.iter().filter(|known| !silent(known));
    let sum: f64 = answer().map(|known| known.reading.utilization).sum();
    sum / answer().count().max(1) as f64
}

fn device_line(known: &Known) -> DeviceLine {
    let Known { health, reading, .. } = known;
    DeviceLine {
        id: reading.id.clone(),
        available: reading.available,
        utilization: reading.utilization,
        memory_used: reading.memory_used,
        temperature: reading.temperature,
        power_usage: reading.power_usage,
        cause: health.trouble.as_ref().map(|trouble| trouble.cause),
        reason: health.trouble.as_ref().map(|trouble| shortened(&trouble.words)),
        xid: health.xid,
    }
}

fn labels(line: &StatusLine, mean: f64) -> BTreeMap<&'static str, String> {
    let schedulable = line.phase == GpuNodePhase::Active && line.available > 0;
    BTreeMap::from([
        (names::NODE_ENABLED, "true".to_owned()),
        (names::NODE_SCHEDULABLE, schedulable.to_string()),
        (names::NODE_COUNT, line.total.to_string()),
        (names::NODE_TIER, tier(mean).to_owned()),
    ])
}

fn annotations(
    spec: &GpuNodeSpec,
    line: &StatusLine,
    now: Timestamp,
) -> BTreeMap<&'static str, String> {
    let json = |written: Result<String, serde_json::Error>| written.unwrap_or_default();
    BTreeMap::from([
        (names::NODE_DEVICES, json(serde_json::to_string(&spec.gpu_devices))),
        (names::NODE_STATUS, json(serde_json::to_string(line))),
        (names::NODE_LAST_UPDATE, now.to_string()),
    ])
}

/// Drivers can be wordy; nobody reads more than this of an Event or a condition.
fn shortened(words: &str) -> String {
    const MOST: usize = 600;
    match words.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &words[..end]),
        None => words.to_owned(),
    }
}

#[cfg(test)]
#[path = "observe_tests.rs"]
mod tests;
