//! GPU requests.

use serde_json::Value;

use crate::cloud::GPU_RESOURCE;
use crate::lint::object::{Container, Pod, whole};
use crate::lint::{Findings, Operation, Rule, Set, set};

pub(super) static AF001: Rule = rule! {
    "AF001" "gpu-request-differs" Error fixable true;
    title: "The GPU request differs from the limit",
    why: "GPUs cannot be overcommitted: the API server rejects a pod whose request for an extended resource differs \
          from its limit.",
    advice: "Set both to the same number, or set only the limit.",
    check: request_differs,
};

pub(super) static AF002: Rule = rule! {
    "AF002" "gpu-limit-missing" Error fixable true;
    title: "GPUs are requested without a limit",
    why: "A GPU is a limit-only resource: the API server rejects a request for an extended resource without a \
          limit. The request defaults to the limit.",
    advice: "Move the number to `limits`.",
    check: limit_missing,
};

pub(super) static AF003: Rule = rule! {
    "AF003" "gpu-not-whole" Error;
    title: "The number of GPUs is not whole",
    why: "Extended resources are whole devices: the API server rejects `0.5` or `500m` of `nvidia.com/gpu`. Use a \
          MIG slice, a time slice, or a GPUWorkload with a shared GPU for a part of a GPU.",
    advice: "Request whole devices or a MIG profile such as `nvidia.com/mig-1g.5gb`, or submit a GPUWorkload with \
             `gpuMemoryRequired` and `exclusiveAccess: false`.",
    check: not_whole,
};

pub(super) static AF007: Rule = rule! {
    "AF007" "visible-devices-differ" Warning fixable true;
    title: "CUDA_VISIBLE_DEVICES does not match the number of GPUs",
    why: "Devices in a container are numbered from 0 up to the limit. A larger number hides itself and all devices \
          after it: CUDA finds fewer GPUs than allocated, or none.",
    advice: "List the devices from 0 up to the limit, or remove the variable.",
    check: visible_devices,
};

pub(super) static AF008: Rule = rule! {
    "AF008" "no-memory-limit" Info;
    title: "A GPU container has no memory limit",
    why: "Without a limit, a leaking data loader exhausts the memory of the node and stops every other GPU job on \
          it.",
    advice: "Set `resources.limits.memory`; a GPU job usually needs at least as much memory as its GPUs have.",
    check: no_memory_limit,
};

pub(super) static AF010: Rule = rule! {
    "AF010" "gpu-resource-misspelt" Error fixable true;
    title: "No device plugin provides this resource",
    why: "The resource of GPUs is `nvidia.com/gpu`. The API server rejects a name without a domain; a pod with any \
          other name stays pending, and quotas, webhooks and these checks do not treat it as a GPU pod.",
    advice: "Write `nvidia.com/gpu`.",
    check: misspelt,
};

/// Letters and digits of misspelt GPU resource names.
const MISSPELT: [&str; 7] = [
    "gpu",
    "gpus",
    "nvidiagpu",
    "nvidiagpus",
    "nvidiacomgpu",
    "nvidiacomgpus",
    "alphakubernetesionvidiagpu",
];

