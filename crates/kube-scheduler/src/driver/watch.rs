//! Watches: the cluster as a stream of changes.
//!
//! The client's watcher lists once, watches, and lists again after an interruption or an expired resource version (410), with
//! backoff. A second list does not report deletions, so that each watch remembers names.

use agentaflow_backoff::BackoffPolicy;
use agentaflow_kube_core::slim;
use agentaflow_kube_core::unit::{KINDS, UnitKind};
use futures_util::StreamExt;
use kube::api::Api;
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
    NATIVE, NATIVE_GROUPS, PLUGIN_GROUPS, PLUGINS, ServedApis, has_kueue, serves, serves_jobs,
};
use crate::state::{Change, Key, Object};

#[derive(Debug)]
pub(crate) enum WatchUpdate {
    Change(Change),
    /// A kind was listed completely.
    Listed(&'static str),
    /// Kueue was installed.
    Kueue,
    /// A kind of jobs is installed; its objects follow.
    Jobs(&'static UnitKind),
    /// Run-time settings; none if the `ConfigMap` does not exist.
    Config(Option<Box<slim::ConfigMap>>),
}

/// Kinds that must be listed before the first pass.
pub(crate) const REQUIRED: [&str; 15] = [
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
    "priorityclasses",
    "poddisruptionbudgets",
    "configmaps",
];

/// Interval of checks for APIs that are installed later.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(30);

pub(crate) struct Sources<'a> {
    pub(crate) client: &'a Client,
    pub(crate) server: &'a ApiServer,
    /// Optional APIs found at the start.
    pub(crate) served: ServedApis,
}

impl Sources<'_> {
    /// Watches required and optional kinds.
    pub(crate) fn watch_all(
        &self,
        namespace: &str,
        config: &str,
        updates: &mpsc::Sender<WatchUpdate>,
        stop: &CancellationToken,
    ) {
        let client = self.client.clone();
        let spawn = WatchSpawner { client, updates: updates.clone(), stop: stop.clone() };
        watch_required(&spawn, namespace);
        spawn.config(namespace, config);
        spawn.optional(self.server.clone(), self.served);
    }
}

