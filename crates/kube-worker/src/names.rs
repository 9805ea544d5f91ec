//! Names that stand on what the worker makes.

use std::hash::Hasher as _;

use fnv::FnvHasher;

/// Label: whose a Job is.
pub(crate) const AGENT: &str = "agentaflow.io/agent";
/// Label: the task, as `job-attempt-task`.
pub(crate) const TASK: &str = "agentaflow.io/task";
/// Label: the number of the server's job.
pub(crate) const JOB: &str = "agentaflow.io/job";
/// Label: which try of it, from 1.
pub(crate) const ATTEMPT: &str = "agentaflow.io/attempt";
/// Label: it must not outlive the lease.
pub(crate) const LEASED: &str = "agentaflow.io/leased";
/// Label: the server has everything; what is left is for people, until its time is over.
pub(crate) const DONE: &str = "agentaflow.io/done";
/// Annotation: the job's name.
pub(crate) const JOB_NAME: &str = "agentaflow.io/job-name";
/// Annotation: the GPUs of the node that the server gave it, as it calls them. Which ones the kubelet hands out is
/// the kubelet's choice.
pub(crate) const GPUS: &str = "agentaflow.io/gpus";
/// Annotation: whose job it is.
pub(crate) const USER: &str = "agentaflow.io/user";

/// Whether a Secret takes it as a key.
pub(crate) fn is_key(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=253).contains(&text.len()) && text.chars().all(plain)
}

/// A label that tells the Jobs of one agent from those of others: its server and its node.
pub(crate) fn owner(server: &str, node: &str) -> String {
    // FNV-1a is stable across releases; a collision does no harm.
    let mut hasher = FnvHasher::default();
    for part in [server.as_bytes(), &[0], node.as_bytes()] {
        hasher.write(part);
    }
    let hash = hasher.finish();
    format!("{hash:016x}")
}
