//! Nodes and pods of `alibaba/clusterdata`, `cluster-trace-gpu-v2023`.

use std::collections::BTreeMap;
use std::path::Path;

use agentaflow_engine::{
    Gpu, GpuModel, GpuRequest, MiB, MilliCpu, MilliGpu, Node, Request, Span, Time,
};

use super::table::{Column, Layout, Row, Table};
use crate::SimError;

/// Limit of GPUs per node or pod, as in the scheduler.
const MAX_GPUS: u64 = 64;
/// Limit of every amount.
const MAX: u64 = 1 << 46;
/// In seconds: thirty thousand years.
pub(super) const LATEST: f64 = 1e12;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceNode {
    pub name: String,
    pub cpu: MilliCpu,
    pub memory: MiB,
    pub gpus: u32,
    /// Empty when unknown.
    pub model: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracePod {
    pub name: String,
    pub cpu: MilliCpu,
    pub memory: MiB,
    pub gpus: u32,
    /// Thousandths of each GPU, at most 1000; zero without GPUs.
    pub milli: u32,
    /// Accepted models, separated by `|`; empty means any.
    pub spec: String,
    /// Creation time, if the trace has it.
    pub created: Option<Time>,
    /// Run time, if the trace has it.
    pub lifetime: Option<Span>,
}

const NODES: Layout =
    Layout { format: "node list", rows: "nodes", header: "sn,cpu_milli,memory_mib,gpu,model" };

const PODS: Layout = Layout {
    format: "pod list",
    rows: "pods",
    header: "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time",
};

/// Reads a node list. The column `model` is optional.
pub fn read_alibaba_nodes(path: &Path) -> Result<Vec<TraceNode>, SimError> {
    let table = Table::read(path, &NODES)?;
    let name = table.column(&["sn", "name"])?;
    let (cpu, memory) = (table.column(&["cpu_milli"])?, table.column(&["memory_mib"])?);
    let gpus = table.column(&["gpu", "num_gpu"])?;
    let model = table.optional(&["model", "gpu_spec"]);
    let mut once = UniqueNames::default();
    let node = |row: Row<'_>| {
        Ok(TraceNode {
            name: once.name(row, name)?,
            cpu: MilliCpu(row.whole(cpu, MAX)?),
            memory: MiB(row.whole(memory, MAX)?),
            gpus: row.whole(gpus, MAX_GPUS)? as u32,
            model: model.map_or("", |model| row.text(model)).to_owned(),
        })
    };
    table.rows().map(node).collect()
}

struct PodColumns {
    name: Column,
    cpu: Column,
    memory: Column,
    gpus: Column,
    milli: Column,
    spec: Option<Column>,
    created: Option<Column>,
    deleted: Option<Column>,
    scheduled: Option<Column>,
}

/// Reads a pod list. The columns `gpu_spec` and the times are optional.
pub fn read_alibaba_pods(path: &Path) -> Result<Vec<TracePod>, SimError> {
    let table = Table::read(path, &PODS)?;
    let columns = PodColumns {
        name: table.column(&["name"])?,
        cpu: table.column(&["cpu_milli"])?,
        memory: table.column(&["memory_mib"])?,
        gpus: table.column(&["num_gpu"])?,
        milli: table.column(&["gpu_milli"])?,
        spec: table.optional(&["gpu_spec"]),
        created: table.optional(&["creation_time"]),
        deleted: table.optional(&["deletion_time"]),
        scheduled: table.optional(&["scheduled_time"]),
    };
    let mut once = UniqueNames::default();
    table.rows().map(|row| pod(row, &columns, &mut once)).collect()
}

fn pod(row: Row<'_>, columns: &PodColumns, once: &mut UniqueNames) -> Result<TracePod, SimError> {
    let gpus = row.whole(columns.gpus, MAX_GPUS)? as u32;
    let milli = if gpus == 0 { 0 } else { row.whole(columns.milli, MAX)?.min(1000) as u32 };
    if gpus > 0 && milli == 0 {
        return Err(
            row.wrong(columns.milli, "is not a GPU share; use 1 to 1000, or set `num_gpu` to 0")
        );
    }
    let (created, lifetime) = times(row, columns)?;
    Ok(TracePod {
        name: once.name(row, columns.name)?,
        cpu: MilliCpu(row.whole(columns.cpu, MAX)?),
        memory: MiB(row.whole(columns.memory, MAX)?),
        gpus,
        milli,
        spec: columns.spec.map_or("", |spec| row.text(spec)).to_owned(),
        created,
        lifetime,
    })
}

