//! Reflectors of the node, its pods, and the agent's Jobs and pods. The watches reconnect after outages.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use agentaflow_api::link::TaskKey;
use agentaflow_kube_core::slim;
use futures_util::StreamExt as _;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use crate::names;

/// Interval between log lines during the wait for the first lists.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Objects of a task.
#[derive(Clone, Debug, Default)]
pub(crate) struct TaskState {
    pub(crate) job: Option<Arc<Job>>,
    pub(crate) pod: Option<Arc<Pod>>,
}

pub(crate) struct ClusterWatch {
    nodes: Store<slim::Node>,
    pods: Store<slim::Pod>,
    jobs: Store<Job>,
    own: Store<Pod>,
    changes: watch::Receiver<u64>,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

impl ClusterWatch {
    /// Watches a node, and the Jobs of an agent in a namespace.
    pub(crate) fn start(client: &Client, namespace: &str, node: &str, owner: &str) -> Self {
        let (sender, changes) = watch::channel(0);
        let sender = Arc::new(sender);
        let by_field = |field: &str| watcher::Config::default().fields(&format!("{field}={node}"));
        let ours = watcher::Config::default().labels(&format!("{}={owner}", names::AGENT));
        let nodes = reflect(Api::all(client.clone()), by_field("metadata.name"), &sender);
        let pods = reflect(Api::all(client.clone()), by_field("spec.nodeName"), &sender);
        let jobs = reflect(Api::namespaced(client.clone(), namespace), ours.clone(), &sender);
        let own = reflect(Api::namespaced(client.clone(), namespace), ours, &sender);
        Self {
            nodes: nodes.0,
            pods: pods.0,
            jobs: jobs.0,
            own: own.0,
            changes,
            _tasks: vec![nodes.1, pods.1, jobs.1, own.1],
        }
    }

    /// Waits until every reflector has its first list.
    pub(crate) async fn wait_until_listed(&self) {
        let listed = async {
            // Fails only when a watch ends, which does not happen while `self` exists.
            let _ = self.nodes.wait_until_ready().await;
            let _ = self.pods.wait_until_ready().await;
            let _ = self.jobs.wait_until_ready().await;
            let _ = self.own.wait_until_ready().await;
        };
        tokio::pin!(listed);
        while tokio::time::timeout(LOG_INTERVAL, &mut listed).await.is_err() {
            warn!("waiting for the first lists of the API server");
        }
    }

    /// Notified of every change of any object.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.clone()
    }

    pub(crate) fn node(&self) -> Option<Arc<slim::Node>> {
        self.nodes.state().into_iter().next()
    }

    /// All pods on the node.
    pub(crate) fn pods(&self) -> Vec<Arc<slim::Pod>> {
        self.pods.state()
    }

    /// Jobs of the agent.
    pub(crate) fn jobs(&self) -> Vec<Arc<Job>> {
        self.jobs.state()
    }

    /// Objects of a task. Of several pods, a started one.
    pub(crate) fn task(&self, key: TaskKey) -> TaskState {
        let job = self.jobs.state().into_iter().find(|job| belongs_to(job.as_ref(), key));
        let mut pods = self.own.state();
        pods.retain(|pod| belongs_to(pod.as_ref(), key));
        let pod = pods.into_iter().max_by_key(|pod| crate::pod_status::started_at(pod).is_some());
        TaskState { job, pod }
    }
}

/// Task in the labels of an object.
pub(crate) fn key_of<K: Resource>(object: &K) -> Option<TaskKey> {
    object.labels().get(names::TASK)?.parse().ok()
}

fn belongs_to<K: Resource>(object: &K, key: TaskKey) -> bool {
    key_of(object) == Some(key)
}

fn reflect<K>(
    api: Api<K>,
    config: watcher::Config,
    changed: &Arc<watch::Sender<u64>>,
) -> (Store<K>, AbortOnDropHandle<()>)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let (store, writer) = reflector::store();
    let events = watcher(api, config).default_backoff();
    let stream = reflector::reflector(writer, events);
    let changed = Arc::clone(changed);
    let task = tokio::spawn(async move {
        let mut stream = std::pin::pin!(stream);
        while let Some(event) = stream.next().await {
            match event {
                Ok(_) => changed.send_modify(|count| *count = count.wrapping_add(1)),
                Err(error) => {
                    warn!(%error, kind = %K::kind(&()), "watch failed; reconnecting");
                }
            }
        }
    });
    (store, AbortOnDropHandle::new(task))
}
