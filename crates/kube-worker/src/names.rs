//! Labels and annotations of the worker's objects.

use agentaflow_api::link::TaskKey;
use agentaflow_units::hash64;

/// Label: agent that owns a Job.
pub(crate) const AGENT: &str = "agentaflow.io/agent";
/// Label: task as `job-attempt-task`.
pub(crate) const TASK: &str = "agentaflow.io/task";
/// Label: job id of the server.
pub(crate) const JOB: &str = "agentaflow.io/job";
/// Label: attempt, from 1.
pub(crate) const ATTEMPT: &str = "agentaflow.io/attempt";
/// Label: the Job ends when the lease expires.
pub(crate) const LEASED: &str = "agentaflow.io/leased";
/// Label: the server has logs and exit; the Job remains for inspection until its TTL.
pub(crate) const DONE: &str = "agentaflow.io/done";
/// Annotation: name of the job.
pub(crate) const JOB_NAME: &str = "agentaflow.io/job-name";
/// Annotation: GPUs that the server assigned, by the agent's names. The kubelet chooses the actual devices.
pub(crate) const GPUS: &str = "agentaflow.io/gpus";
/// Annotation: owner of the job.
pub(crate) const USER: &str = "agentaflow.io/user";

/// Job of a task.
pub(crate) fn job(key: TaskKey) -> String {
    format!("gpu-job-{key}")
}

/// True for a valid key of a Secret.
pub(crate) fn is_key(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=253).contains(&text.len()) && text.chars().all(plain)
}

/// Label value that identifies the Jobs of one agent by server and node.
pub(crate) fn owner(server: &str, node: &str) -> String {
    // A collision does no harm.
    format!("{:016x}", hash64(format!("{server}\0{node}").as_bytes()))
}
