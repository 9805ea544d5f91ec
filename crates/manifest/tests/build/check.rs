//! Independent strict checker of objects: names, quantities, consistency.

use std::collections::BTreeSet;

use agentaflow_manifest::build::{is_label_key, is_label_value, is_name};
use agentaflow_manifest::cloud::{canonical_accelerator, is_known_label};
use agentaflow_units::Amount;
use k8s_openapi::api::{apps, autoscaling, batch, core, rbac};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// All problems of an object or a part of a pod.
pub(crate) fn problems(object: &Value) -> Vec<String> {
    let mut found = Vec::new();
    if object.get("kind").is_some() {
        shape(object, &mut found);
        metadata(object, &mut found);
    }
    nulls(object, "", &mut found);
    kind(object, &mut found);
    found
}

/// Checks that the API type decodes every field without loss.
fn shape(object: &Value, found: &mut Vec<String>) {
    let kept = match object["kind"].as_str().unwrap_or_default() {
        "Job" => through::<batch::v1::Job>(object),
        "CronJob" => through::<batch::v1::CronJob>(object),
        "Deployment" => through::<apps::v1::Deployment>(object),
        "Pod" => through::<core::v1::Pod>(object),
        "PersistentVolumeClaim" => through::<core::v1::PersistentVolumeClaim>(object),
        "ConfigMap" => through::<core::v1::ConfigMap>(object),
        "Service" => through::<core::v1::Service>(object),
        "ServiceAccount" => through::<core::v1::ServiceAccount>(object),
        "ClusterRole" => through::<rbac::v1::ClusterRole>(object),
        "ClusterRoleBinding" => through::<rbac::v1::ClusterRoleBinding>(object),
        "HorizontalPodAutoscaler" => through::<autoscaling::v2::HorizontalPodAutoscaler>(object),
        "GPUWorkload" => {
            return if through::<core::v1::PodTemplateSpec>(&object["spec"]["podTemplate"]).is_err()
            {
                found.push("podTemplate has another shape".to_owned());
            };
        }
        "ScaledObject" | "NodePool" => return,
        other => Err(format!("no kind is called {other}")),
    };
    if let Err(why) = kept {
        found.push(why);
    }
}

fn through<T: DeserializeOwned + Serialize>(object: &Value) -> Result<(), String> {
    let read: T = serde_json::from_value(object.clone()).map_err(|error| error.to_string())?;
    let written = serde_json::to_value(read).map_err(|error| error.to_string())?;
    let mut lost = Vec::new();
    missing(object, &written, "", &mut lost);
    if lost.is_empty() { Ok(()) } else { Err(format!("unknown fields: {lost:?}")) }
}

fn missing(wanted: &Value, found: &Value, path: &str, lost: &mut Vec<String>) {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => {
            for (key, value) in wanted {
                let path = format!("{path}/{key}");
                match found.get(key) {
                    Some(found) => missing(value, found, &path, lost),
                    None => lost.push(path),
                }
            }
        }
        (Value::Array(wanted), Value::Array(found)) => {
            for (index, (wanted, found)) in wanted.iter().zip(found).enumerate() {
                missing(wanted, found, &format!("{path}/{index}"), lost);
            }
        }
        _ => {}
    }
}

fn metadata(object: &Value, found: &mut Vec<String>) {
    for field in ["name", "namespace"] {
        match &object["metadata"][field] {
            Value::Null if field == "namespace" => {}
            Value::String(name) if is_name(name) => {}
            other => found.push(format!("{field} is {other}")),
        }
    }
    labels(&object["metadata"]["labels"], found);
}

fn labels(labels: &Value, found: &mut Vec<String>) {
    for (key, value) in labels.as_object().into_iter().flatten() {
        if !is_label_key(key) || !value.as_str().is_some_and(is_label_value) {
            found.push(format!("label {key}: {value}"));
        }
    }
}

fn kind(object: &Value, found: &mut Vec<String>) {
    let spec = &object["spec"];
    match object["kind"].as_str() {
        Some("Job") => job(spec, found),
        Some("CronJob") => {
            if object["metadata"]["name"].as_str().is_some_and(|name| name.len() > 52) {
                found.push("the name of a CronJob is at most 52 long".to_owned());
            }
            job(&spec["jobTemplate"]["spec"], found);
        }
        Some("Deployment") => {
            let (wanted, given) =
                (&spec["selector"]["matchLabels"], &spec["template"]["metadata"]["labels"]);
            let wanted = wanted.as_object().cloned().unwrap_or_default();
            if wanted.is_empty() || wanted.iter().any(|(key, value)| given.get(key) != Some(value))
            {
                found.push("the template lacks the labels of the selector".to_owned());
            }
            template(&spec["template"], found);
        }
        Some("Pod") | None => pod(spec, found),
        Some("GPUWorkload") => template(&spec["podTemplate"], found),
        Some("PersistentVolumeClaim") => amount(&spec["resources"]["requests"]["storage"], found),
        Some("HorizontalPodAutoscaler") => {
            let (min, max) = (spec["minReplicas"].as_i64(), spec["maxReplicas"].as_i64());
            if min.is_none_or(|min| min < 1) || min > max {
                found.push(format!("from {min:?} to {max:?} replicas"));
            }
        }
        _ => {}
    }
}

