//! What is in a cluster: what people wrote, not what controllers made of it.

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

/// How many objects are asked for at once.
const PAGE: u32 = 500;

/// Most of these are somebody else's; only the device plugin's configuration is looked at.
const CONFIG_MAP: &str = "ConfigMap";

/// Group, version and kind of what is looked at.
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

/// What a cluster holds.
#[derive(Debug)]
pub(super) struct Live {
    /// What people call the cluster.
    pub(super) name: String,
    /// Objects that no other object owns.
    pub(super) objects: Vec<Value>,
    /// What could not be looked at, and why.
    pub(super) notes: Vec<Skipped>,
}

/// Everything to check in a cluster, or in one namespace of it.
pub(super) fn objects(kubeconfig: Option<&Path>, namespace: Option<&str>) -> Result<Live> {
    let name = namespace.map_or("cluster".to_owned(), |name| format!("namespace {name}"));
    let mut live = Live { name, objects: Vec::new(), notes: Vec::new() };
    block_on(async {
        let client = kubernetes::client(kubeconfig).await?;
        for (group, version, kind) in KINDS {
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
            let listed = list(client.clone(), &resource, namespace).await;
            match listed {
                Ok(objects) => live.objects.extend(objects),
                // A cluster need not have our kinds, nor let everybody see everything.
                Err(kube::Error::Api(said)) if said.code == 404 => {}
                Err(kube::Error::Api(said)) if said.code == 403 => {
                    live.notes.push(Skipped::new(kind, said.message));
                }
                Err(error) => {
                    return Err(error)
                        .with_context(|| format!("cannot list each {kind} of the cluster"));
                }
            }
        }
        match namespace {
            Some(namespace) if live.objects.is_empty() => exists(client, namespace).await,
            _ => Ok(()),
        }
    })?;
    Ok(live)
}

/// Nothing is found in a namespace that is misspelt, either. Who may not look at namespaces is not told.
async fn exists(client: Client, namespace: &str) -> Result<()> {
    let found = Api::<Namespace>::all(client).get_opt(namespace).await;
    if matches!(found, Ok(None)) {
        return Err(failure::not_there(format!("there is no namespace `{namespace}`")));
    }
    Ok(())
}

/// The exit code for a cluster that does not answer, or not us.
pub(super) fn code(error: &anyhow::Error) -> u8 {
    match error.chain().find_map(|cause| cause.downcast_ref::<kube::Error>()) {
        Some(kube::Error::Api(said)) if matches!(said.code, 401 | 403) => 4,
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
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let listed = api.list(&page).await?;
        let next = listed.metadata.continue_.clone().filter(|next| !next.is_empty());
        all.extend(
            listed
                .items
                .into_iter()
                .filter(|object| !is_owned(object) && is_ours(object, resource))
                .map(|object| value(object, resource)),
        );
        let Some(next) = next else { return Ok(all) };
        page = page.continue_token(&next);
    }
}

fn is_owned(object: &DynamicObject) -> bool {
    object.metadata.owner_references.iter().flatten().any(|owner| owner.controller == Some(true))
}

/// Whether it can have anything to do with GPUs.
fn is_ours(object: &DynamicObject, resource: &ApiResource) -> bool {
    let mut texts = object.data["data"].as_object().into_iter().flatten();
    resource.kind != CONFIG_MAP
        || texts.any(|(_, text)| text.as_str().is_some_and(|text| text.contains("timeSlicing")))
}

/// The object with its kind, which lists leave out, and without the book-keeping of the API server.
fn value(mut object: DynamicObject, resource: &ApiResource) -> Value {
    object.metadata.managed_fields = None;
    let mut value = serde_json::to_value(object).unwrap_or_default();
    value["apiVersion"] = resource.api_version.clone().into();
    value["kind"] = resource.kind.clone().into();
    value
}
