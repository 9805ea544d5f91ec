//! Converts a job of the REST API to a Kubernetes object; `convert_back.rs` does the reverse. A field without an equivalent
//! is an error that names the field, except `job_type`, which only describes the job.

use agentaflow_api::job::{JobCreate, JobSpec, OnNodeLost, Runtime};
use agentaflow_kube_core::names;
use serde_json::{Map, Value, json};

pub use super::convert_back::job;

/// Field without an equivalent in the target format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct Unfit {
    pub field: String,
    /// Cause and remedy.
    pub why: &'static str,
}

impl Unfit {
    pub(super) fn new(field: impl Into<String>, why: &'static str) -> Self {
        Self { field: field.into(), why }
    }
}

/// Maximum length of a workload name: pod names add the task number.
const LONGEST_NAME: usize = 52;

/// Converts a job to a `GPUWorkload`, or to a pod if the job needs no GPU.
pub fn object(job: &JobCreate) -> Result<Value, Unfit> {
    refuse_of_job(job)?;
    let spec = &job.spec;
    let needs_gpus = spec.gpu_count.is_some_and(|count| count > 0)
        || spec.gpu_memory_required.is_some_and(|memory| memory > 0)
        || spec.mig_profile.is_some()
        || spec.gpu_type.is_some();
    let metadata = match spec.job_name.as_deref().map(valid_name).filter(|name| !name.is_empty()) {
        Some(name) => json!({"name": name}),
        None => json!({"generateName": "job-"}),
    };
    let pod = pod_spec(spec)?;
    if needs_gpus {
        return Ok(json!({
            "apiVersion": "agentaflow.io/v1",
            "kind": "GPUWorkload",
            "metadata": metadata,
            "spec": workload_spec(spec, &pod),
        }));
    }
    if spec.replicas.unwrap_or(1) > 1 || spec.max_retries.unwrap_or(0) > 0 {
        let field = if spec.replicas.unwrap_or(1) > 1 { "replicas" } else { "max_retries" };
        return Err(Unfit::new(field, "in a cluster only work with GPUs has them; ask for --gpus"));
    }
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod});
    pod["spec"]["restartPolicy"] = json!("Never");
    pod["spec"]["schedulerName"] = json!(names::SCHEDULER_NAME);
    let mut message = Map::new();
    message.extend(spec.priority.map(|one| (names::PRIORITY.to_owned(), json!(one.to_string()))));
    message.extend(spec.queue.clone().map(|one| (names::QUEUE.to_owned(), json!(one))));
    if !spec.preemptible {
        message.insert(names::PREEMPTIBLE.to_owned(), json!("false"));
    }
    let estimate = spec.estimated_duration_seconds.map(|seconds| format!("{seconds}s"));
    message.extend(estimate.map(|time| (names::DURATION.to_owned(), json!(time))));
    if !message.is_empty() {
        pod["metadata"]["annotations"] = Value::Object(message);
    }
    Ok(pod)
}

/// Derives a valid object name from a display name; empty if no character is valid.
pub fn valid_name(name: &str) -> String {
    let mut made = String::with_capacity(name.len().min(LONGEST_NAME));
    for c in name.chars().map(|c| c.to_ascii_lowercase()) {
        let kept = if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' };
        if kept != '-' || !(made.is_empty() || made.ends_with('-')) {
            made.push(kept);
        }
        if made.len() == LONGEST_NAME {
            break;
        }
    }
    made.trim_end_matches('-').to_owned()
}

