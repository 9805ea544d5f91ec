//! The engine's answers as lines that people can read.

use std::fmt::Write;

use agentaflow_engine::{
    Alternative, Decision, Eta, Explanation, Fault, FitSummary, Gate, GpuAssignment, GpuHealth,
    GpuShare, NodeId, NodeView, OnFault, Placement, Plan, PreemptionReason, QueueView,
    QuotaResource, Shortfall, Time, UnavailableGpus, Victim, WaitReason, WhatIf, WorkloadId,
    WorkloadState, WorkloadView,
};

pub(crate) fn plan(plan: &Plan) -> Vec<String> {
    let mut lines: Vec<String> = plan.decisions.iter().map(decision).collect();
    if lines.is_empty() {
        lines.push("nothing to do".to_owned());
    }
    lines.extend(plan.wake_at.map(|at| format!("ask again at {}", time(at))));
    lines
}

fn decision(decision: &Decision) -> String {
    match decision {
        Decision::Place(placed) => format!("place {}", placement(placed)),
        Decision::Preempt { victims, beneficiary, until } => {
            let victims: Vec<String> = victims.iter().map(victim).collect();
            format!("stop {} for {beneficiary}, hold until {}", victims.join(" "), time(*until))
        }
        Decision::Displace { workload, cause, action } => {
            let action = match action {
                OnFault::Requeue => "requeue",
                OnFault::Keep => "keep",
            };
            format!("{action} {workload}: {}", fault(cause))
        }
        Decision::Wait { workload, reason } => {
            format!("{workload} waits: {}", self::reason(reason))
        }
    }
}

fn victim(victim: &Victim) -> String {
    match victim.reason {
        PreemptionReason::Priority => victim.workload.to_string(),
        PreemptionReason::Reclaim => format!("{}, which borrows,", victim.workload),
    }
}

fn placement(placed: &Placement) -> String {
    let Placement { workload, task, node, gpus } = placed;
    format!("{workload}/{task} on {node}{}", devices(gpus))
}

fn devices(gpus: &GpuAssignment) -> String {
    match gpus {
        GpuAssignment::Count(count) => format!(" gpus {count} of its choice"),
        GpuAssignment::Devices(parts) if parts.is_empty() => String::new(),
        GpuAssignment::Devices(parts) => {
            let parts = parts.iter().map(|part| match &part.share {
                GpuShare::Whole => part.gpu.to_string(),
                GpuShare::Fraction { milli, mib } => format!("{}[{milli}/1000, {mib}]", part.gpu),
                GpuShare::MigSlice { profile, start } => {
                    format!("{}[{}@{start}]", part.gpu, profile.as_str())
                }
            });
            format!(" gpu {}", parts.collect::<Vec<_>>().join(" "))
        }
    }
}

fn fault(fault: &Fault) -> String {
    match fault {
        Fault::NodeLost(node) => format!("node {node} is lost"),
        Fault::Draining(node) => format!("node {node} is drained"),
        Fault::GpuDraining { node, gpu } => format!("GPU {gpu} of {node} is drained"),
        Fault::SpotReclaim { node, at } => format!("node {node} is taken back at {}", time(*at)),
        Fault::GpuFailed { node, gpu } => format!("GPU {gpu} of {node} is sick or gone"),
        Fault::GangBroken { task } => format!("task {task} of its gang is missing"),
    }
}

fn reason(reason: &WaitReason) -> String {
    match reason {
        WaitReason::NoNodes => "there are no nodes".to_owned(),
        WaitReason::NoRoom(tally) => format!("no room now: {}", self::tally(tally)),
        WaitReason::NeverFits(tally) => format!("never fits: {}", self::tally(tally)),
        WaitReason::Gang { needs, fits, fits_when_empty: ever, summary: tally } => {
            let ever = if *ever { "" } else { ", and never will" };
            format!("{fits} of {needs} tasks fit{ever}: {}", self::tally(tally))
        }
        WaitReason::Quota { queue, resource, limit, used, reserved: kept, requested: asked } => {
            let resource = quota(resource);
            let kept = if *kept > 0 { format!(", {kept} kept") } else { String::new() };
            format!(
                "queue {queue} may use {limit} {resource}, uses {used}{kept}, {asked} more asked"
            )
        }
        WaitReason::Reserved { workload: by, until } => {
            let until = until.map(|until| format!(" until {}", time(until))).unwrap_or_default();
            format!("the room is held for {by}{until}")
        }
        WaitReason::Preempting { victims, until } => {
            format!("{} must go first, by {}", names(victims), time(*until))
        }
        WaitReason::BackingOff { until, refusals } => {
            format!("refused {refusals} times, again at {}", time(*until))
        }
        WaitReason::Gated(Gate::Budget(whose)) => format!("gate: budget {whose}"),
        WaitReason::Gated(Gate::Paused(why)) => format!("gate: paused, {why}"),
        WaitReason::Gated(Gate::GangIncomplete { have, need }) => {
            format!("gate: {have} of {need} parts")
        }
    }
}

