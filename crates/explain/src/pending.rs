//! Text for pending reasons, shortfalls and alternatives of the API.

use std::time::Duration;

use agentaflow_api::pending::{
    Alternative, BudgetShortfall, FitSummary, NodesShort, PendingReason, RuntimeNeed, Shortfall,
};
use agentaflow_api::units::{Dollars, Stamp};
use agentaflow_units::format_duration_rounded;

use crate::amount::{cores, count, plural, quota, size_within, sizes, thousandths};

/// Names listed before "and N more".
const NAMED: usize = 3;

/// Text where a job is pending and the scheduler has not reported a reason.
pub const NO_REASON: &str = "Pending; no reason reported yet";

/// A pending reason in one sentence.
pub fn reason(reason: &PendingReason, now: Stamp) -> String {
    match reason {
        PendingReason::NoNodes { unreachable: 0 } => "No nodes in the cluster".to_owned(),
        PendingReason::NoNodes { unreachable } => format!(
            "0/{unreachable} nodes are reachable: no agent is connected; see `agentaflow get nodes`"
        ),
        PendingReason::NoRoom(fit) => nodes_fit(fit, ""),
        PendingReason::NeverFits(fit) => nodes_fit(fit, " even when empty"),
        PendingReason::GangIncomplete { needs, fits, fits_when_empty, summary } => {
            gang(*needs, *fits, *fits_when_empty, summary)
        }
        PendingReason::QuotaExceeded { queue, resource, limit, used, reserved, requested } => {
            let [limit, used, requested] =
                [limit, used, requested].map(|value| quota(resource, *value));
            let reserved = match reserved {
                0 => String::new(),
                reserved => format!(", {} reserved", quota(resource, *reserved)),
            };
            format!(
                "Quota of queue `{queue}` exceeded: limit {limit}, {used} in use{reserved}, {requested} requested"
            )
        }
        PendingReason::Reserved { by, until } => {
            let when = until.map_or_else(String::new, |until| {
                format!(", expected to start {}", moment(until, now))
            });
            format!("Reserved for {}, next in the queue{when}", job(by))
        }
        PendingReason::Preempting { victims, until } => {
            format!("Preempting {}; replanned {} at the latest", jobs(victims), moment(*until, now))
        }
        PendingReason::BackingOff { until, refusals } => format!(
            "{} failed; next attempt {}",
            count(*refusals, "placement"),
            moment(*until, now)
        ),
        PendingReason::BudgetExceeded(budget) => budget_exceeded(budget),
        PendingReason::SecretsUnavailable { key_file } => format!(
            "Secrets cannot be decrypted: their key is missing in `{key_file}` of the server. An admin restores the file"
        ),
        PendingReason::Gated { have: Some(have), need: Some(need), .. } => {
            format!("Waiting for gang: {have}/{need} pods created")
        }
        PendingReason::Gated { note: Some(note), .. } => format!("Paused: {note}"),
        PendingReason::Gated { .. } => "Paused".to_owned(),
        PendingReason::Parked { note, .. } | PendingReason::Reported { note, .. } => note.clone(),
        PendingReason::Unknown => NO_REASON.to_owned(),
    }
}

/// A pending reason for a narrow column: the shortfalls without the number of nodes before them.
pub fn short_reason(reason: &PendingReason, now: Stamp) -> String {
    match reason {
        PendingReason::NoRoom(fit) | PendingReason::NeverFits(fit)
            if !fit.shortfalls.is_empty() =>
        {
            shortfalls(fit)
        }
        other => self::reason(other, now),
    }
}

fn nodes_fit(fit: &FitSummary, condition: &str) -> String {
    let text = format!("0/{} nodes fit{condition}", fit.nodes);
    if fit.shortfalls.is_empty() { text } else { format!("{text}: {}", shortfalls(fit)) }
}

fn shortfalls(fit: &FitSummary) -> String {
    let each = |short: &NodesShort| shortfall(&short.shortfall, short.count);
    fit.shortfalls.iter().map(each).collect::<Vec<_>>().join(", ")
}

fn gang(needs: u32, fits: u32, fits_when_empty: bool, fit: &FitSummary) -> String {
    let never = if fits_when_empty { "" } else { ", and an empty cluster is too small" };
    let text = format!("{fits}/{needs} tasks of the gang fit now{never}");
    if fit.shortfalls.is_empty() {
        return text;
    }
    format!("{text}; for one more task {}", shortfalls(fit))
}

