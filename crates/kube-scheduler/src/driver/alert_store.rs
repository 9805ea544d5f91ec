//! State of the alerts in a `ConfigMap`, for the next leader.

use agentaflow_alerts::State;
use serde_json::{Value, json};

use super::api::{ApiServer, Failure, Ignored, core};

/// Key in the `ConfigMap`.
const KEY: &str = "alerts.json";
/// A `ConfigMap` holds 1 MiB.
const LARGEST: usize = 900 * 1024;

#[derive(Clone, Debug)]
pub(super) struct AlertStore {
    server: ApiServer,
    namespace: String,
    name: String,
}

impl AlertStore {
    pub(super) fn new(server: ApiServer, namespace: &str, lease: &str) -> Self {
        Self { server, namespace: namespace.to_owned(), name: format!("{lease}-alerts") }
    }

    /// State of the last leader. An invalid one is ignored: firing alerts are sent again.
    pub(super) async fn read(&self) -> Result<State, Failure> {
        let path = core(&self.namespace, "configmaps", &self.name);
        let found: Value = match self.server.get(&path).await {
            Ok(found) => found,
            Err(Failure::NotFound(_)) => return Ok(State::default()),
            Err(error) => return Err(error),
        };
        let text = found.pointer("/data").and_then(|data| data.get(KEY)).and_then(Value::as_str);
        let Some(text) = text else { return Ok(State::default()) };
        Ok(serde_json::from_str(text).unwrap_or_else(|error| {
            tracing::warn!(%error, "invalid alerts ignored; firing alerts are sent again");
            State::default()
        }))
    }

    pub(super) async fn write(&self, state: &State) -> Result<(), Failure> {
        let text = serde_json::to_string(state).unwrap_or_default();
        if text.len() > LARGEST {
            tracing::warn!(bytes = text.len(), "alerts are too large to be stored");
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
