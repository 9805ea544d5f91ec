//! Builds the objects of a task: the Job of `create_gpu_job`, pinned to the node, and its Secrets.
//!
//! Every reader of Jobs in a namespace can read their environment. So the Job contains only variables that the product
//! sets; variables and data of users are in a Secret owned by the Job.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use agentaflow_agent::runtime::{CAPABILITIES, Launch, StartError};
use agentaflow_api::end::EndReason;
use agentaflow_api::link::Assignment;
use agentaflow_kube_core::slim;
use agentaflow_manifest::build::{GpuJobRequest, create_gpu_job};
use agentaflow_manifest::catalogue::Catalogue;
use agentaflow_manifest::cloud::{GPU_RESOURCE, gpu_named};
use k8s_openapi::ByteString;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, Container, EmptyDirVolumeSource, EnvVar, EnvVarSource,
    LocalObjectReference, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    PodSpec, Secret, SecretKeySelector, SecretVolumeSource, SecurityContext, Toleration, Volume,
    VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::names;
use crate::secrets::{pull_secret, secret};

/// Path of job data in a container, if they are too large for a variable.
pub(crate) const DATA_FILE: &str = "/agentaflow/data.json";

/// Path of the result; the kubelet reads up to 4 KiB from it.
pub(crate) const RESULT_FILE: &str = "/dev/termination-log";

/// Maximum size of a Secret's data, with a margin for its metadata.
const MAX_SECRET: usize = 1000 << 10;

/// Variables that the product sets; none is secret.
const PUBLIC: [&str; 8] = [
    "API_ENDPOINT",
    "AGENTAFLOW_OUTPUT",
    "JOB_DATA_FILE",
    "JOB_ID",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "WORLD_SIZE",
];

/// Variables that the device plugin and `create_gpu_job` set; the agent's values name other devices.
const DEVICES: [&str; 2] = ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"];

/// Node and ownership of a Job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobTarget<'a> {
    pub(crate) node: &'a slim::Node,
    pub(crate) namespace: &'a str,
    /// Value of the label `names::AGENT`.
    pub(crate) owner: &'a str,
    /// Remaining lease.
    pub(crate) lease: Duration,
    pub(crate) catalogue: &'a Catalogue,
}

#[derive(Clone, Debug)]
pub(crate) struct TaskObjects {
    /// Suspended until its Secrets exist.
    pub(crate) job: Job,
    /// Without owner references yet.
    pub(crate) secrets: Vec<Secret>,
}

pub(crate) fn build(launch: &Launch, target: &JobTarget<'_>) -> Result<TaskObjects, StartError> {
    let assignment = &launch.assignment;
    // Names every field, so that a new field does not compile before it reaches the Job or is listed here.
    let Assignment {
        leased,
        registry_auth,
        // Read by `request` and `limit`.
        image: _,
        command: _,
        cpu: _,
        memory: _,
        storage: _,
        gpus: _,
        // Read by `configure`.
        working_dir: _,
        grace_ms: _,
        read_only: _,
        shm: _,
        // Read by `labels` and `annotations`.
        key: _,
        job_name: _,
        user: _,
        // `launch` has the environment made of these fields.
        env: _,
        job_data: _,
        simulated: _,
        // The server assigns no job with volumes to a cluster.
        volumes: _,
        // For networks of Docker.
        gang: _,
        // For processes.
        user_id: _,
        // Read by the agent.
        runtime: _,
        timeout_ms: _,
        running: _,
    } = assignment;
    let built = create_gpu_job(&request(launch, target), target.catalogue);
    let mut job = built.map_err(|error| rejected(error.to_string()))?.job;
    let name = job.metadata.name.clone().unwrap_or_default();
    let labels = labels(assignment, target.owner);
    job.metadata.namespace = Some(target.namespace.to_owned());
    job.metadata.labels.get_or_insert_default().extend(labels.clone());
    job.metadata.annotations = Some(annotations(assignment));
    let Some(spec) = &mut job.spec else { return Err(rejected("The Job has no spec".to_owned())) };
    // The server counts attempts; a second pod of one attempt would not be billed.
    spec.backoff_limit = Some(0);
    spec.suspend = Some(true);
    spec.active_deadline_seconds = leased.then(|| seconds(target.lease));
    let meta = spec.template.metadata.get_or_insert_default();
    meta.labels.get_or_insert_default().extend(labels);
    let Some(pod) = &mut spec.template.spec else {
        return Err(rejected("The Job has no pod template".to_owned()));
    };
    pod.restart_policy = Some("Never".to_owned());
    let env_name = format!("{name}-env");
    let mut secrets = vec![secret(env_name.clone(), target.namespace, env_data(launch)?)];
    configure(pod, launch, &env_name);
    pin(pod, target.node);
    if let Some(auth) = registry_auth {
        let pull = format!("{name}-pull");
        pod.image_pull_secrets = Some(vec![LocalObjectReference { name: pull.clone() }]);
        secrets.push(pull_secret(pull, target.namespace, auth, assignment));
    }
    Ok(TaskObjects { job, secrets })
}