fn budget_exceeded(budget: &BudgetShortfall) -> String {
    if (budget.left, budget.cost) == (Dollars(0), Dollars(0)) {
        return format!("Budget exceeded: {}", budget.owner);
    }
    format!(
        "Budget exceeded: {} has {} left, expected cost up to {}",
        budget.owner, budget.left, budget.cost
    )
}

/// A shortfall with the number of nodes that have it: `5 lack 4 free GPUs (most free 2)`.
pub fn shortfall(shortfall: &Shortfall, nodes: u32) -> String {
    format!("{nodes} {}", predicate(shortfall, nodes == 1))
}

/// The shortfall of one node and the command that removes it, where there is one.
pub fn shortfall_of(node: &str, shortfall: &Shortfall) -> String {
    let text = predicate(shortfall, true);
    match shortfall {
        Shortfall::UnavailableGpus { gpus, .. } if !gpus.is_empty() => {
            let targets: Vec<String> = gpus.iter().map(|gpu| format!("{node}/{gpu}")).collect();
            format!("{text}; run `agentaflow uncordon {}`", targets.join(" "))
        }
        Shortfall::Unschedulable => format!("{text}; run `agentaflow uncordon {node}`"),
        Shortfall::Runtime { runtime: RuntimeNeed::Docker } => {
            format!("{text}; start Docker on the node, or submit a command without an image")
        }
        _ => text,
    }
}

/// Predicate of a sentence whose subject is the number of nodes.
fn predicate(shortfall: &Shortfall, one: bool) -> String {
    let verb = |singular: &str, plural: &str| if one { singular } else { plural }.to_owned();
    let lack = verb("lacks", "lack");
    let have = verb("has", "have");
    match shortfall {
        Shortfall::NotReady => verb("is down", "are down"),
        Shortfall::Unschedulable => verb("is cordoned", "are cordoned"),
        Shortfall::OtherNode => verb("is not the requested node", "are not the requested node"),
        Shortfall::NodeSelector => {
            verb("does not match the node selector", "do not match the node selector")
        }
        Shortfall::NodeAffinity => {
            verb("does not match the node affinity", "do not match the node affinity")
        }
        Shortfall::Taint { taint } => format!("{have} untolerated taint {taint}"),
        Shortfall::NoGpu => format!("{have} no GPU"),
        Shortfall::GpuModel { has, requested } => {
            format!("{have} {} (requested {})", names(has, "and"), names(requested, "or"))
        }
        Shortfall::GpuModelQuota { model } => {
            format!("{have} only {model}, for which the queue is at its limit")
        }
        Shortfall::GpuSize { requested, available } => {
            let [requested, available] = sizes(*requested, *available);
            format!("{have} no GPU of {requested} (largest {available})")
        }
        Shortfall::GpuCount { requested, available } => {
            format!("{lack} {} (most {available})", count(*requested, "GPU"))
        }
        Shortfall::WholeGpusOnly => {
            verb("does not support shared GPUs", "do not support shared GPUs")
        }
        Shortfall::FreeGpus { requested, available } => {
            format!("{lack} {} (most free {available})", count(*requested, "free GPU"))
        }
        Shortfall::GpuShare { requested, available } => {
            let [requested, available] =
                [requested, available].map(|share| thousandths(u64::from(*share)));
            format!("{lack} {requested} of one GPU (largest free {available})")
        }
        Shortfall::GpuMemory { requested, available } => {
            let [requested, available] = sizes(*requested, *available);
            format!("{lack} {requested} on one GPU (largest free {available})")
        }
        Shortfall::NoMigProfile { profile } => {
            format!("{} MIG profile {profile}", verb("does not have", "do not have"))
        }
        Shortfall::MigSlices { profile, requested, available } => {
            let slices = plural(*requested, &format!("{profile} slice"));
            format!("{lack} {requested} {slices} (most free {available})")
        }
        Shortfall::NvLink { requested, available } => {
            let gpus = count(*requested, "free GPU");
            format!("{lack} {gpus} joined by NVLink (most free {available})")
        }
        Shortfall::UnavailableGpus { cordoned, draining, unhealthy, .. } => {
            format!("{have} {}", closed_gpus(*cordoned, *draining, *unhealthy))
        }
        Shortfall::Cpu { requested, available } => {
            format!("{lack} {} (most free {})", cores(*requested), thousandths(*available))
        }
        Shortfall::Memory { requested, available } => {
            memory(&lack, *requested, "memory", *available)
        }
        Shortfall::Storage { requested, available } => {
            memory(&lack, *requested, "local storage", *available)
        }
        Shortfall::TaskLimit => verb("is at its task limit", "are at their task limit"),
        Shortfall::Runtime { runtime } => {
            let runtime = match runtime {
                RuntimeNeed::Docker => "Docker containers",
                RuntimeNeed::Process => "plain processes",
                RuntimeNeed::Unknown => "this runtime",
            };
            format!("{} {runtime}", verb("does not run", "do not run"))
        }
        Shortfall::SharedGpus => verb("shares its GPUs among pods", "share their GPUs among pods"),
        Shortfall::Resource { name, requested, available } => {
            format!("{lack} {requested} {name} (most free {available})")
        }
        Shortfall::Token { token } => format!("{have} `{token}` in use"),
        Shortfall::TaskAffinity => {
            verb("does not match the pod affinity", "do not match the pod affinity")
        }
        Shortfall::TaskAntiAffinity => {
            verb("does not match the pod anti-affinity", "do not match the pod anti-affinity")
        }
        Shortfall::TopologySpread => verb(
            "does not match the topology spread constraint",
            "do not match the topology spread constraint",
        ),
        Shortfall::Unknown => verb("does not fit", "do not fit"),
    }
}

