//! What a workload's template must be for its pods to get the GPUs it asks for.

use serde_json::{Value, json};

use super::pods::is_gpu;
use super::review::Verdict;
use crate::crd::{GpuRequirements, GpuWorkload, GpuWorkloadSpec};
use crate::names;

/// The longest name of a workload: it becomes the value of a label.
const LONGEST_NAME: usize = 63;

/// Everything that the workload alone shows to be wrong.
pub(super) fn check(name: &str, spec: &GpuWorkloadSpec) -> Verdict {
    let mut verdict = Verdict::default();
    if name.len() > LONGEST_NAME {
        verdict.add(Verdict::refuse(format!(
            "metadata.name: must be no longer than {LONGEST_NAME} characters, for it becomes a label of the pods"
        )));
    }
    verdict.add(memory(spec));
    let template = spec.pod_template.value();
    let Some(containers) = template["spec"]["containers"].as_array().filter(|all| !all.is_empty())
    else {
        verdict.add(Verdict::refuse(
            "spec.podTemplate.spec.containers: must name at least one container; `podTemplate` is written like \
             the `template` of a Job",
        ));
        return verdict;
    };
    verdict.add(gpus(&spec.gpu_requirements, containers));
    verdict
}

/// The first pod that the workload would make, for the API server to look at.
pub(super) fn pod(workload: &GpuWorkload, scheduler: &str) -> Value {
    let requirements = &workload.spec.gpu_requirements;
    let mut pod = workload.spec.pod_template.value();
    if !pod.is_object() {
        pod = json!({});
    }
    pod["apiVersion"] = "v1".into();
    pod["kind"] = "Pod".into();
    if !pod["metadata"].is_object() {
        pod["metadata"] = json!({});
    }
    // A name of its own: a pod of an earlier workload may still be on its way out.
    let metadata = &mut pod["metadata"];
    let name = workload.metadata.name.as_ref().or(workload.metadata.generate_name.as_ref());
    metadata["generateName"] = format!("{}-", name.map_or("workload", String::as_str)).into();
    if let Some(metadata) = metadata.as_object_mut() {
        metadata.remove("name");
        metadata.remove("namespace");
    }
    fill(&mut pod["spec"], "restartPolicy", "Never");
    fill(&mut pod["spec"], "schedulerName", scheduler);
    if let Some(containers) = pod.pointer_mut("/spec/containers").and_then(Value::as_array_mut)
        && !containers.iter().any(|container| limits(container).next().is_some())
        && let [only] = containers.as_mut_slice()
        && only.is_object()
    {
        add_limit(only, requirements);
    }
    pod
}

fn fill(spec: &mut Value, field: &str, value: &str) {
    if (spec.is_object() || spec.is_null()) && spec[field].as_str().is_none_or(str::is_empty) {
        spec[field] = value.into();
    }
}

fn add_limit(container: &mut Value, requirements: &GpuRequirements) {
    let mut resources = container["resources"].take();
    if !resources.is_object() {
        resources = json!({});
    }
    if !resources["limits"].is_object() {
        resources["limits"] = json!({});
    }
    resources["limits"][requirements.resource()] = requirements.gpu_count.to_string().into();
    container["resources"] = resources;
}

/// The GPU limits of a container: resource and count.
fn limits(container: &Value) -> impl Iterator<Item = (&str, u64)> {
    let limits = container["resources"]["limits"].as_object().into_iter().flatten();
    limits.filter(|(resource, _)| is_gpu(resource)).map(|(resource, amount)| {
        let written = amount.as_str().and_then(|text| text.parse().ok());
        (resource.as_str(), amount.as_u64().or(written).unwrap_or_default())
    })
}

fn gpus(requirements: &GpuRequirements, containers: &[Value]) -> Verdict {
    let resource = requirements.resource();
    let limits: Vec<_> = containers.iter().flat_map(limits).collect();
    if limits.is_empty() {
        return unlimited(requirements, &resource, containers);
    }
    if let Some((other, _)) = limits.iter().find(|(limit, _)| *limit != resource) {
        return mixed(requirements, other, &resource);
    }
    let asked: u64 =
        limits.iter().map(|(_, count)| count).fold(0, |sum, count| sum.saturating_add(*count));
    let count = requirements.gpu_count;
    if u64::from(count) == asked {
        return Verdict::default();
    }
    let both = format!(
        "spec.gpuRequirements.gpuCount is {count}, but the containers' limits of `{resource}` come to {asked}"
    );
    if count > 1 {
        return Verdict::refuse(format!(
            "{both}: write the same number in both, or leave out `gpuCount`"
        ));
    }
    // One is also what stands there when nothing was written.
    Verdict { warnings: vec![format!("{both}; the limits count")], ..Verdict::default() }
}

/// Nobody has a GPU limit: the one container gets it.
fn unlimited(requirements: &GpuRequirements, resource: &str, containers: &[Value]) -> Verdict {
    let mut verdict = Verdict::default();
    let count = requirements.gpu_count;
    if !requirements.exclusive_access && count == 1 {
        verdict.add(Verdict::refuse(
            "spec.gpuRequirements.exclusiveAccess: one GPU cannot be shared by several pods yet; write \
             `exclusiveAccess: true`, or `migProfile` for a slice of a GPU",
        ));
    }
    if containers.len() > 1 {
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

fn mixed(requirements: &GpuRequirements, other: &str, resource: &str) -> Verdict {
    let remedy = match (&requirements.mig_profile, other.strip_prefix(names::MIG_PREFIX)) {
        (None, Some(profile)) => format!("write `migProfile: {profile}` in spec.gpuRequirements"),
        _ => format!(
            "write a limit of `{resource}` instead, or change spec.gpuRequirements.migProfile"
        ),
    };
    Verdict::refuse(format!(
        "spec.podTemplate.spec.containers: a container has a limit of `{other}`, but the workload asks for \
         `{resource}`: {remedy}"
    ))
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