fn watch_required(spawn: &WatchSpawner, namespace: &str) {
    spawn.watch("pods", Object::Pod, |key| with_key(slim::Pod::default(), key));
    spawn.watch("nodes", Object::Node, |key| with_key(slim::Node::default(), key));
    // Only agentaflow's namespace: elsewhere any user could impersonate a node monitor.
    let devices = Api::<slim::GpuNode>::namespaced(spawn.client.clone(), namespace);
    spawn.watch_kind(devices, "gpunodes", Object::GpuNode, |key| {
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
    spawn.watch("priorityclasses", Object::Priority, |key| {
        with_key(slim::PriorityClass::default(), key)
    });
    spawn.watch("poddisruptionbudgets", Object::Budget, |key| {
        with_key(slim::DisruptionBudget::default(), key)
    });
    // Only pending reasons depend on them: no pass waits for their list.
    spawn.watch("resourcequotas", Object::Quota, |key| {
        with_key(slim::ResourceQuota::default(), key)
    });
}

#[derive(Clone)]
struct WatchSpawner {
    client: Client,
    updates: mpsc::Sender<WatchUpdate>,
    stop: CancellationToken,
}

impl WatchSpawner {
    fn watch<K>(&self, kind: &'static str, wrap: fn(K) -> Object, deleted: fn(&Key) -> K)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        self.watch_kind(Api::<K>::all(self.client.clone()), kind, wrap, deleted);
    }

    fn watch_kind<K>(
        &self,
        api: Api<K>,
        kind: &'static str,
        wrap: impl Fn(K) -> Object + Send + 'static,
        deleted: fn(&Key) -> K,
    ) where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
        K::DynamicType: Send + Sync,
    {
        tokio::spawn(watch_kind(api, kind, wrap, deleted, self.updates.clone(), self.stop.clone()));
    }

    /// Watches the `ConfigMap` with run-time settings.
    fn config(&self, namespace: &str, name: &str) {
        let api = Api::<slim::ConfigMap>::namespaced(self.client.clone(), namespace);
        let settings = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let (updates, stop) = (self.updates.clone(), self.stop.clone());
        tokio::spawn(async move {
            let mut stream = watcher(api, settings).backoff(watch_backoff()).boxed();
            let mut found = false;
            while let Some(event) = next(&mut stream, &stop, "configmaps").await {
                let pending = match event {
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
                        if updates.send(WatchUpdate::Config(None)).await.is_err() {
                            return;
                        }
                        WatchUpdate::Listed("configmaps")
                    }
                    watcher::Event::Delete(_) => WatchUpdate::Config(None),
                };
                if updates.send(pending).await.is_err() {
                    return;
                }
            }
        });
    }

    /// Watches optional kinds, now or when their API is installed.
    fn optional(&self, server: ApiServer, mut kinds: ServedApis) {
        if kinds.plugins {
            self.plugin_groups();
        }
        if kinds.native {
            self.native_groups();
        }
        for kind in kinds.jobs() {
            self.jobs(kind);
        }
        let spawn = self.clone();
        tokio::spawn(async move {
            while !(spawn.stop.is_cancelled() || kinds.is_complete()) {
                tokio::select! {
                    () = tokio::time::sleep(DISCOVERY_INTERVAL) => {}
                    () = spawn.stop.cancelled() => return,
                }
                // Without a response, the next check decides.
                if !kinds.kueue && has_kueue(&server).await.unwrap_or(false) {
                    kinds.kueue = true;
                    if spawn.updates.send(WatchUpdate::Kueue).await.is_err() {
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
                for (kind, served) in KINDS.iter().zip(&mut kinds.jobs) {
                    if !*served && serves_jobs(&server, kind).await.unwrap_or(false) {
                        *served = true;
                        if spawn.updates.send(WatchUpdate::Jobs(kind)).await.is_err() {
                            return;
                        }
                        spawn.jobs(kind);
                    }
                }
            }
        });
    }

    fn jobs(&self, kind: &'static UnitKind) {
        let api = Api::<slim::JobObject>::all_with(self.client.clone(), &kind);
        let wrap = move |object| Object::Job(kind, object);
        self.watch_kind(api, kind.plural, wrap, |key| with_key(slim::JobObject::default(), key));
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

/// Watches one kind until the receiver is dropped.
async fn watch_kind<K>(
    api: Api<K>,
    kind: &'static str,
    wrap: impl Fn(K) -> Object + Send,
    deleted: fn(&Key) -> K,
    updates: mpsc::Sender<WatchUpdate>,
    stop: CancellationToken,
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    // A dead connection is noticed after a minute.
    let settings = watcher::Config::default().page_size(500).timeout(60);
    let mut stream = watcher(api, settings).backoff(watch_backoff()).boxed();
    let mut known: HashSet<Key> = HashSet::new();
    let mut listing: HashSet<Key> = HashSet::new();
    while let Some(event) = next(&mut stream, &stop, kind).await {
        let mut pending = Vec::with_capacity(1);
        match event {
            watcher::Event::Init => listing.clear(),
            watcher::Event::InitApply(object) => {
                // An interrupted list starts again; objects that it reported are known all the same.
                known.insert(key(&object));
                listing.insert(key(&object));
                pending.push(WatchUpdate::Change(Change::Applied(Box::new(wrap(object)))));
            }
            watcher::Event::InitDone => {
                for gone in known.difference(&listing) {
                    let object = wrap(deleted(gone));
                    pending.push(WatchUpdate::Change(Change::Deleted(Box::new(object))));
                }
                known = std::mem::take(&mut listing);
                pending.push(WatchUpdate::Listed(kind));
            }
            watcher::Event::Apply(object) => {
                known.insert(key(&object));
                pending.push(WatchUpdate::Change(Change::Applied(Box::new(wrap(object)))));
            }
            watcher::Event::Delete(object) => {
                known.remove(&key(&object));
                pending.push(WatchUpdate::Change(Change::Deleted(Box::new(wrap(object)))));
            }
        }
        for update in pending {
            if updates.send(update).await.is_err() {
                return;
            }
        }
    }
}

/// Short delays: a leader must not decide for long with outdated state.
const WATCH_RETRIES: BackoffPolicy =
    BackoffPolicy::new(Duration::from_millis(250), Duration::from_secs(2));

pub(super) fn watch_backoff() -> watcher::ExponentialBackoff {
    WATCH_RETRIES.builder().into()
}

/// The next event; errors are logged, and the stream backs off.
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
            Err(error) => {
                tracing::warn!(kind, error = %describe_error(&error), "watch interrupted");
            }
        }
    }
}

/// Error text with a hint for known causes.
fn describe_error(error: &watcher::Error) -> String {
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

fn key<K: Resource>(object: &K) -> Key {
    Key::new(object.meta().namespace.as_deref().unwrap_or_default(), &object.name_any())
}

/// A deleted object of which only the name is known.
fn with_key<K: Resource>(mut object: K, key: &Key) -> K {
    let meta = object.meta_mut();
    meta.name = Some(key.name.to_string());
    meta.namespace = Some(key.namespace.to_string()).filter(|namespace| !namespace.is_empty());
    object
}
