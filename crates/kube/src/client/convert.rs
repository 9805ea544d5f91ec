//! Work that is written for one of the two, said to the other: a short job as a Kubernetes object, and a `GPUWorkload`
//! or pod as a job for a server. What cannot be said is refused by the name of its field, never left out silently.

use agentaflow_api::job::{JobCreate, JobSpec, Runtime, Volume};
use serde_json::{Map, Value, json};

use super::jobs::is_workload;
use super::template;
use crate::crd::GpuWorkloadSpec;
use crate::names;
use crate::workload;

/// A field that the other side has no word for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct Unfit {
    /// Which field.
    pub field: String,
    /// Why it cannot be said, and what to do instead.
    pub why: &'static str,
}

impl Unfit {
    fn new(field: impl Into<String>, why: &'static str) -> Self {
        Self { field: field.into(), why }
    }
}

/// The longest name of a workload whose pods have room for their numbers.
const LONGEST_NAME: usize = 52;

/// A short job as a Kubernetes object: a `GPUWorkload`, or a pod when it needs no GPU.
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
    let mut said = Map::new();
    said.extend(spec.priority.map(|one| (names::PRIORITY.to_owned(), json!(one.to_string()))));
    said.extend(spec.queue.clone().map(|one| (names::QUEUE.to_owned(), json!(one))));
    let estimate = spec.estimated_duration_seconds.map(|seconds| format!("{seconds}s"));
    said.extend(estimate.map(|time| (names::DURATION.to_owned(), json!(time))));
    if !said.is_empty() {
        pod["metadata"]["annotations"] = Value::Object(said);
    }
    Ok(pod)
}

/// A `GPUWorkload` or pod as a job for a server.
pub fn job(object: &Value) -> Result<JobCreate, Unfit> {
    let name =
        object.pointer("/metadata/name").or_else(|| object.pointer("/metadata/generateName"));
    let name = name.and_then(Value::as_str).map(|name| name.trim_end_matches('-').to_owned());
    let spec = if is_workload(object) {
        of_workload(&object["spec"])?
    } else if object["kind"] == "Pod" {
        check_pod(&object["spec"], "spec")?;
        of_pod(&object["spec"], "spec")?
    } else {
        let why = "a server takes a GPUWorkload, a Pod or the short form of a job";
        return Err(Unfit::new("kind", why));
    };
    let spec = JobSpec { job_name: name, runtime: Some(Runtime::Docker), ..spec };
    Ok(JobCreate { spec, ..JobCreate::default() })
}

