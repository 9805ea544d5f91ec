//! What of a report has to be written. Pure.
//!
//! Every write to a node is sent to every kubelet and scheduler that watches it, and with a thousand nodes even small
//! ones add up. So readings are written when they moved by more than their steps, what changes the use of a GPU at
//! once, and everything at least once a minute.

use agentaflow_kube_core::crd::{GpuNodeSpec, GpuNodeStatus, GpuStatus};
use agentaflow_kube_core::{names, slim};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::line::StatusLine;
use super::observe::Report;

/// The longest time between two writes.
pub const REFRESH: Duration = Duration::from_mins(1);

/// Percent of utilisation that are news.
const UTILIZATION_STEP: f64 = 5.0;
/// MiB that are news.
const MEMORY_STEP: u64 = 256;
/// Degrees that are news.
const TEMPERATURE_STEP: f64 = 5.0;
/// Watts that are news.
const POWER_STEP: f64 = 25.0;

/// What was written before, and when.
#[derive(Clone, Debug, Default)]
pub struct Written {
    /// The `GPUNode`'s spec.
    pub spec: Option<GpuNodeSpec>,
    /// The `GPUNode`'s status.
    pub status: Option<(GpuNodeStatus, Timestamp)>,
    /// The line in the node's annotation.
    pub line: Option<(StatusLine, Timestamp)>,
}

/// What has to be written now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Writes {
    /// The `GPUNode`'s spec.
    pub spec: bool,
    /// The `GPUNode`'s status.
    pub status: bool,
    /// The status annotation is part of the node's patch.
    pub line: bool,
    /// A merge patch for the node with nothing in it but what differs.
    pub node: Option<Value>,
}

/// Decides what to write; what was written so long ago is written again.
pub fn diff(
    written: &Written,
    node: &slim::Node,
    report: &Report,
    now: Timestamp,
    again_after: Duration,
) -> Writes {
    let due = |then: Timestamp| {
        // A clock that was set back says nothing about how long ago that was.
        !Duration::try_from(now.duration_since(then)).is_ok_and(|passed| passed < again_after)
    };
    let status = match &written.status {
        Some((old, then)) => is_news(old, &report.status) || due(*then),
        None => true,
    };
    let line = match &written.line {
        Some((old, then)) => is_weighty(old, &report.line) || due(*then),
        None => true,
    };
    let spec = written.spec.as_ref() != Some(&report.spec);
    Writes { spec, status: status || spec, line, node: patch(node, report, line) }
}

/// A reading moved by more than its step, or something changed that is not a reading.
fn is_news(old: &GpuNodeStatus, new: &GpuNodeStatus) -> bool {
    let conditions = |status: &GpuNodeStatus| -> Vec<[String; 4]> {
        let told = status.conditions.iter();
        told.map(|c| [c.type_.clone(), c.status.clone(), c.reason.clone(), c.message.clone()])
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

/// Something changed that decides whether work goes there; readings alone wait for the minute.
fn is_weighty(old: &StatusLine, new: &StatusLine) -> bool {
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
