//! Renders the engine's answers as lines of a script.
//!
//! Sentences for users (wait reasons, shortfalls, alternatives, start times) come from `agentaflow-explain`, so
//! the scripts show the text that users see. This file adds the lines of the script language only.

use std::fmt::Write;

use agentaflow_engine::{
    Alternative, Decision, Explanation, Fault, GpuAssignment, GpuHealth, GpuShare, NodeId,
    NodeView, OnFault, Placement, Plan, PreemptionReason, QueueView, ResourceTotals, Shortfall,
    Time, Victim, WhatIf, WorkloadId, WorkloadState, WorkloadView,
};
use agentaflow_explain as explain;

pub(crate) fn plan(plan: &Plan, now: Time) -> Vec<String> {
    let mut lines: Vec<String> =
        plan.decisions.iter().map(|decision| self::decision(decision, now)).collect();
    if lines.is_empty() {
        lines.push("no decisions".to_owned());
    }
    lines.extend(plan.wake_at.map(|at| format!("wake at {}", time(at))));
    lines
}

fn decision(decision: &Decision, now: Time) -> String {
    match decision {
        Decision::Place(placed) => format!("place {}", placement(placed)),
        Decision::Preempt { victims, beneficiary, until } => {
            let victims: Vec<String> = victims.iter().map(victim).collect();
            format!("preempt {} for {beneficiary}, hold until {}", victims.join(" "), time(*until))
        }
        Decision::Displace { workload, cause, action } => {
            let action = match action {
                OnFault::Requeue => "requeue",
                OnFault::Keep => "keep",
            };
            format!("{action} {workload}: {}", fault(cause))
        }
        Decision::AwaitReplacement { workload, task, node, until } => {
            let place =
                node.as_ref().map_or("no room".to_owned(), |node| format!("place on {node}"));
            format!("await replacement of {workload}/{task}: {place}, until {}", time(*until))
        }
        Decision::Wait { workload, reason } => {
            format!("pending {workload}: {}", explain::reason(reason, now))
        }
    }
}

fn victim(victim: &Victim) -> String {
    match victim.reason {
        PreemptionReason::Priority => victim.workload.to_string(),
        PreemptionReason::Reclaim => format!("{} (reclaim)", victim.workload),
    }
}

fn placement(placed: &Placement) -> String {
    let Placement { workload, task, node, gpus } = placed;
    format!("{workload}/{task} on {node}{}", devices(gpus))
}

fn devices(gpus: &GpuAssignment) -> String {
    match gpus {
        GpuAssignment::Count(count) => format!(" gpus {count} chosen by node"),
        GpuAssignment::Devices(devices) if devices.is_empty() => String::new(),
        GpuAssignment::Devices(devices) => {
            let devices = devices.iter().map(|device| match &device.share {
                GpuShare::Whole => device.gpu.to_string(),
                GpuShare::Fraction { milli, mib } => format!("{}[{milli}/1000, {mib}]", device.gpu),
                GpuShare::MigSlice { profile, start } => {
                    format!("{}[{}@{start}]", device.gpu, profile.as_str())
                }
            });
            format!(" gpu {}", devices.collect::<Vec<_>>().join(" "))
        }
    }
}

fn fault(fault: &Fault) -> String {
    match fault {
        Fault::NodeLost(node) => format!("node {node} lost"),
        Fault::Draining(node) => format!("node {node} draining"),
        Fault::GpuDraining { node, gpu } => format!("GPU {gpu} of {node} draining"),
        Fault::SpotReclaim { node, at } => format!("node {node} reclaimed at {}", time(*at)),
        Fault::GpuFailed { node, gpu } => format!("GPU {gpu} of {node} failed"),
        Fault::ReplacementMissing { task } => format!("task {task} was not replaced in time"),
        Fault::GangBroken { task } => format!("task {task} of the gang lost"),
    }
}

