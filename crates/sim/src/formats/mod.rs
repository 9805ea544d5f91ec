//! Public trace formats, read from files that the user has.
//!
//! | format | what | times |
//! |---|---|---|
//! | Alibaba `cluster-trace-gpu-v2023` | a machine list and a pod list | seconds |
//! | `ElasticFlow` (Microsoft) | jobs | seconds |
//! | Philly, as published with Muri | jobs | milliseconds |
//!
//! Columns are found by name, in any order; those not needed may be missing.

mod alibaba;
mod lists;
mod table;
#[cfg(test)]
mod tests;
mod timed;

use std::path::Path;

use agentaflow_engine::{Gpu, MiB, MigMode, MilliCpu, Node, Workload};

pub use alibaba::{TraceNode, TracePod, read_alibaba_nodes, read_alibaba_pods};
pub use lists::{read_arrivals, read_arrivals_of, read_ranks};
pub use timed::{TraceJob, read_elasticflow, read_philly};

use crate::{Job, Load, SimError};

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Machines of an Alibaba trace.
    AlibabaNodes,
    /// Pods of an Alibaba trace.
    AlibabaPods,
    /// Jobs of an `ElasticFlow` cluster.
    Elasticflow,
    /// Jobs of a Philly trace.
    Philly,
    /// Names of pods in order of arrival.
    Arrivals,
    /// Names of machines and their ranks.
    Ranks,
    /// A scenario of our own; see [`crate::scenario`].
    Scenario,
}

/// A cluster of equal machines, for traces that name none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uniform {
    /// Machines.
    pub nodes: u32,
    /// GPUs of each.
    pub gpus_per_node: u32,
    /// Their model.
    pub model: String,
}

impl Default for Uniform {
    fn default() -> Self {
        Self { nodes: 8, gpus_per_node: 8, model: "NVIDIA V100".to_owned() }
    }
}

const KNOWN: &str = "known are a scenario (YAML or JSON), Alibaba machine and pod lists (`sn,cpu_milli,…` and \
                     `name,cpu_milli,…,gpu_milli`), ElasticFlow (`job_id,submission_time,…`) and Philly \
                     (`job_id,num_gpu,submit_time,…`) job lists";

/// Says what a file is by its first line.
pub fn detect(path: &Path) -> Result<Format, SimError> {
    let text = read_text(path)?;
    let first =
        text.trim_start_matches('\u{feff}').lines().map(str::trim).find(|line| !line.is_empty());
    let Some(first) = first else {
        return Err(SimError::Empty { path: path.to_owned(), what: "text at all" });
    };
    recognise(path, first).ok_or_else(|| {
        let start: String = first.chars().take(60).collect();
        SimError::UnknownFormat {
            path: path.to_owned(),
            found: format!("it starts with `{start}`"),
            help: KNOWN,
        }
    })
}

fn recognise(path: &Path, first: &str) -> Option<Format> {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or("").to_lowercase();
    if ["yaml", "yml", "json"].contains(&ending.as_str()) {
        return Some(Format::Scenario);
    }
    let lower = first.to_lowercase();
    let cells = cells(&lower);
    let columns: Vec<&str> = cells.iter().collect();
    let has = |names: &[&str]| names.iter().all(|name| columns.contains(name));
    match columns.as_slice() {
        _ if has(&["num_gpu", "gpu_milli"]) => Some(Format::AlibabaPods),
        _ if has(&["cpu_milli", "gpu"]) => Some(Format::AlibabaNodes),
        _ if has(&["submission_time", "num_gpu"]) => Some(Format::Elasticflow),
        _ if has(&["submit_time", "num_gpu"]) => Some(Format::Philly),
        [_, rank] if *rank == "rank" || rank.parse::<u32>().is_ok() => Some(Format::Ranks),
        [one]
            if one.contains(':')
                || ["{", "---", "#"].iter().any(|start| one.starts_with(start)) =>
        {
            Some(Format::Scenario)
        }
        [one] if !one.contains(char::is_whitespace) => Some(Format::Arrivals),
        _ => None,
    }
}

/// The cells of one line, without the quotes and spaces around them.
fn cells(line: &str) -> csv::StringRecord {
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .trim(csv::Trim::All)
        .from_reader(line.as_bytes());
    reader.records().next().and_then(Result::ok).unwrap_or_default()
}

/// Reads any file that holds jobs with times. `nodes` is the machine list of an Alibaba trace; the
/// other traces get a cluster of equal machines, and a scenario brings its own.
pub fn read_load(jobs: &Path, nodes: Option<&Path>, uniform: &Uniform) -> Result<Load, SimError> {
    match detect(jobs)? {
        Format::Scenario => crate::scenario::read(jobs),
        Format::Elasticflow => uniform_load(&read_elasticflow(jobs)?, uniform),
        Format::Philly => uniform_load(&read_philly(jobs)?, uniform),
        Format::AlibabaPods => {
            let nodes = nodes.ok_or(SimError::Parameter {
                name: "the machine list",
                value: "missing".to_owned(),
                help: "a pod list needs the machine list that belongs to it",
            })?;
            alibaba_load(jobs, &read_alibaba_nodes(nodes)?, &read_alibaba_pods(jobs)?)
        }
        Format::AlibabaNodes | Format::Arrivals | Format::Ranks => Err(SimError::UnknownFormat {
            path: jobs.to_owned(),
            found: "it holds no jobs".to_owned(),
            help: "give the file with pods or jobs; machines, arrivals and ranks go with it",
        }),
    }
}

fn uniform_load(jobs: &[TraceJob], uniform: &Uniform) -> Result<Load, SimError> {
    let jobs = jobs.iter().map(|job| job.job(uniform.gpus_per_node)).collect();
    Ok(Load { nodes: uniform.machines()?, jobs, ..Load::default() })
}

fn alibaba_load(path: &Path, nodes: &[TraceNode], pods: &[TracePod]) -> Result<Load, SimError> {
    let job = |pod: &TracePod| {
        let (Some(at), Some(duration)) = (pod.created, pod.lifetime) else {
            return Err(SimError::UnknownFormat {
                path: path.to_owned(),
                found: format!("pod `{}` has no times", pod.name),
                help: "a replay needs `creation_time` and `deletion_time`; the packing experiment does not",
            });
        };
        let mut workload = Workload::new(pod.name.as_str(), pod.request());
        workload.estimate = Some(duration);
        Ok(Job { at, workload, duration })
    };
    let jobs: Result<_, _> = pods.iter().map(job).collect();
    Ok(Load { nodes: nodes.iter().map(TraceNode::node).collect(), jobs: jobs?, ..Load::default() })
}

impl Uniform {
    /// The machines.
    pub fn machines(&self) -> Result<Vec<Node>, SimError> {
        crate::load::check_size(self.nodes, self.gpus_per_node)?;
        let gpu = |index: u32| Gpu {
            id: index.to_string().into(),
            model: self.model.as_str().into(),
            memory: MiB(32 << 10),
            nvlink: Some(0),
            mig: MigMode::Off,
        };
        let node = |index: u32| {
            let mut node = Node::new(format!("node-{index}"));
            (node.rank, node.cpu, node.memory) = (index, MilliCpu(96_000), MiB(768 << 10));
            node.gpus = (0..self.gpus_per_node).map(gpu).collect();
            node
        };
        Ok((0..self.nodes).map(node).collect())
    }
}

pub(crate) fn read_text(path: &Path) -> Result<String, SimError> {
    std::fs::read_to_string(path).map_err(|error| SimError::read(path, error))
}