fn request(launch: &Launch, target: &JobTarget<'_>) -> GpuJobRequest {
    let assignment = &launch.assignment;
    let gpus: BTreeSet<&str> = assignment.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
    let public = launch.env.iter().filter(|(name, _)| PUBLIC.contains(&name.as_str()));
    GpuJobRequest {
        task_id: assignment.key.to_string(),
        image: assignment.image.clone().unwrap_or_default(),
        gpu_count: gpus.len().max(1) as u32,
        gpu_type: gpu_type(target.node).to_owned(),
        memory: (assignment.memory > 0).then(|| format!("{}Mi", assignment.memory)),
        cpu: (assignment.cpu.0 > 0).then(|| format!("{}m", assignment.cpu.0)),
        // The kubelet expands `$(NAME)`; `$$` escapes the dollar.
        command: assignment.command.iter().flatten().map(|arg| arg.replace('$', "$$")).collect(),
        env: public.map(|(name, value)| (name.clone(), value.replace('$', "$$"))).collect(),
    }
}

/// Model name of the node's GPUs. For an unknown model any name will do: the affinity selects the node.
fn gpu_type(node: &slim::Node) -> &'static str {
    let labels = node.metadata.labels.as_ref();
    let label = |key: &str| labels.and_then(|labels| labels.get(key));
    let product =
        label(agentaflow_kube_core::names::NVIDIA_PRODUCT).and_then(|name| gpu_named(name));
    let accelerator =
        || label(ACCELERATOR).and_then(|name| gpu_named(name.trim_start_matches("nvidia-")));
    product.or_else(accelerator).map_or("v100", |gpu| gpu.name)
}

const ACCELERATOR: &str = "accelerator";

/// Applies the settings of the assignment that `create_gpu_job` does not take.
fn configure(pod: &mut PodSpec, launch: &Launch, secret: &str) {
    let assignment = &launch.assignment;
    pod.automount_service_account_token = Some(false);
    pod.enable_service_links = Some(false);
    // The pause process becomes pid 1: it reaps orphans, and TERM ends the job's process.
    pod.share_process_namespace = Some(true);
    pod.termination_grace_period_seconds =
        Some(seconds(Duration::from_millis(assignment.grace_ms)));
    let Some(container) = pod.containers.first_mut() else { return };
    // Default of the Docker runtime.
    container.image_pull_policy = Some("IfNotPresent".to_owned());
    container.working_dir.clone_from(&assignment.working_dir);
    container.security_context = Some(SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities {
            add: Some(CAPABILITIES.map(str::to_owned).to_vec()),
            drop: Some(vec!["ALL".to_owned()]),
        }),
        read_only_root_filesystem: assignment.read_only.then_some(true),
        ..SecurityContext::default()
    });
    let private = launch.env.iter().map(|(name, _)| name).filter(|name| is_private(name));
    container.env.get_or_insert_default().extend(private.map(|name| from_secret(name, secret)));
    limit(container, assignment);
    if assignment.shm > 0 {
        let volumes = pod.volumes.iter_mut().flatten();
        for shm in volumes.filter(|volume| volume.name == "shm").flat_map(|v| &mut v.empty_dir) {
            shm.size_limit = Some(Quantity(format!("{}Mi", assignment.shm)));
        }
    }
    if assignment.read_only {
        mount(pod, "tmp", "/tmp", None);
    }
    if launch.dir.join("data.json").exists() {
        mount(pod, "data", "/agentaflow", Some(secret));
    }
}

/// Removes preset requests and limits of resources that the assignment does not request.
fn limit(container: &mut Container, assignment: &Assignment) {
    let Some(resources) = &mut container.resources else { return };
    for amounts in [&mut resources.limits, &mut resources.requests] {
        let Some(amounts) = amounts else { continue };
        amounts.retain(|name, _| match name.as_str() {
            "cpu" => assignment.cpu.0 > 0,
            "memory" => assignment.memory > 0,
            GPU_RESOURCE => !assignment.gpus.is_empty(),
            _ => true,
        });
    }
    if assignment.storage > 0 {
        let amount = Quantity(format!("{}Mi", assignment.storage));
        for amounts in [&mut resources.limits, &mut resources.requests] {
            let amounts = amounts.get_or_insert_default();
            amounts.insert("ephemeral-storage".to_owned(), amount.clone());
        }
    }
    if assignment.gpus.is_empty() {
        let gpu_variables = ["WORKER_TYPE", "CUDA_VISIBLE_DEVICES"];
        container
            .env
            .iter_mut()
            .for_each(|env| env.retain(|env| !gpu_variables.contains(&env.name.as_str())));
        // Where NVIDIA's runtime is the default one, images that set `all` would see every GPU of the node.
        container.env.get_or_insert_default().push(EnvVar {
            name: "NVIDIA_VISIBLE_DEVICES".to_owned(),
            value: Some("void".to_owned()),
            ..EnvVar::default()
        });
    }
}