pub(crate) fn explanation(explained: &Explanation, now: Time) -> Vec<String> {
    let mut lines = explain::explanation(explained, now);
    lines.extend(explained.closest.iter().map(closest));
    lines
}

pub(crate) fn what_if(answer: &WhatIf, now: Time) -> Vec<String> {
    let WhatIf { eta, placements, victims, reason, alternatives, closest } = answer;
    let mut lines = vec![explain::eta(*eta, now)];
    lines.extend(placements.iter().map(placement));
    if !victims.is_empty() {
        let victims: Vec<String> = victims.iter().map(ToString::to_string).collect();
        lines.push(format!("preempt {}", victims.join(" ")));
    }
    lines.extend(reason.as_ref().map(|reason| explain::reason(reason, now)));
    lines.extend(self::alternatives(alternatives));
    lines.extend(closest.iter().map(self::closest));
    lines
}

fn alternatives(alternatives: &[Alternative]) -> Option<String> {
    explain::alternatives(alternatives.iter().map(explain::alternative))
}

fn closest((node, shortfall): &(NodeId, Shortfall)) -> String {
    format!("closest {node}: {}", explain::shortfall_of(node.as_str(), shortfall))
}

pub(crate) fn node(view: &NodeView) -> String {
    let mut text = format!(
        "{}: cpu {}m, memory {}, tasks {}",
        view.node.id, view.cpu_free, view.memory_free, view.tasks
    );
    if !view.gpus.is_empty() {
        text.push_str(", gpus");
    }
    for gpu in &view.gpus {
        let _ = write!(text, " {}[{}/1000 {}MiB", gpu.id, gpu.milli_free, gpu.memory_free);
        text.push_str(match gpu.health {
            GpuHealth::Healthy => "",
            GpuHealth::Cordoned => " cordoned",
            GpuHealth::Draining => " draining",
            GpuHealth::Failed => " failed",
            GpuHealth::Degraded => " degraded",
        });
        if gpu.utilization.get() > 0 {
            let _ = write!(text, " {}%", gpu.utilization.get());
        }
        text.push(']');
    }
    for (marked, word) in [
        (!view.up, "lost"),
        (view.up && !view.open, "unschedulable"),
        (view.overcommitted, "overcommitted"),
    ] {
        if marked {
            let _ = write!(text, ", {word}");
        }
    }
    text
}

pub(crate) fn workload(view: &WorkloadView) -> String {
    let state = match view.state {
        WorkloadState::Pending => "pending",
        WorkloadState::Placed => "placed",
        WorkloadState::Running => "running",
        WorkloadState::Stopping => "stopping",
    };
    let mut text = format!("{} {state}", view.workload.id);
    for task in &view.tasks {
        let _ = write!(text, ", {} on {}{}", task.task, task.node, devices(&task.gpus));
    }
    for lost in &view.lost {
        let place = lost.node.as_ref().map_or("no place", NodeId::as_str);
        let _ = write!(text, ", {} lost ({place}, until {})", lost.task, time(lost.until));
    }
    text
}

pub(crate) fn queue(view: &QueueView) -> String {
    let ResourceTotals { cpu_milli, memory, storage, gpu_milli } = view.used;
    let id = &view.id;
    let count = view.workloads;
    format!(
        "{id}: {count} workloads, uses cpu {cpu_milli}m, memory {memory}, storage {storage}, gpu {gpu_milli}/1000"
    )
}

pub(crate) fn expected_starts(starts: impl Iterator<Item = (WorkloadId, Time)>) -> Vec<String> {
    starts.map(|(workload, at)| format!("{workload} at {}", time(at))).collect()
}

/// A point in time in the notation of the scripts: `1h5m`.
fn time(at: Time) -> String {
    let (mut rest, mut text) = (at.0, String::new());
    for (unit, size) in [("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)] {
        if rest >= size {
            let _ = write!(text, "{}{unit}", rest / size);
            rest %= size;
        }
    }
    if text.is_empty() { "0".to_owned() } else { text }
}