/// GPUs that take no new work: `1 cordoned GPU`, `3 closed GPUs (2 draining, 1 unhealthy)`.
fn closed_gpus(cordoned: u32, draining: u32, unhealthy: u32) -> String {
    let states = [(cordoned, "cordoned"), (draining, "draining"), (unhealthy, "unhealthy")];
    let states: Vec<_> = states.into_iter().filter(|(number, _)| *number > 0).collect();
    if let [(number, state)] = states.as_slice() {
        return count(*number, &format!("{state} GPU"));
    }
    let all = states.iter().map(|(number, _)| number).sum();
    let each: Vec<_> = states.iter().map(|(number, state)| format!("{number} {state}")).collect();
    format!("{} ({})", count(all, "closed GPU"), each.join(", "))
}

fn memory(lack: &str, requested: u64, of: &str, available: u64) -> String {
    let [requested, available] = sizes(requested, available);
    format!("{lack} {requested} of {of} (most free {available})")
}

/// A change with which a request would start now: `with 2 GPUs`.
pub fn alternative(alternative: &Alternative) -> String {
    match alternative {
        Alternative::Gpus(gpus) => format!("with {}", count(*gpus, "GPU")),
        Alternative::GpuShare(share) => {
            format!("with {} of one GPU", thousandths(u64::from(*share)))
        }
        Alternative::GpuMemory(mib) => format!("with {} of GPU memory", size_within(*mib)),
        Alternative::MinGpuMemory(mib) => format!("on GPUs of {}", size_within(*mib)),
        Alternative::GpuModels(models) => format!("on {}", models.join(" or ")),
        Alternative::Tasks(tasks) => format!("as a gang of {}", count(*tasks, "task")),
        Alternative::Cpu(milli) => format!("with {}", cores(*milli)),
        Alternative::Memory(mib) => format!("with {} of memory", size_within(*mib)),
        Alternative::WithoutNvlink => "without NVLink".to_owned(),
        Alternative::Shared => "on shared GPUs".to_owned(),
    }
}

fn moment(at: Stamp, now: Stamp) -> String {
    if at <= now {
        return "now".to_owned();
    }
    let wait = at.0.saturating_sub(now.0).unsigned_abs();
    format!("in {}", format_duration_rounded(Duration::from_millis(wait)))
}

/// Name of a job in a sentence: `job 7` for the number of a server's job, else the quoted name.
pub fn job(handle: &str) -> String {
    let number = !handle.is_empty() && handle.bytes().all(|byte| byte.is_ascii_digit());
    if number { format!("job {handle}") } else { format!("`{handle}`") }
}

fn jobs(handles: &[String]) -> String {
    let named: Vec<_> = handles.iter().take(NAMED).map(|handle| job(handle)).collect();
    match handles.len().saturating_sub(NAMED) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// The first few names, joined by this word.
fn names(names: &[String], word: &str) -> String {
    let first: Vec<&str> = names.iter().take(NAMED).map(String::as_str).collect();
    match (names.len().saturating_sub(NAMED), first.split_last()) {
        (0, Some((last, rest))) if !rest.is_empty() => {
            format!("{} {word} {last}", rest.join(", "))
        }
        (0, _) => first.concat(),
        (more, _) => format!("{} {word} {more} more", first.join(", ")),
    }
}
