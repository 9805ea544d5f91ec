//! Scenarios: a cluster and its work in one small YAML or JSON file.
//!
//! ```yaml
//! seed: 7                      # for what is left to chance
//! policy: { order: fifo, patience: 10m }
//! nodes:
//!   - { name: h100, count: 2, gpus: 8, model: NVIDIA H100 80GB, gpu_memory: 80Gi, cpu: 96, memory: 1Ti }
//! queues:
//!   - { name: research, guaranteed: { gpus: 8 } }
//! jobs:
//!   - { name: train, queue: research, gpus: 4, duration: 4h, count: 10, every: 30m, random: true }
//!   - { name: notebook, gpus: 0.25, duration: { from: 10m, to: 8h }, count: 40, every: 5m }
//! ```

mod amount;
mod check;
mod expand;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;

use agentaflow_engine::{MigProfile, Priority, QueueOrder, Strategy, Topology};
use serde::{Deserialize, Serialize};

pub use amount::{Cores, Dollars, GpuCount, Length, Size};

use crate::{Load, SimError};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    /// Seed of all random values.
    pub seed: u64,
    pub policy: Settings,
    pub nodes: Vec<Nodes>,
    /// Parents first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<QueueSpec>,
    pub jobs: Vec<Jobs>,
}

/// Policy settings; absent ones have the engine's defaults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Replaced in runs with several strategies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<QueueOrder>,
    /// Waiting time that equals one priority level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ageing: Option<Length>,
    /// Half-life of past usage in the fair share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub half_life: Option<Length>,
    /// Placed workloads rarely end; `least_fragmented` then optimizes the final packing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work_stays: Option<bool>,
    /// Let other workloads start before the blocked head when they do not delay the head.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backfill: Option<bool>,
    /// Waiting time after which a head without a known start time gets a reservation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patience: Option<Length>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemption: Option<bool>,
    /// Minimum run time before preemption.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_runtime: Option<Length>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nodes {
    /// Name of a single node, or prefix of the names `name-0`, `name-1`, ….
    pub name: String,
    /// Defaults to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// GPUs per node.
    #[serde(default)]
    pub gpus: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Memory per GPU; defaults to 80 GiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_memory: Option<Size>,
    /// Connect the GPUs of a node by `NVLink`.
    #[serde(default)]
    pub nvlink: bool,
    /// Number of GPUs per node in MIG mode, the last ones.
    #[serde(default)]
    pub mig_gpus: u32,
    /// CPU per node; defaults to 8 cores per GPU, at least 8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cores>,
    /// Host memory per node; defaults to 64 GiB per GPU, at least 64 GiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
    /// For example `rack`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Dollars per GPU hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_hour: Option<Dollars>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueSpec {
    pub name: String,
    /// Defaults to the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Weight among siblings; defaults to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Quota that the queue can reclaim at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guaranteed: Option<Amounts>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Amounts>,
    /// Allow usage beyond the guarantee; defaults to true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub borrow: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Amounts {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<GpuCount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cores>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
}

/// Equal workloads, submitted one after another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Jobs {
    /// Name of a single job, or prefix of the names `name-0`, `name-1`, ….
    pub name: String,
    /// Defaults to the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Defaults to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// Submission time of the first; defaults to 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Length>,
    /// Time between submissions; all at once by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<Length>,
    /// `every` is the mean of a Poisson process.
    #[serde(default)]
    pub random: bool,
    /// Actual run time.
    pub duration: DurationSpec,
    /// Estimated run time; defaults to the actual one, `0s` means unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<Length>,
    /// Tasks per job, started together; defaults to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<u32>,
    /// For example `{ same: rack }` or `{ spread: node }`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,
    /// GPUs per task: whole ones, or a fraction of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<GpuCount>,
    /// Alternative to `gpus`: memory of one GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_memory: Option<Size>,
    /// Alternative to `gpus`: one MIG slice of this profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<MigProfile>,
    /// Accepted models; any by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// Require GPUs of one `NVLink` group.
    #[serde(default)]
    pub nvlink: bool,
    /// CPU per task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cores>,
    /// Host memory per task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
    /// Higher first; defaults to 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// The job may be a preemption victim.
    #[serde(default)]
    pub preemptible: bool,
}

/// Run time of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum DurationSpec {
    Fixed(Length),
    /// Log-uniform between the bounds.
    Range(Range),
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    pub from: Length,
    pub to: Length,
}

/// Reads a YAML or JSON file.
pub fn read(path: &Path) -> Result<Load, SimError> {
    let text = crate::formats::read_text(path)?;
    parse(&text, &format!("`{}`", path.display()))
}

/// Parses YAML or JSON; `origin` names the scenario in errors.
pub fn parse(text: &str, origin: &str) -> Result<Load, SimError> {
    let scenario: Scenario = serde_saphyr::from_str(text).map_err(|error| SimError::Scenario {
        origin: origin.to_owned(),
        message: error.without_snippet().to_string(),
    })?;
    scenario.load(origin)
}
