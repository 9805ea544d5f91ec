//! Watches: the cluster as a stream of changes.
//!
//! The client's watcher lists once, follows, and lists again when the API server has forgotten where we were (410) or
//! went away, with growing pauses. A second list does not say what is gone, so each feed remembers names.

use futures_util::StreamExt;
use kube::api::Api;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::collections::HashSet;
use std::fmt::Debug;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::slim;
use crate::world::{Change, Key, Object};

/// What a feed says.
#[derive(Debug)]
pub(crate) enum Feed {
    /// Something changed.
    Change(Change),
    /// A kind has been listed whole for the first time.
    Listed(&'static str),
    /// The settings that people change at run time.
    Config(Option<slim::ConfigMap>),
}

/// Everything that must be listed before anything is decided.
pub(crate) const REQUIRED: [&str; 12] = [
    "pods",
    "nodes",
    "gpunodes",
    "gpuworkloads",
    "gpuqueues",
    "persistentvolumeclaims",
    "persistentvolumes",
    "storageclasses",
    "csinodes",
    "namespaces",
    "poddisruptionbudgets",
    "configmaps",
];

/// Pod groups that a cluster may serve, and the API that does.
const GROUPS: [(&str, &str); 2] = [
    ("podgroups", "/apis/scheduling.x-k8s.io/v1alpha1"),
    ("native podgroups", "/apis/scheduling.k8s.io/v1alpha2"),
];

/// The kinds of pod groups that this cluster serves now. They are listed before anything is decided, too: which pods
/// run together must be known from the beginning.
pub(crate) async fn served_groups(client: &Client) -> Vec<&'static str> {
    let mut served = Vec::new();
    for (kind, api) in GROUPS {
        if serves(client, api, "podgroups").await {
            served.push(kind);
        }
    }
    served
}

/// Watches what is always there, and the pod groups of these kinds.
pub(crate) fn watch_all(
    client: &Client,
    namespace: &str,
    config: &str,
    groups: &[&'static str],
    feeds: &mpsc::Sender<Feed>,
    stop: &CancellationToken,
) {
    let spawn = Spawn { client: client.clone(), feeds: feeds.clone(), stop: stop.clone() };
    spawn.watch("pods", Object::Pod, |key| with_key(slim::Pod::default(), key));
    spawn.watch("nodes", Object::Node, |key| with_key(slim::Node::default(), key));
    // Only the product's own namespace: elsewhere anybody could pretend to be the monitor of a node.
    let devices = Api::<slim::GpuNode>::namespaced(client.clone(), namespace);
    spawn.follow(devices, "gpunodes", Object::GpuNode, |key| {
        with_key(slim::GpuNode::default(), key)
    });
    spawn.watch("gpuworkloads", Object::Workload, |key| with_key(slim::Workload::default(), key));
    spawn.watch("gpuqueues", Object::Queue, |key| with_key(slim::Queue::default(), key));
    spawn.watch("persistentvolumeclaims", Object::Claim, |key| {
        with_key(slim::PersistentVolumeClaim::default(), key)
    });
    spawn.watch("persistentvolumes", Object::Volume, |key| {
        with_key(slim::PersistentVolume::default(), key)
    });
    spawn
        .watch("storageclasses", Object::Class, |key| with_key(slim::StorageClass::default(), key));
    spawn.watch("csinodes", Object::CsiNode, |key| with_key(slim::CsiNode::default(), key));
    spawn.watch("namespaces", Object::Namespace, |key| with_key(slim::Namespace::default(), key));
    spawn.watch("poddisruptionbudgets", Object::Budget, |key| {
        with_key(slim::DisruptionBudget::default(), key)
    });
    spawn.config(namespace, config);
    spawn.groups(groups);
}

#[derive(Clone)]
struct Spawn {
    client: Client,
    feeds: mpsc::Sender<Feed>,
    stop: CancellationToken,
}

impl Spawn {
    fn watch<K>(&self, kind: &'static str, wrap: fn(K) -> Object, ghost: fn(Key) -> K)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        self.follow(Api::<K>::all(self.client.clone()), kind, wrap, ghost);
    }

    fn follow<K>(&self, api: Api<K>, kind: &'static str, wrap: fn(K) -> Object, ghost: fn(Key) -> K)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        tokio::spawn(follow(api, kind, wrap, ghost, self.feeds.clone(), self.stop.clone()));
    }

    /// One object by its name: the settings.
    fn config(&self, namespace: &str, name: &str) {
        let api = Api::<slim::ConfigMap>::namespaced(self.client.clone(), namespace);
        let settings = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let (feeds, stop) = (self.feeds.clone(), self.stop.clone());
        tokio::spawn(async move {
            let mut stream = watcher(api, settings).default_backoff().boxed();
            let mut found = false;
            while let Some(event) = next(&mut stream, &stop, "configmaps").await {
                let said = match event {
                    watcher::Event::Init => {
                        found = false;
                        continue;
                    }
                    watcher::Event::Apply(map) | watcher::Event::InitApply(map) => {
                        found = true;
                        Feed::Config(Some(map))
                    }
                    watcher::Event::InitDone if found => Feed::Listed("configmaps"),
                    watcher::Event::InitDone => {
                        if feeds.send(Feed::Config(None)).await.is_err() {
                            return;
                        }
                        Feed::Listed("configmaps")
                    }
                    watcher::Event::Delete(_) => Feed::Config(None),
                };
                if feeds.send(said).await.is_err() {
                    return;
                }
            }
        });
    }

    /// Pod groups of kinds that are served, and of the others as soon as they are.
    fn groups(&self, served: &[&'static str]) {
        served.iter().for_each(|kind| self.group(kind));
        let mut missing: Vec<_> =
            GROUPS.into_iter().filter(|(kind, _)| !served.contains(kind)).collect();
        let spawn = self.clone();
        tokio::spawn(async move {
            while !missing.is_empty() {
                tokio::select! {
                    () = tokio::time::sleep(std::time::Duration::from_secs(30)) => {}
                    () = spawn.stop.cancelled() => return,
                }
                for (kind, api) in std::mem::take(&mut missing) {
                    if serves(&spawn.client, api, "podgroups").await {
                        spawn.group(kind);
                    } else {
                        missing.push((kind, api));
                    }
                }
            }
        });
    }

    fn group(&self, kind: &'static str) {
        if kind == GROUPS[0].0 {
            self.watch(kind, Object::PodGroup, |key| with_key(slim::PodGroup::default(), key));
        } else {
            let ghost = |key| with_key(slim::NativePodGroup::default(), key);
            self.watch(kind, Object::NativeGroup, ghost);
        }
    }
}

/// Whether the API server serves a group of kinds.
pub(crate) async fn serves_group(client: &Client, group: &str) -> bool {
    let request = http::Request::get(format!("/apis/{group}")).body(Vec::new());
    let Ok(request) = request else { return false };
    client.request::<serde_json::Value>(request).await.is_ok()
}

/// Whether the API server serves a kind.
pub(crate) async fn serves(client: &Client, group: &str, plural: &str) -> bool {
    let Ok(request) = http::Request::get(group).body(Vec::new()) else { return false };
    let answer = client.request::<serde_json::Value>(request).await;
    let kinds = answer.ok().and_then(|list| list.get("resources").cloned());
    let kinds = kinds.as_ref().and_then(serde_json::Value::as_array);
    kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind["name"] == plural))
}

