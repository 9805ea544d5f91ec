//! The node, the pods on it, and our own Jobs and pods, kept up to date by watches that survive outages.

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

/// How often somebody who waits for the API server is told so.
const REMIND: Duration = Duration::from_secs(10);

/// What is known of a task.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) job: Option<Arc<Job>>,
    pub(crate) pod: Option<Arc<Pod>>,
}

/// Everything that is watched.
pub(crate) struct Watch {
    nodes: Store<slim::Node>,
    pods: Store<slim::Pod>,
    jobs: Store<Job>,
    own: Store<Pod>,
    changes: watch::Receiver<u64>,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

impl Watch {
    /// Begins to watch a node, and the Jobs of an agent in a namespace.
    pub(crate) fn start(client: &Client, namespace: &str, node: &str, owner: &str) -> Self {
        let (sender, changes) = watch::channel(0);
        let sender = Arc::new(sender);
        let by_field = |field: &str| watcher::Config::default().fields(&format!("{field}={node}"));
        let ours = watcher::Config::default().labels(&format!("{}={owner}", names::AGENT));
        let nodes = follow(Api::all(client.clone()), by_field("metadata.name"), &sender);
        let pods = follow(Api::all(client.clone()), by_field("spec.nodeName"), &sender);
        let jobs = follow(Api::namespaced(client.clone(), namespace), ours.clone(), &sender);
        let own = follow(Api::namespaced(client.clone(), namespace), ours, &sender);
        Self {
            nodes: nodes.0,
            pods: pods.0,
            jobs: jobs.0,
            own: own.0,
            changes,
            _tasks: vec![nodes.1, pods.1, jobs.1, own.1],
        }
    }

    /// Waits until all was listed once.
    pub(crate) async fn listed(&self) {
        let listed = async {
            // Fails only when a watch ends, which none does while this is there.
            let _ = self.nodes.wait_until_ready().await;
            let _ = self.pods.wait_until_ready().await;
            let _ = self.jobs.wait_until_ready().await;
            let _ = self.own.wait_until_ready().await;
        };
        tokio::pin!(listed);
        while tokio::time::timeout(REMIND, &mut listed).await.is_err() {
            warn!("the cluster has not told everything yet; waiting for it");
        }
    }

    /// Told of every change, of whatever.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.clone()
    }

    /// The node.
    pub(crate) fn node(&self) -> Option<Arc<slim::Node>> {
        self.nodes.state().into_iter().next()
    }

    /// The pods on the node.
    pub(crate) fn pods(&self) -> Vec<Arc<slim::Pod>> {
        self.pods.state()
    }

    /// Our Jobs.
    pub(crate) fn jobs(&self) -> Vec<Arc<Job>> {
        self.jobs.state()
    }

    /// What is known of a task. Of several pods the one that has come farthest.
    pub(crate) fn look(&self, key: TaskKey) -> Seen {
        let job = self.jobs.state().into_iter().find(|job| is_of(job.as_ref(), key));
        let mut pods = self.own.state();
        pods.retain(|pod| is_of(pod.as_ref(), key));
        let pod = pods.into_iter().max_by_key(|pod| crate::ending::began(pod).is_some());
        Seen { job, pod }
    }
}

/// The task that an object belongs to.
pub(crate) fn key_of<K: Resource>(object: &K) -> Option<TaskKey> {
    object.labels().get(names::TASK)?.parse().ok()
}

fn is_of<K: Resource>(object: &K, key: TaskKey) -> bool {
    key_of(object) == Some(key)
}

fn follow<K>(
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
                    warn!(%error, kind = %K::kind(&()), "a watch broke; it is begun again");
                }
            }
        }
    });
    (store, AbortOnDropHandle::new(task))
}