fn job(spec: &Value, found: &mut Vec<String>) {
    let policy = spec["template"]["spec"]["restartPolicy"].as_str();
    if !matches!(policy, Some("OnFailure" | "Never")) {
        found.push(format!("restartPolicy of a job is {policy:?}"));
    }
    template(&spec["template"], found);
}

fn template(template: &Value, found: &mut Vec<String>) {
    labels(&template["metadata"]["labels"], found);
    pod(&template["spec"], found);
}

fn pod(spec: &Value, found: &mut Vec<String>) {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    selector(spec, found);
    let volumes: Vec<String> = list(&spec["volumes"])
        .iter()
        .map(|volume| volume["name"].as_str().unwrap_or("?").to_owned())
        .collect();
    distinct("volume", &volumes, found);
    for volume in list(&spec["volumes"]) {
        if !volume["emptyDir"].is_null() {
            amount(&volume["emptyDir"]["sizeLimit"], found);
        }
    }
    for container in list(&spec["containers"]) {
        if !container["name"].as_str().is_some_and(is_name)
            || container["image"].as_str().is_none_or(str::is_empty)
        {
            found.push("a container without name or image".to_owned());
        }
        let texts = |list: &[Value], key: &str| -> Vec<String> {
            list.iter().map(|entry| entry[key].as_str().unwrap_or("?").to_owned()).collect()
        };
        let mounts = list(&container["volumeMounts"]);
        distinct("mount", &texts(&mounts, "mountPath"), found);
        distinct("variable", &texts(&list(&container["env"]), "name"), found);
        if let Some(name) = texts(&mounts, "name").iter().find(|name| !volumes.contains(name)) {
            found.push(format!("the mount `{name}` has no volume"));
        }
        resources(&container["resources"], found);
    }
}

fn selector(spec: &Value, found: &mut Vec<String>) {
    labels(&spec["nodeSelector"], found);
    if let Some(value) = spec["nodeSelector"]["accelerator"].as_str()
        && canonical_accelerator(value).is_some_and(|canonical| canonical != value)
    {
        found.push(format!("`accelerator` is never spelled `{value}`"));
    }
    let affinity =
        &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    for term in affinity["nodeSelectorTerms"].as_array().into_iter().flatten() {
        for key in
            term["matchExpressions"].as_array().into_iter().flatten().map(|entry| &entry["key"])
        {
            if !key.as_str().is_some_and(is_known_label) {
                found.push(format!("unknown label: {key}"));
            }
        }
    }
}

fn resources(resources: &Value, found: &mut Vec<String>) {
    let (limits, requests) = (&resources["limits"], &resources["requests"]);
    for list in [limits, requests] {
        for (_, value) in list.as_object().into_iter().flatten() {
            amount(value, found);
        }
    }
    for (name, request) in requests.as_object().into_iter().flatten() {
        let limit = &limits[name];
        let (asked, most) = (read(request), read(limit));
        let is_gpu = name.starts_with("nvidia.com/");
        if (is_gpu && asked != most) || (!limit.is_null() && asked > most) {
            found.push(format!("request of {name} is {request}, limit {limit}"));
        }
    }
    let gpus = limits
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, _)| name.starts_with("nvidia.com/"));
    if gpus.count() > 1 {
        found.push("two kinds of GPUs".to_owned());
    }
}

fn amount(value: &Value, found: &mut Vec<String>) {
    if read(value).is_none_or(|amount| amount == Amount::default()) {
        found.push(format!("{value} is no amount"));
    }
}

fn read(value: &Value) -> Option<Amount> {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    Amount::parse(&text).ok()
}

fn distinct(what: &str, names: &[String], found: &mut Vec<String>) {
    if names.iter().collect::<BTreeSet<_>>().len() != names.len() {
        found.push(format!("the same {what} twice: {names:?}"));
    }
}

fn nulls(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Null => found.push(format!("null at {path}")),
        Value::Object(object) => {
            object.iter().for_each(|(key, value)| nulls(value, &format!("{path}/{key}"), found));
        }
        Value::Array(list) => {
            list.iter()
                .enumerate()
                .for_each(|(index, value)| nulls(value, &format!("{path}/{index}"), found));
        }
        _ => {}
    }
}
