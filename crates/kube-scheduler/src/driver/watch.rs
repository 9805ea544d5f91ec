//! Watches: the cluster as a stream of changes.
//!
//! The client's watcher lists once, follows, and lists again when the API server has forgotten where we were (410) or
//! went away, with pauses. A second list does not say what is gone, so each feed remembers names.

use agentaflow_kube_core::slim;
use futures_util::StreamExt;
use kube::api::Api;
use kube::runtime::utils::Backoff;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::collections::HashSet;
use std::fmt::Debug;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::api::ApiServer;
use super::api_discovery::{
    NATIVE, NATIVE_GROUPS, PLUGIN_GROUPS, PLUGINS, ServedApis, has_kueue, serves,
};
use crate::state::{Change, Key, Object};

/// What a feed says.
#[derive(Debug)]
pub(crate) enum WatchUpdate {
    /// Something changed.
    Change(Change),
    /// A kind has been listed whole for the first time.
    Listed(&'static str),
    /// Kueue has come.
    Kueue,
    /// The settings that people change at run time.
    Config(Option<Box<slim::ConfigMap>>),
}

/// Everything that must be listed before anything is decided.
pub(crate) const REQUIRED: [&str; 14] = [
    "pods",
    "nodes",
    "gpunodes",
    "gpuworkloads",
    "gpuqueues",
    "persistentvolumeclaims",
    "persistentvolumes",
    "storageclasses",
    "csinodes",
    "csidrivers",
    "csistoragecapacities",
    "namespaces",
    "poddisruptionbudgets",
    "configmaps",
];

/// How often we look whether something has come to be served.
const LATER: Duration = Duration::from_secs(30);

/// Where changes come from.
pub(crate) struct Sources<'a> {
    /// Watches.
    pub(crate) client: &'a Client,
    /// Asks what is served.
    pub(crate) server: &'a ApiServer,
    /// What is served already.
    pub(crate) served: ServedApis,
}

impl Sources<'_> {
    /// Watches what is always there, and what this cluster serves beside.
    pub(crate) fn watch_all(
        &self,
        namespace: &str,
        config: &str,
        feeds: &mpsc::Sender<WatchUpdate>,
        stop: &CancellationToken,
    ) {
        let client = self.client.clone();
        let spawn = WatchSpawner { client, feeds: feeds.clone(), stop: stop.clone() };
        watch_required(&spawn, namespace);
        spawn.config(namespace, config);
        spawn.optional(self.server.clone(), self.served);
    }
}

fn watch_required(spawn: &WatchSpawner, namespace: &str) {
    spawn.watch("pods", Object::Pod, |key| with_key(slim::Pod::default(), key));
    spawn.watch("nodes", Object::Node, |key| with_key(slim::Node::default(), key));
    // Only the product's own namespace: elsewhere anybody could pretend to be the monitor of a node.
    let devices = Api::<slim::GpuNode>::namespaced(spawn.client.clone(), namespace);
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
    spawn.watch("csidrivers", Object::Driver, |key| with_key(slim::StorageDriver::default(), key));
    spawn.watch("csistoragecapacities", Object::Capacity, |key| {
        with_key(slim::StorageCapacity::default(), key)
    });
    spawn.watch("namespaces", Object::Namespace, |key| with_key(slim::Namespace::default(), key));
    spawn.watch("poddisruptionbudgets", Object::Budget, |key| {
        with_key(slim::DisruptionBudget::default(), key)
    });
}

#[derive(Clone)]
struct WatchSpawner {
    client: Client,
    feeds: mpsc::Sender<WatchUpdate>,
    stop: CancellationToken,
}

impl WatchSpawner {
    fn watch<K>(&self, kind: &'static str, wrap: fn(K) -> Object, ghost: fn(&Key) -> K)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        self.follow(Api::<K>::all(self.client.clone()), kind, wrap, ghost);
    }

