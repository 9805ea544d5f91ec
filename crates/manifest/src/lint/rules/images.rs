//! Images, privileges and removed API versions.

use serde_json::Value;

use crate::lint::object::{Path, join, list, text};
use crate::lint::{Findings, Object, Rule, Set, set};

pub(super) static AF301: Rule = rule! {
    "AF301" "latest-tag" Warning;
    title: "The image has no fixed version",
    why: "The image behind `latest`, `nightly`, or no tag changes: replicas differ, a restart changes the program, \
          and results are not reproducible. The kubelet also pulls the image at each start, which takes minutes for \
          a CUDA image.",
    advice: "Use a version tag, or a digest: `image@sha256:…`.",
    check: latest_tag,
};

pub(super) static AF302: Rule = rule! {
    "AF302" "privileged" Warning;
    title: "The container is privileged",
    why: "A privileged container can access all GPUs of the node, not only its own, and can take over the machine. \
          GPUs do not need privileges: the device plugin adds them to the container.",
    advice: "Remove `privileged`; add single capabilities if needed.",
    check: privileged,
};

pub(super) static AF303: Rule = rule! {
    "AF303" "bypasses-device-plugin" Warning;
    title: "The container bypasses GPU allocation",
    why: "`NVIDIA_VISIBLE_DEVICES=all` or `/dev/nvidia0` of the host gives access to GPUs that are not allocated to \
          the container: the pods that own them run out of GPU memory.",
    advice: "Request GPUs in `resources.limits`; the device plugin sets the variable.",
    check: bypasses,
};

pub(super) static AF304: Rule = rule! {
    "AF304" "nvidia-docker" Warning fixable true;
    title: "nvidia-docker2 has no effect on pods",
    why: "nvidia-docker2 is discontinued and changed only Docker's default runtime. Kubernetes starts pods through \
          containerd: the pods find no GPU.",
    advice: "Install NVIDIA's container toolkit and configure it for containerd; set `runtimeClassName: nvidia` if \
             it is not the default.",
    check: nvidia_docker,
};

pub(super) static AF305: Rule = rule! {
    "AF305" "removed-api-version" Error fixable true;
    title: "Removed API version",
    why: "The API server no longer has this version and rejects the object.",
    advice: "Use the replacement version.",
    check: removed_version,
};

fn latest_tag(set: &Set<'_>, findings: &mut Findings<'_>) {
    for pod in set.pods() {
        for container in pod.all_containers() {
            let Some(image) = container.image().filter(|image| !image.is_empty()) else { continue };
            let name = image.rsplit('/').next().unwrap_or(image);
            let message = match name.split_once(':') {
                _ if image.contains('@') => continue,
                None => format!("image `{image}` has no tag and defaults to `latest`"),
                Some((_, tag)) if moves(tag) => format!("image `{image}` has a moving tag"),
                Some(_) => continue,
            };
            findings.add(&pod.object, &container.join(&["image"]), message);
        }
    }
}

/// True for a tag that moves to new images: `latest`, `latest-gpu`, `nightly`; not `nightly-20260101`.
fn moves(tag: &str) -> bool {
    let dated = tag.chars().filter(char::is_ascii_digit).count() >= 6;
    let part = |part: &str| matches!(part, "latest" | "nightly");
    matches!(tag, "main" | "master" | "edge") || !dated && tag.split(['-', '_']).any(part)
}

fn privileged(set: &Set<'_>, findings: &mut Findings<'_>) {
    for pod in set.pods() {
        // Driver installers need privileges.
        let system = pod.object.is(&["DaemonSet"]) && !pod.wants_gpu();
        for container in pod.all_containers() {
            let path = ["securityContext", "privileged"];
            if !system && container.at(&path) == Some(&Value::Bool(true)) {
                let message = format!(
                    "container `{}` is privileged; GPUs do not need privileges",
                    container.name()
                );
                findings.add(&pod.object, &container.join(&path), message);
            }
        }
    }
}