/// Creation time and run time; the run time starts at the scheduled time where known.
fn times(row: Row<'_>, columns: &PodColumns) -> Result<(Option<Time>, Option<Span>), SimError> {
    let seconds =
        |column: Option<Column>| match column.filter(|column| !row.text(*column).is_empty()) {
            Some(column) => row.decimal(column, LATEST).map(Some),
            None => Ok(None),
        };
    let (created, deleted) = (seconds(columns.created)?, seconds(columns.deleted)?);
    let started = seconds(columns.scheduled)?.or(created);
    let lifetime = match (started, deleted, columns.deleted) {
        (Some(started), Some(deleted), Some(column)) if deleted < started => {
            return Err(row.wrong(column, format!("is before the start of the pod at {started}")));
        }
        (Some(started), Some(deleted), _) => Some(Span(millis(deleted - started))),
        _ => None,
    };
    Ok((created.map(|seconds| Time(millis(seconds))), lifetime))
}

pub(super) fn millis(seconds: f64) -> u64 {
    (seconds * 1000.0).round() as u64
}

#[derive(Default)]
pub(super) struct UniqueNames(BTreeMap<String, u64>);

impl UniqueNames {
    pub(super) fn name(&mut self, row: Row<'_>, column: Column) -> Result<String, SimError> {
        let name = row.name(column)?;
        match self.0.insert(name.clone(), row.line()) {
            Some(line) => {
                Err(row.wrong(column, format!("is already on line {line}; names must be unique")))
            }
            None => Ok(name),
        }
    }
}

impl TraceNode {
    pub fn node(&self) -> Node {
        let mut node = Node::new(self.name.as_str());
        node.cpu = self.cpu;
        node.memory = self.memory;
        let gpu = |index: u32| Gpu {
            id: index.to_string().into(),
            model: exact_model(&self.model),
            memory: gpu_memory(&self.model),
            nvlink: None,
            mig: agentaflow_engine::MigMode::Off,
        };
        node.gpus = (0..self.gpus).map(gpu).collect();
        node
    }
}

impl TracePod {
    pub fn total_milli(&self) -> i64 {
        i64::from(self.milli) * i64::from(self.gpus)
    }

    /// A share of several GPUs, which no real pod requests, counts as whole GPUs.
    pub fn gpu_request(&self) -> GpuRequest {
        match (self.gpus, MilliGpu::new(self.milli)) {
            (0, _) | (_, Err(_)) => GpuRequest::None,
            (1, Ok(share)) if share < MilliGpu::WHOLE => GpuRequest::Fraction(share),
            (count, Ok(_)) => GpuRequest::Whole(count),
        }
    }

    /// Accepted models; empty means any.
    pub fn models(&self) -> Vec<GpuModel> {
        self.spec
            .split('|')
            .map(str::trim)
            .filter(|model| !model.is_empty())
            .map(exact_model)
            .collect()
    }

    pub fn request(&self) -> Request {
        Request {
            gpu: self.gpu_request(),
            models: self.models(),
            cpu: self.cpu,
            memory: self.memory,
            ..Request::default()
        }
    }
}

/// The scheduler matches models by words. A trace means exactly the named model, so its name becomes one
/// word.
fn exact_model(name: &str) -> GpuModel {
    let name = name.trim();
    if name.is_empty() {
        GpuModel::from("unknown")
    } else {
        name.replace([' ', '-', '_', '/'], ".").into()
    }
}

/// Traces do not contain GPU memory; strategies need it.
fn gpu_memory(model: &str) -> MiB {
    let gib = match model {
        "A10" | "G2" => 24,
        "V100M32" => 32,
        "A100" => 40,
        "G3" | "H100" | "A800" | "H800" => 80,
        _ => 16,
    };
    MiB(gib << 10)
}
