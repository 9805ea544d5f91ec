//! Shared memory.

use agentaflow_units::quantity_of_mib;
use serde_json::{Value, json};

use crate::lint::amount::amount;
use crate::lint::object::{Container, Pod, list, text};
use crate::lint::{Findings, Rule, Set, Severity, append, set};

const SHM: &str = "/dev/shm";

pub(super) static AF401: Rule = rule! {
    "AF401" "no-shared-memory" Warning fixable true;
    title: "Data loaders and NCCL get 64 MiB of shared memory",
    why: "Data loader workers and NCCL exchange tensors through `/dev/shm`, which has 64 MiB in a container unless \
          a volume is mounted there. They fail with a bus error in the middle of an epoch.",
    advice: "Mount an `emptyDir` with `medium: Memory` at `/dev/shm`, starting with 2Gi per GPU. It counts towards \
             the memory limit.",
    check: no_shared_memory,
};

pub(super) static AF402: Rule = rule! {
    "AF402" "shared-memory-size" Warning fixable true;
    title: "Missing or too large limit of shared memory",
    why: "The contents of a memory volume count towards the container's memory limit: a full volume as large as the \
          limit, or without a `sizeLimit`, gets the container killed. Without a memory limit the volume can exhaust \
          the memory of the node.",
    advice: "Set `sizeLimit`, well below the memory limit.",
    check: size,
};

/// Words of commands that load data in worker processes.
const LOADERS: [&str; 10] = [
    "num_workers",
    "num-workers",
    "--workers",
    "dataloader",
    "torchrun",
    "torch.distributed",
    "deepspeed",
    "accelerate launch",
    "horovodrun",
    "train.py",
];

fn no_shared_memory(set: &Set<'_>, findings: &mut Findings<'_>) {
    for pod in set.gpu_pods() {
        // Ray's operator mounts it.
        let ray = pod.object.api_version.starts_with("ray.io/");
        if ray || pod.at(&["hostIPC"]) == Some(&Value::Bool(true)) {
            continue;
        }
        for container in pod.containers() {
            let gpus = container.gpus();
            let mounted =
                container.mounts().iter().any(|(_, path)| path.trim_end_matches('/') == SHM);
            let words = container.command_line().to_lowercase();
            let loads = LOADERS.iter().any(|word| words.contains(word));
            if gpus == 0 || mounted || (gpus < 2 && !loads) {
                continue;
            }
            let why = if gpus > 1 {
                format!("has {gpus} GPUs and")
            } else {
                "loads data in worker processes and has".to_owned()
            };
            let message =
                format!("container `{}` {why} only 64 MiB of shared memory", container.name());
            let fix = mount(&pod, &container, gpus);
            findings.add_with(&pod.object, &container.path, message, fix);
        }
    }
}

fn mount(pod: &Pod<'_>, container: &Container<'_>, gpus: u64) -> Vec<crate::lint::Operation> {
    let named = |name: &str| pod.volume(name).map(|(_, volume)| volume);
    // A volume of that name with another source: no safe fix.
    if named("shm").is_some_and(|volume| text(volume, &["emptyDir", "medium"]) != Some("Memory")) {
        return Vec::new();
    }
    let wanted = 2048 * gpus.clamp(1, 16);
    let limit = container.resource("limits", "memory").and_then(amount);
    let size = limit.map_or(wanted, |limit| wanted.min(limit.floor_mib() / 2));
    let mut fix =
        vec![append(container.join(&["volumeMounts"]), json!({"name": "shm", "mountPath": SHM}))];
    if named("shm").is_none() {
        let volume = json!({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": quantity_of_mib(size)}});
        fix.push(append(pod.join(&["volumes"]), volume));
    }
    fix
}

fn size(set: &Set<'_>, findings: &mut Findings<'_>) {
    for pod in set.pods() {
        for (number, volume) in list(pod.spec, &["volumes"]).iter().enumerate() {
            if text(volume, &["emptyDir", "medium"]) != Some("Memory") {
                continue;
            }
            let name = text(volume, &["name"]).unwrap_or_default();
            let path = pod.join(&["volumes", &number.to_string(), "emptyDir", "sizeLimit"]);
            let users: Vec<_> = pod
                .containers()
                .into_iter()
                .filter(|c| c.mounts().iter().any(|(mounted, _)| *mounted == name))
                .collect();
            // Filled by another container, such as an injected sidecar.
            if users.is_empty() {
                continue;
            }
            let limit =
                users.iter().filter_map(|c| c.resource("limits", "memory").and_then(amount)).min();
            let Some(size) = volume["emptyDir"].get("sizeLimit").and_then(amount) else {
                let gpus = users.iter().map(Container::gpus).max().unwrap_or(0).min(16);
                let wanted = 2048 * gpus;
                let size = limit.map_or(wanted, |limit| wanted.min(limit.floor_mib() / 2));
                // The need of pods on other accelerators is unknown.
                let fix = (gpus > 0).then(|| self::set(path.clone(), quantity_of_mib(size)));
                let limited = |c: &Container<'_>| c.resource("limits", "memory").is_some();
                let severity =
                    if users.iter().all(limited) { Severity::Info } else { Severity::Warning };
                let message = format!("the memory volume `{name}` has no sizeLimit");
                let fix = fix.into_iter().collect();
                findings.add_as(severity, &pod.object, &path, message, fix);
                continue;
            };
            if let Some(limit) = limit.filter(|limit| size >= *limit) {
                let half = quantity_of_mib(limit.floor_mib() / 2);
                let message = format!(
                    "the sizeLimit of the memory volume `{name}` is not below the memory limit of the container"
                );
                findings.add_with(&pod.object, &path, message, vec![self::set(path.clone(), half)]);
            }
        }
    }
}
