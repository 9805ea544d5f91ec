//! Binding a pod: its claims first, then the pod itself, with everything that must be known after a crash.

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

/// How long a binding is tried while the API server is too busy, or does not answer. Who gives up takes what is bound of
/// a gang down with it, and an API server that is replaced by a newer one is away for as long as this.
const BINDING: Duration = Duration::from_secs(30);
/// The first and the longest pause between two tries.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(3)];
/// How often a claim is written on that others change at the same time.
const TRIES: u32 = 5;
/// How long claims may take to be bound.
const CLAIMS: Duration = Duration::from_mins(10);
/// The first and the longest pause between two looks at claims.
const LOOKS: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(5)];

/// Binds a pod, for which it is its turn. A call without an answer is resolved by reading the pod, never assumed.
pub(crate) async fn pod(
    server: &ApiServer,
    turns: WritePermits<'_>,
    turn: Option<SemaphorePermit<'_>>,
    bind: &Bind,
) -> BindResult {
    persist(server, turns, turn, bind, PAUSES).await
}

async fn persist(
    server: &ApiServer,
    turns: WritePermits<'_>,
    mut turn: Option<SemaphorePermit<'_>>,
    bind: &Bind,
    [mut pause, longest]: [Duration; 2],
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
    let deadline = Instant::now() + BINDING;
    let mut may_try = true;
    // Until then a call without an answer may still be carried out.
    let mut doubtful = Instant::now();
    loop {
        let permit = match turn.take() {
            Some(permit) => Ok(permit),
            None => turns.permits.acquire().await,
        };
        if !turns.leadership.is_open() {
            return BindResult::Refused(Failure::NotLeading.to_string());
        }
        if may_try {
            match server.post::<Ignored>(&path, &body).await {
                Ok(_) => return BindResult::Bound,
                Err(Failure::NotFound(_)) => return BindResult::Gone,
                Err(Failure::Refused { code, message }) if code != 408 => {
                    return BindResult::Refused(message);
                }
                Err(error) => why = error.to_string(),
            }
            doubtful = Instant::now() + TIMEOUT;
        }
        // Conflict, or no answer: the pod tells.
        let is_settled = Instant::now() >= doubtful;
        may_try = Instant::now() < deadline;
        let found = read(server, bind).await;
        if let Some(result) = verdict(found, may_try, is_settled, &why) {
            return result;
        }
        drop(permit);
        turns.leadership.pause(pause).await;
        pause = (pause * 3).min(longest);
    }
}

/// What came of a binding by what the pod says; none while it is to be tried or looked at again. Who gives up must know
/// that it was not carried out: what the pod would take is given to others then.
fn verdict(
    found: Result<Option<BindResult>, Failure>,
    may_try: bool,
    is_settled: bool,
    why: &str,
) -> Option<BindResult> {
    match found {
        Ok(Some(result)) => Some(result),
        Ok(None) => (!may_try && is_settled).then(|| BindResult::Refused(why.to_owned())),
        Err(_) => None,
    }
}

/// What the pod says about its binding; none when it is not bound.
async fn read(server: &ApiServer, bind: &Bind) -> Result<Option<BindResult>, Failure> {
    let Key { namespace, name } = &bind.pod.key;
    match server.get::<Pod>(&core(namespace, "pods", name)).await {
        Ok(pod) => Ok(judge(&pod, bind)),
        Err(Failure::NotFound(_)) => Ok(Some(BindResult::Gone)),
        Err(error) => Err(error),
    }
}

/// A pod that is bound holds its place even while it ends.
fn judge(pod: &Pod, bind: &Bind) -> Option<BindResult> {
    if pod.metadata.uid.as_deref() != Some(&*bind.pod.uid) {
        return Some(BindResult::Gone);
    }
    match &pod.spec.node_name {
        Some(node) if **node == *bind.node => Some(BindResult::Bound),
        Some(node) => Some(BindResult::Elsewhere(node.as_str().into())),
        None => pod.metadata.deletion_timestamp.is_some().then_some(BindResult::Gone),
    }
}

/// Has the claims of a pod bound for its node, and waits for them. `looks` keeps few from asking at a time.
pub(crate) async fn claims(
    server: &ApiServer,
    leadership: &Leadership,
    looks: &Semaphore,
    bind: &Bind,
) -> Result<(), BindResult> {
    if bind.claims.is_empty() {
        return Ok(());
    }
    let over = || BindResult::Refused(Failure::NotLeading.to_string());
    let permit = looks.acquire().await;
    for (claim, act) in &bind.claims {
        if !leadership.is_open() {
            return Err(over());
        }
        let written = match act {
            ClaimAction::Provision(node) => select_node(server, claim, node).await,
            ClaimAction::Volume(volume) => give_volume(server, claim, volume).await,
        };
        written.map_err(|error| BindResult::Refused(format!("claim `{claim}`: {error}")))?;
    }
    drop(permit);
    let deadline = Instant::now() + CLAIMS;
    let [mut pause, longest] = LOOKS;
    loop {
        if !leadership.is_open() {
            return Err(over());
        }
        let permit = looks.acquire().await;
        let Some(claim) = unbound_claim(server, bind).await? else { return Ok(()) };
        match read(server, bind).await {
            Ok(Some(BindResult::Bound) | None) | Err(_) => {}
            Ok(Some(result)) => return Err(result),
        }
        drop(permit);
        if Instant::now() > deadline {
            let why =
                format!("claim `{claim}` was not bound within {} minutes", CLAIMS.as_secs() / 60);
            return Err(BindResult::Refused(why));
        }
        leadership.pause(pause).await;
        pause = (pause * 3 / 2).min(longest);
    }
}

