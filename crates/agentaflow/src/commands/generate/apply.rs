//! Server-side apply of several objects, all or none.

use agentaflow_kube_client::Failure;
use agentaflow_kube_core::names::FIELD_MANAGER;
use anyhow::{Context as _, Result};
use kube::api::{Patch, PatchParams, ValidationDirective};
use kube::core::{DynamicObject, GroupVersionKind};
use kube::discovery::{Scope, pinned_kind};
use kube::{Api, Client};
use serde_json::Value;

#[derive(Clone, Copy, Debug)]
pub(crate) struct ApplyOptions {
    /// Validate without changing the cluster.
    pub(crate) dry_run: bool,
    /// Take over fields of other field managers.
    pub(crate) force: bool,
}

/// Applies objects and returns their names. A dry run of all objects first prevents a partial apply.
pub(crate) async fn apply(
    client: &Client,
    objects: &[Value],
    options: ApplyOptions,
) -> Result<Vec<String>> {
    let mut sent = Vec::new();
    for object in objects {
        let api = api(client, object).await?;
        patch(&api, object, ApplyOptions { dry_run: true, ..options }).await?;
        sent.push((api, object));
    }
    let mut names = Vec::new();
    for (api, object) in sent {
        if !options.dry_run {
            patch(&api, object, options).await?;
        }
        names.push(name(object));
    }
    Ok(names)
}

/// Kind and name in `kubectl` format.
pub(crate) fn name(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let kind = text(&object["kind"]).to_lowercase();
    let version = text(&object["apiVersion"]);
    let group = version.split_once('/').map_or(String::new(), |(group, _)| format!(".{group}"));
    format!("{kind}{group}/{}", text(&object["metadata"]["name"]))
}

async fn api(client: &Client, object: &Value) -> Result<Api<DynamicObject>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let version = text(&object["apiVersion"]);
    let (group, version) = version.split_once('/').unwrap_or(("", &version));
    let kind = GroupVersionKind::gvk(group, version, &text(&object["kind"]));
    let found = pinned_kind(client, &kind).await.map_err(Failure::from);
    let (resource, capabilities) = found.map_err(|failure| {
        let kind_name = format!("{} of {}", kind.kind, kind.api_version());
        // Other failures do not mean that the kind is missing.
        match failure {
            Failure::NotFound(_) | Failure::Other(_) => anyhow::Error::new(failure)
                .context(format!("kind {kind_name} not found: is its CRD installed?")),
            failure => {
                anyhow::Error::new(failure).context(format!("cannot look up kind {kind_name}"))
            }
        }
    })?;
    if capabilities.scope == Scope::Cluster {
        return Ok(Api::all_with(client.clone(), &resource));
    }
    let namespace = object["metadata"]["namespace"].as_str();
    Ok(match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::default_namespaced_with(client.clone(), &resource),
    })
}

async fn patch(api: &Api<DynamicObject>, object: &Value, options: ApplyOptions) -> Result<()> {
    let mut parameters = PatchParams::apply(FIELD_MANAGER);
    parameters.dry_run = options.dry_run;
    parameters.force = options.force;
    // Unknown fields are errors, not warnings.
    parameters.field_validation = Some(ValidationDirective::Strict);
    let own = object["metadata"]["name"].as_str().unwrap_or_default();
    let result = api.patch(own, &parameters, &Patch::Apply(object)).await;
    result
        .map_err(Failure::from)
        .map(drop)
        .with_context(|| format!("cannot apply {}", name(object)))
}