fn quota(resource: &QuotaResource) -> String {
    match resource {
        QuotaResource::Cpu => "cpu (m)".to_owned(),
        QuotaResource::Memory => "memory (MiB)".to_owned(),
        QuotaResource::Storage => "storage (MiB)".to_owned(),
        QuotaResource::Gpu => "gpu (1/1000)".to_owned(),
        QuotaResource::GpuModel(model) => format!("{model} (1/1000)"),
        QuotaResource::Named(name) => name.to_string(),
    }
}

fn tally(tally: &FitSummary) -> String {
    let mut text = format!("{} nodes", tally.nodes);
    for (at, (lack, nodes)) in tally.shortfalls.iter().enumerate() {
        let sign = if at == 0 { ": " } else { "; " };
        let _ = write!(text, "{sign}{nodes} {}", self::lack(lack));
    }
    text
}

fn lack(lack: &Shortfall) -> String {
    match lack {
        Shortfall::NotReady => "down".to_owned(),
        Shortfall::Unschedulable => "closed".to_owned(),
        Shortfall::OtherNode => "not the node asked for".to_owned(),
        Shortfall::NodeSelector => "not selected".to_owned(),
        Shortfall::NodeAffinity => "outside the node affinity".to_owned(),
        Shortfall::Taint(taint) => format!("tainted {taint}"),
        Shortfall::NoGpu => "without GPU".to_owned(),
        Shortfall::WholeGpusOnly => "that hands out whole GPUs only".to_owned(),
        Shortfall::GpuModel { has, .. } => {
            let has: Vec<_> = has.iter().map(ToString::to_string).collect();
            format!("of another model ({})", has.join(", "))
        }
        Shortfall::GpuModelQuota(model) => format!("with {model} beyond quota"),
        Shortfall::GpuSize { need, largest } => {
            format!("with GPUs too small ({largest}, need {need})")
        }
        Shortfall::GpuCount { need, most } => format!("with too few GPUs ({most}, need {need})"),
        Shortfall::FreeGpus { need, most } => {
            format!("with too few free GPUs ({most}, need {need})")
        }
        Shortfall::GpuShare { need, most } => {
            format!("without a share of {need} (most left {most})")
        }
        Shortfall::GpuMemory { need, most } => {
            format!("without {need} on one GPU (most left {most})")
        }
        Shortfall::NoMigProfile(profile) => format!("without {}", profile.as_str()),
        Shortfall::MigSlice { profile, need, most } => {
            format!("with places for {most} {}, need {need}", profile.as_str())
        }
        Shortfall::NvLink { need, most } => {
            format!("with {most} free in one NVLink group, need {need}")
        }
        Shortfall::UnavailableGpus(UnavailableGpus { cordoned, draining, failed: sick, gpus }) => {
            let open =
                if gpus.is_empty() { String::new() } else { format!("; open {}", names(gpus)) };
            format!(
                "with closed GPUs ({cordoned} cordoned, {draining} draining, {sick} sick{open})"
            )
        }
        Shortfall::Cpu { need, most } => format!("short of CPU ({most}, need {need})"),
        Shortfall::Memory { need, most } => format!("short of memory ({most}, need {need})"),
        Shortfall::Storage { need, most } => format!("short of storage ({most}, need {need})"),
        Shortfall::TaskLimit => "at the job limit".to_owned(),
        Shortfall::Resource { name, need, most } => {
            format!("short of {name} ({most}, need {need})")
        }
        Shortfall::Token(token) => format!("without {token} to give"),
        Shortfall::TaskAffinity => "not near what it wants".to_owned(),
        Shortfall::TaskAntiAffinity => "with tasks to stay away from".to_owned(),
        Shortfall::TopologySpread => "in a domain with its share".to_owned(),
    }
}