/// A claim of the pod that is not bound yet, or of which it is not known. When all are, the node must reach their
/// volumes: a volume that was made for another pod of the claim may be somewhere else.
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
            Ok(found) if is_given_up(&found, act) => {
                let why = format!("claim `{claim}`: no volume can be made on its node");
                return Err(BindResult::Refused(why));
            }
            // The pod is still there, and waits for whoever makes the claim again.
            Err(Failure::NotFound(_)) => {
                return Err(BindResult::Refused(format!("claim `{claim}` is gone")));
            }
            Ok(_) | Err(_) => return Ok(Some(claim)),
        }
    }
    match out_of_reach(server, &bind.node, &got).await {
        Ok(None) => Ok(None),
        Ok(Some((claim, volume))) => {
            let why = format!("claim `{claim}`: the node does not reach its volume `{volume}`");
            Err(BindResult::Refused(why))
        }
        Err(Failure::NotFound(why)) => Err(BindResult::Refused(why)),
        Err(_) => Ok(bind.claims.last().map(|(claim, _)| claim)),
    }
}

/// The first of these volumes that a node does not reach, and its claim.
async fn out_of_reach<'a>(
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

/// The node for which a volume is being made for the claim.
fn selected(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.metadata.annotations.as_ref()?.get(SELECTED_NODE).map(String::as_str)
}

/// Whether a provisioner cannot make the volume: it takes the name of the node off again.
fn is_given_up(claim: &PersistentVolumeClaim, act: &ClaimAction) -> bool {
    matches!(act, ClaimAction::Provision(node) if selected(claim) != Some(node))
}

/// Asks the provisioner to make a volume for this node.
async fn select_node(server: &ApiServer, claim: &Key, node: &str) -> Result<(), Failure> {
    let path = core(&claim.namespace, "persistentvolumeclaims", &claim.name);
    let mut last = Ok(());
    for _ in 0..TRIES {
        let found: PersistentVolumeClaim = server.get(&path).await?;
        let Some(body) = selection(&found, node)? else { return Ok(()) };
        last = server.merge(&path, &body).await;
        if !matches!(last, Err(Failure::Conflict(_))) {
            break;
        }
    }
    last
}

/// What is written to have a volume made for this node; nothing when that is done. A node that somebody chose before
/// is not written over: the volume may be under way there, and a pod may be waiting for it.
fn selection(
    claim: &PersistentVolumeClaim,
    node: &str,
) -> Result<Option<serde_json::Value>, Failure> {
    match selected(claim) {
        _ if is_bound(claim) => Ok(None),
        Some(chosen) if chosen == node => Ok(None),
        Some(chosen) => {
            Err(Failure::Conflict(format!("its volume is being made for node `{chosen}`")))
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

/// Gives an existing volume to the claim; the volume controller does the rest.
async fn give_volume(server: &ApiServer, claim: &Key, volume: &str) -> Result<(), Failure> {
    let path = core(&claim.namespace, "persistentvolumeclaims", &claim.name);
    let claimed: Versioned = server.get(&path).await?;
    let path = format!("/api/v1/persistentvolumes/{volume}");
    let found: serde_json::Value = server.get(&path).await?;
    if is_anothers(&found["spec"]["claimRef"], claim, &claimed.metadata.uid) {
        return Err(Failure::Conflict(format!("volume `{volume}` was given to another claim")));
    }
    let version = found.pointer("/metadata/resourceVersion").cloned().unwrap_or_default();
    let body = json!({
        "metadata": {
            "resourceVersion": version,
            // Not a person's choice: the volume is free again when the claim is gone.
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

/// Whether a volume is another claim's, or was set aside for one, which need not exist yet.
fn is_anothers(holder: &serde_json::Value, claim: &Key, uid: &str) -> bool {
    let text = |field: &str| holder[field].as_str().filter(|text| !text.is_empty());
    let named = |field: &str, own: &str| text(field).is_none_or(|held| held == own);
    !(named("name", &claim.name) && named("namespace", &claim.namespace) && named("uid", uid))
}

#[cfg(test)]
mod tests;
