//! What the engine needs to know of a workload beside its pods.

use agentaflow_engine::{
    GpuModel, GpuRequest, MiB, Request, ResourceName, Span, Strategy, Topology, Workload,
};

use super::template::memory;
use crate::crd::{GpuWorkloadSpec, TopologyMode};
use crate::names;
use crate::translate;

/// A spec that passed the API server's schema and still cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSpec {
    /// No such strategy.
    #[error("spec.schedulingStrategy `{0}` does not exist: write one of {names}", names = strategies())]
    Strategy(String),
    /// Not a length of time.
    #[error("spec.estimatedDuration `{0}` is not a length of time: write `90m`, `4h` or `1h30m`")]
    Duration(String),
    /// No pods, or too many.
    #[error("spec.gangSize is {0}: write a number from 1 to {MAX_GANG}")]
    GangSize(u32),
    /// A template that would fill the API server's store with copies of itself.
    #[error(
        "spec.podTemplate has {0} bytes: at most {MAX_TEMPLATE} are allowed; put large files into a ConfigMap or an image"
    )]
    TemplateSize(usize),
}

/// The most pods of one gang.
pub const MAX_GANG: u32 = 10_000;

/// The most bytes of a template; every pod of a gang is a copy of it.
pub const MAX_TEMPLATE: usize = 128 << 10;

/// Refuses a spec that cannot be carried out.
pub fn check(spec: &GpuWorkloadSpec) -> Result<(), BadSpec> {
    strategy(spec)?;
    estimate(spec)?;
    if !(1..=MAX_GANG).contains(&spec.gang_size) {
        return Err(BadSpec::GangSize(spec.gang_size));
    }
    let bytes = spec.pod_template.bytes();
    if bytes > MAX_TEMPLATE { Err(BadSpec::TemplateSize(bytes)) } else { Ok(()) }
}

/// Adds to what the pod asks for: memory, models, and that nobody shares its GPUs.
///
/// Memory and exclusive access speak of whole GPUs; a pod that asks for MIG slices or none is left alone.
pub fn ask(spec: &GpuWorkloadSpec, request: &mut Request) {
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

/// Everything but name, queue and request, written into the engine's workload. What cannot be read is left as it
/// is: [`check`] tells people about it.
pub fn fill(spec: &GpuWorkloadSpec, workload: &mut Workload) {
    workload.tasks = spec.gang_size;
    workload.priority = priority(spec);
    workload.strategy = strategy(spec).unwrap_or_default();
    workload.estimate = estimate(spec).unwrap_or_default();
    workload.topology = topology(spec);
    workload.preemptible = spec.preemptible;
}

/// 0 to 10.
pub fn priority(spec: &GpuWorkloadSpec) -> u8 {
    spec.priority.min(10)
}

/// How GPUs are chosen; none means as the cluster does.
pub fn strategy(spec: &GpuWorkloadSpec) -> Result<Option<Strategy>, BadSpec> {
    let text = spec.scheduling_strategy.as_deref().filter(|text| !text.is_empty());
    let parse = |text: &str| text.parse().map_err(|_| BadSpec::Strategy(excerpt(text)));
    text.map(parse).transpose()
}

/// How long it is expected to run.
pub fn estimate(spec: &GpuWorkloadSpec) -> Result<Option<Span>, BadSpec> {
    let text = spec.estimated_duration.as_deref().filter(|text| !text.is_empty());
    let parse =
        |text: &str| translate::duration(text.trim()).map_err(|_| BadSpec::Duration(excerpt(text)));
    text.map(parse).transpose()
}

/// How the pods lie to each other; the host name is what the engine calls a node.
pub fn topology(spec: &GpuWorkloadSpec) -> Option<Topology> {
    let wanted = spec.topology.as_ref()?;
    let key = match wanted.key.as_str() {
        "" | "kubernetes.io/hostname" => "node".to_owned(),
        key => key.to_owned(),
    };
    Some(match wanted.mode {
        TopologyMode::Same => Topology::Same(key),
        TopologyMode::Spread => Topology::Spread(key),
    })
}

fn strategies() -> String {
    let names: Vec<&str> = Strategy::ALL.iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

/// Enough of a text that somebody else wrote to recognise it.
fn excerpt(text: &str) -> String {
    text.chars().take(64).collect()
}
