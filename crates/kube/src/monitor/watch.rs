//! The node and its pods as the API server tells them, kept up to date by watches that survive outages.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use super::seen::PodName;
use crate::slim;

/// The node and its pods.
#[derive(Clone)]
pub(super) struct Watch {
    nodes: Store<slim::Node>,
    pods: Store<slim::Pod>,
}

impl Watch {
    /// Begins to watch, until told to stop.
    pub(super) fn start(client: &Client, node: &str, stop: &CancellationToken) -> Self {
        let nodes = Api::all(client.clone());
        let pods = Api::all(client.clone());
        Self {
            nodes: follow(nodes, &format!("metadata.name={node}"), stop),
            pods: follow(pods, &format!("spec.nodeName={node}"), stop),
        }
    }

    /// Waits until both were listed once; false when that took too long.
    pub(super) async fn listed(&self, patience: Duration) -> bool {
        let both = async {
            let nodes = self.nodes.wait_until_ready().await;
            nodes.is_ok() && self.pods.wait_until_ready().await.is_ok()
        };
        tokio::time::timeout(patience, both).await.unwrap_or(false)
    }

    /// The node.
    pub(super) fn node(&self) -> Option<Arc<slim::Node>> {
        self.nodes.state().into_iter().next()
    }

    /// Its pods that have not ended.
    pub(super) fn pods(&self) -> Vec<Arc<slim::Pod>> {
        let ended =
            |pod: &slim::Pod| matches!(pod.status.phase.as_deref(), Some("Succeeded" | "Failed"));
        self.pods.state().into_iter().filter(|pod| !ended(pod)).collect()
    }
}

/// The name of a pod.
pub(super) fn name(pod: &slim::Pod) -> PodName {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    PodName { namespace: text(&pod.metadata.namespace), name: text(&pod.metadata.name) }
}

/// Pods by UID. Static pods are also known by the UID of their file, which is what their processes' groups carry.
pub(super) fn by_uid(pods: &[Arc<slim::Pod>]) -> BTreeMap<String, PodName> {
    let mut names = BTreeMap::new();
    for pod in pods {
        let annotations = pod.metadata.annotations.as_ref();
        let file = annotations.and_then(|all| all.get("kubernetes.io/config.hash"));
        for uid in pod.metadata.uid.iter().chain(file) {
            names.insert(uid.clone(), name(pod));
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
                        tracing::warn!(%error, kind = %K::kind(&()), "a watch broke; it is begun again");
                    }
                    None => return,
                },
            }
        }
    });
    store
}