fn each_container(
    set: &Set<'_>,
    mut look: impl FnMut(&Pod<'_>, &Container<'_>, &'static str, &str),
) {
    for pod in set.pods() {
        for container in pod.all_containers() {
            for name in container.gpu_resources() {
                look(&pod, &container, "resources", name);
            }
        }
    }
}

fn request_differs(set: &Set<'_>, findings: &mut Findings<'_>) {
    each_container(set, |pod, container, resources, name| {
        let (limit, request) =
            (container.resource("limits", name), container.resource("requests", name));
        if let (Some(limit), Some(request)) = (limit, request)
            && whole(limit) != whole(request)
        {
            let path = container.join(&[resources, "requests", name]);
            let message = format!(
                "container `{}` requests {} of {name} with a limit of {}; they must be equal",
                container.name(),
                plain(request),
                plain(limit)
            );
            findings.add_with(
                &pod.object,
                &path,
                message,
                vec![self::set(path.clone(), limit.clone())],
            );
        }
    });
}

fn limit_missing(set: &Set<'_>, findings: &mut Findings<'_>) {
    each_container(set, |pod, container, resources, name| {
        let (limit, request) =
            (container.resource("limits", name), container.resource("requests", name));
        if let (None, Some(request)) = (limit, request) {
            let path = container.join(&[resources, "requests", name]);
            let message =
                format!("container `{}` requests {name} without a limit", container.name());
            let fix = self::set(container.join(&[resources, "limits", name]), request.clone());
            findings.add_with(&pod.object, &path, message, vec![fix]);
        }
    });
}

fn not_whole(set: &Set<'_>, findings: &mut Findings<'_>) {
    each_container(set, |pod, container, resources, name| {
        for part in ["limits", "requests"] {
            let Some(value) = container.resource(part, name) else { continue };
            if whole(value).is_none() {
                let path = container.join(&[resources, part, name]);
                let message =
                    format!("{} of {name} is not a whole number of devices", plain(value));
                findings.add(&pod.object, &path, message);
            }
        }
    });
}

fn misspelt(set: &Set<'_>, findings: &mut Findings<'_>) {
    for pod in set.pods() {
        for container in pod.all_containers() {
            for part in ["limits", "requests"] {
                let Some(Value::Object(map)) = container.at(&["resources", part]) else { continue };
                let wrong = map.keys().filter(|name| is_misspelt(name));
                for name in wrong {
                    let path = container.join(&["resources", part, name.as_str()]);
                    let message = format!(
                        "no device plugin provides `{name}`: the resource of GPUs is `{GPU_RESOURCE}`"
                    );
                    let key = GPU_RESOURCE.to_owned();
                    let alone =
                        map.keys().filter(|name| is_misspelt(name) || *name == GPU_RESOURCE);
                    let fix =
                        (alone.count() == 1).then(|| Operation::Rename { path: path.clone(), key });
                    findings.add_with(&pod.object, &path, message, fix.into_iter().collect());
                }
            }
        }
    }
}

fn is_misspelt(name: &str) -> bool {
    let letters = name.chars().filter(char::is_ascii_alphanumeric);
    let letters: String = letters.map(|letter| letter.to_ascii_lowercase()).collect();
    name != GPU_RESOURCE && MISSPELT.contains(&letters.as_str())
}

fn visible_devices(set: &Set<'_>, findings: &mut Findings<'_>) {
    for pod in set.gpu_pods() {
        for container in pod.all_containers() {
            let gpus = container.gpus();
            for (name, value, number) in container.environment() {
                let Some(Value::String(devices)) = value else { continue };
                // Only a list of indices is comparable; device names depend on the node.
                let listed: Option<Vec<u64>> =
                    devices.split(',').map(|device| device.trim().parse().ok()).collect();
                let Some(listed) = listed else { continue };
                let fits =
                    listed.len() as u64 == gpus && listed.iter().all(|device| *device < gpus);
                if name != "CUDA_VISIBLE_DEVICES" || gpus == 0 || fits {
                    continue;
                }
                let all = (0..gpus.min(64))
                    .map(|device| device.to_string())
                    .collect::<Vec<_>>()
                    .join(",");
                let path = container.join(&["env", &number.to_string(), "value"]);
                let message = format!(
                    "CUDA_VISIBLE_DEVICES is `{devices}`, but container `{}` has {gpus} GPU{}: `{all}`",
                    container.name(),
                    if gpus == 1 { "" } else { "s" }
                );
                findings.add_with(&pod.object, &path, message, vec![self::set(path.clone(), all)]);
            }
        }
    }
}

fn no_memory_limit(set: &Set<'_>, findings: &mut Findings<'_>) {
    for pod in set.gpu_pods() {
        for container in pod.containers() {
            if container.gpus() > 0 && container.resource("limits", "memory").is_none() {
                let path = container.join(&["resources", "limits"]);
                let message =
                    format!("container `{}` has GPUs but no memory limit", container.name());
                findings.add(&pod.object, &path, message);
            }
        }
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
