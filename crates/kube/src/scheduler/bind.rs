//! Binding a pod: its claims first, then the pod itself, with everything that must be known after a crash.

use serde::Deserialize;
use serde_json::json;
use std::time::{Duration, Instant};

use super::api::{Failure, Ignored, Server, core};
use super::lease::Reign;
use crate::slim::{PersistentVolumeClaim, Pod};
use crate::translate::SELECTED_NODE;
use crate::world::{Bind, BindResult, ClaimAct, Key};

/// How often a binding is tried when nobody knows what came of it.
const TRIES: u32 = 5;
/// How long claims may take to be bound.
const CLAIMS: Duration = Duration::from_secs(600);

/// Binds a pod. A call without an answer is resolved by reading the pod, never assumed.
pub(crate) async fn pod(server: &Server, reign: &Reign, bind: &Bind) -> BindResult {
    let Key { namespace, name } = &bind.pod.key;
    let path = format!("{}/binding", core(namespace, "pods", name));
    let body = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": bind.pod.uid,
            "annotations": bind.annotations,
            "labels": bind.labels,
        },
        "target": { "apiVersion": "v1", "kind": "Node", "name": bind.node },
    });
    let mut pause = Duration::from_millis(100);
    let mut last = String::new();
    for _ in 0..TRIES {
        if !reign.holds() {
            return BindResult::Refused("no longer leading".to_owned());
        }
        match server.post::<Ignored>(&path, &body).await {
            Ok(_) => return BindResult::Bound,
            Err(Failure::NotFound(_)) => return BindResult::Gone,
            Err(Failure::Refused { code, message }) if code != 408 => {
                return BindResult::Refused(message);
            }
            Err(error) => last = error.to_string(),
        }
        // Conflict, or no answer: the pod tells.
        match read(server, bind).await {
            Ok(Some(result)) => return result,
            Ok(None) => {}
            Err(error) => last = error.to_string(),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 3).min(Duration::from_secs(3));
    }
    BindResult::Refused(last)
}

/// What the pod says about its binding; none when it is not bound.
async fn read(server: &Server, bind: &Bind) -> Result<Option<BindResult>, Failure> {
    let Key { namespace, name } = &bind.pod.key;
    match server.get::<Pod>(&core(namespace, "pods", name)).await {
        Ok(pod) => {
            let same = pod.metadata.uid.as_deref() == Some(&*bind.pod.uid);
            Ok(match pod.spec.node_name {
                _ if !same || pod.metadata.deletion_timestamp.is_some() => Some(BindResult::Gone),
                Some(node) if *node == *bind.node => Some(BindResult::Bound),
                Some(node) => Some(BindResult::Elsewhere(node.as_str().into())),
                None => None,
            })
        }
        Err(Failure::NotFound(_)) => Ok(Some(BindResult::Gone)),
        Err(error) => Err(error),
    }
}

/// Has the claims of a pod bound for its node, and waits for them.
pub(crate) async fn claims(server: &Server, reign: &Reign, bind: &Bind) -> Result<(), BindResult> {
    if bind.claims.is_empty() {
        return Ok(());
    }
    for (claim, act) in &bind.claims {
        let written = match act {
            ClaimAct::Provision => select_node(server, claim, &bind.node).await,
            ClaimAct::Volume(volume) => give_volume(server, claim, volume).await,
        };
        written.map_err(|error| BindResult::Refused(format!("claim `{claim}`: {error}")))?;
    }
    let deadline = Instant::now() + CLAIMS;
    loop {
        if !reign.holds() {
            return Err(BindResult::Refused("no longer leading".to_owned()));
        }
        let mut missing = None;
        for (claim, act) in &bind.claims {
            let path = core(&claim.namespace, "persistentvolumeclaims", &claim.name);
            let bound = match server.get::<PersistentVolumeClaim>(&path).await {
                Ok(found) if found.status.phase.as_deref() == Some("Bound") => true,
                Ok(found) if *act == ClaimAct::Provision && !is_selected(&found, &bind.node) => {
                    let why = format!("claim `{claim}`: no volume can be made on this node");
                    return Err(BindResult::Refused(why));
                }
                Err(Failure::NotFound(_)) => return Err(BindResult::Gone),
                Ok(_) | Err(_) => false,
            };
            if !bound {
                missing = Some(claim);
            }
        }
        let Some(claim) = missing else { return Ok(()) };
        match read(server, bind).await {
            Ok(Some(BindResult::Bound)) | Ok(None) | Err(_) => {}
            Ok(Some(result)) => return Err(result),
        }
        if Instant::now() > deadline {
            let why =
                format!("claim `{claim}` was not bound within {} minutes", CLAIMS.as_secs() / 60);
            return Err(BindResult::Refused(why));
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Whether a claim names the node. A provisioner that cannot make a volume there takes the name off again.
fn is_selected(claim: &PersistentVolumeClaim, node: &str) -> bool {
    let annotations = claim.metadata.annotations.as_ref();
    annotations.and_then(|all| all.get(SELECTED_NODE)).is_some_and(|selected| selected == node)
}

/// Asks the provisioner to make a volume for this node.
async fn select_node(server: &Server, claim: &Key, node: &str) -> Result<(), Failure> {
    let path = core(&claim.namespace, "persistentvolumeclaims", &claim.name);
    let body = json!({
        "metadata": { "annotations": { SELECTED_NODE: node } }
    });
    server.merge(&path, &body).await
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Versioned {
    metadata: Version,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    uid: String,
    resource_version: String,
}

/// Gives an existing volume to the claim; the volume controller does the rest.
async fn give_volume(server: &Server, claim: &Key, volume: &str) -> Result<(), Failure> {
    let path = core(&claim.namespace, "persistentvolumeclaims", &claim.name);
    let claimed: Versioned = server.get(&path).await?;
    let path = format!("/api/v1/persistentvolumes/{volume}");
    let found: serde_json::Value = server.get(&path).await?;
    let holder = found.pointer("/spec/claimRef/uid").and_then(serde_json::Value::as_str);
    if holder.is_some_and(|holder| holder != claimed.metadata.uid) {
        return Err(Failure::Conflict(format!("volume `{volume}` was given to another claim")));
    }
    let version = found.pointer("/metadata/resourceVersion").cloned().unwrap_or_default();
    let body = json!({
        "metadata": { "resourceVersion": version },
        "spec": { "claimRef": {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": claim.namespace,
            "name": claim.name,
            "uid": claimed.metadata.uid,
            "resourceVersion": claimed.metadata.resource_version,
        }},
    });
    server.merge(&path, &body).await
}