    fn follow<K>(
        &self,
        api: Api<K>,
        kind: &'static str,
        wrap: fn(K) -> Object,
        ghost: fn(&Key) -> K,
    ) where
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
            let mut stream =
                watcher(api, settings).backoff(WatchBackoff(WatchBackoff::FIRST)).boxed();
            let mut found = false;
            while let Some(event) = next(&mut stream, &stop, "configmaps").await {
                let said = match event {
                    watcher::Event::Init => {
                        found = false;
                        continue;
                    }
                    watcher::Event::Apply(map) | watcher::Event::InitApply(map) => {
                        found = true;
                        WatchUpdate::Config(Some(Box::new(map)))
                    }
                    watcher::Event::InitDone if found => WatchUpdate::Listed("configmaps"),
                    watcher::Event::InitDone => {
                        if feeds.send(WatchUpdate::Config(None)).await.is_err() {
                            return;
                        }
                        WatchUpdate::Listed("configmaps")
                    }
                    watcher::Event::Delete(_) => WatchUpdate::Config(None),
                };
                if feeds.send(said).await.is_err() {
                    return;
                }
            }
        });
    }

    /// Pod groups, when this cluster serves them; it may begin to at any time.
    fn optional(&self, server: ApiServer, mut kinds: ServedApis) {
        if kinds.plugins {
            self.plugin_groups();
        }
        if kinds.native {
            self.native_groups();
        }
        let spawn = self.clone();
        tokio::spawn(async move {
            while !(spawn.stop.is_cancelled() || kinds.plugins && kinds.native && kinds.kueue) {
                tokio::select! {
                    () = tokio::time::sleep(LATER) => {}
                    () = spawn.stop.cancelled() => return,
                }
                // No answer is none: the next look tells.
                if !kinds.kueue && has_kueue(&server).await.unwrap_or(false) {
                    kinds.kueue = true;
                    if spawn.feeds.send(WatchUpdate::Kueue).await.is_err() {
                        return;
                    }
                }
                if !kinds.plugins && serves(&server, PLUGINS, "podgroups").await.unwrap_or(false) {
                    kinds.plugins = true;
                    spawn.plugin_groups();
                }
                if !kinds.native && serves(&server, NATIVE, "podgroups").await.unwrap_or(false) {
                    kinds.native = true;
                    spawn.native_groups();
                }
            }
        });
    }

    fn plugin_groups(&self) {
        self.watch(PLUGIN_GROUPS, Object::PodGroup, |key| with_key(slim::PodGroup::default(), key));
    }

    fn native_groups(&self) {
        self.watch(NATIVE_GROUPS, Object::NativeGroup, |key| {
            with_key(slim::NativePodGroup::default(), key)
        });
    }
}

/// Follows one kind until the receiver is gone.
async fn follow<K>(
    api: Api<K>,
    kind: &'static str,
    wrap: fn(K) -> Object,
    ghost: fn(&Key) -> K,
    feeds: mpsc::Sender<WatchUpdate>,
    stop: CancellationToken,
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    // A connection that died without a word is noticed soon after a minute.
    let settings = watcher::Config::default().page_size(500).timeout(60);
    let mut stream = watcher(api, settings).backoff(WatchBackoff(WatchBackoff::FIRST)).boxed();
    let mut known: HashSet<Key> = HashSet::new();
    let mut listing: HashSet<Key> = HashSet::new();
    while let Some(event) = next(&mut stream, &stop, kind).await {
        let mut said = Vec::with_capacity(1);
        match event {
            watcher::Event::Init => listing.clear(),
            watcher::Event::InitApply(object) => {
                // An interrupted list is begun anew: what it has said so far is known all the same.
                known.insert(key(&object));
                listing.insert(key(&object));
                said.push(WatchUpdate::Change(Change::Applied(Box::new(wrap(object)))));
            }
            watcher::Event::InitDone => {
                for gone in known.difference(&listing) {
                    let object = wrap(ghost(gone));
                    said.push(WatchUpdate::Change(Change::Deleted(Box::new(object))));
                }
                known = std::mem::take(&mut listing);
                said.push(WatchUpdate::Listed(kind));
            }
            watcher::Event::Apply(object) => {
                known.insert(key(&object));
                said.push(WatchUpdate::Change(Change::Applied(Box::new(wrap(object)))));
            }
            watcher::Event::Delete(object) => {
                known.remove(&key(&object));
                said.push(WatchUpdate::Change(Change::Deleted(Box::new(wrap(object)))));
            }
        }
        for feed in said {
            if feeds.send(feed).await.is_err() {
                return;
            }
        }
    }
}

/// The pauses after errors. They stay short: who leads must not decide for long by what was true before.
struct WatchBackoff(Duration);

impl WatchBackoff {
    const FIRST: Duration = Duration::from_millis(250);
    const LONGEST: Duration = Duration::from_secs(2);
}

impl Iterator for WatchBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let longer = (self.0 * 2).min(Self::LONGEST);
        Some(std::mem::replace(&mut self.0, longer))
    }
}

impl Backoff for WatchBackoff {
    fn reset(&mut self) {
        self.0 = Self::FIRST;
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
fn with_key<K: Resource<DynamicType = ()>>(mut object: K, key: &Key) -> K {
    let meta = object.meta_mut();
    meta.name = Some(key.name.to_string());
    meta.namespace = Some(key.namespace.to_string()).filter(|namespace| !namespace.is_empty());
    object
}
