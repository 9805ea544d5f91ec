//! Converts a `GPUWorkload` or a pod to a job of the REST API. A field without an equivalent is an error that names the
//! field; no field is dropped silently.

use agentaflow_api::job::{JobCreate, JobSpec, Runtime, Volume};
use agentaflow_kube_core::crd::GpuWorkloadSpec;
use agentaflow_kube_core::gpu_workload;
use serde_json::Value;

use super::convert::Unfit;
use super::jobs::is_workload;
use super::template;

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

fn of_workload(written: &Value) -> Result<JobSpec, Unfit> {
    let spec: GpuWorkloadSpec = serde_json::from_value(written.clone())
        .map_err(|error| Unfit::new(format!("spec: {error}"), "it cannot be read"))?;
    if spec.topology.is_some() {
        return Err(Unfit::new("spec.topology", "a server does not know racks or zones of a gang"));
    }
    let estimate = gpu_workload::estimate(&spec).map_err(|_| {
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
        gpu_type: wanted.required_gpu_type,
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

/// Job of a pod, with its host folders as volumes.
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

/// Pod fields that the server supports or can ignore.
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

/// Container fields that the server supports or can ignore.
const CONTAINER: [&str; 11] = [
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
    "terminationMessagePolicy",
];

/// Rejects pod features that the server does not support.
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

/// The server supports host folders, and memory at `/dev/shm`.
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
