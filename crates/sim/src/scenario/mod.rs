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

use agentaflow_engine::{MigProfile, QueueOrder, Strategy, Topology};
use serde::{Deserialize, Serialize};

pub use amount::{Cores, Dollars, GpuCount, Length, Size};

use crate::{Load, SimError};

/// A whole scenario.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    /// Decides whatever is left to chance.
    pub seed: u64,
    /// How the cluster is run.
    pub policy: Settings,
    /// The machines.
    pub nodes: Vec<Nodes>,
    /// The queues, parents first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<QueueSpec>,
    /// The work.
    pub jobs: Vec<Jobs>,
}

/// Settings of the cluster; what is left out is as in the product.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// How GPUs are chosen; a run with several strategies replaces it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,
    /// Who is served first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<QueueOrder>,
    /// One level of priority is worth this much waiting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ageing: Option<Length>,
    /// Past use counts half as much after this long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub half_life: Option<Length>,
    /// Work stays once it is placed; `least_fragmented` then plans for how full nodes end up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work_stays: Option<bool>,
    /// Smaller work may pass a blocked head when that does not delay it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backfill: Option<bool>,
    /// A head whose start cannot be foreseen gets GPUs kept free after this long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patience: Option<Length>,
    /// Running work may be stopped for waiting work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemption: Option<bool>,
    /// Running work is not stopped before this long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_runtime: Option<Length>,
}

/// Equal machines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nodes {
    /// The name of one, or what the names `name-0`, `name-1`, … of several begin with.
    pub name: String,
    /// How many; one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// GPUs of each.
    #[serde(default)]
    pub gpus: u32,
    /// Their model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Memory of each GPU; 80 GiB when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_memory: Option<Size>,
    /// The GPUs of a machine are joined by `NVLink`.
    #[serde(default)]
    pub nvlink: bool,
    /// So many GPUs of each machine, the last ones, are in MIG mode.
    #[serde(default)]
    pub mig_gpus: u32,
    /// CPU of each; 8 cores for each GPU, and at least 8, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cores>,
    /// Host memory of each; 64 GiB for each GPU, and at least 64 GiB, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
    /// Labels, such as `rack`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Dollars for one GPU and hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_hour: Option<Dollars>,
}

/// A queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueSpec {
    /// Its name.
    pub name: String,
    /// The queue above it; the root when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Its weight among its siblings; 100 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// What it always gets back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guaranteed: Option<Amounts>,
    /// What it never exceeds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Amounts>,
    /// May use more than guaranteed; yes when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub borrow: Option<bool>,
}

/// Amounts of a quota.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Amounts {
    /// GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<GpuCount>,
    /// CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cores>,
    /// Host memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
}

/// Equal workloads that are handed in one after the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Jobs {
    /// The name of one, or what the names `name-0`, `name-1`, … of several begin with.
    pub name: String,
    /// The queue; the root when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// How many; one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// When the first is handed in; at once when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Length>,
    /// The time between two of them; all at once when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<Length>,
    /// `every` is an average, and arrivals are independent of each other (Poisson).
    #[serde(default)]
    pub random: bool,
    /// How long each really runs.
    pub duration: DurationSpec,
    /// How long each is said to run: exactly as long as it does when absent, unknown when `0s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<Length>,
    /// Tasks of each, all started together; one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<u32>,
    /// How the tasks lie to each other: `{ same: rack }`, `{ spread: node }`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,
    /// GPUs of each task: whole ones, or a part of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<GpuCount>,
    /// Instead: memory of one GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_memory: Option<Size>,
    /// Instead: one MIG slice of this profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<MigProfile>,
    /// Models that it may use; any when absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// Its GPUs are joined by `NVLink`.
    #[serde(default)]
    pub nvlink: bool,
    /// CPU of each task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cores>,
    /// Host memory of each task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
    /// 0 to 10; 5 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// May be stopped for others.
    #[serde(default)]
    pub preemptible: bool,
}

/// How long workloads run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum DurationSpec {
    /// All equally long.
    Fixed(Length),
    /// Something in between: every order of magnitude is as likely as any other.
    Range(Range),
}

/// From a shortest to a longest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// The shortest.
    pub from: Length,
    /// The longest.
    pub to: Length,
}

/// Reads a scenario file, YAML or JSON.
pub fn read(path: &Path) -> Result<Load, SimError> {
    let text = crate::formats::read_text(path)?;
    parse(&text, &format!("`{}`", path.display()))
}

/// Reads a scenario from text, YAML or JSON; `origin` names it in errors.
pub fn parse(text: &str, origin: &str) -> Result<Load, SimError> {
    let scenario: Scenario = serde_saphyr::from_str(text).map_err(|error| SimError::Scenario {
        origin: origin.to_owned(),
        message: error.without_snippet().to_string(),
    })?;
    scenario.load(origin)
}
