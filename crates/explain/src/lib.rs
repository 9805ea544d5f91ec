//! Plain English for what the engine says as data: the one place where reasons become sentences.
//!
//! Every function is pure and takes the current time where a sentence speaks of the future, so
//! that a command, a page and an API answer say the same thing in the same words.

mod end;

pub use end::{End, EndText, end, end_reason, find_cause};

use agentaflow_engine::{
    Alternative, Eta, Explanation, FitSummary, Gate, GpuId, GpuModel, MiB, MilliCpu,
    PreemptionReason, QuotaResource, Shortfall, Span, Time, UnavailableGpus, WaitReason,
    WorkloadId,
};
use agentaflow_units::format_mib;

/// Names listed before "and N more".
const NAMED: usize = 3;

/// Everything known about a waiting workload: why, its place, when, and what would fit instead.
pub fn explanation(explanation: &Explanation, now: Time) -> Vec<String> {
    let mut lines = Vec::new();
    lines.extend(explanation.reason.as_ref().map(|why| reason(why, now)));
    let place = explanation
        .position
        .map(|at| format!("place {at} of {} in the queue", explanation.waiting));
    let start = eta(explanation.eta, now);
    lines.push(place.map_or_else(|| start.clone(), |place| format!("{place}; {start}")));
    if !explanation.alternatives.is_empty() {
        let choices: Vec<_> = explanation.alternatives.iter().map(nearby).collect();
        lines.push(format!("would start now {}", choices.join(", or ")));
    }
    lines
}

/// Why a workload waits.
pub fn reason(reason: &WaitReason, now: Time) -> String {
    reason_naming(reason, now, &quoted)
}

/// The same, with other workloads called as `name` says: people know them by other names than the engine.
pub fn reason_naming(
    reason: &WaitReason,
    now: Time,
    name: &dyn Fn(&WorkloadId) -> String,
) -> String {
    match reason {
        WaitReason::NoNodes => "there are no nodes".to_owned(),
        WaitReason::NoRoom(tally) => nodes_fit(tally, ""),
        WaitReason::NeverFits(tally) => nodes_fit(tally, ", even when empty"),
        WaitReason::Gang { needs, fits, fits_when_empty, summary } => {
            gang(*needs, *fits, *fits_when_empty, summary)
        }
        WaitReason::Quota { queue, resource, limit, used, reserved: kept, requested: asked } => {
            let [limit, used, asked] = [limit, used, asked].map(|value| amount(resource, *value));
            let kept = match kept {
                0 => String::new(),
                kept => format!(", {} kept for work whose turn it is", amount(resource, *kept)),
            };
            format!("queue `{queue}` may use {limit}: {used} in use{kept}, {asked} asked")
        }
        WaitReason::Reserved { workload, until } => {
            let when = until.map_or_else(String::new, |until| {
                format!(" and which should start {}", moment(until, now))
            });
            format!("there is room, but it is kept for {}, whose turn it is{when}", name(workload))
        }
        WaitReason::Preempting { victims, until } => {
            format!(
                "waiting for the end of {}, which makes room; planned again {} at the latest",
                names(victims, name),
                moment(*until, now)
            )
        }
        WaitReason::BackingOff { until, refusals } => {
            format!(
                "{} refused; tried again {}",
                count(*refusals, "placement"),
                moment(*until, now)
            )
        }
        WaitReason::Gated(gate) => self::gate(gate),
    }
}

/// Why a workload was stopped for another one, which is called as it is given.
pub fn stopped_for(beneficiary: &str, right: PreemptionReason) -> String {
    let because = match right {
        PreemptionReason::Priority => "which has a higher priority",
        PreemptionReason::Reclaim => "whose queue takes back what it is guaranteed",
    };
    format!("stopped for {beneficiary}, {because}")
}

/// What nodes lack, with how many lack it: `5 lack 4 free GPUs (most free 2)`.
pub fn lack(lack: &Shortfall, nodes: u32) -> String {
    format!("{nodes} {}", lacking(lack, nodes == 1))
}

/// What one node lacks, and what would help where that can be said. The node is called as commands call it.
pub fn lack_of(node: &str, lack: &Shortfall) -> String {
    let lacks = lacking(lack, true);
    match lack {
        Shortfall::UnavailableGpus(closed) if !closed.gpus.is_empty() => {
            format!("{lacks}; {}", opening(node, &closed.gpus))
        }
        Shortfall::Unschedulable => format!("{lacks}; `agentaflow uncordon {node}` opens it"),
        Shortfall::Resource { name, .. } if runtime(name.as_str()) == Some(CONTAINERS) => {
            format!("{lacks}; start Docker there, or hand in a command without an image")
        }
        _ => lacks,
    }
}

