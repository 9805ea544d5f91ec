//! Reads the metadata of a pod's owners, with a short-lived cache and a short timeout.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use kube::api::{Api, DynamicObject};
use kube::core::{ApiResource, GroupVersionKind, PartialObjectMeta};
use kube::discovery::Scope;
use kube::{Client, discovery};
use serde_json::{Value, json};

use super::pods::{Annotations, own_annotations, owner_of};

/// Levels of owner references to follow.
const LEVELS: usize = 3;
/// Timeout for reading owners. The whole admission may take three seconds, and an unreadable owner must not fail a pod.
const PATIENCE: Duration = Duration::from_secs(2);
/// Lifetime of a cached owner: a burst of pods has the same owners, and a changed annotation takes effect after this time.
const FRESH: Duration = Duration::from_secs(10);
/// Most owners cached.
const REMEMBERED: usize = 4096;

pub(super) struct Owners {
    client: Client,
    seen: Mutex<HashMap<Key, CachedOwner>>,
    kinds: Mutex<HashMap<GroupVersionKind, (ApiResource, bool)>>,
}

/// Namespace and UID: a reference to another object of the same name is another owner.
type Key = (String, String);

struct CachedOwner {
    at: Instant,
    owner: Owner,
}

#[derive(Clone, Default)]
struct Owner {
    annotations: Annotations,
    /// Owner reference of the owner itself.
    above: Option<Value>,
}

impl Owners {
    pub(super) fn new(client: Client) -> Self {
        Self { client, seen: Mutex::default(), kinds: Mutex::default() }
    }

    /// Annotations of agentaflow on the pod's owners, nearest first; owners that cannot be read in time count as
    /// empty.
    pub(super) async fn of(&self, namespace: &str, pod: &Value) -> Vec<Annotations> {
        let mut found = Vec::new();
        let climb = async {
            let mut reference = owner_of(pod).cloned();
            for _ in 0..LEVELS {
                let Some(owner) = reference.take() else { break };
                let owner = self.owner(namespace, &owner).await;
                found.push(owner.annotations);
                reference = owner.above;
            }
        };
        if tokio::time::timeout(PATIENCE, climb).await.is_err() {
            tracing::debug!(namespace, "the owners of a pod could not be read in time");
        }
        found
    }

    async fn owner(&self, namespace: &str, reference: &Value) -> Owner {
        let uid = reference["uid"].as_str().unwrap_or_default();
        let key = (namespace.to_owned(), uid.to_owned());
        if let Some(owner) = self.remembered(&key) {
            return owner;
        }
        let owner = match self.read(namespace, reference).await {
            Ok(owner) => owner,
            // Kinds without read permission and deleted owners count as empty.
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => Owner::default(),
            Err(error) => {
                tracing::debug!(namespace, %error, "an owner of a pod could not be read");
                return Owner::default();
            }
        };
        self.remember(key, owner.clone());
        owner
    }

    async fn read(&self, namespace: &str, reference: &Value) -> Result<Owner, kube::Error> {
        let text = |field: &str| reference[field].as_str().unwrap_or_default();
        // User input that becomes part of a URL path.
        let strange = |text: &str| text.starts_with('.') || text.contains(['?', '#', '%', '\\']);
        if strange(text("name")) || text("name").contains('/') || strange(text("apiVersion")) {
            return Ok(Owner::default());
        }
        let (group, version) =
            text("apiVersion").rsplit_once('/').unwrap_or(("", text("apiVersion")));
        let kind = GroupVersionKind::gvk(group, version, text("kind"));
        let (resource, namespaced) = self.kind(kind).await?;
        let api: Api<DynamicObject> = if namespaced {
            Api::namespaced_with(self.client.clone(), namespace, &resource)
        } else {
            Api::all_with(self.client.clone(), &resource)
        };
        let found: PartialObjectMeta<DynamicObject> = api.get_metadata(text("name")).await?;
        if found.metadata.uid.as_deref() != Some(text("uid")) {
            return Ok(Owner::default());
        }
        let object = json!({"metadata": {
            "annotations": found.metadata.annotations,
            "ownerReferences": found.metadata.owner_references,
        }});
        Ok(Owner { annotations: own_annotations(&object), above: owner_of(&object).cloned() })
    }

    /// API resource of a kind, and true if it is namespaced.
    async fn kind(&self, kind: GroupVersionKind) -> Result<(ApiResource, bool), kube::Error> {
        let known = self.kinds.lock().unwrap_or_else(PoisonError::into_inner).get(&kind).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let (resource, capabilities) = discovery::pinned_kind(&self.client, &kind).await?;
        let found = (resource, capabilities.scope == Scope::Namespaced);
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        if kinds.len() < REMEMBERED {
            kinds.insert(kind, found.clone());
        }
        Ok(found)
    }

    fn remembered(&self, key: &Key) -> Option<Owner> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(key).filter(|seen| seen.at.elapsed() < FRESH).map(|seen| seen.owner.clone())
    }

    fn remember(&self, key: Key, owner: Owner) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() >= REMEMBERED {
            seen.retain(|_, seen| seen.at.elapsed() < FRESH);
        }
        if seen.len() < REMEMBERED {
            seen.insert(key, CachedOwner { at: Instant::now(), owner });
        }
    }
}
