//! Selects the parts of a report to write. Pure.
//!
//! The API server sends every write to a node to every kubelet and scheduler that watches it; with a thousand nodes
//! even small writes add up. Readings are written after a change larger than their step, changes that affect
//! scheduling at once, and everything at least once a minute.

use agentaflow_kube_core::crd::{GpuNodeSpec, GpuNodeStatus, GpuStatus};
use agentaflow_kube_core::{names, slim};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::line::StatusLine;
use super::observe::Report;

/// The longest time between two writes.
pub const REFRESH: Duration = Duration::from_mins(1);

/// Significant change in percent.
const UTILIZATION_STEP: f64 = 5.0;
/// Significant change in MiB.
const MEMORY_STEP: u64 = 256;
/// Significant change in degrees.
const TEMPERATURE_STEP: f64 = 5.0;
/// Significant change in watts.
const POWER_STEP: f64 = 25.0;

/// Last confirmed writes with their times.
#[derive(Clone, Debug, Default)]
pub struct LastWrites {
    pub spec: Option<GpuNodeSpec>,
    pub status: Option<(GpuNodeStatus, Timestamp)>,
    /// Value of the node's status annotation.
    pub line: Option<(StatusLine, Timestamp)>,
}

/// Writes to make now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PendingWrites {
    pub spec: bool,
    pub status: bool,
    /// The status annotation is part of the node's patch.
    pub line: bool,
    /// Merge patch of the node with the differences only.
    pub node: Option<Value>,
}

/// Selects the writes; everything older than `again_after` is written again.
pub fn diff(
    written: &LastWrites,
    node: &slim::Node,
    report: &Report,
    now: Timestamp,
    again_after: Duration,
) -> PendingWrites {
    let due = |then: Timestamp| {
        // The age is unknown after the clock was set back: write again.
        !Duration::try_from(now.duration_since(then)).is_ok_and(|passed| passed < again_after)
    };
    let status = match &written.status {
        Some((old, then)) => is_significant(old, &report.status) || due(*then),
        None => true,
    };
    let line = match &written.line {
        Some((old, then)) => affects_scheduling(old, &report.line) || due(*then),
        None => true,
    };
    let spec = written.spec.as_ref() != Some(&report.spec);
    PendingWrites { spec, status: status || spec, line, node: patch(node, report, line) }
}

/// True if a reading changed by more than its step, or any other field changed.
fn is_significant(old: &GpuNodeStatus, new: &GpuNodeStatus) -> bool {
    let conditions = |status: &GpuNodeStatus| -> Vec<[String; 4]> {
        let text = status.conditions.iter();
        text.map(|c| [c.type_.clone(), c.status.clone(), c.reason.clone(), c.message.clone()])
            .collect()
    };
    old.phase != new.phase
        || old.gpu_status.len() != new.gpu_status.len()
        || conditions(old) != conditions(new)
        || old.gpu_status.iter().zip(&new.gpu_status).any(|(old, new)| moved(old, new))
}

fn moved(old: &GpuStatus, new: &GpuStatus) -> bool {
    let far = |old: f64, new: f64, step: f64| (old - new).abs() >= step;
    (&old.id, old.available, &old.reason, &old.current_workload)
        != (&new.id, new.available, &new.reason, &new.current_workload)
        || far(old.utilization, new.utilization, UTILIZATION_STEP)
        || far(old.temperature, new.temperature, TEMPERATURE_STEP)
        || far(old.power_usage, new.power_usage, POWER_STEP)
        || old.memory_used.abs_diff(new.memory_used) >= MEMORY_STEP
}

/// True if a change affects scheduling; readings alone wait for the periodic write.
fn affects_scheduling(old: &StatusLine, new: &StatusLine) -> bool {
    let devices = |line: &StatusLine| -> Vec<_> {
        let each = line.devices.iter();
        each.map(|device| (device.id.clone(), device.available, device.cause, device.xid)).collect()
    };
    (old.phase, old.above_goal, old.utilization_goal, old.replicas)
        != (new.phase, new.above_goal, new.utilization_goal, new.replicas)
        || (&old.message, &old.boot_id) != (&new.message, &new.boot_id)
        || devices(old) != devices(new)
}

fn patch(node: &slim::Node, report: &Report, line: bool) -> Option<Value> {
    let has =
        |kept: &Option<std::collections::BTreeMap<String, String>>, key: &str, value: &str| {
            kept.as_ref().and_then(|kept| kept.get(key)).is_some_and(|there| there == value)
        };
    let mut labels = Map::new();
    for (key, value) in &report.labels {
        if !has(&node.metadata.labels, key, value) {
            labels.insert((*key).into(), json!(value));
        }
    }
    let mut annotations = Map::new();
    for (key, value) in &report.annotations {
        let differs = !has(&node.metadata.annotations, key, value);
        if differs && (line || *key == names::NODE_DEVICES) {
            annotations.insert((*key).into(), json!(value));
        }
    }
    let parts = [("labels", labels), ("annotations", annotations)];
    let parts: Map<String, Value> = parts
        .into_iter()
        .filter(|(_, part)| !part.is_empty())
        .map(|(name, part)| (name.to_owned(), Value::Object(part)))
        .collect();
    (!parts.is_empty()).then(|| json!({ "metadata": parts }))
}

#[cfg(test)]
#[path = "diff_tests.rs"]
mod tests;