/// The command that opens these GPUs again. Parts of one device are opened together.
fn opening(node: &str, gpus: &[GpuId]) -> String {
    let device = |gpu: &GpuId| gpu.as_str().split("::").next().unwrap_or_default().to_owned();
    let mut devices: Vec<String> = gpus.iter().map(device).collect();
    devices.dedup();
    let targets: Vec<String> = devices.iter().map(|device| format!("{node}/{device}")).collect();
    let them = if targets.len() == 1 { "it" } else { "them" };
    format!("`agentaflow uncordon {}` opens {them}", targets.join(" "))
}

/// A change with which a request would start now.
pub fn nearby(nearby: &Alternative) -> String {
    match nearby {
        Alternative::GpuCount(gpus) => format!("with {}", count(*gpus, "GPU")),
        Alternative::GpuFraction(share) => {
            format!("with {} of one GPU", thousandths(share.get().into()))
        }
        Alternative::GpuMemory(memory) => format!("with {} of GPU memory", size_within(*memory)),
        Alternative::MinGpuMemory(memory) => format!("on GPUs of {}", size_within(*memory)),
        Alternative::Models(models) => {
            format!("on {}", alternatives(models.iter().map(ToString::to_string)))
        }
        Alternative::Tasks(tasks) => format!("as a gang of {}", count(*tasks, "task")),
        Alternative::Cpu(cpu) => format!("with {}", cores(*cpu)),
        Alternative::Memory(memory) => format!("with {} of memory", size_within(*memory)),
        Alternative::WithoutNvlink => "without NVLink".to_owned(),
        Alternative::Shared => "on shared GPUs".to_owned(),
    }
}

/// When a workload is expected to start.
pub fn eta(eta: Eta, now: Time) -> String {
    match eta {
        Eta::Now => "starts now".to_owned(),
        Eta::At(at) => format!("expected to start {}", moment(at, now)),
        Eta::Unknown => "start not known".to_owned(),
    }
}

