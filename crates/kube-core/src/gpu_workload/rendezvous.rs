//! Rendezvous of a gang: host names behind a headless Service, and the variables that launchers and frameworks read. Only
//! absent fields are filled in.

use serde_json::{Map, Value, json};

use super::template::{BadTemplate, Identity, absent, object, owner, shape};
use super::{hostfile, name};
use crate::crd::GpuWorkloadSpec;
use crate::names;

/// Port of the first task; the default of `PyTorch`.
const MASTER_PORT: u16 = 29_500;

/// Largest gang whose pods get the list of all hosts; every pod is a copy of the list.
const MAX_LISTED_HOSTS: u32 = 256;

/// Adds host name, subdomain, completion index and variables to the pod of a gang's task.
pub(super) fn fill(
    template: &mut Map<String, Value>,
    workload: Identity<'_>,
    spec: &GpuWorkloadSpec,
    task: u32,
) -> Result<(), BadTemplate> {
    if spec.gang_size < 2 {
        return Ok(());
    }
    let metadata = object(template, "metadata", "podTemplate.metadata")?;
    let annotations = object(metadata, "annotations", "podTemplate.metadata.annotations")?;
    annotations.entry(names::COMPLETION_INDEX).or_insert_with(|| task.to_string().into());
    let body = object(template, "spec", "podTemplate.spec")?;
    let domain = domain(body, workload.name);
    if let Some(domain) = &domain {
        body.insert("hostname".into(), name::host_name(workload.name, task).into());
        body.insert("subdomain".into(), domain.as_str().into());
    }
    let hosts = domain.map(|domain| hosts(workload.name, spec, &domain)).unwrap_or_default();
    let variables = variables(spec, task, &hosts);
    for kind in ["containers", "initContainers"] {
        let Some(containers) = body.get_mut(kind).and_then(Value::as_array_mut) else { continue };
        for container in containers.iter_mut().filter_map(Value::as_object_mut) {
            add_variables(container, kind, &variables)?;
        }
    }
    if is_listed(&hosts) {
        hostfile::mount(template, &hosts, gpus(spec))?;
    }
    Ok(())
}

/// The headless Service of a gang; none for a single pod, or if the template has host names of its own.
pub fn service(workload: Identity<'_>, spec: &GpuWorkloadSpec) -> Option<Value> {
    let template = spec.pod_template.value();
    let body = template.get("spec")?.as_object()?;
    let needed = spec.gang_size > 1 && absent(body, "hostname") && absent(body, "subdomain");
    let uid = workload.uid.filter(|uid| needed && !uid.is_empty())?;
    let label = name::label_value(workload.name);
    Some(json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name::service_name(workload.name),
            "namespace": workload.namespace,
            "labels": {names::POD_WORKLOAD: label, names::MANAGED_BY: names::FIELD_MANAGER},
            "ownerReferences": [owner(workload.name, uid)],
        },
        "spec": {
            "clusterIP": "None",
            // Pods meet before they are ready.
            "publishNotReadyAddresses": true,
            "selector": {names::POD_WORKLOAD: label, names::POD_MANAGED: "true"},
            "ports": [{"name": "rendezvous", "port": MASTER_PORT}],
        },
    }))
}

/// Subdomain of the pods; none if the template sets one host name for all of them.
fn domain(body: &Map<String, Value>, workload: &str) -> Option<String> {
    if !absent(body, "hostname") {
        return None;
    }
    let own = body.get("subdomain").and_then(Value::as_str).filter(|own| !own.is_empty());
    Some(own.map_or_else(|| name::service_name(workload), str::to_owned))
}

/// Host names by task; only the first one of a large gang.
fn hosts(workload: &str, spec: &GpuWorkloadSpec, domain: &str) -> Vec<String> {
    let host = |task: u32| format!("{}.{domain}", name::host_name(workload, task));
    let listed = if spec.gang_size <= MAX_LISTED_HOSTS { spec.gang_size } else { 1 };
    (0..listed).map(host).collect()
}

fn is_listed(hosts: &[String]) -> bool {
    hosts.len() > 1
}

/// GPUs of each pod, at least 1: the number of its processes.
fn gpus(spec: &GpuWorkloadSpec) -> u32 {
    spec.gpu_requirements.gpu_count.max(1)
}

/// Without hosts, the pods have no addresses.
fn variables(spec: &GpuWorkloadSpec, task: u32, hosts: &[String]) -> Vec<(&'static str, String)> {
    let (rank, size) = (task.to_string(), spec.gang_size.to_string());
    let mut all = vec![
        ("RANK", rank.clone()),
        ("WORLD_SIZE", size.clone()),
        ("LOCAL_RANK", "0".to_owned()),
        ("LOCAL_WORLD_SIZE", "1".to_owned()),
        ("NODE_RANK", rank.clone()),
        ("JOB_COMPLETION_INDEX", rank.clone()),
        ("PET_NNODES", size.clone()),
        ("PET_NODE_RANK", rank.clone()),
        ("PET_NPROC_PER_NODE", gpus(spec).to_string()),
        ("JAX_NUM_PROCESSES", size),
        ("JAX_PROCESS_ID", rank),
    ];
    let Some(master) = hosts.first() else { return all };
    let port = MASTER_PORT.to_string();
    all.extend([
        ("JAX_COORDINATOR_ADDRESS", format!("{master}:{port}")),
        ("PET_MASTER_ADDR", master.clone()),
        ("PET_MASTER_PORT", port.clone()),
        ("MASTER_ADDR", master.clone()),
        ("MASTER_PORT", port),
    ]);
    if is_listed(hosts) {
        all.push(("AGENTAFLOW_HOSTS", hosts.join(",")));
        all.extend(hostfile::variables());
    }
    all
}

/// Variables of the template have precedence.
fn add_variables(
    container: &mut Map<String, Value>,
    kind: &str,
    variables: &[(&'static str, String)],
) -> Result<(), BadTemplate> {
    let env = container.entry("env").or_insert(Value::Null);
    if env.is_null() {
        *env = json!([]);
    }
    let wrong = || shape(&format!("podTemplate.spec.{kind}[].env"), "a list");
    let env = env.as_array_mut().ok_or_else(wrong)?;
    for (name, value) in variables {
        if !env.iter().any(|known| known["name"] == *name) {
            env.push(json!({"name": name, "value": value}));
        }
    }
    Ok(())
}
