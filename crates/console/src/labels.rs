//! Names, states and GPUs of jobs and nodes as tables and the view show them.

use agentaflow_api::job::Job;
use agentaflow_api::node::{GpuInstance, Node, NodeStatus};

use crate::format::one_line;
use crate::text;

/// The name of a job, else its image, else its command.
pub fn job_name(job: &Job) -> String {
    let spec = &job.spec;
    let name = spec.job_name.clone().filter(|name| !name.trim().is_empty());
    let command = || spec.command.as_ref().map(|words| words.join(" "));
    one_line(&name.or_else(|| spec.docker_image.clone()).or_else(command).unwrap_or_default())
}

/// Number and name of a job. In a cluster the handle of a job is its name.
pub fn job_title(job: &Job) -> String {
    let (handle, name) = (text::clean(&job.handle()), text::cut(&job_name(job), 32, '…'));
    if name.is_empty() || name == handle { handle } else { format!("{handle} {name}") }
}

/// Names of the nodes of a job, sorted.
pub fn job_nodes(job: &Job) -> String {
    let mut names: Vec<_> = job.tasks.iter().map(|task| task.node_name.clone()).collect();
    names.sort();
    names.dedup();
    names.join(", ")
}

/// GPUs that all tasks of a job request together.
pub fn gpus_requested(job: &Job) -> f64 {
    let memory = job.spec.gpu_memory_required.is_some_and(|memory| memory > 0);
    let some = memory || job.spec.mig_profile.is_some();
    let whole = job.spec.gpu_count.unwrap_or_else(|| u32::from(some));
    let each = fraction(job).unwrap_or_else(|| f64::from(whole));
    each * f64::from(job.spec.replicas.unwrap_or(1))
}

/// GPUs allocated to a job; a shared GPU counts as the requested fraction.
pub fn gpus_allocated(job: &Job) -> f64 {
    let allocated: usize = job.tasks.iter().map(|task| task.gpus.len()).sum();
    fraction(job).unwrap_or(1.0) * allocated as f64
}

fn fraction(job: &Job) -> Option<f64> {
    job.spec.gpu_fraction.filter(|fraction| fraction.is_finite())
}

/// Short cause of a failed job.
pub fn failure(job: &Job) -> String {
    let end = agentaflow_explain::end(&agentaflow_explain::End {
        reason: job.end_reason,
        cause: job.end_cause,
        exit_code: job.exit_code,
        detail: job.error_message.as_deref().unwrap_or_default(),
    });
    one_line(&end.short)
}

/// The index of a GPU on its node, or its position where the node reports no index.
pub fn gpu_number(position: usize, gpu: &GpuInstance) -> String {
    gpu.gpu_index.map_or_else(|| position.to_string(), |index| index.to_string())
}

/// Numbers of the cordoned GPUs of a node.
pub fn cordoned_gpus(node: &Node) -> Vec<String> {
    let number = |name: &String| {
        let known = node.spec.gpu_instances.iter();
        let found = known.enumerate().find(|(_, gpu)| gpu.gpu_uuid.as_ref() == Some(name));
        found.map_or_else(|| name.clone(), |(position, gpu)| gpu_number(position, gpu))
    };
    node.cordoned_gpus.iter().map(number).collect()
}

/// Status and condition of a node: `active`, `active, draining`.
pub fn node_status(node: &Node) -> String {
    let status = node.status.as_str();
    node_condition(node)
        .map_or_else(|| status.to_owned(), |condition| format!("{status}, {condition}"))
}

/// The condition that keeps new tasks from a node or from some of its GPUs.
pub fn node_condition(node: &Node) -> Option<String> {
    if let Some(claim) = node.pending_registration.as_ref().filter(|claim| !claim.approved) {
        return Some(format!("registration from {} awaits approval", claim.address));
    }
    match (node.draining, node.reachable, cordoned_gpus(node).as_slice()) {
        (true, ..) => Some("draining".to_owned()),
        (false, false, _) if node.status == NodeStatus::Active => Some("takes no work".to_owned()),
        (_, _, [gpu]) => Some(format!("GPU {gpu} closed")),
        (_, _, [_, _, ..]) => Some(format!("{} GPUs closed", node.cordoned_gpus.len())),
        _ => None,
    }
}

/// An active node that accepts new tasks.
pub fn is_ready(node: &Node) -> bool {
    node.status == NodeStatus::Active && node.reachable && !node.draining
}

/// GPUs of a node: `2 × NVIDIA A100 (SIMULATED)`.
pub fn node_gpus(node: &Node) -> String {
    let simulated = if node.spec.simulated { " (SIMULATED)" } else { "" };
    match (node.spec.gpu_count, &node.spec.gpu_type) {
        (0, _) => "none".to_owned(),
        (count, Some(model)) => format!("{count} × {model}{simulated}"),
        (count, None) => format!("{count}{simulated}"),
    }
}