/// A length of time in its two largest units: `45 s`, `12 min`, `2 h 5 min`, `3 d 4 h`.
pub fn span(span: Span) -> String {
    const UNITS: [(&str, u64); 4] = [("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)];
    let seconds = span.0.div_ceil(1000);
    let largest = UNITS.iter().position(|(_, size)| seconds >= *size).unwrap_or(UNITS.len() - 1);
    let (unit, size) = UNITS[largest];
    let rest = UNITS.get(largest + 1).map(|(unit, part)| (seconds % size / part, unit));
    match rest {
        Some((part, small)) if part > 0 => format!("{} {unit} {part} {small}", seconds / size),
        _ => format!("{} {unit}", seconds / size),
    }
}

fn moment(at: Time, now: Time) -> String {
    if at <= now { "now".to_owned() } else { format!("in {}", span(at.since(now))) }
}

fn nodes_fit(tally: &FitSummary, condition: &str) -> String {
    format!("0/{} nodes fit{condition}{}", tally.nodes, lacks(tally))
}

fn lacks(tally: &FitSummary) -> String {
    let lacks: Vec<_> = tally.shortfalls.iter().map(|(what, nodes)| lack(what, *nodes)).collect();
    if lacks.is_empty() { String::new() } else { format!(": {}", lacks.join(", ")) }
}

fn gang(needs: u32, fits: u32, ever: bool, tally: &FitSummary) -> String {
    let never = if ever { "" } else { ", for which there is no place even on empty nodes" };
    let rest = lacks(tally).replacen(": ", "; for one more, ", 1);
    format!("{fits} of {needs} tasks fit now, and all start together{never}{rest}")
}

fn gate(gate: &Gate) -> String {
    match gate {
        Gate::Budget(budget) => format!("the budget does not cover it: {budget}"),
        Gate::GangIncomplete { have, need } => {
            format!("{have} of {need} parts of the gang are there")
        }
        Gate::Paused(why) => format!("paused: {why}"),
    }
}

/// What follows the number of nodes; the verbs follow it too.
fn lacking(lack: &Shortfall, one: bool) -> String {
    let lacks = if one { "lacks" } else { "lack" };
    match lack {
        Shortfall::GpuSize { need, largest } => {
            let has = if one { "has" } else { "have" };
            let [need, largest] = sizes(*need, *largest);
            format!("{has} no GPU of {need} (largest {largest})")
        }
        Shortfall::GpuModel { has, asked } => {
            let verb = if one { "has" } else { "have" };
            format!("{verb} {} (asked for {})", models(has, "and"), models(asked, "or"))
        }
        Shortfall::GpuCount { need, most } => {
            format!("{lacks} {} (most {most})", count(*need, "GPU"))
        }
        Shortfall::FreeGpus { need, most } => {
            format!("{lacks} {} (most free {most})", count(*need, "free GPU"))
        }
        Shortfall::GpuShare { need, most } => {
            let [need, most] = [need, most].map(|share| thousandths(u64::from(*share)));
            format!("{lacks} {need} of one GPU (largest free {most})")
        }
        Shortfall::GpuMemory { need, most } => {
            let [need, most] = sizes(*need, *most);
            format!("{lacks} {need} on one GPU (largest free {most})")
        }
        Shortfall::MigSlice { profile, need, most } => {
            format!(
                "{lacks} {} {} (most free {most})",
                need,
                plural(*need, &format!("{} slice", profile.as_str()))
            )
        }
        Shortfall::NvLink { need, most } => {
            format!("{lacks} {} joined by NVLink (most free {most})", count(*need, "free GPU"))
        }
        Shortfall::Cpu { need, most } => {
            format!("{lacks} {} (most free {})", cores(*need), thousandths(most.0))
        }
        Shortfall::Memory { need, most } => of(lacks, *need, "memory", *most),
        Shortfall::Storage { need, most } => of(lacks, *need, "local storage", *most),
        Shortfall::Resource { name, .. } if name.as_str() == EXCLUSIVE => {
            if one { "shares its GPUs among pods" } else { "share their GPUs among pods" }
                .to_owned()
        }
        Shortfall::Resource { name, need, most } => match runtime(name.as_str()) {
            Some(what) => format!("{} {what}", if one { "does not run" } else { "do not run" }),
            None => format!("{lacks} {need} {name} (most free {most})"),
        },
        Shortfall::UnavailableGpus(gpus) => {
            format!("{} {}", if one { "has" } else { "have" }, closed(gpus))
        }
        other => standing(other, one),
    }
}

/// GPUs that take no new work, and why: `1 GPU that is cordoned`, `3 GPUs that are closed (2 draining, 1 sick)`.
fn closed(gpus: &UnavailableGpus) -> String {
    let why = [(gpus.cordoned, "cordoned"), (gpus.draining, "draining"), (gpus.failed, "sick")];
    let why: Vec<_> = why.into_iter().filter(|(number, _)| *number > 0).collect();
    let all = why.iter().map(|(number, _)| number).sum();
    let are = if all == 1 { "that is" } else { "that are" };
    if let [(_, why)] = why.as_slice() {
        return format!("{} {are} {why}", count(all, "GPU"));
    }
    let each: Vec<_> = why.iter().map(|(number, why)| format!("{number} {why}")).collect();
    format!("{} {are} closed ({})", count(all, "GPU"), each.join(", "))
}

/// What nodes offer whose GPUs nobody shares.
const EXCLUSIVE: &str = "agentaflow.gpu/exclusive";

/// What a node cannot run that has no Docker.
const CONTAINERS: &str = "Docker containers";

/// What a node cannot do that lacks this: bodies offer ways to run work as resources named `runtime/…`.
fn runtime(resource: &str) -> Option<&'static str> {
    match resource.strip_prefix("runtime/")? {
        "docker" | "plain-docker" | "container" => Some(CONTAINERS),
        "process" => Some("plain processes"),
        _ => Some("this kind of work"),
    }
}

/// The taint that Kubernetes gives to a node which is cordoned.
const CORDONED: &str = "node.kubernetes.io/unschedulable";

/// What stands in the way that is not an amount.
fn standing(lack: &Shortfall, one: bool) -> String {
    match lack {
        Shortfall::Taint(taint) if taint.starts_with(CORDONED) => {
            plain(&Shortfall::Unschedulable, one).to_owned()
        }
        Shortfall::Taint(taint) => format!("taint {taint}"),
        Shortfall::GpuModelQuota(model) => format!("where the queue may use no more {model}"),
        Shortfall::NoMigProfile(profile) => format!("without MIG profile {}", profile.as_str()),
        Shortfall::Token(token) => format!("where `{token}` is taken"),
        other => plain(other, one).to_owned(),
    }
}

fn plain(lack: &Shortfall, one: bool) -> &'static str {
    match lack {
        Shortfall::NotReady => "down",
        Shortfall::Unschedulable => "closed to new work",
        Shortfall::OtherNode => "not the node asked for",
        Shortfall::NodeSelector => "without the labels asked for",
        Shortfall::NodeAffinity => "outside the node affinity",
        Shortfall::NoGpu => "without GPUs",
        Shortfall::WholeGpusOnly => "without GPUs to share",
        Shortfall::TaskLimit if one => "runs as many tasks as it may",
        Shortfall::TaskLimit => "run as many tasks as they may",
        Shortfall::TaskAffinity => "not near the tasks it belongs to",
        Shortfall::TaskAntiAffinity => "near tasks it must avoid",
        Shortfall::TopologySpread => "with enough such tasks already",
        _ => "unsuitable",
    }
}

