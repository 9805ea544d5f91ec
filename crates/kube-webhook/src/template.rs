//! What a workload must be for its pods to get the GPUs it asks for, beyond what the schema can say.

use agentaflow_kube_core::crd::GpuWorkloadSpec;
use agentaflow_kube_core::gpu_workload::{self, Identity};
use serde_json::Value;

use super::review::Verdict;

/// Everything that the workload alone shows to be wrong.
pub(super) fn check(spec: &GpuWorkloadSpec) -> Verdict {
    let mut verdict = memory(spec);
    if let Err(error) = gpu_workload::check(spec) {
        verdict.add(Verdict::refuse(error.to_string()));
    }
    verdict
}

/// The first pod that the workload would make, for the API server to look at.
pub(super) fn pod(
    name: &str,
    namespace: &str,
    spec: &GpuWorkloadSpec,
    scheduler: &str,
) -> Result<Value, Verdict> {
    let identity = Identity { name, namespace, uid: None };
    let pod = gpu_workload::pod(identity, spec, 0, 0, scheduler);
    let mut pod = pod.map_err(|error| Verdict::refuse(error.to_string()))?;
    // A name of its own: the pod of an earlier workload may still be on its way out.
    if let Some(metadata) = pod.get_mut("metadata").and_then(Value::as_object_mut)
        && let Some(name) = metadata.remove("name")
    {
        metadata.insert(
            "generateName".to_owned(),
            format!("{}-", name.as_str().unwrap_or("pod")).into(),
        );
    }
    Ok(pod)
}

/// A slice has as much memory as its name says.
fn memory(spec: &GpuWorkloadSpec) -> Verdict {
    let Some(profile) = &spec.gpu_requirements.mig_profile else { return Verdict::default() };
    let gigabytes = profile.split_once("g.").and_then(|(_, rest)| rest.split("gb").next());
    let Some(slice) = gigabytes.and_then(|text| text.parse::<u64>().ok()) else {
        return Verdict::refuse(format!(
            "spec.gpuRequirements.migProfile: `{profile}` is not the name of a MIG profile such as `1g.5gb`"
        ));
    };
    let slice = slice.saturating_mul(1024);
    let fields = [
        ("spec.gpuMemoryRequired", spec.gpu_memory_required),
        (
            "spec.gpuRequirements.minGPUMemory",
            spec.gpu_requirements.min_gpu_memory.unwrap_or_default(),
        ),
    ];
    let short = fields.into_iter().filter(|(_, asked)| *asked > slice);
    let problems = short.map(|(field, asked)| {
        format!(
            "{field}: {asked} MiB are more than a slice of `{profile}` has ({slice} MiB): write less, or a larger \
             profile in spec.gpuRequirements.migProfile"
        )
    });
    Verdict { problems: problems.collect(), ..Verdict::default() }
}

#[cfg(test)]
mod tests;
