//! Rows of each pane, filtered and sorted.

use std::cmp::Ordering;

use agentaflow_api::job::{Job, JobStatus};
use agentaflow_api::node::Node;

use super::{Model, Pane, Snapshot, gpu_key};
use crate::labels::{self, gpus_allocated, gpus_requested};

#[derive(Clone, Copy, Debug)]
pub(crate) enum GpuRow<'a> {
    Node { node: &'a Node, folded: bool },
    Gpu { node: &'a Node, gpu: usize },
}

/// Sort orders of a pane; the first is the default.
pub(crate) fn orders(pane: Pane) -> &'static [&'static str] {
    match pane {
        Pane::Gpus => &["name", "utilisation", "memory", "temperature", "power"],
        Pane::Jobs => &["newest", "name", "GPUs", "time", "price"],
        Pane::Queue => &["position", "name", "GPUs", "time", "ETA"],
    }
}

impl Snapshot {
    /// Unfinished jobs on a GPU, given by its position on the node.
    pub fn jobs_on(&self, node: &Node, gpu: usize) -> Vec<&Job> {
        let instance = node.spec.gpu_instances.get(gpu);
        let index = instance.and_then(|gpu| gpu.gpu_index).unwrap_or(gpu as u32).to_string();
        let uuid = instance.and_then(|gpu| gpu.gpu_uuid.as_deref());
        // The name of a MIG slice starts with its GPU.
        let is_it = |name: &String| {
            Some(name.as_str()) == uuid || name.split(['/', ':', '.', ' ']).next() == Some(&index)
        };
        let has_it = |job: &&Job| {
            let here = |id: &str| id == node.node_id || id == node.spec.node_name;
            let mut tasks = job.tasks.iter();
            tasks.any(|task| here(&task.node_id) && task.gpus.iter().any(is_it))
        };
        let jobs = self.jobs.iter();
        jobs.filter(|job| !job.status.is_final()).filter(has_it).collect()
    }
}