fn of(lacks: &str, need: MiB, what: &str, most: MiB) -> String {
    let [need, most] = sizes(need, most);
    format!("{lacks} {need} of {what} (most free {most})")
}

/// Two amounts of memory as people read them; to the last MiB where they would read the same.
fn sizes(need: MiB, most: MiB) -> [String; 2] {
    let told = [size(need), size(most)];
    if told[0] == told[1] { [need.to_string(), most.to_string()] } else { told }
}

/// An amount of memory as people read it: `512 MiB`, `23.5 GiB`, `1 TiB`.
fn size(memory: MiB) -> String {
    format_mib(memory.0)
}

/// The same, but never more than there is: what is proposed must fit.
fn size_within(memory: MiB) -> String {
    let tenth = match memory.0 {
        0..1024 => return size(memory),
        1024..1_048_576 => 1024,
        _ => 1_048_576,
    };
    // Rounded up to a whole MiB, a tenth of a unit reads as itself.
    size(MiB((memory.0 * 10 / tenth * tenth).div_ceil(10).min(memory.0)))
}

fn amount(resource: &QuotaResource, value: u64) -> String {
    match resource {
        QuotaResource::Cpu => cores(MilliCpu(value)),
        QuotaResource::Memory => format!("{value} MiB of memory"),
        QuotaResource::Storage => format!("{value} MiB of local storage"),
        QuotaResource::Gpu => gpus(value, "GPU"),
        QuotaResource::GpuModel(model) => gpus(value, &format!("{model} GPU")),
        QuotaResource::Named(name) => format!("{value} {name}"),
    }
}

fn gpus(milli: u64, unit: &str) -> String {
    format!("{} {unit}{}", thousandths(milli), if milli == 1000 { "" } else { "s" })
}

fn cores(cpu: MilliCpu) -> String {
    format!("{} CPU {}", thousandths(cpu.0), if cpu.0 == 1000 { "core" } else { "cores" })
}

/// Thousandths as a decimal number without needless zeros: 1500 is `1.5`.
pub fn thousandths(value: u64) -> String {
    let decimals = format!("{}.{:03}", value / 1000, value % 1000);
    decimals.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A number and its noun: `1 GPU`, `4 GPUs`.
pub fn count(number: u32, noun: &str) -> String {
    format!("{number} {}", plural(number, noun))
}

fn plural(number: u32, noun: &str) -> String {
    if number == 1 { noun.to_owned() } else { format!("{noun}s") }
}

/// The engine's own name of a workload.
pub fn quoted(workload: &WorkloadId) -> String {
    format!("`{workload}`")
}

fn names(workloads: &[WorkloadId], name: &dyn Fn(&WorkloadId) -> String) -> String {
    let named: Vec<_> = workloads.iter().take(NAMED).map(name).collect();
    match workloads.len().saturating_sub(NAMED) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// The first few models, joined by this word.
fn models(models: &[GpuModel], word: &str) -> String {
    let named: Vec<_> = models.iter().take(NAMED).map(GpuModel::as_str).collect();
    match (models.len().saturating_sub(NAMED), named.split_last()) {
        (0, Some((last, rest))) if !rest.is_empty() => {
            format!("{} {word} {last}", rest.join(", "))
        }
        (0, _) => named.concat(),
        (more, _) => format!("{} {word} {more} more", named.join(", ")),
    }
}

fn alternatives(names: impl Iterator<Item = String>) -> String {
    names.collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests;
