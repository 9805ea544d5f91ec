//! Watches: the cluster as a stream of changes.
//!
//! The client's watcher lists once, follows, and lists again when the API server has forgotten where we were (410) or
//! went away, with pauses. A second list does not say what is gone, so each feed remembers names.

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

use super::api::{Failure, Ignored, Server};
use super::lease::Reign;
use crate::names;
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
    Config(Option<Box<slim::ConfigMap>>),
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

/// What this cluster serves beside what is always there.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Served {
    /// Pod groups of the scheduler plugins.
    plugins: bool,
    /// Pod groups of Kubernetes itself.
    native: bool,
    /// Kueue is installed.
    pub(crate) kueue: bool,
}

impl Served {
    /// What must be listed beside [`REQUIRED`] before anything is decided.
    pub(crate) fn required(self) -> impl Iterator<Item = &'static str> {
        let kinds = [(self.plugins, PLUGIN_GROUPS), (self.native, NATIVE_GROUPS)];
        kinds.into_iter().filter(|(served, _)| *served).map(|(_, kind)| kind)
    }
}

/// Pod groups of the scheduler plugins.
const PLUGIN_GROUPS: &str = "podgroups";
/// Pod groups of Kubernetes itself.
const NATIVE_GROUPS: &str = "native podgroups";
/// Where they are served.
const PLUGINS: &str = "/apis/scheduling.x-k8s.io/v1alpha1";
const NATIVE: &str = "/apis/scheduling.k8s.io/v1alpha2";
/// The longest pause between two questions for what is served.
const PROBES: Duration = Duration::from_secs(5);
/// How often we look whether something has come to be served.
const LATER: Duration = Duration::from_secs(30);

/// Asks what this cluster serves, until there are answers: pods of a gang must not be taken for single ones only
/// because the API server was busy.
pub(crate) async fn probe(server: &Server, reign: &Reign, stop: &CancellationToken) -> Served {
    let mut pause = Duration::from_millis(500);
    while reign.is_open() && !stop.is_cancelled() {
        match look(server).await {
            Ok(answer) => return answer,
            Err(error) => tracing::warn!(%error, "cannot ask what the API server serves"),
        }
        tokio::select! {
            () = reign.pause(pause) => {}
            () = stop.cancelled() => {}
        }
        pause = (pause * 2).min(PROBES);
    }
    Served::default()
}

async fn look(server: &Server) -> Result<Served, Failure> {
    let kueue = format!("/apis/{}", names::KUEUE_GROUP);
    Ok(Served {
        plugins: serves(server, PLUGINS, "podgroups").await?,
        native: serves(server, NATIVE, "podgroups").await?,
        kueue: found(server.get::<Ignored>(&kueue).await)?.is_some(),
    })
}

/// Whether the API server serves a kind; only a plain "not found" means that it does not.
async fn serves(server: &Server, group: &str, plural: &str) -> Result<bool, Failure> {
    let list = found(server.get::<serde_json::Value>(group).await)?;
    Ok(list.is_some_and(|list| names_kind(&list, plural)))
}

fn found<T>(answer: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(Failure::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn names_kind(list: &serde_json::Value, plural: &str) -> bool {
    let kinds = list.get("resources").and_then(serde_json::Value::as_array);
    kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind["name"] == plural))
}

/// Where changes come from.
pub(crate) struct Sources<'a> {
    /// Watches.
    pub(crate) client: &'a Client,
    /// Asks what is served.
    pub(crate) server: &'a Server,
    /// What is served already.
    pub(crate) served: Served,
}

impl Sources<'_> {
    /// Watches what is always there, and what this cluster serves beside.
    pub(crate) fn watch_all(
        &self,
        namespace: &str,
        config: &str,
        feeds: &mpsc::Sender<Feed>,
        stop: &CancellationToken,
    ) {
        let client = self.client.clone();
        let spawn = Spawn { client, feeds: feeds.clone(), stop: stop.clone() };
        watch_required(&spawn, namespace);
        spawn.config(namespace, config);
        spawn.optional(self.server.clone(), self.served);
    }
}

