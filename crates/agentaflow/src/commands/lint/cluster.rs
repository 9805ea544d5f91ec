//! Objects of a cluster that no controller owns.

use std::path::Path;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use serde_json::Value;

use super::gather::Skipped;
use crate::commands::kubernetes;
use crate::connect::block_on;
use crate::failure;

/// Objects per list request.
const PAGE_SIZE: u32 = 500;

/// Of `ConfigMap`s only the configuration of the device plugin is checked.
const CONFIG_MAP: &str = "ConfigMap";

/// Group, version and kind of checked objects.
const KINDS: [(&str, &str, &str); 9] = [
    ("apps", "v1", "Deployment"),
    ("apps", "v1", "StatefulSet"),
    ("apps", "v1", "DaemonSet"),
    ("batch", "v1", "Job"),
    ("batch", "v1", "CronJob"),
    ("", "v1", "Pod"),
    ("", "v1", "PersistentVolumeClaim"),
    ("", "v1", CONFIG_MAP),
    ("agentaflow.io", "v1", "GPUWorkload"),
];

/// Objects of a cluster or namespace.
#[derive(Debug)]
pub(super) struct ClusterObjects {
    /// Name in findings.
    pub(super) name: String,
    /// Objects without a controller.
    pub(super) objects: Vec<Value>,
    pub(super) notes: Vec<Skipped>,
}

pub(super) fn objects(
    kubeconfig: Option<&Path>,
    namespace: Option<&str>,
) -> Result<ClusterObjects> {
    let name = namespace.map_or("cluster".to_owned(), |name| format!("namespace {name}"));
    let mut live = ClusterObjects { name, objects: Vec::new(), notes: Vec::new() };
    block_on(async {
        let client = kubernetes::client(kubeconfig).await?;
        for (group, version, kind) in KINDS {
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
            let listed = list(client.clone(), &resource, namespace).await;
            match listed {
                Ok(objects) => live.objects.extend(objects),
                // The CRDs may be missing, and the user may lack permissions.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(kube::Error::Api(status)) if status.code == 403 => {
                    live.notes.push(Skipped::new(kind, status.message));
                }
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot list {kind} objects"));
                }
            }
        }
        match namespace {
            Some(namespace) if live.objects.is_empty() => check_namespace(client, namespace).await,
            _ => Ok(()),
        }
    })?;
    Ok(live)
}

/// Reports a missing namespace, if the user may read namespaces.
async fn check_namespace(client: Client, namespace: &str) -> Result<()> {
    let found = Api::<Namespace>::all(client).get_opt(namespace).await;
    if matches!(found, Ok(None)) {
        return Err(failure::not_found(format!("namespace `{namespace}` not found")));
    }
    Ok(())
}

/// Exit code for an error of the cluster.
pub(super) fn code(error: &anyhow::Error) -> u8 {
    match error.chain().find_map(|cause| cause.downcast_ref::<kube::Error>()) {
        Some(kube::Error::Api(status)) if matches!(status.code, 401 | 403) => 4,
        Some(kube::Error::Api(_)) => 1,
        None => failure::code(error),
        Some(_) => 5,
    }
}

async fn list(
    client: Client,
    resource: &ApiResource,
    namespace: Option<&str>,
) -> Result<Vec<Value>, kube::Error> {
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, resource),
        None => Api::all_with(client, resource),
    };
    let mut all = Vec::new();
    let mut page = ListParams::default().limit(PAGE_SIZE);
    loop {
        let listed = api.list(&page).await?;
        let next = listed.metadata.continue_.clone().filter(|next| !next.is_empty());
        all.extend(
            listed
                .items
                .into_iter()
                .filter(|object| !is_owned(object) && is_relevant(object, resource))
                .map(|object| value(object, resource)),
        );
        let Some(next) = next else { return Ok(all) };
        page = page.continue_token(&next);
    }
}

fn is_owned(object: &DynamicObject) -> bool {
    object.metadata.owner_references.iter().flatten().any(|owner| owner.controller == Some(true))
}

/// The object can concern GPUs.
fn is_relevant(object: &DynamicObject, resource: &ApiResource) -> bool {
    let mut texts = object.data["data"].as_object().into_iter().flatten();
    resource.kind != CONFIG_MAP
        || texts.any(|(_, text)| text.as_str().is_some_and(|text| text.contains("timeSlicing")))
}

/// The object with its kind, which lists omit, and without managed fields.
fn value(mut object: DynamicObject, resource: &ApiResource) -> Value {
    object.metadata.managed_fields = None;
    let mut value = serde_json::to_value(object).unwrap_or_default();
    value["apiVersion"] = resource.api_version.clone().into();
    value["kind"] = resource.kind.clone().into();
    value
}
