//! Text for people, rendered from data: pending reasons, shortfalls, alternatives, ends, start times.
//!
//! The server, the Kubernetes driver, the command line and the golden scripts of the engine all render with this
//! crate. Every function is pure and takes the current time where a sentence mentions the future. No code reads the
//! text back: rewording a sentence changes golden text and nothing else.
//!
//! * [`wire`] turns engine types into the types of the API.
//! * [`pending`] renders the types of the API.
//! * The functions of this module render engine types: `wire`, then `pending`.

mod amount;
mod end;
pub mod error;
pub mod pending;
#[cfg(test)]
mod tests;
pub mod wire;

use std::time::Duration;

use agentaflow_api::pending::PendingCode;
use agentaflow_api::units::Stamp;
use agentaflow_engine::{
    Alternative, Eta, Explanation, PreemptionReason, Shortfall, Span, Time, WaitReason, WorkloadId,
};
use agentaflow_units::format_duration_rounded;

pub use amount::{count, thousandths};
pub use end::{End, EndText, end, end_reason, find_cause};

/// Lines about a pending workload: reason, position and start time, alternatives.
pub fn explanation(explanation: &Explanation, now: Time) -> Vec<String> {
    let mut lines = Vec::new();
    lines.extend(explanation.reason.as_ref().map(|why| reason(why, now)));
    let start = eta(explanation.eta, now);
    lines.push(match explanation.position {
        Some(at) => format!("{}; {}", position(at, explanation.waiting), uncapitalised(&start)),
        None => start,
    });
    lines.extend(alternatives(explanation.alternatives.iter().map(alternative)));
    lines
}

/// Position in the queue.
pub fn position(position: u32, pending: u32) -> String {
    format!("Position {position} of {pending} in the queue")
}

/// One line for the changes with which a workload would start now.
pub fn alternatives(changes: impl IntoIterator<Item = String>) -> Option<String> {
    let changes: Vec<String> = changes.into_iter().collect();
    (!changes.is_empty()).then(|| format!("Would start now {}", changes.join(", or ")))
}

/// Pending reason of a workload.
pub fn reason(reason: &WaitReason, now: Time) -> String {
    reason_naming(reason, now, &|workload| workload.to_string())
}

/// Code and sentence of a pending reason.
pub fn coded_reason(reason: &WaitReason, now: Time) -> (PendingCode, String) {
    let wall = Stamp(0);
    let name = |workload: &WorkloadId| workload.to_string();
    let reason = wire::pending_reason(reason, &wire::Clock { now, wall }, &name);
    (reason.code(), pending::reason(&reason, wall))
}

/// Pending reason, with other workloads named by `name`: users may know them by other names than the engine.
pub fn reason_naming(
    reason: &WaitReason,
    now: Time,
    name: &dyn Fn(&WorkloadId) -> String,
) -> String {
    // The engine's clock may start anywhere; only differences to `now` are rendered.
    let wall = Stamp(0);
    pending::reason(&wire::pending_reason(reason, &wire::Clock { now, wall }, name), wall)
}

/// Reason for the preemption of a workload.
pub fn preempted_by(preemptor: &str, reason: PreemptionReason) -> String {
    let because = match reason {
        PreemptionReason::Priority => "higher priority",
        PreemptionReason::Reclaim => "its queue reclaims guaranteed quota",
    };
    format!("Preempted by {preemptor}: {because}")
}

/// A shortfall with the number of nodes that have it: `5 lack 4 free GPUs (most free 2)`.
pub fn shortfall(shortfall: &Shortfall, nodes: u32) -> String {
    pending::shortfall(&wire::shortfall(shortfall), nodes)
}

/// The shortfall of one node and the command that removes it, where there is one.
pub fn shortfall_of(node: &str, shortfall: &Shortfall) -> String {
    pending::shortfall_of(node, &wire::shortfall(shortfall))
}

/// The shortfall of a node that its own agent closed, not an administrator of the server: `agentaflow uncordon` has no effect.
/// `kubernetes` is the cluster node of a Kubernetes worker.
pub fn closed_by_agent(kubernetes: Option<&str>) -> String {
    match kubernetes {
        Some(node) => format!(
            "accepts no new jobs: its cluster node is cordoned, tainted or not ready; run `kubectl describe node {node}`, and \
             `kubectl uncordon {node}` if it is cordoned"
        ),
        None => "accepts no new jobs: its agent is unreachable or reports a fault".to_owned(),
    }
}

/// A change with which a request would start now: `with 2 GPUs`.
pub fn alternative(alternative: &Alternative) -> String {
    pending::alternative(&wire::alternative(alternative))
}

pub fn eta(eta: Eta, now: Time) -> String {
    match eta {
        Eta::Now => "Starts now".to_owned(),
        Eta::At(at) if at <= now => "Expected to start now".to_owned(),
        Eta::At(at) => format!("Expected to start in {}", span(at.since(now))),
        Eta::Unknown => "Start time unknown".to_owned(),
    }
}

/// A duration in its two largest units: `45 s`, `12 min`, `2 h 5 min`, `3 d 4 h`.
pub fn span(span: Span) -> String {
    format_duration_rounded(Duration::from_millis(span.0))
}

/// Name of a workload in a sentence: `job 7` for the number of a server's job, else the quoted name.
pub fn quoted(workload: &WorkloadId) -> String {
    pending::job(workload.as_str())
}

/// A sentence that continues another one. An abbreviation such as `GPU` keeps its case.
pub fn uncapitalised(text: &str) -> String {
    let word = first_word(text);
    let is_plain = word.chars().skip(1).all(|letter| letter.is_ascii_lowercase());
    with_first(text, is_plain, |first| first.to_ascii_lowercase())
}

/// A sentence on its own. A name such as `gpu-1`, `max_jobs` or `iPad` keeps its case.
pub fn capitalised(text: &str) -> String {
    let word = first_word(text);
    let is_plain = !word.is_empty() && word.chars().all(|letter| letter.is_ascii_lowercase());
    with_first(text, is_plain, |first| first.to_ascii_uppercase())
}

/// Text up to the first space, without the punctuation of a sentence.
fn first_word(text: &str) -> &str {
    text.split(' ').next().unwrap_or_default().trim_end_matches([',', ':', ';', '.'])
}

fn with_first(text: &str, change: bool, case: impl Fn(char) -> char) -> String {
    let mut letters = text.chars();
    match letters.next().filter(|_| change) {
        Some(first) => std::iter::once(case(first)).chain(letters).collect(),
        None => text.to_owned(),
    }
}
