//! One snapshot as plain text, for pipes and scripts.

use agentaflow_api::job::{Job, JobStatus};
use agentaflow_api::node::{GpuInstance, Node, NodeStatus};
use agentaflow_console::format::{counted, one_line};
use agentaflow_console::{Snapshot, labels};

use crate::listing::{JOBS, left, right};
use crate::output::{self, Column};

/// A GPU, or a node without GPUs, as text.
struct GpuLine {
    node: String,
    gpu: String,
    model: String,
    utilization: String,
    memory: String,
    temperature: String,
    power: String,
    jobs: String,
}

const COLUMNS: [Column<GpuLine>; 8] = [
    left("NODE", 0, |line| line.node.clone()),
    right("GPU", 0, |line| line.gpu.clone()),
    left("MODEL", 4, |line| line.model.clone()),
    right("USE", 0, |line| line.utilization.clone()),
    right("MEMORY", 1, |line| line.memory.clone()),
    right("TEMP", 2, |line| line.temperature.clone()),
    right("POWER", 3, |line| line.power.clone()),
    left("JOBS", 5, |line| line.jobs.clone()),
];

pub(super) fn text(address: &str, data: &Snapshot) -> String {
    let active = data.nodes.iter().filter(|node| node.status == NodeStatus::Active);
    let mut open: Vec<Job> =
        data.jobs.iter().filter(|job| !job.status.is_final()).cloned().collect();
    open.sort_by_key(|job| (job.status == JobStatus::Pending, job.created_at, job.id));
    let pending = open.iter().filter(|job| job.status == JobStatus::Pending).count();
    let mut text = format!(
        "{}  {}/{} nodes active, {}, {} running, {pending} pending\n",
        one_line(address),
        active.clone().count(),
        data.nodes.len(),
        counted(active.map(|node| node.spec.gpu_count).sum::<u32>(), "GPU"),
        counted(open.len() - pending, "job"),
    );
    let width = Some(output::width());
    let lines: Vec<_> = data.nodes.iter().flat_map(|node| node_lines(data, node)).collect();
    if !lines.is_empty() {
        text += "\n";
        text += &output::table(&COLUMNS, &lines, width);
    }
    if !open.is_empty() {
        text += "\n";
        text += &output::table(JOBS.columns, &open, width);
    }
    text
}

fn node_lines(data: &Snapshot, node: &Node) -> Vec<GpuLine> {
    let mut name = one_line(&node.spec.node_name);
    if !labels::is_ready(node) {
        name = format!("{name} ({})", labels::node_status(node));
    }
    if node.spec.gpu_instances.is_empty() {
        return vec![without_gpus(name, labels::node_gpus(node))];
    }
    let gpus = node.spec.gpu_instances.iter().enumerate();
    gpus.map(|(position, gpu)| {
        let jobs: Vec<_> =
            data.jobs_on(node, position).into_iter().map(labels::job_title).collect();
        gpu_line(&name, node, position, gpu, &jobs)
    })
    .collect()
}

fn gpu_line(
    name: &str,
    node: &Node,
    position: usize,
    gpu: &GpuInstance,
    jobs: &[String],
) -> GpuLine {
    let simulated = if node.spec.simulated { " SIMULATED" } else { "" };
    let model = gpu.gpu_type.clone().or_else(|| gpu.gpu_name.clone()).unwrap_or_default();
    let memory = gpu.gpu_memory.zip(gpu.gpu_memory_available).map(|(total, free)| {
        let gib = |mib: u64| format!("{:.0}", mib as f64 / 1024.0);
        format!("{}/{}G", gib(total.saturating_sub(free)), gib(total))
    });
    let whole = |reading: Option<f64>, unit: &str| {
        reading.map_or_else(|| "-".to_owned(), |reading| format!("{reading:.0}{unit}"))
    };
    GpuLine {
        node: name.to_owned(),
        gpu: labels::gpu_number(position, gpu),
        model: one_line(&model) + simulated,
        utilization: whole(gpu.utilization, "%"),
        memory: memory.unwrap_or_else(|| "-".to_owned()),
        temperature: whole(gpu.temperature, "C"),
        power: whole(gpu.power_usage, "W"),
        jobs: one_line(&jobs.join(", ")),
    }
}

fn without_gpus(node: String, model: String) -> GpuLine {
    let unknown = || "-".to_owned();
    GpuLine {
        node,
        gpu: unknown(),
        model,
        utilization: unknown(),
        memory: unknown(),
        temperature: unknown(),
        power: unknown(),
        jobs: String::new(),
    }
}
