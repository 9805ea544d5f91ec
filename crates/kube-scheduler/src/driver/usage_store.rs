//! What no object of the cluster holds: past use of queues and the round-robin cursor, in one `ConfigMap`.

use agentaflow_engine::Snapshot;
use serde_json::{Value, json};

use super::api::{ApiServer, Failure, Ignored, core};
use super::lease::Leadership;

/// The key under which it is kept.
const KEY: &str = "memory.json";
/// What fits into a `ConfigMap`.
const LARGEST: usize = 900 * 1024;

/// Keeps what must outlive us.
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

    /// What the last leader left. What cannot be read is said and forgotten: it only sways fair shares.
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
                tracing::warn!(%error, "past use cannot be read; fair shares begin anew");
                Ok(None)
            }
        }
    }

    /// Writes it down.
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
