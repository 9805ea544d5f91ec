//! Sends objects to the cluster: server-side apply under one name, all or none.

use agentaflow_kube_client::Failure;
use agentaflow_kube_core::names::FIELD_MANAGER;
use anyhow::{Context as _, Result};
use kube::api::{Patch, PatchParams, ValidationDirective};
use kube::core::{DynamicObject, GroupVersionKind};
use kube::discovery::{Scope, pinned_kind};
use kube::{Api, Client};
use serde_json::Value;

/// How objects are sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    /// Only ask whether they would be taken.
    pub(crate) dry_run: bool,
    /// Take over fields that others manage.
    pub(crate) force: bool,
}

/// Applies objects, and names them. Each is tried by the API server first, so that one that is refused leaves the others
/// undone.
pub(crate) async fn apply(client: &Client, objects: &[Value], how: How) -> Result<Vec<String>> {
    let mut sent = Vec::new();
    for object in objects {
        let api = api(client, object).await?;
        patch(&api, object, How { dry_run: true, ..how }).await?;
        sent.push((api, object));
    }
    let mut names = Vec::new();
    for (api, object) in sent {
        if !how.dry_run {
            patch(&api, object, how).await?;
        }
        names.push(name(object));
    }
    Ok(names)
}

/// Kind and name, as `kubectl` prints them.
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
        let named = format!("{} of {}", kind.kind, kind.api_version());
        // Who cannot be asked, or does not answer such a question, has said nothing about the kind.
        match failure {
            Failure::NotFound(_) | Failure::Other(_) => anyhow::Error::new(failure)
                .context(format!("cannot find the kind {named}: is what defines it installed?")),
            failure => {
                anyhow::Error::new(failure).context(format!("cannot ask for the kind {named}"))
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

async fn patch(api: &Api<DynamicObject>, object: &Value, how: How) -> Result<()> {
    let mut parameters = PatchParams::apply(FIELD_MANAGER);
    parameters.dry_run = how.dry_run;
    parameters.force = how.force;
    // A field that the kind does not have is an error, not a warning that nobody reads.
    parameters.field_validation = Some(ValidationDirective::Strict);
    let own = object["metadata"]["name"].as_str().unwrap_or_default();
    let answer = api.patch(own, &parameters, &Patch::Apply(object)).await;
    answer
        .map_err(Failure::from)
        .map(drop)
        .with_context(|| format!("cannot apply {}", name(object)))
}
