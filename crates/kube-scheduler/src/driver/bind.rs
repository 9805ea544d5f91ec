//! Binds a pod: its claims first, then the pod with every annotation that a new leader needs after a crash.

use agentaflow_backoff::BackoffPolicy;
use agentaflow_kube_core::slim::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use agentaflow_kube_core::translate::{self, SELECTED_NODE};
use serde::Deserialize;
use serde_json::json;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::api::{ApiServer, Failure, Ignored, TIMEOUT, core};
use super::lease::Leadership;
use super::writes::WritePermits;
use crate::state::{Bind, BindResult, ClaimAction, Key};

/// Time for which a binding is retried while the API server is overloaded or does not answer. A failed binding deletes the
/// bound pods of its gang, and the upgrade of an API server takes this long.
const BINDING_TIMEOUT: Duration = Duration::from_secs(30);
/// Delays between two attempts.
const BIND_RETRIES: BackoffPolicy =
    BackoffPolicy::new(Duration::from_millis(100), Duration::from_secs(3)).with_factor(3.0);
/// Attempts to write a claim that other clients change concurrently.
const CLAIM_ATTEMPTS: u32 = 5;
/// Time in which claims must be bound.
const CLAIM_TIMEOUT: Duration = Duration::from_mins(10);
/// Delays between two polls of claims.
const CLAIM_POLLS: BackoffPolicy =
    BackoffPolicy::new(Duration::from_millis(500), Duration::from_secs(5)).with_factor(1.5);

/// Binds a pod; `permit` is a permit that the caller holds already. A request without a response is resolved by reading the
/// pod, never assumed.
pub(crate) async fn pod(
    server: &ApiServer,
    permits: WritePermits<'_>,
    permit: Option<SemaphorePermit<'_>>,
    bind: &Bind,
) -> BindResult {
    bind_with_retries(server, permits, permit, bind, BIND_RETRIES).await
}

async fn bind_with_retries(
    server: &ApiServer,
    permits: WritePermits<'_>,
    mut permit: Option<SemaphorePermit<'_>>,
    bind: &Bind,
    retries: BackoffPolicy,
) -> BindResult {
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
    let mut why = String::new();
    let deadline = Instant::now() + BINDING_TIMEOUT;
    let mut may_retry = true;
    let mut backoff = retries.start();
    // Until then a request without a response may still take effect.
    let mut in_doubt_until = Instant::now();
    loop {
        let held = match permit.take() {
            Some(permit) => Ok(permit),
            None => permits.permits.acquire().await,
        };
        if !permits.leadership.is_open() {
            return BindResult::Refused(Failure::NotLeading.to_string());
        }
        if may_retry {
            match server.post::<Ignored>(&path, &body).await {
                Ok(_) => return BindResult::Bound,
                Err(Failure::NotFound(_)) => return BindResult::Gone,
                Err(Failure::Refused { code, message, .. }) if code != 408 => {
                    return BindResult::Refused(message);
                }
                Err(error) => why = error.to_string(),
            }
            in_doubt_until = Instant::now() + TIMEOUT;
        }
        // After a conflict or without a response, the pod decides.
        let is_settled = Instant::now() >= in_doubt_until;
        may_retry = Instant::now() < deadline;
        let found = read_binding(server, bind).await;
        if let Some(result) = result_of(found, may_retry, is_settled, &why) {
            return result;
        }
        drop(held);
        permits.leadership.sleep(backoff.next_delay()).await;
    }
}

/// Result of a binding according to the pod; none while the binding is to be retried or the pod read again. A binding is
/// given up only when it can no longer take effect: its resources are free for other pods then.
fn result_of(
    found: Result<Option<BindResult>, Failure>,
    may_retry: bool,
    is_settled: bool,
    why: &str,
) -> Option<BindResult> {
    match found {
        Ok(Some(result)) => Some(result),
        Ok(None) => (!may_retry && is_settled).then(|| BindResult::Refused(why.to_owned())),
        Err(_) => None,
    }
}