fn refuse_of_job(job: &JobCreate) -> Result<(), Unfit> {
    // Pods carry no trace of the request.
    let JobCreate { spec, docker_password, secret_env, trace: _ } = job;
    // Names every field, so that a new field does not compile before it is converted, refused or listed here.
    let JobSpec {
        runtime,
        docker_image,
        docker_username,
        gpu_fraction,
        endpoint_id,
        // Converted by `object` and `workload_spec`.
        job_name: _,
        gpu_count: _,
        gpu_memory_required: _,
        gpu_type: _,
        mig_profile: _,
        exclusive: _,
        replicas: _,
        priority: _,
        queue: _,
        max_retries: _,
        preemptible: _,
        estimated_duration_seconds: _,
        // Converted by `pod_spec`.
        docker_tag: _,
        docker_registry: _,
        job_config: _,
        input_data: _,
        cpu_cores_required: _,
        memory_required: _,
        storage_required: _,
        command: _,
        env: _,
        timeout_seconds: _,
        volumes: _,
        stop_grace_seconds: _,
        shm_size: _,
        read_only: _,
        working_dir: _,
        on_node_lost,
        // Not converted; see the module documentation.
        job_type: _,
    } = spec;
    let process = *runtime == Some(Runtime::Process) || docker_image.is_none();
    let reasons = [
        (process, "runtime", "a cluster runs containers only; name an IMAGE"),
        (
            docker_password.is_some() || docker_username.is_some(),
            "docker_password",
            "a cluster wants a pull secret: `kubectl create secret docker-registry`, and a GPUWorkload that names it",
        ),
        (
            !secret_env.is_empty(),
            "secret_env",
            "a cluster wants a Secret, and a GPUWorkload that names it in `env`",
        ),
        (
            gpu_fraction.is_some(),
            "gpu_fraction",
            "a cluster has no shares of any size; ask for a MIG slice, or for whole GPUs",
        ),
        (endpoint_id.is_some(), "endpoint_id", "endpoints exist only on a server"),
        (
            *on_node_lost == Some(OnNodeLost::Wait),
            "on_node_lost",
            "a cluster replaces the pods of a lost node; remove the field",
        ),
    ];
    match reasons.into_iter().find(|(wrong, _, _)| *wrong) {
        Some((_, field, why)) => Err(Unfit::new(field, why)),
        None => Ok(()),
    }
}

fn workload_spec(spec: &JobSpec, pod: &Value) -> Value {
    let mut gpus = json!({"gpuCount": spec.gpu_count.unwrap_or(1).max(1)});
    let memory = spec.gpu_memory_required.unwrap_or(0);
    let fields = [
        ("requiredGPUType", spec.gpu_type.clone().map(Value::from)),
        ("migProfile", spec.mig_profile.clone().map(Value::from)),
        ("exclusiveAccess", spec.exclusive.map(Value::from)),
    ];
    set(&mut gpus, fields);
    let mut made = json!({
        "gpuMemoryRequired": memory,
        "gpuRequirements": gpus,
        "preemptible": spec.preemptible,
        "podTemplate": {"spec": pod},
    });
    let estimate = spec.estimated_duration_seconds.filter(|seconds| *seconds > 0);
    let fields = [
        ("priority", spec.priority.map(Value::from)),
        ("queue", spec.queue.clone().map(Value::from)),
        ("gangSize", spec.replicas.map(Value::from)),
        ("retries", spec.max_retries.map(Value::from)),
        ("estimatedDuration", estimate.map(|seconds| format!("{seconds}s").into())),
    ];
    set(&mut made, fields);
    made
}

fn pod_spec(spec: &JobSpec) -> Result<Value, Unfit> {
    let mut container = json!({"name": "main", "image": image(spec)});
    // The end of the output becomes the termination message, so that readers of the pod need no logs.
    container["terminationMessagePolicy"] = json!("FallbackToLogsOnError");
    let env: Vec<Value> = spec
        .env
        .iter()
        .map(|(name, value)| json!({"name": name, "value": value}))
        .chain(job_data(spec))
        .collect();
    let resources = resources(spec);
    let (volumes, mounts) = volumes(spec)?;
    let list = |list: Vec<Value>| (!list.is_empty()).then_some(Value::Array(list));
    let fields = [
        ("command", spec.command.clone().filter(|words| !words.is_empty()).map(Value::from)),
        ("env", list(env)),
        ("resources", (resources != json!({})).then_some(resources)),
        ("volumeMounts", list(mounts)),
        ("workingDir", spec.working_dir.clone().map(Value::from)),
        ("securityContext", spec.read_only.then(|| json!({"readOnlyRootFilesystem": true}))),
    ];
    set(&mut container, fields);
    let mut pod = json!({"containers": [container]});
    let fields = [
        ("volumes", list(volumes)),
        ("activeDeadlineSeconds", spec.timeout_seconds.filter(|time| *time > 0).map(Value::from)),
        ("terminationGracePeriodSeconds", spec.stop_grace_seconds.map(Value::from)),
    ];
    set(&mut pod, fields);
    Ok(pod)
}