/// A name that Kubernetes takes, made of one for people; empty when nothing of it can be kept.
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
    let spec = &job.spec;
    let process = spec.runtime == Some(Runtime::Process) || spec.docker_image.is_none();
    let reasons = [
        (process, "runtime", "a cluster runs containers only; name an IMAGE"),
        (
            job.docker_password.is_some() || spec.docker_username.is_some(),
            "docker_password",
            "a cluster wants a pull secret: `kubectl create secret docker-registry`, and a GPUWorkload that names it",
        ),
        (
            !job.secret_env.is_empty(),
            "secret_env",
            "a cluster wants a Secret, and a GPUWorkload that names it in `env`",
        ),
        (
            spec.gpu_fraction.is_some(),
            "gpu_fraction",
            "a cluster has no shares of any size; ask for a MIG slice, or for whole GPUs",
        ),
        (spec.endpoint_id.is_some(), "endpoint_id", "a cluster has no endpoints of ours"),
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
        ("preferredGPUType", spec.gpu_type.clone().map(Value::from)),
        ("migProfile", spec.mig_profile.clone().map(Value::from)),
        ("exclusiveAccess", spec.exclusive.map(Value::from)),
    ];
    set(&mut gpus, fields);
    let mut made = json!({
        "gpuMemoryRequired": memory,
        "gpuRequirements": gpus,
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

/// Settings and input of the job, as a server hands them to its container.
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
    // Memory is a limit on a server, too.
    let limits = memory.map(|memory| json!({"memory": memory}));
    set(&mut made, [("requests", (requests != json!({})).then_some(requests)), ("limits", limits)]);
    made
}

/// Volumes and where they are mounted.
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

fn of_workload(written: &Value) -> Result<JobSpec, Unfit> {
    let spec: GpuWorkloadSpec = serde_json::from_value(written.clone())
        .map_err(|error| Unfit::new(format!("spec: {error}"), "it cannot be read"))?;
    if spec.topology.is_some() {
        return Err(Unfit::new("spec.topology", "a server does not know racks or zones of a gang"));
    }
    let estimate = workload::estimate(&spec).map_err(|_| {
        Unfit::new(
            "spec.estimatedDuration",
            "it is not a length of time: write `90m`, `4h` or `1h30m`",
        )
    })?;
    let pod = &written["podTemplate"]["spec"];
    check_pod(pod, "spec.podTemplate.spec")?;
    let wanted = spec.gpu_requirements;
    let memory = spec.gpu_memory_required.max(wanted.min_gpu_memory.unwrap_or(0));
    Ok(JobSpec {
        gpu_count: Some(wanted.gpu_count),
        gpu_memory_required: (memory > 0 && wanted.mig_profile.is_none()).then_some(memory),
        mig_profile: wanted.mig_profile,
        exclusive: (!wanted.exclusive_access).then_some(false),
        priority: Some(spec.priority.into()),
        queue: spec.queue,
        replicas: (spec.gang_size > 1).then_some(spec.gang_size),
        max_retries: (spec.retries > 0).then_some(spec.retries),
        preemptible: spec.preemptible,
        estimated_duration_seconds: estimate.map(|span| span.0 / 1000),
        ..of_pod(pod, "spec.podTemplate.spec")?
    })
}

/// What a pod runs, with the folders of the node that it sees.
fn of_pod(pod: &Value, path: &str) -> Result<JobSpec, Unfit> {
    let mut spec = template::read(pod);
    if spec.docker_image.is_none() {
        return Err(Unfit::new(format!("{path}.containers[0].image"), "it is missing"));
    }
    let container = &pod["containers"][0];
    let mounts = container["volumeMounts"].as_array().into_iter().flatten();
    for mount in mounts {
        let name = &mount["name"];
        let all = pod["volumes"].as_array().into_iter().flatten();
        let volume = all.into_iter().find(|volume| volume["name"] == *name);
        let Some(source) = volume.and_then(|volume| volume.pointer("/hostPath/path")) else {
            continue;
        };
        spec.volumes.push(Volume {
            source: source.as_str().unwrap_or_default().to_owned(),
            target: mount["mountPath"].as_str().unwrap_or_default().to_owned(),
            read_only: mount["readOnly"] == true,
        });
    }
    Ok(spec)
}

/// Fields of a pod that a server understands, or that mean nothing to it.
const POD: [&str; 9] = [
    "containers",
    "volumes",
    "restartPolicy",
    "schedulerName",
    "tolerations",
    "activeDeadlineSeconds",
    "terminationGracePeriodSeconds",
    "priorityClassName",
    "enableServiceLinks",
];

/// The same of a container.
const CONTAINER: [&str; 10] = [
    "name",
    "image",
    "imagePullPolicy",
    "command",
    "args",
    "env",
    "resources",
    "volumeMounts",
    "workingDir",
    "ports",
];

/// Refuses what a server cannot do.
fn check_pod(pod: &Value, path: &str) -> Result<(), Unfit> {
    const NO_WORD: &str = "a server cannot do that; hand it to a cluster, or remove it";
    let unknown = |object: &Value, known: &[&str]| {
        let fields = object.as_object().into_iter().flatten();
        let mut odd =
            fields.filter(|(name, value)| !known.contains(&name.as_str()) && !value.is_null());
        odd.next().map(|(name, _)| name.clone())
    };
    if let Some(field) = unknown(pod, &POD) {
        return Err(Unfit::new(format!("{path}.{field}"), NO_WORD));
    }
    if pod["restartPolicy"] == "Always" {
        let why = "a server's jobs end; write `Never`, and `retries` if it may fail";
        return Err(Unfit::new(format!("{path}.restartPolicy"), why));
    }
    let containers = pod["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
    let [container] = containers else {
        let why = "a server runs one container a job";
        return Err(Unfit::new(format!("{path}.containers"), why));
    };
    if let Some(field) = unknown(container, &CONTAINER) {
        return Err(Unfit::new(format!("{path}.containers[0].{field}"), NO_WORD));
    }
    let has = |field: &str| container[field].as_array().is_some_and(|list| !list.is_empty());
    if has("args") && !has("command") {
        let why = "a server replaces the image's command as a whole; write `command`";
        return Err(Unfit::new(format!("{path}.containers[0].args"), why));
    }
    let env = container["env"].as_array().into_iter().flatten().enumerate();
    for (number, one) in env {
        if !one["valueFrom"].is_null() {
            let field = format!("{path}.containers[0].env[{number}].valueFrom");
            return Err(Unfit::new(
                field,
                "a server has no Secrets or ConfigMaps; write the value",
            ));
        }
    }
    check_volumes(pod, container, path)
}

/// A server knows folders of the node, and memory at `/dev/shm`.
fn check_volumes(pod: &Value, container: &Value, path: &str) -> Result<(), Unfit> {
    let volumes = pod["volumes"].as_array().into_iter().flatten().enumerate();
    for (number, volume) in volumes {
        let mounts = container["volumeMounts"].as_array().into_iter().flatten();
        let shared = mounts
            .into_iter()
            .any(|mount| mount["name"] == volume["name"] && mount["mountPath"] == "/dev/shm");
        let memory = volume.pointer("/emptyDir/medium").is_some_and(|kind| kind == "Memory");
        if (memory && shared) || volume["hostPath"]["path"].is_string() {
            continue;
        }
        let fields = volume.as_object().into_iter().flatten();
        let kind = fields.map(|(name, _)| name.as_str()).find(|name| *name != "name");
        let field = format!("{path}.volumes[{number}].{}", kind.unwrap_or("name"));
        return Err(Unfit::new(
            field,
            "a server knows folders of its nodes only: write `hostPath`",
        ));
    }
    Ok(())
}

#[cfg(test)]
#[path = "convert_tests.rs"]
mod tests;