/// Result of a binding according to the pod; none if the pod is not bound.
async fn read_binding(server: &ApiServer, bind: &Bind) -> Result<Option<BindResult>, Failure> {
    let Key { namespace, name } = &bind.pod.key;
    match server.get::<Pod>(&core(namespace, "pods", name)).await {
        Ok(pod) => Ok(binding_result(&pod, bind)),
        Err(Failure::NotFound(_)) => Ok(Some(BindResult::Gone)),
        Err(error) => Err(error),
    }
}

/// A bound pod uses its resources even while it terminates.
fn binding_result(pod: &Pod, bind: &Bind) -> Option<BindResult> {
    if pod.metadata.uid.as_deref() != Some(&*bind.pod.uid) {
        return Some(BindResult::Gone);
    }
    match &pod.spec.node_name {
        Some(node) if **node == *bind.node => Some(BindResult::Bound),
        Some(node) => Some(BindResult::BoundToOther(node.as_str().into())),
        None => pod.metadata.deletion_timestamp.is_some().then_some(BindResult::Gone),
    }
}

/// Binds the claims of a pod for its node, and waits for them. `polls` limits concurrent polls.
pub(crate) async fn claims(
    server: &ApiServer,
    leadership: &Leadership,
    polls: &Semaphore,
    bind: &Bind,
) -> Result<(), BindResult> {
    if bind.claims.is_empty() {
        return Ok(());
    }
    let over = || BindResult::Refused(Failure::NotLeading.to_string());
    let permit = polls.acquire().await;
    for (claim, act) in &bind.claims {
        if !leadership.is_open() {
            return Err(over());
        }
        let written = match act {
            ClaimAction::Provision(node) => select_node(server, claim, node).await,
            ClaimAction::Volume(volume) => assign_volume(server, claim, volume).await,
        };
        written.map_err(|error| BindResult::Refused(format!("claim `{claim}`: {error}")))?;
    }
    drop(permit);
    let deadline = Instant::now() + CLAIM_TIMEOUT;
    let mut backoff = CLAIM_POLLS.start();
    loop {
        if !leadership.is_open() {
            return Err(over());
        }
        let permit = polls.acquire().await;
        let Some(claim) = unbound_claim(server, bind).await? else { return Ok(()) };
        match read_binding(server, bind).await {
            Ok(Some(BindResult::Bound) | None) | Err(_) => {}
            Ok(Some(result)) => return Err(result),
        }
        drop(permit);
        if Instant::now() > deadline {
            let why = format!(
                "claim `{claim}` was not bound within {} minutes",
                CLAIM_TIMEOUT.as_secs() / 60
            );
            return Err(BindResult::Refused(why));
        }
        leadership.sleep(backoff.next_delay()).await;
    }
}

/// A claim of the pod that is not bound yet or could not be read. When all are bound, the node must reach their volumes: a
/// volume that was provisioned for another pod of the claim may be elsewhere.
async fn unbound_claim<'a>(
    server: &ApiServer,
    bind: &'a Bind,
) -> Result<Option<&'a Key>, BindResult> {
    let mut got = Vec::new();
    for (claim, act) in &bind.claims {
        let path = core(&claim.namespace, "persistentvolumeclaims", &claim.name);
        match server.get::<PersistentVolumeClaim>(&path).await {
            Ok(found) if is_bound(&found) => {
                got.extend(found.spec.volume_name.map(|volume| (claim, volume)));
            }
            Ok(found) if is_abandoned(&found, act) => {
                let why =
                    format!("claim `{claim}`: the provisioner cannot create a volume for the node");
                return Err(BindResult::Refused(why));
            }
            // The pod remains pending until the claim is created again.
            Err(Failure::NotFound(_)) => {
                return Err(BindResult::Refused(format!("claim `{claim}` does not exist")));
            }
            Ok(_) | Err(_) => return Ok(Some(claim)),
        }
    }
    match unreachable_volume(server, &bind.node, &got).await {
        Ok(None) => Ok(None),
        Ok(Some((claim, volume))) => {
            let why = format!("claim `{claim}`: the node cannot reach volume `{volume}`");
            Err(BindResult::Refused(why))
        }
        Err(Failure::NotFound(why)) => Err(BindResult::Refused(why)),
        Err(_) => Ok(bind.claims.last().map(|(claim, _)| claim)),
    }
}