fn watch_required(spawn: &Spawn, namespace: &str) {
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
    spawn.watch("namespaces", Object::Namespace, |key| with_key(slim::Namespace::default(), key));
    spawn.watch("poddisruptionbudgets", Object::Budget, |key| {
        with_key(slim::DisruptionBudget::default(), key)
    });
}

#[derive(Clone)]
struct Spawn {
    client: Client,
    feeds: mpsc::Sender<Feed>,
    stop: CancellationToken,
}

impl Spawn {
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
            let mut stream = watcher(api, settings).backoff(Pauses(Pauses::FIRST)).boxed();
            let mut found = false;
            while let Some(event) = next(&mut stream, &stop, "configmaps").await {
                let said = match event {
                    watcher::Event::Init => {
                        found = false;
                        continue;
                    }
                    watcher::Event::Apply(map) | watcher::Event::InitApply(map) => {
                        found = true;
                        Feed::Config(Some(Box::new(map)))
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

    /// Pod groups, when this cluster serves them; it may begin to at any time.
    fn optional(&self, server: Server, mut kinds: Served) {
        if kinds.plugins {
            self.plugin_groups();
        }
        if kinds.native {
            self.native_groups();
        }
        let spawn = self.clone();
        tokio::spawn(async move {
            while !(spawn.stop.is_cancelled() || kinds.plugins && kinds.native) {
                tokio::select! {
                    () = tokio::time::sleep(LATER) => {}
                    () = spawn.stop.cancelled() => return,
                }
                // No answer is none: the next look tells.
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
    feeds: mpsc::Sender<Feed>,
    stop: CancellationToken,
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    // A connection that died without a word is noticed soon after a minute.
    let settings = watcher::Config::default().page_size(500).timeout(60);
    let mut stream = watcher(api, settings).backoff(Pauses(Pauses::FIRST)).boxed();
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
                said.push(Feed::Change(Change::Applied(Box::new(wrap(object)))));
            }
            watcher::Event::InitDone => {
                for gone in known.difference(&listing) {
                    let object = wrap(ghost(gone));
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

/// The pauses after errors. They stay short: who leads must not decide for long by what was true before.
struct Pauses(Duration);

impl Pauses {
    const FIRST: Duration = Duration::from_millis(250);
    const LONGEST: Duration = Duration::from_secs(2);
}

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let longer = (self.0 * 2).min(Self::LONGEST);
        Some(std::mem::replace(&mut self.0, longer))
    }
}

impl Backoff for Pauses {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_groups_must_be_listed_where_they_are_served() {
        let check = |plugins, native, kinds: &[&str]| {
            let served = Served { plugins, native, kueue: false };
            assert_eq!(served.required().collect::<Vec<_>>(), kinds);
        };
        check(false, false, &[]);
        check(true, false, &["podgroups"]);
        check(true, true, &["podgroups", "native podgroups"]);
    }

    #[test]
    fn only_not_found_means_that_nothing_is_served() {
        assert!(matches!(found(Ok(1)), Ok(Some(1))));
        assert!(matches!(found::<()>(Err(Failure::NotFound(String::new()))), Ok(None)));
        assert!(found::<()>(Err(Failure::Unknown(String::new()))).is_err());
        let forbidden = Failure::Refused { code: 403, message: String::new() };
        assert!(found::<()>(Err(forbidden)).is_err());
    }

    #[test]
    fn a_kind_is_served_when_the_list_of_its_group_names_it() {
        let check = |list: serde_json::Value, served| {
            assert_eq!(names_kind(&list, "podgroups"), served, "{list}");
        };
        check(serde_json::json!({ "resources": [{ "name": "podgroups" }] }), true);
        check(serde_json::json!({ "resources": [{ "name": "podgroups/status" }] }), false);
        check(serde_json::json!({ "resources": 5 }), false);
        check(serde_json::json!({}), false);
    }
}
