//! What the owners of a pod say: annotations of ours on a Job, a Deployment, a `PyTorchJob`.

use serde::Deserialize;
use std::collections::BTreeMap;

use super::api::{Failure, Server};
use super::lease::Reign;
use super::writes::persist;
use crate::names;
use crate::slim;
use crate::world::Owner;

/// How far up we ask: pod, `ReplicaSet`, Deployment, and one above.
const LEVELS: usize = 3;

#[derive(Deserialize)]
struct Resources {
    resources: Vec<Served>,
}

#[derive(Deserialize)]
struct Served {
    name: String,
    kind: String,
}

/// Annotations of ours on a pod's owner and its owners; the nearest wins. What may not be read says nothing; an API
/// server that does not answer is asked again.
pub(crate) async fn annotations(
    server: &Server,
    reign: &Reign,
    owner: &Owner,
) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut next = Some(owner.clone());
    for _ in 0..LEVELS {
        let Some(owner) = next.take() else { break };
        let Some(object) = read(server, reign, &owner).await else { break };
        for (name, value) in object.metadata.annotations.into_iter().flatten() {
            if name.starts_with(names::PREFIX) && is_read(&name) {
                found.entry(name).or_insert(value);
            }
        }
        let above = object.metadata.owner_references.into_iter().flatten();
        next = above.into_iter().find(|above| above.controller == Some(true)).map(|above| Owner {
            api_version: above.api_version,
            kind: above.kind,
            namespace: owner.namespace.clone(),
            name: above.name,
            uid: above.uid.as_str().into(),
        });
    }
    found
}

/// Only what people may write there: what the scheduler writes itself is not inherited.
fn is_read(name: &str) -> bool {
    let read = [
        names::STRATEGY,
        names::PRIORITY,
        names::QUEUE,
        names::PREEMPTIBLE,
        names::DURATION,
        names::GPU_MEMORY,
    ];
    read.contains(&name)
}

async fn read(server: &Server, reign: &Reign, owner: &Owner) -> Option<slim::Owner> {
    let base = match owner.api_version.split_once('/') {
        Some((group, version)) => format!("/apis/{group}/{version}"),
        None => format!("/api/{}", owner.api_version),
    };
    let plural = plural(server, reign, &base, &owner.kind).await?;
    let path = format!("{base}/namespaces/{}/{plural}/{}", owner.namespace, owner.name);
    let found = persist(reign, || server.get::<slim::Owner>(&path)).await;
    if let Err(error) = &found {
        tracing::debug!(kind = owner.kind, name = owner.name, %error, "cannot read an owner");
    }
    found.ok().filter(|found| found.metadata.uid.as_deref() == Some(&*owner.uid))
}

async fn plural(server: &Server, reign: &Reign, base: &str, kind: &str) -> Option<String> {
    let known = match (base, kind) {
        ("/apis/batch/v1", "Job") => Some("jobs"),
        ("/apis/apps/v1", "ReplicaSet") => Some("replicasets"),
        ("/apis/apps/v1", "Deployment") => Some("deployments"),
        ("/apis/apps/v1", "StatefulSet") => Some("statefulsets"),
        _ => None,
    };
    if let Some(known) = known {
        return Some(known.to_owned());
    }
    let list: Result<Resources, Failure> = persist(reign, || server.get(base)).await;
    let mut kinds = list.ok()?.resources.into_iter();
    kinds.find(|served| served.kind == kind && !served.name.contains('/')).map(|served| served.name)
}
