//! Host file of a gang for Open MPI: an annotation of the pod, mounted as a file. It needs no further object.

use serde_json::{Map, Value, json};

use super::template::{BadTemplate, object, shape};
use crate::names;

/// Name of the volume.
const VOLUME: &str = "agentaflow-hostfile";
const FOLDER: &str = "/etc/agentaflow";
const FILE: &str = "hostfile";

/// Variables that name the default host file: of Open MPI 4, and of 5.
const VARIABLES: [&str; 2] = ["OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile"];

/// Adds the host file to all containers. A template with a volume of this name keeps its own.
pub(super) fn mount(
    template: &mut Map<String, Value>,
    hosts: &[String],
    slots: u32,
) -> Result<(), BadTemplate> {
    let body = object(template, "spec", "podTemplate.spec")?;
    let volumes = list(body, "volumes", "podTemplate.spec.volumes")?;
    if volumes.iter().any(|volume| volume["name"] == VOLUME) {
        return Ok(());
    }
    let field = format!("metadata.annotations['{}']", names::HOSTFILE);
    let item = json!({"path": FILE, "fieldRef": {"fieldPath": field}});
    volumes.push(json!({"name": VOLUME, "downwardAPI": {"items": [item]}}));
    for kind in ["containers", "initContainers"] {
        let Some(containers) = body.get_mut(kind).and_then(Value::as_array_mut) else { continue };
        for container in containers.iter_mut().filter_map(Value::as_object_mut) {
            let path = format!("podTemplate.spec.{kind}[].volumeMounts");
            let mounts = list(container, "volumeMounts", &path)?;
            if !mounts.iter().any(|mount| mount["mountPath"] == FOLDER) {
                mounts.push(json!({"name": VOLUME, "mountPath": FOLDER, "readOnly": true}));
            }
        }
    }
    let metadata = object(template, "metadata", "podTemplate.metadata")?;
    let annotations = object(metadata, "annotations", "podTemplate.metadata.annotations")?;
    let lines: Vec<String> = hosts.iter().map(|host| format!("{host} slots={slots}")).collect();
    annotations.insert(names::HOSTFILE.into(), (lines.join("\n") + "\n").into());
    Ok(())
}

pub(super) fn variables() -> impl Iterator<Item = (&'static str, String)> {
    VARIABLES.into_iter().map(|name| (name, format!("{FOLDER}/{FILE}")))
}

/// A list of an object; created if absent.
fn list<'a>(
    parent: &'a mut Map<String, Value>,
    key: &str,
    path: &str,
) -> Result<&'a mut Vec<Value>, BadTemplate> {
    let value = parent.entry(key).or_insert(Value::Null);
    if value.is_null() {
        *value = json!([]);
    }
    value.as_array_mut().ok_or_else(|| shape(path, "a list"))
}
