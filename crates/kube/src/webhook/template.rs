//! What a workload must be for its pods to get the GPUs it asks for, beyond what the schema can say.

use serde_json::Value;

use super::pods::is_gpu;
use super::review::Verdict;
use crate::crd::{GpuRequirements, GpuWorkloadSpec};
use crate::names;
use crate::workload::{self, Identity};

/// The annotation by which `kubectl logs` and `kubectl exec` know the main container.
const MAIN_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// Everything that the workload alone shows to be wrong.
pub(super) fn check(spec: &GpuWorkloadSpec) -> Verdict {
    let mut verdict = memory(spec);
    if let Err(error) = workload::check(spec) {
        verdict.add(Verdict::refuse(error.to_string()));
    }
    let template = spec.pod_template.value();
    let containers =
        template["spec"]["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
    if !containers.iter().any(has_gpu) {
        verdict.add(unlimited(&spec.gpu_requirements, &template, containers));
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
    let pod = workload::pod(identity, spec, 0, 0, scheduler);
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

fn has_gpu(container: &Value) -> bool {
    let limits = container["resources"]["limits"].as_object().into_iter().flatten();
    limits.into_iter().any(|(resource, _)| is_gpu(resource))
}

/// Nobody has a GPU limit: the one container gets it.
fn unlimited(requirements: &GpuRequirements, template: &Value, containers: &[Value]) -> Verdict {
    let mut verdict = Verdict::default();
    let count = requirements.gpu_count;
    let main = template["metadata"]["annotations"][MAIN_CONTAINER].as_str();
    let named =
        main.is_some_and(|main| containers.iter().any(|container| container["name"] == main));
    if !requirements.exclusive_access && count == 1 {
        verdict.add(Verdict::refuse(
            "spec.gpuRequirements.exclusiveAccess: one GPU cannot be shared by several pods yet; write \
             `exclusiveAccess: true`, or `migProfile` for a slice of a GPU",
        ));
    }
    if containers.len() > 1 && !named {
        let resource = match &requirements.mig_profile {
            Some(profile) => format!("{}{profile}", names::MIG_PREFIX),
            None => names::GPU_RESOURCE.to_owned(),
        };
        let name = |container: &Value| {
            format!("`{}`", container["name"].as_str().unwrap_or("without a name"))
        };
        let all: Vec<_> = containers.iter().map(name).collect();
        verdict.add(Verdict::refuse(format!(
            "spec.podTemplate.spec.containers: none of {} has a GPU limit; write \
             `resources: {{limits: {{{resource}: {count}}}}}` for the one that uses the GPUs",
            all.join(", ")
        )));
    }
    verdict
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
