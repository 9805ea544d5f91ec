//! Builds the `GPUNode`, the labels and annotations of the node, and events from an observation. Pure.

use agentaflow_kube_core::crd::{
    GpuDevice, GpuNode, GpuNodePhase, GpuNodeSpec, GpuNodeStatus, GpuStatus,
};
use agentaflow_kube_core::names;
use std::collections::BTreeMap;

use agentaflow_gpu::{
    Cause, Device, DeviceObservation, Health, HealthProblem, Sample, machine_problem,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::conditions;
use super::line::{DeviceLine, StatusLine};
use super::observation::{Gpus, Observation};

/// State kept between two intervals.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MonitorState {
    /// In the order of their first observation.
    pub devices: Vec<DeviceRecord>,
    /// Published conditions.
    pub conditions: Vec<Condition>,
    /// Boot id.
    pub boot: String,
    /// The node was cordoned or in maintenance.
    pub closed: bool,
    pub driver_failed: bool,
}

/// Device with its health.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceRecord {
    pub device: GpuDevice,
    pub health: Health,
    pub reading: GpuStatus,
}

/// Kubernetes event about the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEvent {
    pub warning: bool,
    /// `GPULost`, `GPURecovered`, …
    pub reason: &'static str,
    pub note: String,
}

/// Data to publish.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    pub spec: GpuNodeSpec,
    pub status: GpuNodeStatus,
    /// Labels of the node.
    pub labels: BTreeMap<&'static str, String>,
    /// Annotations of the node.
    pub annotations: BTreeMap<&'static str, String>,
    /// Contents of the status annotation.
    pub line: StatusLine,
    pub events: Vec<NodeEvent>,
    pub memory: MonitorState,
}