impl Model {
    /// Nodes, each followed by its GPUs unless folded.
    pub(crate) fn gpus(&self) -> Vec<GpuRow<'_>> {
        let mut rows = Vec::new();
        for node in self.nodes() {
            let folded = self.folded.contains(&node.node_id);
            rows.push(GpuRow::Node { node, folded });
            if !folded {
                let gpus = 0..node.spec.gpu_instances.len();
                rows.extend(gpus.map(|gpu| GpuRow::Gpu { node, gpu }));
            }
        }
        rows
    }

    /// Placed jobs, then finished jobs.
    pub(crate) fn jobs(&self) -> Vec<&Job> {
        let mut jobs = self.matching(|job| job.status != JobStatus::Pending);
        let cursor = self.cursor(Pane::Jobs);
        jobs.sort_by(|a, b| {
            let ended = a.status.is_final().cmp(&b.status.is_final());
            let newest = if a.status.is_final() {
                b.completed_at.cmp(&a.completed_at)
            } else {
                started(b).cmp(&started(a))
            };
            let order = match cursor.sort {
                1 => labels::job_name(a).cmp(&labels::job_name(b)),
                2 => gpus_allocated(b).total_cmp(&gpus_allocated(a)),
                3 => by_number(b.duration_seconds, a.duration_seconds),
                4 => b.price_per_hour.cmp(&a.price_per_hour),
                _ => newest,
            };
            ended
                .then(reverse_if(order, cursor.reversed))
                .then(b.id.cmp(&a.id))
                .then_with(|| by_handle(a, b))
        });
        jobs
    }

    /// Pending jobs in queue order.
    pub(crate) fn queue(&self) -> Vec<&Job> {
        let mut jobs = self.matching(|job| job.status == JobStatus::Pending);
        let cursor = self.cursor(Pane::Queue);
        jobs.sort_by(|a, b| {
            let order = match cursor.sort {
                1 => labels::job_name(a).cmp(&labels::job_name(b)),
                2 => gpus_requested(b).total_cmp(&gpus_requested(a)),
                3 => a.created_at.cmp(&b.created_at),
                4 => none_last(self.eta(a), self.eta(b)),
                _ => none_last(self.position(a), self.position(b))
                    .then(priority(b).cmp(&priority(a))),
            };
            let order = reverse_if(order, cursor.reversed);
            order
                .then(a.created_at.cmp(&b.created_at))
                .then(a.id.cmp(&b.id))
                .then_with(|| by_handle(a, b))
        });
        jobs
    }

    /// Unfinished jobs on a GPU, given by its position on the node.
    pub(crate) fn jobs_on(&self, node: &Node, gpu: usize) -> Vec<&Job> {
        self.data.as_ref().map_or_else(Vec::new, |data| data.jobs_on(node, gpu))
    }

    /// Keys of the rows of a pane.
    pub(crate) fn keys(&self, pane: Pane) -> Vec<String> {
        match pane {
            Pane::Jobs => self.jobs().into_iter().map(Job::handle).collect(),
            Pane::Queue => self.queue().into_iter().map(Job::handle).collect(),
            Pane::Gpus => self.gpus().iter().map(gpu_row_key).collect(),
        }
    }

    fn nodes(&self) -> Vec<&Node> {
        let nodes = self.data.iter().flat_map(|data| &data.nodes);
        let mut nodes: Vec<_> = nodes.filter(|node| self.shows_node(node)).collect();
        let cursor = self.cursor(Pane::Gpus);
        nodes.sort_by(|a, b| {
            let order = match cursor.sort {
                0 => a.spec.node_name.cmp(&b.spec.node_name),
                sort => by_number(reading(b, sort), reading(a, sort)),
            };
            reverse_if(order, cursor.reversed).then(a.spec.node_name.cmp(&b.spec.node_name))
        });
        nodes
    }

    fn matching(&self, which: impl Fn(&Job) -> bool) -> Vec<&Job> {
        let jobs = self.data.iter().flat_map(|data| &data.jobs);
        jobs.filter(|job| which(job) && self.shows_job(job)).collect()
    }

    fn shows_node(&self, node: &Node) -> bool {
        let model = node.spec.gpu_type.as_deref().unwrap_or_default();
        let texts = [node.spec.node_name.as_str(), &node.node_id, model];
        let gpus = 0..node.spec.gpu_instances.len();
        self.passes(&texts)
            || gpus.flat_map(|gpu| self.jobs_on(node, gpu)).any(|job| self.shows_job(job))
    }

    fn shows_job(&self, job: &Job) -> bool {
        let texts = [
            job.handle(),
            labels::job_name(job),
            job.status.as_str().to_owned(),
            labels::job_nodes(job),
            job.spec.queue.clone().unwrap_or_default(),
            job.wait_reason.clone().unwrap_or_default(),
        ];
        self.passes(&texts.each_ref().map(String::as_str))
    }

    /// Each word of the filter occurs in one of the texts, ignoring case.
    fn passes(&self, texts: &[&str]) -> bool {
        let filter = self.filter.to_lowercase();
        let texts: Vec<_> = texts.iter().map(|text| text.to_lowercase()).collect();
        filter.split_whitespace().all(|word| texts.iter().any(|text| text.contains(word)))
    }

    fn position(&self, job: &Job) -> Option<u32> {
        self.explanation(&job.handle())?.as_ref().ok()?.position
    }

    fn eta(&self, job: &Job) -> Option<i64> {
        Some(self.explanation(&job.handle())?.as_ref().ok()?.eta?.0)
    }
}

fn gpu_row_key(row: &GpuRow<'_>) -> String {
    match row {
        GpuRow::Node { node, .. } => node.node_id.clone(),
        GpuRow::Gpu { node, gpu } => gpu_key(node, *gpu),
    }
}

/// The highest reading of a node for an index of [`orders`].
fn reading(node: &Node, sort: usize) -> Option<f64> {
    let gpus = node.spec.gpu_instances.iter();
    let readings = gpus.filter_map(|gpu| match sort {
        1 => gpu.utilization,
        2 => Some(gpu.gpu_memory?.saturating_sub(gpu.gpu_memory_available?) as f64),
        3 => gpu.temperature,
        _ => gpu.power_usage,
    });
    readings.max_by(f64::total_cmp)
}

fn started(job: &Job) -> i64 {
    job.started_at.or(job.scheduled_at).unwrap_or(job.created_at).0
}

fn priority(job: &Job) -> i32 {
    job.spec.priority.unwrap_or(5)
}

fn by_handle(a: &Job, b: &Job) -> Ordering {
    a.handle().cmp(&b.handle())
}

fn by_number(a: Option<f64>, b: Option<f64>) -> Ordering {
    a.unwrap_or(f64::NEG_INFINITY).total_cmp(&b.unwrap_or(f64::NEG_INFINITY))
}

fn reverse_if(order: Ordering, reversed: bool) -> Ordering {
    if reversed { order.reverse() } else { order }
}

/// Orders `None` last.
fn none_last<T: Ord>(a: Option<T>, b: Option<T>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => a.cmp(&b),
        (a, b) => b.is_some().cmp(&a.is_some()),
    }
}
