//! Conversion of a pod template to a job of the REST API.

use agentaflow_api::Cores;
use agentaflow_api::job::JobSpec;
use agentaflow_kube_core::names;
use agentaflow_kube_core::translate::{mebibytes, milli_cpu};
use serde_json::{Map, Value};

/// Image, command, variables and resources of the GPU container. `spec` is a raw pod spec; invalid fields are left out.
pub(super) fn read(spec: &Value) -> JobSpec {
    let Some(container) = main_container(spec) else { return JobSpec::default() };
    let (docker_image, docker_tag) = image(container["image"].as_str().unwrap_or_default());
    let words = |field: &str| {
        let list = container[field].as_array().into_iter().flatten();
        list.filter_map(|word| word.as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    let command = [words("command"), words("args")].concat();
    let env = container["env"].as_array().into_iter().flatten();
    let env = env.filter_map(|one| {
        Some((one["name"].as_str()?.to_owned(), one["value"].as_str()?.to_owned()))
    });
    let (gpu_count, mig_profile) =
        gpus(container).map_or((None, None), |(count, mig)| (Some(count), mig));
    JobSpec {
        docker_image,
        docker_tag,
        command: (!command.is_empty()).then_some(command),
        env: env.collect(),
        cpu_cores_required: amount(container, "cpu")
            .and_then(|text| milli_cpu(&text).ok())
            .map(Cores),
        memory_required: amount(container, "memory").and_then(|text| mebibytes(&text).ok()),
        gpu_count,
        mig_profile,
        timeout_seconds: spec["activeDeadlineSeconds"].as_u64(),
        working_dir: container["workingDir"].as_str().map(str::to_owned),
        stop_grace_seconds: spec["terminationGracePeriodSeconds"]
            .as_u64()
            .and_then(|seconds| u32::try_from(seconds).ok()),
        shm_size: shared_memory(spec),
        // A pod template alone does not say these fields.
        job_name: None,
        job_type: None,
        docker_registry: None,
        docker_username: None,
        job_config: Map::new(),
        input_data: Value::Null,
        gpu_memory_required: None,
        storage_required: None,
        endpoint_id: None,
        gpu_type: None,
        gpu_fraction: None,
        exclusive: None,
        replicas: None,
        priority: None,
        queue: None,
        max_retries: None,
        volumes: Vec::new(),
        runtime: None,
        on_node_lost: None,
        estimated_duration_seconds: None,
        preemptible: false,
        read_only: false,
    }
}

/// The container with the GPU request, otherwise the first.
pub(super) fn main_container(spec: &Value) -> Option<&Value> {
    let containers = spec["containers"].as_array()?;
    containers.iter().find(|container| gpus(container).is_some()).or_else(|| containers.first())
}

/// Splits an image into name and tag. A colon before the last slash belongs to a registry's port; a digest stays with the
/// name.
pub(super) fn image(written: &str) -> (Option<String>, Option<String>) {
    if written.is_empty() {
        return (None, None);
    }
    let name = written.rfind('/').map_or(0, |slash| slash + 1);
    match written[name..].split_once(':') {
        Some((_, tag)) if !written.contains('@') && !tag.is_empty() => {
            (Some(written[..written.len() - tag.len() - 1].to_owned()), Some(tag.to_owned()))
        }
        _ => (Some(written.to_owned()), None),
    }
}

/// Number of GPUs, or of slices with their profile.
fn gpus(container: &Value) -> Option<(u32, Option<String>)> {
    let limits = container.pointer("/resources/limits")?.as_object()?;
    let count = |value: &Value| match value {
        Value::String(text) => text.trim().parse().ok(),
        value => value.as_u64().and_then(|count| u32::try_from(count).ok()),
    };
    limits.iter().find_map(|(name, value)| {
        if name == names::GPU_RESOURCE {
            return Some((count(value)?, None));
        }
        Some((count(value)?, Some(name.strip_prefix(names::MIG_PREFIX)?.to_owned())))
    })
}

/// Request of a container for a resource, otherwise its limit.
fn amount(container: &Value, resource: &str) -> Option<String> {
    let resources = &container["resources"];
    let asked = [&resources["requests"][resource], &resources["limits"][resource]];
    asked.into_iter().find_map(|value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    })
}

/// Size in MiB of a memory-backed `/dev/shm`.
fn shared_memory(spec: &Value) -> Option<u64> {
    let container = main_container(spec)?;
    let mounts = container["volumeMounts"].as_array()?;
    let name = mounts.iter().find(|mount| mount["mountPath"] == "/dev/shm")?["name"].as_str()?;
    let volumes = spec["volumes"].as_array()?;
    let volume = volumes.iter().find(|volume| volume["name"] == name)?;
    mebibytes(volume.pointer("/emptyDir/sizeLimit")?.as_str()?).ok()
}