/// The first of these volumes that a node cannot reach, with its claim.
async fn unreachable_volume<'a>(
    server: &ApiServer,
    node: &str,
    volumes: &'a [(&'a Key, String)],
) -> Result<Option<&'a (&'a Key, String)>, Failure> {
    let found: Node = server.get(&format!("/api/v1/nodes/{node}")).await?;
    let labels = translate::labels(found.metadata.labels.as_ref());
    for claimed in volumes {
        let path = format!("/api/v1/persistentvolumes/{}", claimed.1);
        let volume: PersistentVolume = server.get(&path).await?;
        if !translate::reaches(&volume, node, &labels) {
            return Ok(Some(claimed));
        }
    }
    Ok(None)
}

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.status.phase.as_deref() == Some("Bound")
}

/// The node for which the claim's volume is being provisioned.
fn selected_node(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.metadata.annotations.as_ref()?.get(SELECTED_NODE).map(String::as_str)
}

/// Returns true if the provisioner rejected the node: it removes the annotation of the selected node.
fn is_abandoned(claim: &PersistentVolumeClaim, act: &ClaimAction) -> bool {
    matches!(act, ClaimAction::Provision(node) if selected_node(claim) != Some(node))
}

/// Selects the node for which the provisioner creates a volume.
async fn select_node(server: &ApiServer, claim: &Key, node: &str) -> Result<(), Failure> {
    let path = core(&claim.namespace, "persistentvolumeclaims", &claim.name);
    let mut last = Ok(());
    for _ in 0..CLAIM_ATTEMPTS {
        let found: PersistentVolumeClaim = server.get(&path).await?;
        let Some(body) = selection_patch(&found, node)? else { return Ok(()) };
        last = server.merge(&path, &body).await;
        if !matches!(last, Err(Failure::Conflict(_))) {
            break;
        }
    }
    last
}

/// The patch that selects a node; none if it is selected already. A node that another client selected is not overwritten: the
/// volume may be in creation there, and another pod may wait for it.
fn selection_patch(
    claim: &PersistentVolumeClaim,
    node: &str,
) -> Result<Option<serde_json::Value>, Failure> {
    match selected_node(claim) {
        _ if is_bound(claim) => Ok(None),
        Some(chosen) if chosen == node => Ok(None),
        Some(chosen) => {
            Err(Failure::Conflict(format!("its volume is being provisioned for node `{chosen}`")))
        }
        None => Ok(Some(json!({
            "metadata": {
                "uid": claim.metadata.uid,
                "resourceVersion": claim.metadata.resource_version,
                "annotations": { SELECTED_NODE: node },
            }
        }))),
    }
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

/// Points an existing volume to the claim; the volume controller does the rest.
async fn assign_volume(server: &ApiServer, claim: &Key, volume: &str) -> Result<(), Failure> {
    let path = core(&claim.namespace, "persistentvolumeclaims", &claim.name);
    let claimed: Versioned = server.get(&path).await?;
    let path = format!("/api/v1/persistentvolumes/{volume}");
    let found: serde_json::Value = server.get(&path).await?;
    if belongs_to_another_claim(&found["spec"]["claimRef"], claim, &claimed.metadata.uid) {
        return Err(Failure::Conflict(format!("volume `{volume}` belongs to another claim")));
    }
    let version = found.pointer("/metadata/resourceVersion").cloned().unwrap_or_default();
    let body = json!({
        "metadata": {
            "resourceVersion": version,
            // Chosen by a controller: the volume becomes available again when the claim is deleted.
            "annotations": { "pv.kubernetes.io/bound-by-controller": "yes" },
        },
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

/// Returns true if a volume belongs to another claim, which need not exist yet.
fn belongs_to_another_claim(holder: &serde_json::Value, claim: &Key, uid: &str) -> bool {
    let text = |field: &str| holder[field].as_str().filter(|text| !text.is_empty());
    let named = |field: &str, own: &str| text(field).is_none_or(|held| held == own);
    !(named("name", &claim.name) && named("namespace", &claim.namespace) && named("uid", uid))
}

#[cfg(test)]
mod tests;
