//! One snapshot as plain text, for pipes and scripts.

use agentaflow_api::Stamp;
use agentaflow_api::job::{Job, JobStatus};
use agentaflow_api::node::NodeStatus;

use super::model::{Model, Snapshot};
use super::sheet;
use crate::listing::{self, JOBS, left, one_line, right};
use crate::output::{self, Column};

/// A GPU, or a node without any, in words.
struct Line {
    node: String,
    gpu: String,
    model: String,
    busy: String,
    memory: String,
    heat: String,
    power: String,
    jobs: String,
}

const COLUMNS: [Column<Line>; 8] = [
    left("NODE", 0, |line| line.node.clone()),
    right("GPU", 0, |line| line.gpu.clone()),
    left("MODEL", 4, |line| line.model.clone()),
    right("USE", 0, |line| line.busy.clone()),
    right("MEMORY", 1, |line| line.memory.clone()),
    right("TEMP", 2, |line| line.heat.clone()),
    right("POWER", 3, |line| line.power.clone()),
    left("JOBS", 5, |line| line.jobs.clone()),
];

/// The whole snapshot.
pub(super) fn words(place: &str, data: &Snapshot) -> String {
    let active = data.nodes.iter().filter(|node| node.status == NodeStatus::Active);
    let count = |waiting: bool| {
        let open = data.jobs.iter().filter(|job| !job.status.is_final());
        open.filter(|job| (job.status == JobStatus::Pending) == waiting).count()
    };
    let mut text = format!(
        "{}  {} of {} nodes active, {}, {} with a place, {} waiting\n",
        one_line(place),
        active.clone().count(),
        data.nodes.len(),
        listing::counted(active.map(|node| node.spec.gpu_count).sum::<u32>(), "GPU"),
        listing::counted(count(false), "job"),
        count(true),
    );
    let width = Some(output::width());
    let lines = lines(place, data);
    if !lines.is_empty() {
        text += "\n";
        text += &output::table(&COLUMNS, &lines, width);
    }
    let open = data.jobs.iter().filter(|job| !job.status.is_final());
    let mut open: Vec<Job> = open.cloned().collect();
    open.sort_by_key(|job| (job.status == JobStatus::Pending, job.created_at, job.id));
    if !open.is_empty() {
        text += "\n";
        text += &output::table(JOBS.columns, &open, width);
    }
    text
}

fn lines(place: &str, data: &Snapshot) -> Vec<Line> {
    // The model knows which job is on which GPU.
    let mut model = Model::new(place.to_owned(), std::time::Duration::ZERO, (80, 24), Stamp(0));
    model.data = Some(data.clone());
    let mut lines = Vec::new();
    for node in &data.nodes {
        let name = one_line(&node.spec.node_name);
        let well = node.status == NodeStatus::Active && node.reachable && !node.draining;
        let state = if well { String::new() } else { format!(" ({})", listing::node_status(node)) };
        let simulated = if node.spec.simulated { " SIMULATED" } else { "" };
        let name = format!("{name}{state}");
        if node.spec.gpu_instances.is_empty() {
            lines.push(bare(name.clone(), listing::node_gpus(node)));
        }
        for (index, gpu) in node.spec.gpu_instances.iter().enumerate() {
            let kind = gpu.gpu_type.clone().or_else(|| gpu.gpu_name.clone()).unwrap_or_default();
            let memory = gpu.gpu_memory.zip(gpu.gpu_memory_available).map(|(all, free)| {
                let gib = |mib: u64| format!("{:.0}", mib as f64 / 1024.0);
                format!("{}/{}G", gib(all.saturating_sub(free)), gib(all))
            });
            let whole = |reading: Option<f64>, unit: &str| {
                reading.map_or_else(|| "-".to_owned(), |reading| format!("{reading:.0}{unit}"))
            };
            let jobs: Vec<_> =
                model.jobs_on(node, index).into_iter().map(sheet::job_title).collect();
            lines.push(Line {
                node: name.clone(),
                gpu: sheet::gpu_number(node, index).to_string(),
                model: one_line(&kind) + simulated,
                busy: whole(gpu.utilization, "%"),
                memory: memory.unwrap_or_else(|| "-".to_owned()),
                heat: whole(gpu.temperature, "C"),
                power: whole(gpu.power_usage, "W"),
                jobs: one_line(&jobs.join(", ")),
            });
        }
    }
    lines
}

fn bare(node: String, gpus: String) -> Line {
    let unknown = || "-".to_owned();
    Line {
        node,
        gpu: unknown(),
        model: gpus,
        busy: unknown(),
        memory: unknown(),
        heat: unknown(),
        power: unknown(),
        jobs: String::new(),
    }
}