pub(crate) fn explanation(explained: &Explanation) -> Vec<String> {
    let Explanation { reason, position, waiting, alternatives: nearby, closest, eta } = explained;
    let mut lines = Vec::new();
    lines.push(reason.as_ref().map_or("nothing in the way".to_owned(), self::reason));
    lines.extend(position.map(|position| format!("position {position} of {waiting}")));
    lines.extend(nearby_line(nearby));
    lines.extend(closest.iter().map(close));
    lines.push(format!("starts {}", self::eta(*eta)));
    lines
}

fn nearby_line(nearby: &[Alternative]) -> Option<String> {
    let one = |nearby: &Alternative| match nearby {
        Alternative::GpuCount(count) => format!("{count} GPUs"),
        Alternative::GpuFraction(share) => format!("a share of {}", share.get()),
        Alternative::GpuMemory(mib) => format!("{mib} of GPU memory"),
        Alternative::MinGpuMemory(mib) => format!("GPUs of {mib}"),
        Alternative::Models(models) => format!("models {}", names(models)),
        Alternative::Tasks(tasks) => format!("{tasks} tasks"),
        Alternative::Cpu(cpu) => format!("{cpu} CPU"),
        Alternative::Memory(mib) => format!("{mib} of memory"),
        Alternative::WithoutNvlink => "no NVLink".to_owned(),
        Alternative::Shared => "a shared GPU".to_owned(),
    };
    let all: Vec<_> = nearby.iter().map(one).collect();
    (!all.is_empty()).then(|| format!("would start now with: {}", all.join(", or ")))
}

fn eta(eta: Eta) -> String {
    match eta {
        Eta::Now => "now".to_owned(),
        Eta::At(at) => format!("at {}", time(at)),
        Eta::Unknown => "at an unknown time".to_owned(),
    }
}

pub(crate) fn what_if(answer: &WhatIf) -> Vec<String> {
    let WhatIf { eta, placements, victims, reason, alternatives: nearby, closest } = answer;
    let mut lines = vec![format!("starts {}", self::eta(*eta))];
    lines.extend(placements.iter().map(placement));
    if !victims.is_empty() {
        lines.push(format!("stopping {}", names(victims)));
    }
    lines.extend(reason.as_ref().map(|reason| format!("because {}", self::reason(reason))));
    lines.extend(nearby_line(nearby));
    lines.extend(closest.iter().map(close));
    lines
}

fn close((node, lack): &(NodeId, Shortfall)) -> String {
    format!("closest: {node}, {}", self::lack(lack))
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
        match gpu.health {
            GpuHealth::Healthy => {}
            GpuHealth::Cordoned => text.push_str(" cordoned"),
            GpuHealth::Draining => text.push_str(" draining"),
            GpuHealth::Failed => text.push_str(" sick"),
            GpuHealth::Degraded => text.push_str(" unfit"),
        }
        if gpu.utilization.get() > 0 {
            let _ = write!(text, " {}%", gpu.utilization.get());
        }
        text.push(']');
    }
    for (marked, word) in [
        (!view.up, "lost"),
        (view.up && !view.open, "closed"),
        (view.overcommitted, "over-committed"),
    ] {
        if marked {
            let _ = write!(text, ", {word}");
        }
    }
    text
}

pub(crate) fn workload(view: &WorkloadView) -> String {
    let state = match view.state {
        WorkloadState::Pending => "waits",
        WorkloadState::Placed => "placed",
        WorkloadState::Running => "runs",
        WorkloadState::Stopping => "stops",
    };
    let mut text = format!("{} {state}", view.workload.id);
    for task in &view.tasks {
        let _ = write!(text, ", {} on {}{}", task.task, task.node, devices(&task.gpus));
    }
    text
}

pub(crate) fn queue(view: &QueueView) -> String {
    let [cpu, memory, storage, gpu] = view.used;
    let id = &view.id;
    let count = view.workloads;
    format!(
        "{id}: {count} workloads, uses cpu {cpu}m, memory {memory}, storage {storage}, gpu {gpu}/1000"
    )
}

fn names<T: std::fmt::Display>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

pub(crate) fn started(starts: impl Iterator<Item = (WorkloadId, Time)>) -> Vec<String> {
    starts.map(|(workload, at)| format!("{workload} at {}", time(at))).collect()
}

/// Time as a script writes it.
pub(crate) fn time(at: Time) -> String {
    let (mut rest, mut text) = (at.0, String::new());
    for (unit, size) in [("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)] {
        if rest >= size {
            let _ = write!(text, "{}{unit}", rest / size);
            rest %= size;
        }
    }
    if text.is_empty() { "0".to_owned() } else { text }
}
