//! Engine properties of a workload besides its pods.

use agentaflow_engine::{
    GpuModel, GpuRequest, MiB, Request, ResourceName, Span, Strategy, Topology, Workload,
};

use super::template::memory;
use crate::crd::{GpuWorkloadSpec, TopologyMode};
use crate::names;
use crate::translate;

/// Spec that passes the schema of the API server but cannot be scheduled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSpec {
    #[error("spec.schedulingStrategy `{0}` does not exist: write one of {names}", names = strategies())]
    Strategy(String),
    /// Invalid duration.
    #[error("spec.estimatedDuration `{0}` is not a length of time: write `90m`, `4h` or `1h30m`")]
    Duration(String),
    /// No pods, or too many.
    #[error("spec.gangSize is {0}: write a number from 1 to {MAX_GANG}")]
    GangSize(u32),
    /// Too large: the API server would store a copy for each pod.
    #[error(
        "spec.podTemplate has {0} bytes: at most {MAX_TEMPLATE} are allowed; put large files into a ConfigMap or an image"
    )]
    TemplateSize(usize),
}

impl BadSpec {
    /// Path of the field in the workload.
    pub fn field(&self) -> &'static str {
        match self {
            Self::Strategy(_) => "spec.schedulingStrategy",
            Self::Duration(_) => "spec.estimatedDuration",
            Self::GangSize(_) => "spec.gangSize",
            Self::TemplateSize(_) => "spec.podTemplate",
        }
    }
}

/// Maximum number of pods of a gang.
pub const MAX_GANG: u32 = 10_000;

/// Maximum size of a template in bytes; every pod of a gang is a copy of it.
pub const MAX_TEMPLATE: usize = 128 << 10;

/// Rejects an invalid spec.
pub fn check(spec: &GpuWorkloadSpec) -> Result<(), BadSpec> {
    strategy(spec)?;
    estimate(spec)?;
    if !(1..=MAX_GANG).contains(&spec.gang_size) {
        return Err(BadSpec::GangSize(spec.gang_size));
    }
    let bytes = spec.pod_template.bytes();
    if bytes > MAX_TEMPLATE { Err(BadSpec::TemplateSize(bytes)) } else { Ok(()) }
}

/// Adds memory, models and exclusive access to the pod's request.
///
/// Memory and exclusive access apply to whole GPUs; pods with MIG slices or without GPUs stay unchanged.
pub fn apply_gpu_requirements(spec: &GpuWorkloadSpec, request: &mut Request) {
    let wanted = &spec.gpu_requirements;
    if let Some(model) = model(wanted.preferred_gpu_type.as_deref()) {
        request.preferred_model = Some(model);
    }
    request.models.extend(model(wanted.required_gpu_type.as_deref()));
    let GpuRequest::Whole(count) = request.gpu else { return };
    request.min_gpu_memory = request.min_gpu_memory.max(MiB(memory(spec)));
    if wanted.exclusive_access {
        request.resources.insert(ResourceName::from(names::EXCLUSIVE_RESOURCE), count.into());
    }
}

fn model(name: Option<&str>) -> Option<GpuModel> {
    name.map(str::trim).filter(|name| !name.is_empty()).map(GpuModel::from)
}

/// Sets everything except name, queue, request and priority, which is a property of its pods. Invalid fields stay unchanged: [`check`] reports them.
pub fn fill(spec: &GpuWorkloadSpec, workload: &mut Workload) {
    workload.tasks = spec.gang_size;
    workload.strategy = strategy(spec).unwrap_or_default();
    workload.estimate = estimate(spec).unwrap_or_default();
    workload.topology = topology(spec);
    workload.preferred_topology = preferred_topology(spec);
    workload.preemptible = spec.preemptible;
}

/// `None` selects the strategy of the cluster.
pub fn strategy(spec: &GpuWorkloadSpec) -> Result<Option<Strategy>, BadSpec> {
    let text = spec.scheduling_strategy.as_deref().filter(|text| !text.is_empty());
    let parse = |text: &str| text.parse().map_err(|_| BadSpec::Strategy(excerpt(text)));
    text.map(parse).transpose()
}

pub fn estimate(spec: &GpuWorkloadSpec) -> Result<Option<Span>, BadSpec> {
    let text = spec.estimated_duration.as_deref().filter(|text| !text.is_empty());
    let parse =
        |text: &str| translate::duration(text.trim()).map_err(|_| BadSpec::Duration(excerpt(text)));
    text.map(parse).transpose()
}

/// Topology of the pods.
pub fn topology(spec: &GpuWorkloadSpec) -> Option<Topology> {
    let wanted = spec.topology.as_ref()?;
    let key = engine_key(&wanted.key);
    match wanted.mode {
        TopologyMode::Same => Some(Topology::Same(key)),
        TopologyMode::Spread => Some(Topology::Spread(key)),
        TopologyMode::Any => None,
    }
}

/// Topology levels that the pods share if one has room, narrowest first.
pub fn preferred_topology(spec: &GpuWorkloadSpec) -> Vec<String> {
    let levels = spec.topology.iter().flat_map(|topology| &topology.preferred);
    levels.map(|key| engine_key(key)).collect()
}

/// The host name is the engine's node.
fn engine_key(label: &str) -> String {
    match label {
        "" | "kubernetes.io/hostname" => "node".to_owned(),
        key => key.to_owned(),
    }
}

fn strategies() -> String {
    let names: Vec<&str> = Strategy::names().collect();
    names.join(", ")
}

/// Beginning of user input, for messages.
fn excerpt(text: &str) -> String {
    text.chars().take(64).collect()
}
