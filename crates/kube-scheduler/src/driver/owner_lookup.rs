//! Annotations of a pod's owners: a Job, a Deployment, a `PyTorchJob`.

use agentaflow_backoff::BackoffPolicy;
use agentaflow_kube_core::names;
use agentaflow_kube_core::slim;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;

use super::api::{ApiServer, Failure};
use super::lease::Leadership;
use crate::state::Owner;

/// Owners read above a pod: `ReplicaSet`, Deployment, and one more.
const MAX_LEVELS: usize = 3;
/// Delays before the retries of a read without a response.
const READ_RETRIES: BackoffPolicy =
    BackoffPolicy::new(Duration::from_millis(500), Duration::from_secs(2));
const MAX_RETRIES: usize = 3;

#[derive(Deserialize)]
struct ApiResourceList {
    resources: Vec<ApiResource>,
}

#[derive(Deserialize)]
struct ApiResource {
    name: String,
    kind: String,
}

/// Inheritable annotations of a pod's owners; the nearest owner wins. Owners that this scheduler may not read count as empty.
/// None if the API server did not answer.
pub(crate) async fn annotations(
    server: &ApiServer,
    leadership: &Leadership,
    owner: &Owner,
) -> Option<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    let mut next = Some(owner.clone());
    for _ in 0..MAX_LEVELS {
        let Some(owner) = next.take() else { break };
        let Some(object) = read_with_retries(server, leadership, &owner).await.ok()? else { break };
        for (name, value) in object.metadata.annotations.into_iter().flatten() {
            if names::INHERITED.contains(&name.as_str()) {
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
    Some(found)
}

/// Reads an owner with retries; none if it cannot be read.
async fn read_with_retries(
    server: &ApiServer,
    leadership: &Leadership,
    owner: &Owner,
) -> Result<Option<slim::Owner>, Failure> {
    let mut delays = READ_RETRIES.start().take(MAX_RETRIES);
    loop {
        match read(server, owner).await {
            Ok(found) => return Ok(found),
            Err(error) => {
                tracing::debug!(kind = owner.kind, name = owner.name, %error, "cannot read an owner");
                if !error.is_retryable() {
                    return Ok(None);
                }
                let Some(delay) = delays.next() else { return Err(error) };
                leadership.sleep(delay).await;
                if !leadership.is_open() {
                    return Err(error);
                }
            }
        }
    }
}

async fn read(server: &ApiServer, owner: &Owner) -> Result<Option<slim::Owner>, Failure> {
    let Some(base) = base(&owner.api_version) else { return Ok(None) };
    let plural = match known(&base, &owner.kind) {
        Some(known) => Some(known.to_owned()),
        None => plural(server, &base, &owner.kind).await?,
    };
    let Some(plural) = plural.filter(|plural| is_plain(plural)) else { return Ok(None) };
    if !is_plain(&owner.namespace) || !is_plain(&owner.name) {
        return Ok(None);
    }
    let path = format!("{base}/namespaces/{}/{plural}/{}", owner.namespace, owner.name);
    let found = server.get::<slim::Owner>(&path).await?;
    Ok(Some(found).filter(|found| found.metadata.uid.as_deref() == Some(&*owner.uid)))
}

/// Path of an API version.
fn base(version: &str) -> Option<String> {
    match version.split_once('/') {
        Some((group, version)) if is_plain(group) && is_plain(version) => {
            Some(format!("/apis/{group}/{version}"))
        }
        None if is_plain(version) => Some(format!("/api/{version}")),
        _ => None,
    }
}

/// Returns true if a name is safe in a URL path. The API server does not validate owner references, and this scheduler
/// reads with its own permissions.
fn is_plain(name: &str) -> bool {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '.';
    !matches!(name, "" | "." | "..") && name.len() <= 253 && name.chars().all(plain)
}

fn known(base: &str, kind: &str) -> Option<&'static str> {
    match (base, kind) {
        ("/apis/batch/v1", "Job") => Some("jobs"),
        ("/apis/apps/v1", "ReplicaSet") => Some("replicasets"),
        ("/apis/apps/v1", "Deployment") => Some("deployments"),
        ("/apis/apps/v1", "StatefulSet") => Some("statefulsets"),
        _ => None,
    }
}

async fn plural(server: &ApiServer, base: &str, kind: &str) -> Result<Option<String>, Failure> {
    let list: ApiResourceList = server.get(base).await?;
    let mut kinds = list.resources.into_iter();
    let found = kinds.find(|served| served.kind == kind && !served.name.contains('/'));
    Ok(found.map(|served| served.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_become_part_of_a_path() {
        let check = |name: &str, plain: bool| assert_eq!(is_plain(name), plain, "{name}");
        check("train", true);
        check("kubeflow.org", true);
        check("my-job-2", true);
        check("", false);
        check(".", false);
        check("..", false);
        check("../../secrets/token", false);
        check("a?watch=true", false);
        check("a%2fb", false);
        check("a b", false);
        check("jöb", false);
        check(&"a".repeat(253), true);
        check(&"a".repeat(254), false);
    }

    #[test]
    fn an_api_version_has_a_path() {
        let check = |version: &str, path: Option<&str>| {
            assert_eq!(base(version).as_deref(), path, "{version}");
        };
        check("v1", Some("/api/v1"));
        check("batch/v1", Some("/apis/batch/v1"));
        check("batch/v1/namespaces", None);
        check("../v1", None);
        check("", None);
        check("/", None);
    }
}