/// Follows one kind until the receiver is gone.
async fn follow<K>(
    api: Api<K>,
    kind: &'static str,
    wrap: fn(K) -> Object,
    ghost: fn(Key) -> K,
    feeds: mpsc::Sender<Feed>,
    stop: CancellationToken,
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut stream =
        watcher(api, watcher::Config::default().page_size(500)).default_backoff().boxed();
    let mut known: HashSet<Key> = HashSet::new();
    let mut listing: HashSet<Key> = HashSet::new();
    while let Some(event) = next(&mut stream, &stop, kind).await {
        let mut said = Vec::with_capacity(1);
        match event {
            watcher::Event::Init => listing.clear(),
            watcher::Event::InitApply(object) => {
                listing.insert(key(&object));
                said.push(Feed::Change(Change::Applied(Box::new(wrap(object)))));
            }
            watcher::Event::InitDone => {
                for gone in known.difference(&listing) {
                    let object = wrap(ghost(gone.clone()));
                    said.push(Feed::Change(Change::Deleted(Box::new(object))));
                }
                known = std::mem::take(&mut listing);
                said.push(Feed::Listed(kind));
            }
            watcher::Event::Apply(object) => {
                known.insert(key(&object));
                said.push(Feed::Change(Change::Applied(Box::new(wrap(object)))));
            }
            watcher::Event::Delete(object) => {
                known.remove(&key(&object));
                said.push(Feed::Change(Change::Deleted(Box::new(wrap(object)))));
            }
        }
        for feed in said {
            if feeds.send(feed).await.is_err() {
                return;
            }
        }
    }
}

/// The next event; errors are said and waited out by the stream's own backoff.
async fn next<K: Send>(
    stream: &mut futures_util::stream::BoxStream<'_, watcher::Result<watcher::Event<K>>>,
    stop: &CancellationToken,
    kind: &'static str,
) -> Option<watcher::Event<K>> {
    loop {
        let event = tokio::select! {
            event = stream.next() => event?,
            () = stop.cancelled() => return None,
        };
        match event {
            Ok(event) => return Some(event),
            Err(error) => tracing::warn!(kind, error = %words(&error), "watch interrupted"),
        }
    }
}

/// What is wrong with a watch, with the remedy where we know it.
fn words(error: &watcher::Error) -> String {
    let text = error.to_string();
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == 404 => {
            format!("{text}; are the CRDs of deploy/crds installed?")
        }
        watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == 403 => {
            format!("{text}; is the ClusterRole of deploy/kubernetes bound?")
        }
        _ => text,
    }
}

fn key<K: Resource<DynamicType = ()>>(object: &K) -> Key {
    Key::new(object.meta().namespace.as_deref().unwrap_or_default(), &object.name_any())
}

/// An object of which only the name is known: it is gone.
fn with_key<K: Resource<DynamicType = ()>>(mut object: K, key: Key) -> K {
    let meta = object.meta_mut();
    meta.name = Some(key.name.to_string());
    meta.namespace = Some(key.namespace.to_string()).filter(|namespace| !namespace.is_empty());
    object
}