fn bypasses(set: &Set<'_>, findings: &mut Findings<'_>) {
    // Monitors and device plugins access all GPUs by design.
    for pod in set.pods().filter(|pod| !pod.object.is(&["DaemonSet"])) {
        for container in pod.all_containers() {
            for (name, value, number) in container.environment() {
                let value = value.and_then(Value::as_str).unwrap_or_default();
                if name == "NVIDIA_VISIBLE_DEVICES" && !matches!(value, "" | "none" | "void") {
                    let path = container.join(&["env", &number.to_string()]);
                    let message = format!("NVIDIA_VISIBLE_DEVICES={value} bypasses GPU allocation");
                    findings.add(&pod.object, &path, message);
                }
            }
        }
        for (number, volume) in list(pod.spec, &["volumes"]).iter().enumerate() {
            let host = text(volume, &["hostPath", "path"]).unwrap_or_default();
            if host.starts_with("/dev/nvidia") {
                let path = pod.join(&["volumes", &number.to_string(), "hostPath", "path"]);
                findings.add(
                    &pod.object,
                    &path,
                    format!("mounting {host} of the host bypasses GPU allocation"),
                );
            }
        }
    }
}

fn nvidia_docker(set: &Set<'_>, findings: &mut Findings<'_>) {
    for object in &set.objects {
        mentions(object, findings);
    }
}

/// Text in an object that installs or names it: scripts, commands, images.
fn mentions(object: &Object<'_>, findings: &mut Findings<'_>) {
    let mut left: Vec<(Path, &Value)> = vec![(object.path.clone(), object.value)];
    while let Some((path, value)) = left.pop() {
        match value {
            Value::String(text) if text.contains("nvidia-docker") => {
                let class = path.last().is_some_and(|step| step == "runtimeClassName");
                let message = if class {
                    format!("runtime class `{text}` belongs to Docker; use `nvidia`")
                } else {
                    "nvidia-docker has no effect with containerd; use the container toolkit"
                        .to_owned()
                };
                let fix = class.then(|| set(path.clone(), "nvidia"));
                findings.add_with(object, &path, message, fix.into_iter().collect());
            }
            Value::Object(map) => {
                left.extend(
                    map.iter()
                        .filter(|(key, _)| *key != "annotations")
                        .map(|(key, value)| (join(&path, &[key]), value)),
                );
            }
            Value::Array(items) => {
                left.extend(
                    items
                        .iter()
                        .enumerate()
                        .map(|(number, value)| (join(&path, &[number.to_string()]), value)),
                );
            }
            _ => {}
        }
    }
}

/// Group version, kind (any if empty), and replacement.
const REMOVED: [(&str, &str, &str); 9] = [
    ("batch/v1beta1", "CronJob", "batch/v1"),
    ("batch/v2alpha1", "CronJob", "batch/v1"),
    ("extensions/v1beta1", "Deployment", "apps/v1"),
    ("extensions/v1beta1", "DaemonSet", "apps/v1"),
    ("apps/v1beta1", "", "apps/v1"),
    ("apps/v1beta2", "", "apps/v1"),
    ("policy/v1beta1", "PodDisruptionBudget", "policy/v1"),
    ("autoscaling/v2beta2", "HorizontalPodAutoscaler", "autoscaling/v2"),
    ("scheduling.k8s.io/v1beta1", "PriorityClass", "scheduling.k8s.io/v1"),
];

fn removed_version(set: &Set<'_>, findings: &mut Findings<'_>) {
    for object in &set.objects {
        let removed = REMOVED.iter().find(|(version, kind, _)| {
            *version == object.api_version && (kind.is_empty() || *kind == object.kind)
        });
        if let Some((version, _, now)) = removed {
            let path = object.join(&["apiVersion"]);
            let fix = vec![self::set(path.clone(), *now)];
            findings.add_with(object, &path, format!("{version} was removed; use {now}"), fix);
        }
    }
}
