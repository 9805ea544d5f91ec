//! The rows of each pane: what passes the filter, in the order that was chosen.

use std::cmp::Ordering;

use agentaflow_api::job::{Job, JobStatus};
use agentaflow_api::node::Node;

use super::super::sheet;
use super::{Model, Pane, gpu_key};
use crate::listing::{self, gpus_held, gpus_wanted};

/// A row of the pane of GPUs.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum GpuRow<'a> {
    Node { node: &'a Node, folded: bool },
    Gpu { node: &'a Node, gpu: usize },
}

/// By what each pane can be sorted; the first is how it begins.
pub(in super::super) fn orders(pane: Pane) -> &'static [&'static str] {
    match pane {
        Pane::Gpus => &["name", "utilisation", "memory", "temperature", "power"],
        Pane::Jobs => &["newest", "name", "GPUs", "time", "price"],
        Pane::Queue => &["position", "name", "GPUs", "time", "ETA"],
    }
}

impl Model {
    /// Nodes, and under each that is not folded its GPUs.
    pub(in super::super) fn gpus(&self) -> Vec<GpuRow<'_>> {
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

    /// Jobs that have a place, then those that ended last.
    pub(in super::super) fn jobs(&self) -> Vec<&Job> {
        let mut jobs = self.matching(|job| job.status != JobStatus::Pending);
        let cursor = self.cursor(Pane::Jobs);
        jobs.sort_by(|a, b| {
            let ended = a.status.is_final().cmp(&b.status.is_final());
            let newest = if a.status.is_final() {
                b.completed_at.cmp(&a.completed_at)
            } else {
                started(b).cmp(&started(a))
            };
            let chosen = match cursor.sort {
                1 => sheet::job_name(a).cmp(&sheet::job_name(b)),
                2 => gpus_held(b).total_cmp(&gpus_held(a)),
                3 => by_number(b.duration_seconds, a.duration_seconds),
                4 => b.price_per_hour.cmp(&a.price_per_hour),
                _ => newest,
            };
            ended
                .then(turned(chosen, cursor.reversed))
                .then(b.id.cmp(&a.id))
                .then_with(|| by_name(a, b))
        });
        jobs
    }

    /// Jobs that wait, in the order in which they are looked at.
    pub(in super::super) fn queue(&self) -> Vec<&Job> {
        let mut jobs = self.matching(|job| job.status == JobStatus::Pending);
        let cursor = self.cursor(Pane::Queue);
        jobs.sort_by(|a, b| {
            let chosen = match cursor.sort {
                1 => sheet::job_name(a).cmp(&sheet::job_name(b)),
                2 => gpus_wanted(b).total_cmp(&gpus_wanted(a)),
                3 => a.created_at.cmp(&b.created_at),
                4 => some_first(self.eta(a), self.eta(b)),
                _ => some_first(self.position(a), self.position(b))
                    .then(priority(b).cmp(&priority(a))),
            };
            let chosen = turned(chosen, cursor.reversed);
            chosen
                .then(a.created_at.cmp(&b.created_at))
                .then(a.id.cmp(&b.id))
                .then_with(|| by_name(a, b))
        });
        jobs
    }

    /// Jobs that have a GPU now.
    pub(in super::super) fn jobs_on(&self, node: &Node, gpu: usize) -> Vec<&Job> {
        let instance = node.spec.gpu_instances.get(gpu);
        let index = instance.and_then(|gpu| gpu.gpu_index).unwrap_or(gpu as u32).to_string();
        let uuid = instance.and_then(|gpu| gpu.gpu_uuid.as_deref());
        // A slice is named after its GPU.
        let is_it = |name: &String| {
            Some(name.as_str()) == uuid || name.split(['/', ':', '.', ' ']).next() == Some(&index)
        };
        let has_it = |job: &&Job| {
            let here = |id: &str| id == node.node_id || id == node.spec.node_name;
            let mut tasks = job.tasks.iter();
            tasks.any(|task| here(&task.node_id) && task.gpus.iter().any(is_it))
        };
        let jobs = self.data.iter().flat_map(|data| &data.jobs);
        jobs.filter(|job| !job.status.is_final()).filter(has_it).collect()
    }

    /// The names of a pane's rows.
    pub(super) fn keys(&self, pane: Pane) -> Vec<String> {
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
            let chosen = match cursor.sort {
                0 => a.spec.node_name.cmp(&b.spec.node_name),
                sort => by_number(reading(b, sort), reading(a, sort)),
            };
            turned(chosen, cursor.reversed).then(a.spec.node_name.cmp(&b.spec.node_name))
        });
        nodes
    }

    fn matching(&self, which: impl Fn(&Job) -> bool) -> Vec<&Job> {
        let jobs = self.data.iter().flat_map(|data| &data.jobs);
        jobs.filter(|job| which(job) && self.shows_job(job)).collect()
    }

    fn shows_node(&self, node: &Node) -> bool {
        let model = node.spec.gpu_type.as_deref().unwrap_or_default();
        let said = [node.spec.node_name.as_str(), &node.node_id, model];
        let gpus = 0..node.spec.gpu_instances.len();
        self.passes(&said)
            || gpus.flat_map(|gpu| self.jobs_on(node, gpu)).any(|job| self.shows_job(job))
    }

    fn shows_job(&self, job: &Job) -> bool {
        let said = [
            job.handle(),
            sheet::job_name(job),
            job.status.as_str().to_owned(),
            listing::job_nodes(job),
            job.spec.queue.clone().unwrap_or_default(),
            job.wait_reason.clone().unwrap_or_default(),
        ];
        self.passes(&said.each_ref().map(String::as_str))
    }

    /// Every word of the filter stands somewhere, in large or small letters.
    fn passes(&self, said: &[&str]) -> bool {
        let filter = self.filter.to_lowercase();
        let said: Vec<_> = said.iter().map(|text| text.to_lowercase()).collect();
        filter.split_whitespace().all(|word| said.iter().any(|text| text.contains(word)))
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

/// The highest of a node's readings, by the number of the order.
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

fn priority(job: &Job) -> u32 {
    job.spec.priority.unwrap_or(5)
}

fn by_name(a: &Job, b: &Job) -> Ordering {
    a.handle().cmp(&b.handle())
}

fn by_number(a: Option<f64>, b: Option<f64>) -> Ordering {
    a.unwrap_or(f64::NEG_INFINITY).total_cmp(&b.unwrap_or(f64::NEG_INFINITY))
}

fn turned(order: Ordering, reversed: bool) -> Ordering {
    if reversed { order.reverse() } else { order }
}

/// What is known comes before what is not.
fn some_first<T: Ord>(a: Option<T>, b: Option<T>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => a.cmp(&b),
        (a, b) => b.is_some().cmp(&a.is_some()),
    }
}
