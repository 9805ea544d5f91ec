//! Pod of a task with its container and resources, in the shape of `create_gpu_job` of the manifests.

use std::collections::{BTreeMap, BTreeSet};

use agentaflow_api::link::Assignment;
use agentaflow_gpu::catalog::{Gpu, gpu_named};
use agentaflow_kube_core::names::{GPU_RESOURCE, NVIDIA_PRODUCT};
use agentaflow_kube_core::slim;
use agentaflow_units::Amount;
use k8s_openapi::api::core::v1::{
    Container, EmptyDirVolumeSource, EnvVar, PodSpec, ResourceRequirements, Toleration, Volume,
    VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Label with the GPU model, set by administrators.
const ACCELERATOR: &str = "accelerator";

/// GiB of `/dev/shm` per GPU of an unknown model.
const SHM_GIB: u32 = 2;

/// Pod without settings of the runtime. `env` holds the variables that are not secret.
pub(crate) fn gpu_pod(
    assignment: &Assignment,
    node: &slim::Node,
    env: Vec<(String, String)>,
) -> PodSpec {
    let gpu = gpu_model(node);
    let gpus = gpu_count(assignment);
    let (command, args) = command_and_args(assignment);
    let container = Container {
        name: "worker".to_owned(),
        image: assignment.image.clone(),
        command,
        args,
        env: Some(variables(assignment, gpus, env)),
        resources: Some(resources(assignment, gpus)),
        volume_mounts: Some(vec![VolumeMount {
            name: "shm".to_owned(),
            mount_path: "/dev/shm".to_owned(),
            ..VolumeMount::default()
        }]),
        ..Container::default()
    };
    PodSpec {
        containers: vec![container],
        node_selector: gpu.and_then(|gpu| accelerator_selector(gpu, node)),
        restart_policy: Some("Never".to_owned()),
        tolerations: Some(vec![Toleration {
            key: Some(GPU_RESOURCE.to_owned()),
            operator: Some("Equal".to_owned()),
            value: Some("true".to_owned()),
            effect: Some("NoSchedule".to_owned()),
            toleration_seconds: None,
        }]),
        volumes: Some(vec![shm(assignment, gpu, gpus)]),
        ..PodSpec::default()
    }
}

/// Grants of one GPU count once.
fn gpu_count(assignment: &Assignment) -> usize {
    assignment.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect::<BTreeSet<_>>().len()
}

/// Model of the node's GPUs, if known.
fn gpu_model(node: &slim::Node) -> Option<&'static Gpu> {
    let product = label(node, NVIDIA_PRODUCT).and_then(gpu_named);
    let accelerator = || gpu_named(label(node, ACCELERATOR)?.trim_start_matches("nvidia-"));
    product.or_else(accelerator)
}

fn label<'a>(node: &'a slim::Node, key: &str) -> Option<&'a str> {
    node.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

fn accelerator_selector(gpu: &Gpu, node: &slim::Node) -> Option<BTreeMap<String, String>> {
    let value = label(node, ACCELERATOR).filter(|value| *value == gpu.accelerator)?;
    Some(BTreeMap::from([(ACCELERATOR.to_owned(), value.to_owned())]))
}

/// No program is named like an option: such words are arguments for the image's entrypoint.
fn command_and_args(assignment: &Assignment) -> (Option<Vec<String>>, Option<Vec<String>>) {
    // The kubelet expands `$(NAME)`; `$$` escapes the dollar.
    let words = assignment.command.iter().flatten().map(|word| escaped(word));
    let words: Vec<String> = words.collect();
    match words.first() {
        None => (None, None),
        Some(word) if word.starts_with('-') => (None, Some(words)),
        Some(_) => (Some(words), None),
    }
}

fn escaped(text: &str) -> String {
    text.replace('$', "$$")
}

fn variables(assignment: &Assignment, gpus: usize, env: Vec<(String, String)>) -> Vec<EnvVar> {
    let mut all = Vec::new();
    let mut add = |name: &str, value: String| {
        all.push(EnvVar { name: name.to_owned(), value: Some(value), value_from: None });
    };
    if gpus == 0 {
        // Where NVIDIA's runtime is the default one, images that set `all` would see every GPU of the node.
        add("NVIDIA_VISIBLE_DEVICES", "void".to_owned());
    } else {
        let devices: Vec<String> = (0..gpus).map(|number| number.to_string()).collect();
        add("WORKER_TYPE", "gpu".to_owned());
        add("CUDA_VISIBLE_DEVICES", devices.join(","));
    }
    add("TASK_ID", assignment.key.to_string());
    for (name, value) in env {
        add(&name, escaped(&value));
    }
    all
}

/// Limits of the requested resources, and requests of half of the CPU and memory.
fn resources(assignment: &Assignment, gpus: usize) -> ResourceRequirements {
    let mut limits = BTreeMap::new();
    let mut requests = BTreeMap::new();
    let mut add = |name: &str, limit: String, request: String| {
        limits.insert(name.to_owned(), Quantity(limit));
        requests.insert(name.to_owned(), Quantity(request));
    };
    let cpu = assignment.cpu.0;
    if cpu > 0 {
        add("cpu", format!("{cpu}m"), format!("{}m", cpu.div_ceil(2)));
    }
    if assignment.memory > 0 {
        let half = Amount::from_mib(assignment.memory).half().to_binary();
        add("memory", format!("{}Mi", assignment.memory), half);
    }
    if gpus > 0 {
        add(GPU_RESOURCE, gpus.to_string(), gpus.to_string());
    }
    if assignment.storage > 0 {
        let amount = format!("{}Mi", assignment.storage);
        add("ephemeral-storage", amount.clone(), amount);
    }
    ResourceRequirements { limits: Some(limits), requests: Some(requests), claims: None }
}

/// `/dev/shm` for data loaders. It counts against the memory limit: the default is at most half of the limit.
fn shm(assignment: &Assignment, gpu: Option<&Gpu>, gpus: usize) -> Volume {
    let size = if assignment.shm > 0 {
        format!("{}Mi", assignment.shm)
    } else {
        let each = u64::from(gpu.map_or(SHM_GIB, Gpu::shm_gib)) << 10;
        let wanted = each * gpus.max(1) as u64;
        let most = if assignment.memory > 0 { (assignment.memory / 2).max(1) } else { wanted };
        Amount::from_mib(wanted.min(most)).to_binary()
    };
    Volume {
        name: "shm".to_owned(),
        empty_dir: Some(EmptyDirVolumeSource {
            medium: Some("Memory".to_owned()),
            size_limit: Some(Quantity(size)),
        }),
        ..Volume::default()
    }
}