/// Settings and input of the job, in the form in which the server passes them to a container.
fn job_data(spec: &JobSpec) -> Option<Value> {
    let input = Some(&spec.input_data).filter(|data| !data.is_null() && **data != json!({}));
    if spec.job_config.is_empty() && input.is_none() {
        return None;
    }
    let data = json!({"config": spec.job_config, "input_data": input});
    Some(json!({"name": "JOB_DATA", "value": data.to_string()}))
}

fn image(spec: &JobSpec) -> String {
    let image = spec.docker_image.clone().unwrap_or_default();
    let registry = spec.docker_registry.as_deref().map(|name| name.trim_end_matches('/'));
    let image = match registry.filter(|name| !name.is_empty()) {
        Some(registry) if !image.starts_with(registry) => format!("{registry}/{image}"),
        _ => image,
    };
    match spec.docker_tag.as_deref().filter(|tag| !tag.is_empty()) {
        Some(tag) if !image.contains('@') => format!("{image}:{tag}"),
        _ => image,
    }
}

fn resources(spec: &JobSpec) -> Value {
    let cpu = spec.cpu_cores_required.filter(|cores| cores.0 > 0);
    let memory =
        spec.memory_required.filter(|memory| *memory > 0).map(|memory| format!("{memory}Mi"));
    let storage = spec.storage_required.filter(|storage| *storage > 0);
    let mut requests = json!({});
    let fields = [
        ("cpu", cpu.map(|cores| format!("{}m", cores.0).into())),
        ("memory", memory.clone().map(Value::from)),
        ("ephemeral-storage", storage.map(|storage| format!("{storage}Gi").into())),
    ];
    set(&mut requests, fields);
    let mut made = json!({});
    // The server also enforces memory as a limit.
    let limits = memory.map(|memory| json!({"memory": memory}));
    set(&mut made, [("requests", (requests != json!({})).then_some(requests)), ("limits", limits)]);
    made
}

/// Volumes and their mounts.
fn volumes(spec: &JobSpec) -> Result<(Vec<Value>, Vec<Value>), Unfit> {
    let (mut volumes, mut mounts) = (Vec::new(), Vec::new());
    let mut add = |name: String, mut volume: Value, path: &str, read_only: bool| {
        volume["name"] = json!(name);
        volumes.push(volume);
        let mut mount = json!({"name": name, "mountPath": path});
        set(&mut mount, [("readOnly", read_only.then_some(Value::Bool(true)))]);
        mounts.push(mount);
    };
    if let Some(shared) = spec.shm_size.filter(|size| *size > 0) {
        let volume = json!({"emptyDir": {"medium": "Memory", "sizeLimit": format!("{shared}Mi")}});
        add("shared-memory".to_owned(), volume, "/dev/shm", false);
    }
    if spec.read_only {
        add("tmp".to_owned(), json!({"emptyDir": {}}), "/tmp", false);
    }
    for (number, volume) in spec.volumes.iter().enumerate() {
        if !volume.source.starts_with('/') {
            let field = format!("volumes[{number}].source");
            return Err(Unfit::new(field, "name a folder of the node by its whole path"));
        }
        let source = json!({"hostPath": {"path": volume.source}});
        add(format!("folder-{number}"), source, &volume.target, volume.read_only);
    }
    Ok((volumes, mounts))
}

fn set<const N: usize>(object: &mut Value, fields: [(&str, Option<Value>); N]) {
    for (name, value) in fields {
        if let Some(value) = value {
            object[name] = value;
        }
    }
}

#[cfg(test)]
#[path = "convert_tests.rs"]
mod tests;
