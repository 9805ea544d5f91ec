//! Engine state that no object of the cluster holds, in one `ConfigMap`: past usage of queues and the round-robin cursor.

use agentaflow_engine::Snapshot;
use serde_json::{Value, json};

use super::api::{ApiServer, Failure, Ignored, core};
use super::lease::Leadership;

/// Key in the `ConfigMap`.
const KEY: &str = "memory.json";
/// A `ConfigMap` holds 1 MiB.
const LARGEST: usize = 900 * 1024;

#[derive(Clone, Debug)]
pub(crate) struct UsageStore {
    server: ApiServer,
    namespace: String,
    name: String,
}

impl UsageStore {
    pub(crate) fn new(server: ApiServer, namespace: &str, name: &str) -> Self {
        Self { server, namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// Reads the last leader's snapshot. An invalid one is ignored: only fair shares depend on it.
    pub(crate) async fn read(&self) -> Result<Option<Snapshot>, Failure> {
        let path = core(&self.namespace, "configmaps", &self.name);
        let found: Value = match self.server.get(&path).await {
            Ok(found) => found,
            Err(Failure::NotFound(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let text = found.pointer("/data").and_then(|data| data.get(KEY)).and_then(Value::as_str);
        let Some(text) = text else { return Ok(None) };
        match serde_json::from_str(text) {
            Ok(snapshot) => Ok(Some(snapshot)),
            Err(error) => {
                tracing::warn!(%error, "invalid usage snapshot ignored; fair shares start from zero");
                Ok(None)
            }
        }
    }

    pub(crate) async fn write(
        &self,
        leadership: &Leadership,
        snapshot: &Snapshot,
    ) -> Result<(), Failure> {
        let text = serde_json::to_string(snapshot).unwrap_or_default();
        if !leadership.holds() || text.len() > LARGEST {
            return Ok(());
        }
        let body = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": self.name, "namespace": self.namespace },
            "data": { KEY: text },
        });
        let path = core(&self.namespace, "configmaps", &self.name);
        match self.server.merge(&path, &body).await {
            Err(Failure::NotFound(_)) => {
                let path = format!("/api/v1/namespaces/{}/configmaps", self.namespace);
                self.server.post::<Ignored>(&path, &body).await.map(|_| ())
            }
            answer => answer,
        }
    }
}
