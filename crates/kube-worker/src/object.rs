//! Builds the objects of a task: a Job with the pod of [`gpu_pod`], pinned to the node, and its Secrets.
//!
//! Every reader of Jobs in a namespace can read their environment. So the Job contains only variables that the product
//! sets; variables and data of users are in a Secret owned by the Job.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use agentaflow_agent::runtime::{CAPABILITIES, Launch, StartError};
use agentaflow_api::end::EndReason;
use agentaflow_api::link::Assignment;
use agentaflow_kube_core::names::GPU_RESOURCE;
use agentaflow_kube_core::slim;
use k8s_openapi::ByteString;
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, EmptyDirVolumeSource, EnvVar, EnvVarSource, LocalObjectReference,
    NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec,
    PodTemplateSpec, Secret, SecretKeySelector, SecretVolumeSource, SecurityContext, Toleration,
    Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::gpu_pod::gpu_pod;
use crate::names;
use crate::secrets::{pull_secret, secret};

/// Path of job data in a container, if they are too large for a variable.
pub(crate) const DATA_FILE: &str = "/agentaflow/data.json";

/// Path of the result; the kubelet reads up to 4 KiB from it.
pub(crate) const RESULT_FILE: &str = "/dev/termination-log";

/// Label with the name of the Job.
const NAME_LABEL: &str = "app.kubernetes.io/name";

/// Seconds until the cluster deletes a finished Job.
const TTL_SECONDS: i32 = 3600;

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

/// Variables that the device plugin and `gpu_pod` set; the agent's values name other devices.
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
    /// Use images of the node without asking their registry.
    pub(crate) trust_local_images: bool,
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
        image,
        // Read by `gpu_pod`.
        command: _,
        cpu: _,
        memory: _,
        storage: _,
        gpus: _,
        shm: _,
        // Read by `configure`.
        working_dir: _,
        grace_ms: _,
        read_only: _,
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
        restart_on_gpu_error: _,
        timeout_ms: _,
        running: _,
        trace_id: _,
    } = assignment;
    if image.is_none() {
        return Err(rejected("The job has no image".to_owned()));
    }
    let name = names::job(assignment.key);
    let env_name = format!("{name}-env");
    let mut secrets = vec![secret(env_name.clone(), target.namespace, env_data(launch)?)];
    let public = launch.env.iter().filter(|(name, _)| PUBLIC.contains(&name.as_str()));
    let mut pod = gpu_pod(assignment, target.node, public.cloned().collect());
    configure(&mut pod, launch, &env_name);
    set_pull_policy(&mut pod, target.trust_local_images);
    pin(&mut pod, target.node);
    if let Some(auth) = registry_auth {
        let pull = format!("{name}-pull");
        pod.image_pull_secrets = Some(vec![LocalObjectReference { name: pull.clone() }]);
        secrets.push(pull_secret(pull, target.namespace, auth, assignment));
    }
    let labels = labels(assignment, &name, target.owner);
    let template = PodTemplateSpec {
        metadata: Some(ObjectMeta { labels: Some(labels.clone()), ..ObjectMeta::default() }),
        spec: Some(pod),
    };
    let job = Job {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(target.namespace.to_owned()),
            labels: Some(labels),
            annotations: Some(annotations(assignment)),
            ..ObjectMeta::default()
        },
        spec: Some(JobSpec {
            active_deadline_seconds: leased.then(|| seconds(target.lease)),
            // The server counts attempts; a second pod of one attempt would not be billed.
            backoff_limit: Some(0),
            suspend: Some(true),
            template,
            ttl_seconds_after_finished: Some(TTL_SECONDS),
            ..JobSpec::default()
        }),
        status: None,
    };
    Ok(TaskObjects { job, secrets })
}

/// Applies the settings of the runtime.
fn configure(pod: &mut PodSpec, launch: &Launch, secret: &str) {
    let assignment = &launch.assignment;
    pod.automount_service_account_token = Some(false);
    pod.enable_service_links = Some(false);
    // The pause process becomes pid 1: it reaps orphans, and TERM ends the job's process.
    pod.share_process_namespace = Some(true);
    pod.termination_grace_period_seconds =
        Some(seconds(Duration::from_millis(assignment.grace_ms)));
    let Some(container) = pod.containers.first_mut() else { return };
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
    if assignment.read_only {
        mount(pod, "tmp", "/tmp", None);
    }
    if launch.dir.join("data.json").exists() {
        mount(pod, "data", "/agentaflow", Some(secret));
    }
}

/// The kubelet asks the registry with the credentials of the pod only for `Always`: with `IfNotPresent` a tenant without
/// credentials runs a private image that another tenant pulled.
fn set_pull_policy(pod: &mut PodSpec, trust_local_images: bool) {
    let policy = if trust_local_images { "IfNotPresent" } else { "Always" };
    for container in &mut pod.containers {
        container.image_pull_policy = Some(policy.to_owned());
    }
}

/// Restricts the pod to the node and tolerates its GPU taint.
fn pin(pod: &mut PodSpec, node: &slim::Node) {
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

fn labels(assignment: &Assignment, name: &str, owner: &str) -> BTreeMap<String, String> {
    let key = assignment.key;
    let pair = |name: &str, value: String| (name.to_owned(), value);
    BTreeMap::from([
        pair(NAME_LABEL, name.to_owned()),
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