/// Builds the report of an observation.
pub fn observe(memory: &MonitorState, seen: &Observation, now: Timestamp) -> Report {
    let closed = seen.node.closed;
    let rebooted = !memory.boot.is_empty() && memory.boot != seen.boot;
    let fresh = rebooted || (memory.closed && closed.is_none());
    let mut events = Vec::new();
    let mut devices = match &seen.gpus {
        Ok(gpus) => update_devices(memory, seen, gpus, fresh, &mut events),
        Err(message) => driver_failed_devices(memory, message),
    };
    close_machine(&mut devices);
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
        memory: MonitorState {
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

/// State of an earlier monitor, from its published objects.
pub fn restore(published: Option<&GpuNode>, line: Option<&str>) -> MonitorState {
    let line: StatusLine =
        line.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let Some(published) = published else { return MonitorState::default() };
    let status = published.status.clone().unwrap_or_default();
    let known = |device: &GpuDevice| {
        let reported = line.devices.iter().find(|reported| reported.id == device.id);
        let reading = status.gpu_status.iter().find(|status| status.id == device.id);
        let problem = reported.and_then(|reported| {
            let message = reported.reason.clone().unwrap_or_default();
            Some(HealthProblem { cause: reported.cause?, message, better: 0 })
        });
        DeviceRecord {
            device: device.clone(),
            health: Health { problem, xid: reported.and_then(|reported| reported.xid) },
            reading: reading
                .cloned()
                .unwrap_or_else(|| GpuStatus { id: device.id.clone(), ..GpuStatus::default() }),
        }
    };
    MonitorState {
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

/// Devices after a sample. A lost device stays in the list until the machine is restarted or maintenance ends.
fn update_devices(
    memory: &MonitorState,
    seen: &Observation,
    gpus: &Gpus,
    fresh: bool,
    events: &mut Vec<NodeEvent>,
) -> Vec<DeviceRecord> {
    let mut devices = Vec::new();
    let mut silent = 0;
    for known in &memory.devices {
        let found = gpus.devices.iter().find(|(device, _)| device.uuid == known.device.id);
        if found.is_none() && agentaflow_gpu::is_unreadable(&known.device.id) {
            // The device became readable.
            continue;
        }
        if found.is_none() && fresh {
            let note = format!("{} was removed from the machine", name(&known.device));
            events.push(NodeEvent { warning: true, reason: "GPURemoved", note });
            continue;
        }
        silent += usize::from(found.is_none());
        devices.push(step(known, found, seen, gpus, fresh, events));
    }
    for found @ (device, _) in &gpus.devices {
        if memory.devices.iter().any(|known| known.device.id == device.uuid) {
            continue;
        }
        // An unreadable device is one of the missing ones.
        if silent > 0 && agentaflow_gpu::is_unreadable(&device.uuid) {
            silent -= 1;
            continue;
        }
        devices.push(step(&DeviceRecord::default(), Some(found), seen, gpus, fresh, events));
    }
    devices
}

/// Makes all devices unavailable while a driver error of one asks for a restart of the machine.
fn close_machine(devices: &mut [DeviceRecord]) {
    let all = devices.iter().map(|known| (known.device.id.as_str(), &known.health));
    let Some(problem) = machine_problem(all) else { return };
    for known in devices.iter_mut().filter(|known| known.health.is_available()) {
        known.reading.available = false;
        known.reading.reason = Some(shortened(&problem));
    }
}

fn step(
    known: &DeviceRecord,
    found: Option<&(Device, Sample)>,
    seen: &Observation,
    gpus: &Gpus,
    fresh: bool,
    events: &mut Vec<NodeEvent>,
) -> DeviceRecord {
    let look =
        found.map_or(DeviceObservation::Gone, |(_, sample)| DeviceObservation::Sample(sample));
    let health = known.health.after(look, fresh);
    let device = found.map_or_else(|| known.device.clone(), |(gpu, _)| describe(known, gpu, gpus));
    events.extend(change(&device, &known.health, &health));
    let id = device.id.clone();
    let reading = GpuStatus {
        available: health.is_available(),
        xid: health.xid,
        lost: is_lost(&health),
        power_limit: found.and_then(|(device, _)| device.power_limit),
        current_workload: seen.holders.of_device(&id),
        reason: health.message().map(|message| shortened(&message)),
        id,
        ..found.map(|(_, sample)| reading(sample)).unwrap_or_default()
    };
    DeviceRecord { device, health, reading }
}

/// Last known devices, all unavailable.
fn driver_failed_devices(memory: &MonitorState, message: &str) -> Vec<DeviceRecord> {
    let out = |known: &DeviceRecord| {
        let health = known.health.after(DeviceObservation::DriverFailed(message), false);
        let reading = GpuStatus {
            available: false,
            xid: health.xid,
            lost: is_lost(&health),
            reason: health.message().map(|message| shortened(&message)),
            current_workload: known.reading.current_workload.clone(),
            id: known.device.id.clone(),
            ..GpuStatus::default()
        };
        DeviceRecord { device: known.device.clone(), health, reading }
    };
    memory.devices.iter().map(out).collect()
}

/// Description of a device; an unreadable one keeps its last description.
fn describe(known: &DeviceRecord, gpu: &Device, gpus: &Gpus) -> GpuDevice {
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

/// True for a device that does not respond, or reports a fault.
fn is_lost(health: &Health) -> bool {
    let cause = health.problem.as_ref().map(|problem| problem.cause);
    matches!(cause, Some(Cause::Driver | Cause::Lost | Cause::Fault))
}

/// Rounded readings: every difference causes a write.
fn reading(sample: &Sample) -> GpuStatus {
    GpuStatus {
        memory_used: sample.memory_used.unwrap_or(0),
        utilization: f64::from(sample.utilization.unwrap_or(0)),
        temperature: f64::from(sample.temperature.unwrap_or(0)),
        power_usage: sample.power.unwrap_or(0.0).max(0.0).round(),
        ecc_errors: sample.ecc_errors.filter(|errors| *errors > 0),
        ..GpuStatus::default()
    }
}

/// Event for a change of health.
fn change(device: &GpuDevice, old: &Health, new: &Health) -> Option<NodeEvent> {
    let cause = |health: &Health| health.problem.as_ref().map(|problem| problem.cause);
    let (before, after) = (cause(old), cause(new));
    let critical = before.is_some_and(Cause::is_critical);
    match (&new.problem, before) {
        // One event reports the driver's failure and recovery for all devices.
        (None, Some(Cause::Driver)) => None,
        (Some(problem), _) if before != after => Some(NodeEvent {
            warning: true,
            reason: problem.cause.event(),
            note: shortened(&format!("{}: {}", name(device), problem.message)),
        }),
        (None, Some(_)) if critical => Some(NodeEvent {
            warning: false,
            reason: "GPURecovered",
            note: format!("{} is healthy again", name(device)),
        }),
        _ => None,
    }
}

fn driver_events(memory: &MonitorState, seen: &Observation, events: &mut Vec<NodeEvent>) {
    match &seen.gpus {
        Err(message) if !memory.driver_failed => events.push(NodeEvent {
            warning: true,
            reason: Cause::Driver.event(),
            note: shortened(message),
        }),
        Ok(_) if memory.driver_failed => events.push(NodeEvent {
            warning: false,
            reason: "GPUDriverRecovered",
            note: "the driver responds again".into(),
        }),
        _ => {}
    }
}

fn name(device: &GpuDevice) -> String {
    format!("{} ({})", device.id, device.name)
}

fn line(devices: &[DeviceRecord], seen: &Observation) -> StatusLine {
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
        message: seen.gpus.as_ref().err().map(|message| shortened(message)),
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

/// Utilization in percent over all responding devices.
fn mean(devices: &[DeviceRecord]) -> f64 {
    let silent = |known: &&DeviceRecord| {
        let cause = known.health.problem.as_ref().map(|problem| problem.cause);
        matches!(cause, Some(Cause::Lost | Cause::Driver))
    };
    let answer = || devices.iter().filter(|known| !silent(known));
    let sum: f64 = answer().map(|known| known.reading.utilization).sum();
    sum / answer().count().max(1) as f64
}

fn device_line(known: &DeviceRecord) -> DeviceLine {
    let DeviceRecord { health, reading, .. } = known;
    DeviceLine {
        id: reading.id.clone(),
        available: reading.available,
        utilization: reading.utilization,
        memory_used: reading.memory_used,
        temperature: reading.temperature,
        power_usage: reading.power_usage,
        cause: health.problem.as_ref().map(|problem| problem.cause),
        reason: health.problem.as_ref().map(|problem| shortened(&problem.message)),
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

/// Bounds messages of drivers in events and conditions.
fn shortened(message: &str) -> String {
    const MOST: usize = 600;
    match message.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &message[..end]),
        None => message.to_owned(),
    }
}

#[cfg(test)]
#[path = "observe_tests.rs"]
mod tests;
