//! Node and pods, kept up to date by watches that survive outages.

use agentaflow_kube_core::slim;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use super::observation::PodName;

#[derive(Clone)]
pub(super) struct Watch {
    nodes: Store<slim::Node>,
    pods: Store<slim::Pod>,
}

impl Watch {
    /// Watches until `stop`.
    pub(super) fn start(client: &Client, node: &str, stop: &CancellationToken) -> Self {
        let nodes = Api::all(client.clone());
        let pods = Api::all(client.clone());
        Self {
            nodes: follow(nodes, &format!("metadata.name={node}"), stop),
            pods: follow(pods, &format!("spec.nodeName={node}"), stop),
        }
    }

    /// Waits until both are listed; returns false after the timeout.
    pub(super) async fn listed(&self, patience: Duration) -> bool {
        let both = async {
            let nodes = self.nodes.wait_until_ready().await;
            nodes.is_ok() && self.pods.wait_until_ready().await.is_ok()
        };
        tokio::time::timeout(patience, both).await.unwrap_or(false)
    }

    pub(super) fn node(&self) -> Option<Arc<slim::Node>> {
        self.nodes.state().into_iter().next()
    }

    /// Pods that have not terminated.
    pub(super) fn pods(&self) -> Vec<Arc<slim::Pod>> {
        let ended =
            |pod: &slim::Pod| matches!(pod.status.phase.as_deref(), Some("Succeeded" | "Failed"));
        self.pods.state().into_iter().filter(|pod| !ended(pod)).collect()
    }
}

pub(super) fn name(pod: &slim::Pod) -> PodName {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    PodName { namespace: text(&pod.metadata.namespace), name: text(&pod.metadata.name) }
}

/// Pods by UID. The control groups of static pods carry the UID of their file, which is an annotation of the mirror
/// pod. Users can set this annotation on any pod: it counts on mirror pods only and never overrides a real UID.
pub(super) fn by_uid(pods: &[Arc<slim::Pod>]) -> BTreeMap<String, PodName> {
    let own = |pod: &Arc<slim::Pod>| Some((pod.metadata.uid.clone()?, name(pod)));
    let mut names: BTreeMap<String, PodName> = pods.iter().filter_map(own).collect();
    for pod in pods {
        let Some(annotations) = pod.metadata.annotations.as_ref() else { continue };
        if annotations.contains_key("kubernetes.io/config.mirror")
            && let Some(file) = annotations.get("kubernetes.io/config.hash")
        {
            names.entry(file.clone()).or_insert_with(|| name(pod));
        }
    }
    names
}

fn follow<K>(api: Api<K>, fields: &str, stop: &CancellationToken) -> Store<K>
where
    K: Resource<DynamicType = ()>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug
        + Send
        + Sync
        + 'static,
{
    let (store, writer) = reflector::store();
    let events = watcher(api, watcher::Config::default().fields(fields)).default_backoff();
    let stream = reflector::reflector(writer, events);
    let stop = stop.clone();
    tokio::spawn(async move {
        let mut stream = std::pin::pin!(stream);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                event = stream.next() => match event {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => {
                        tracing::warn!(%error, kind = %K::kind(&()), "watch failed; restarting it");
                    }
                    None => return,
                },
            }
        }
    });
    store
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn an_annotation_does_not_claim_the_processes_of_another_pod() {
        let pod = |name: &str, uid: &str, annotations: Value| {
            let metadata = json!({
                "name": name, "namespace": "ml", "uid": uid, "annotations": annotations,
            });
            Arc::new(serde_json::from_value::<slim::Pod>(json!({ "metadata": metadata })).unwrap())
        };
        let mirror = |hash: &str| json!({"kubernetes.io/config.mirror": hash, "kubernetes.io/config.hash": hash});
        let names = by_uid(&[
            pod("victim", "1", json!({})),
            pod("static", "2", mirror("file")),
            pod("liar", "3", json!({"kubernetes.io/config.hash": "unknown"})),
            pod("thief", "4", mirror("1")),
        ]);
        let message: Vec<_> = names.iter().map(|(uid, pod)| (&**uid, &*pod.name)).collect();
        let expected =
            [("1", "victim"), ("2", "static"), ("3", "liar"), ("4", "thief"), ("file", "static")];
        assert_eq!(message, expected);
    }
}
