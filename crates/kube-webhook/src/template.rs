//! Checks of a workload beyond its schema, so that its pods get the requested GPUs.

use agentaflow_kube_core::crd::GpuWorkloadSpec;
use agentaflow_kube_core::gpu_workload::{self, Identity};
use serde_json::Value;

use super::review::{AdmissionResult, Problem};

/// All problems visible in the workload alone.
pub(super) fn check(spec: &GpuWorkloadSpec) -> AdmissionResult {
    let mut result = memory(spec);
    if let Err(error) = gpu_workload::check(spec) {
        result.add(AdmissionResult::refuse(error));
    }
    result
}

/// First pod of the workload, for a dry run.
pub(super) fn pod(
    name: &str,
    namespace: &str,
    spec: &GpuWorkloadSpec,
    scheduler: &str,
) -> Result<Value, AdmissionResult> {
    let identity = Identity { name, namespace, uid: None };
    for task in gpu_workload::distinct_tasks(spec) {
        gpu_workload::pod(identity, spec, task, 0, scheduler).map_err(AdmissionResult::refuse)?;
    }
    let pod = gpu_workload::pod(identity, spec, 0, 0, scheduler);
    let mut pod = pod.map_err(AdmissionResult::refuse)?;
    // A unique name: a pod of an earlier workload may still be terminating.
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

/// Checks the memory against the MIG profile.
fn memory(spec: &GpuWorkloadSpec) -> AdmissionResult {
    let Some(profile) = &spec.gpu_requirements.mig_profile else {
        return AdmissionResult::default();
    };
    let gigabytes = profile.split_once("g.").and_then(|(_, rest)| rest.split("gb").next());
    let Some(slice) = gigabytes.and_then(|text| text.parse::<u64>().ok()) else {
        return AdmissionResult::refuse(Problem::at(
            "spec.gpuRequirements.migProfile",
            format_args!("`{profile}` is not the name of a MIG profile such as `1g.5gb`"),
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
        let message = format_args!(
            "{asked} MiB exceed the memory of a `{profile}` slice ({slice} MiB): use less, or a larger profile in \
             spec.gpuRequirements.migProfile"
        );
        Problem::at(field, message)
    });
    AdmissionResult { problems: problems.collect(), ..AdmissionResult::default() }
}

#[cfg(test)]
mod tests;
