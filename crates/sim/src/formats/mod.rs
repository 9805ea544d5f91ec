//! Public trace formats.
//!
//! | format | what | times |
//! |---|---|---|
//! | Alibaba `cluster-trace-gpu-v2023` | a node list and a pod list | seconds |
//! | `ElasticFlow` (Microsoft) | jobs | seconds |
//! | Philly, as published with Muri | jobs | milliseconds |
//!
//! Columns are found by name, in any order; unused columns may be missing.

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

/// Kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Nodes of an Alibaba trace.
    AlibabaNodes,
    /// Pods of an Alibaba trace.
    AlibabaPods,
    /// Jobs of an `ElasticFlow` cluster.
    Elasticflow,
    /// Jobs of a Philly trace.
    Philly,
    /// Pod names in order of arrival.
    Arrivals,
    /// Node names and ranks.
    Ranks,
    /// A scenario; see [`crate::scenario`].
    Scenario,
}

/// A cluster of equal nodes, for traces without a node list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UniformCluster {
    pub nodes: u32,
    /// GPUs per node.
    pub gpus_per_node: u32,
    pub model: String,
}

impl Default for UniformCluster {
    fn default() -> Self {
        Self { nodes: 8, gpus_per_node: 8, model: "NVIDIA V100".to_owned() }
    }
}

const KNOWN: &str = "known formats are a scenario (YAML or JSON), Alibaba node and pod lists (`sn,cpu_milli,…` and \
                     `name,cpu_milli,…,gpu_milli`), ElasticFlow (`job_id,submission_time,…`) and Philly \
                     (`job_id,num_gpu,submit_time,…`) job lists";

/// Detects the format by the first line.
pub fn detect(path: &Path) -> Result<Format, SimError> {
    let text = read_text(path)?;
    let first =
        text.trim_start_matches('\u{feff}').lines().map(str::trim).find(|line| !line.is_empty());
    let Some(first) = first else {
        return Err(SimError::Empty { path: path.to_owned(), what: "text" });
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

/// Cells of one line, without quotes and spaces.
fn cells(line: &str) -> csv::StringRecord {
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .trim(csv::Trim::All)
        .from_reader(line.as_bytes());
    reader.records().next().and_then(Result::ok).unwrap_or_default()
}

/// Reads a file with timed jobs. `nodes` is the node list of an Alibaba trace; other traces get a cluster of
/// equal nodes, and a scenario has its own.
pub fn read_load(
    jobs: &Path,
    nodes: Option<&Path>,
    uniform: &UniformCluster,
) -> Result<Load, SimError> {
    match detect(jobs)? {
        Format::Scenario => crate::scenario::read(jobs),
        Format::Elasticflow => uniform_load(&read_elasticflow(jobs)?, uniform),
        Format::Philly => uniform_load(&read_philly(jobs)?, uniform),
        Format::AlibabaPods => {
            let nodes = nodes.ok_or(SimError::Parameter {
                name: "the node list",
                value: "missing".to_owned(),
                help: "a pod list needs its node list",
            })?;
            alibaba_load(jobs, &read_alibaba_nodes(nodes)?, &read_alibaba_pods(jobs)?)
        }
        Format::AlibabaNodes | Format::Arrivals | Format::Ranks => Err(SimError::UnknownFormat {
            path: jobs.to_owned(),
            found: "it contains no jobs".to_owned(),
            help: "use the file with pods or jobs; node, arrival and rank lists are additional files",
        }),
    }
}

fn uniform_load(jobs: &[TraceJob], uniform: &UniformCluster) -> Result<Load, SimError> {
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

impl UniformCluster {
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
            node.rank = index;
            node.cpu = MilliCpu(96_000);
            node.memory = MiB(768 << 10);
            node.gpus = (0..self.gpus_per_node).map(gpu).collect();
            node
        };
        Ok((0..self.nodes).map(node).collect())
    }
}

pub(crate) fn read_text(path: &Path) -> Result<String, SimError> {
    std::fs::read_to_string(path).map_err(|error| SimError::read(path, error))
}