/// Restricts the pod to the node: removes selectors that the node does not match and tolerates its GPU taint.
fn pin(pod: &mut PodSpec, node: &slim::Node) {
    let labels = node.metadata.labels.clone().unwrap_or_default();
    if let Some(selector) = &mut pod.node_selector {
        selector.retain(|key, value| labels.get(key) == Some(value));
    }
    pod.node_selector = pod.node_selector.take().filter(|selector| !selector.is_empty());
    let named = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.metadata.name.clone().unwrap_or_default()]),
    };
    let term = NodeSelectorTerm { match_fields: Some(vec![named]), match_expressions: None };
    let required = NodeSelector { node_selector_terms: vec![term] };
    pod.affinity = Some(Affinity {
        node_affinity: Some(NodeAffinity {
            required_during_scheduling_ignored_during_execution: Some(required),
            ..NodeAffinity::default()
        }),
        ..Affinity::default()
    });
    let taints = node.spec.taints.iter().flatten();
    for taint in taints.filter(|taint| taint.key == GPU_RESOURCE) {
        let other_value = taint.value.as_deref() != Some("true") || taint.effect != "NoSchedule";
        if other_value {
            pod.tolerations.get_or_insert_default().push(Toleration {
                key: Some(GPU_RESOURCE.to_owned()),
                operator: Some("Exists".to_owned()),
                ..Toleration::default()
            });
            return;
        }
    }
}

fn labels(assignment: &Assignment, owner: &str) -> BTreeMap<String, String> {
    let key = assignment.key;
    let pair = |name: &str, value: String| (name.to_owned(), value);
    BTreeMap::from([
        pair(names::AGENT, owner.to_owned()),
        pair(names::TASK, key.to_string()),
        pair(names::JOB, key.job.to_string()),
        pair(names::ATTEMPT, key.epoch.to_string()),
        pair(names::LEASED, assignment.leased.to_string()),
    ])
}

/// Values that labels do not allow.
fn annotations(assignment: &Assignment) -> BTreeMap<String, String> {
    let name = assignment.job_name.clone().map(|name| (names::JOB_NAME.to_owned(), name));
    let gpus: Vec<&str> = assignment.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
    let gpus = (!gpus.is_empty()).then(|| (names::GPUS.to_owned(), gpus.join(",")));
    let user = [(names::USER.to_owned(), assignment.user.clone())];
    user.into_iter().chain(name).chain(gpus).collect()
}

fn is_private(name: &str) -> bool {
    !PUBLIC.contains(&name) && !DEVICES.contains(&name)
}

fn from_secret(name: &str, secret: &str) -> EnvVar {
    let source = SecretKeySelector {
        key: name.to_owned(),
        name: secret.to_owned(),
        ..SecretKeySelector::default()
    };
    let value_from = EnvVarSource { secret_key_ref: Some(source), ..EnvVarSource::default() };
    EnvVar { name: name.to_owned(), value_from: Some(value_from), ..EnvVar::default() }
}

/// Data of the Secret: private variables, and job data too large for a variable.
fn env_data(launch: &Launch) -> Result<BTreeMap<String, ByteString>, StartError> {
    let private = launch.env.iter().filter(|(name, _)| is_private(name));
    let mut data: BTreeMap<String, ByteString> = private
        .map(|(name, value)| (name.clone(), ByteString(value.clone().into_bytes())))
        .collect();
    if let Some(bad) = data.keys().find(|name| !names::is_key(name)) {
        return Err(rejected(format!("Variable name `{bad}` is not valid in Kubernetes")));
    }
    if let Ok(bytes) = fs::read(launch.dir.join("data.json")) {
        data.insert("data.json".to_owned(), ByteString(bytes));
    }
    let size: usize = data.iter().map(|(name, value)| name.len() + value.0.len()).sum();
    if size > MAX_SECRET {
        let detail = "Variables and input exceed the limit of 1 MiB in Kubernetes; pass large data by path or URL";
        return Err(rejected(detail.to_owned()));
    }
    Ok(data)
}

fn mount(pod: &mut PodSpec, name: &str, path: &str, of_secret: Option<&str>) {
    let only = |key: &str| k8s_openapi::api::core::v1::KeyToPath {
        key: key.to_owned(),
        path: key.to_owned(),
        ..Default::default()
    };
    pod.volumes.get_or_insert_default().push(Volume {
        name: name.to_owned(),
        empty_dir: of_secret.is_none().then(EmptyDirVolumeSource::default),
        secret: of_secret.map(|secret| SecretVolumeSource {
            secret_name: Some(secret.to_owned()),
            items: Some(vec![only("data.json")]),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    });
    let Some(container) = pod.containers.first_mut() else { return };
    container.volume_mounts.get_or_insert_default().push(VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: of_secret.map(|_| true),
        ..VolumeMount::default()
    });
}

/// At least 1: a Job with a deadline of 0 ends at once.
pub(crate) fn seconds(time: Duration) -> i64 {
    i64::try_from(time.as_millis().div_ceil(1000)).unwrap_or(i64::MAX).max(1)
}

fn rejected(detail: String) -> StartError {
    StartError::job(EndReason::StartFailed, detail)
}

#[cfg(test)]
#[path = "object_tests.rs"]
mod tests;
