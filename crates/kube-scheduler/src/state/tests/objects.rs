//! Objects for the fake API server.

use agentaflow_kube_core::names;
use serde_json::{Value, json};

use super::harness::SPACE;

/// A node with this number of GPUs.
pub(super) fn node(name: &str, gpus: u32) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": {"cpu": "64", "memory": "512Gi", "ephemeral-storage": "1Ti",
            "pods": "110", names::GPU_RESOURCE: gpus.to_string()}},
    })
}

/// A pod of this scheduler that requests this number of GPUs.
pub(super) fn pod(name: &str, gpus: u32) -> Value {
    json!({
        "metadata": {"name": name, "namespace": SPACE, "labels": {}, "annotations": {}},
        "spec": {
            "schedulerName": names::SCHEDULER_NAME,
            "containers": [{"name": "main",
                "resources": {"limits": {names::GPU_RESOURCE: gpus.to_string()}}}],
        },
    })
}

/// The object with one field changed.
pub(super) fn with(mut value: Value, pointer: &str, part: Value) -> Value {
    let mut at = &mut value;
    for step in pointer.split('|') {
        at = &mut at[step];
    }
    *at = part;
    value
}

/// A pod with the class of a priority from 0 to 10.
pub(super) fn weighted(name: &str, gpus: u32, priority: u8) -> Value {
    with(pod(name, gpus), "spec|priority", json!(names::priority_class_value(priority)))
}

/// A pod of a group.
pub(super) fn member(name: &str, group: &str, gpus: u32) -> Value {
    with(pod(name, gpus), &format!("metadata|labels|{}", names::POD_GROUP), json!(group))
}

pub(super) fn group(name: &str, least: u32) -> Value {
    json!({"metadata": {"name": name, "namespace": SPACE}, "spec": {"minMember": least}})
}

/// A `GPUWorkload` of this number of pods with one GPU each.
pub(super) fn workload(name: &str, gang: u32, retries: u32) -> Value {
    json!({
        "metadata": {"name": name, "namespace": SPACE},
        "spec": {
            "gpuMemoryRequired": 0,
            "gangSize": gang,
            "retries": retries,
            "gpuRequirements": {"gpuCount": 1},
            "podTemplate": {"spec": {"containers": [{"name": "main", "image": "i"}]}},
        },
    })
}

/// A queue of the namespace with a limit of GPUs.
pub(super) fn queue(name: &str, gpus: u32) -> Value {
    json!({"metadata": {"name": name}, "spec": {"namespaces": [SPACE], "limit": {"gpus": gpus}}})
}
