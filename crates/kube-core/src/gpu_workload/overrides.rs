//! Overrides of the template for single tasks of a gang, such as a leader.

use serde_json::{Map, Value, json};
use std::ops::RangeInclusive;

use super::template::{BadTemplate, object, shape};
use crate::crd::{ContainerOverride, GpuWorkloadSpec};

/// Path of a container of the template.
const CONTAINER: &str = "podTemplate.spec.containers[]";

/// Applies the overrides of a task to its pod, in order.
pub(super) fn apply(
    body: &mut Map<String, Value>,
    spec: &GpuWorkloadSpec,
    task: u32,
) -> Result<(), BadTemplate> {
    for (number, change) in spec.task_overrides.iter().enumerate() {
        let path = format!("taskOverrides[{number}]");
        let ranges = ranges(&change.tasks).ok_or_else(|| BadTemplate::Tasks {
            path: format!("spec.{path}.tasks"),
            tasks: change.tasks.chars().take(64).collect(),
        })?;
        if ranges.iter().any(|range| range.contains(&task)) {
            for container in &change.containers {
                apply_to_container(body, container, &path)?;
            }
            if !change.node_selector.is_empty() {
                let selector = object(body, "nodeSelector", "podTemplate.spec.nodeSelector")?;
                selector.extend(change.node_selector.clone());
            }
            merge(body, "podTemplate.spec", "volumes", "name", &change.volumes)?;
        }
    }
    Ok(())
}

/// One task of each override, and task 0: their pods differ from the pods of other tasks.
pub fn distinct_tasks(spec: &GpuWorkloadSpec) -> Vec<u32> {
    let first = |tasks: &str| ranges(tasks)?.first().map(|range| *range.start());
    let mut tasks: Vec<u32> =
        spec.task_overrides.iter().filter_map(|change| first(&change.tasks)).collect();
    tasks.push(0);
    tasks.retain(|task| *task < spec.gang_size);
    tasks.sort_unstable();
    tasks.dedup();
    tasks
}

/// Task numbers such as `0`, `1-3` or `0,4-7`.
fn ranges(text: &str) -> Option<Vec<RangeInclusive<u32>>> {
    let range = |part: &str| {
        let (start, end) = part.split_once('-').unwrap_or((part, part));
        let (start, end) = (start.trim().parse().ok()?, end.trim().parse().ok()?);
        (start <= end).then_some(start..=end)
    };
    text.split(',').map(range).collect()
}

fn apply_to_container(
    body: &mut Map<String, Value>,
    change: &ContainerOverride,
    path: &str,
) -> Result<(), BadTemplate> {
    let containers = body.get_mut("containers").and_then(Value::as_array_mut);
    let containers = containers.ok_or_else(|| shape("podTemplate.spec.containers", "a list"))?;
    let only = containers.len() == 1;
    let is_meant = |container: &&mut Value| match &change.name {
        Some(name) => container["name"] == **name,
        None => only,
    };
    let container = containers.iter_mut().find(is_meant).and_then(Value::as_object_mut);
    let container = container.ok_or_else(|| {
        shape(&format!("{path}.containers[].name"), "the name of a container of the template")
    })?;
    let replaced = [
        ("image", change.image.as_ref().map(|value| json!(value))),
        ("command", change.command.as_ref().map(|value| json!(value))),
        ("args", change.args.as_ref().map(|value| json!(value))),
        ("ports", change.ports.as_ref().map(|value| json!(value))),
    ];
    for (field, value) in replaced {
        container.extend(value.map(|value| (field.to_owned(), value)));
    }
    merge(container, CONTAINER, "env", "name", &change.env)?;
    merge(container, CONTAINER, "volumeMounts", "mountPath", &change.volume_mounts)?;
    if let Some(resources) = &change.resources {
        let target = object(container, "resources", &format!("{CONTAINER}.resources"))?;
        for (kind, amounts) in [("limits", &resources.limits), ("requests", &resources.requests)] {
            if !amounts.is_empty() {
                let target = object(target, kind, &format!("{CONTAINER}.resources"))?;
                target.extend(amounts.iter().map(|(name, value)| (name.clone(), value.clone())));
            }
        }
    }
    Ok(())
}

/// Adds objects to a list of the template, in place of objects with the same key.
fn merge(
    target: &mut Map<String, Value>,
    path: &str,
    field: &str,
    key: &str,
    changes: &[Value],
) -> Result<(), BadTemplate> {
    if changes.is_empty() {
        return Ok(());
    }
    let list = target.entry(field).or_insert(Value::Null);
    if list.is_null() {
        *list = json!([]);
    }
    let list = list.as_array_mut();
    let list = list.ok_or_else(|| shape(&format!("{path}.{field}"), "a list"))?;
    for change in changes {
        list.retain(|known| known[key] != change[key]);
        list.push(change.clone());
    }
    Ok(())
}
