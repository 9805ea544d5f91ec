//! Watches all pods of a share and records violations: a pod on two nodes in its life, more GPUs in use than a node has,
//! and a gang of which only a part has nodes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::support::{Share, wait_for};

/// Delay after which the scheduler must know a change.
const NEWS: Duration = Duration::from_secs(2);
/// Longest time in which a part of a gang runs alone: the other bindings after a crash, or the replacement of a pod that a
/// kubelet rejected.
const ALONE: Duration = Duration::from_secs(20);
/// Labels with the name of a pod's gang.
const GANG_LABELS: [&str; 2] = ["agentaflow.gpu/workload", "batch.kubernetes.io/job-name"];

/// Observed pods of a share.
pub(crate) struct Ledger {
    book: Arc<Mutex<Book>>,
    watching: JoinHandle<()>,
}

/// Handling of a pod that does not fit its node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kubelet {
    Absent,
    /// The kubelet rejects the pod; a violation only if the scheduler must have known.
    Refuses,
}

struct Book {
    kubelet: Kubelet,
    scheduler: String,
    rooms: BTreeMap<String, i64>,
    pods: BTreeMap<String, Seen>,
    /// Node of each bound pod, by UID.
    homes: BTreeMap<String, String>,
    gangs: BTreeMap<String, Gang>,
    faults: Vec<String>,
    refused: u32,
    most: i64,
    complete: bool,
}

struct Seen {
    node: Option<String>,
    gpus: i64,
    over: bool,
    since: Instant,
    gang: Option<String>,
    part: Part,
}

/// A pod as a part of its gang.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Pending, failed or terminating.
    Missing,
    Placed,
    Succeeded,
}

struct Gang {
    size: usize,
    /// Time since which only a part has nodes.
    partial: Option<Instant>,
}

impl Ledger {
    /// Starts the watch; the nodes must exist.
    pub(crate) async fn open(share: &Share) -> Self {
        Self::begin(share, Kubelet::Absent).await
    }

    /// [`Self::open`] with kubelets that reject pods that do not fit.
    pub(crate) async fn with_kubelets(share: &Share) -> Self {
        Self::begin(share, Kubelet::Refuses).await
    }

    async fn begin(share: &Share, kubelet: Kubelet) -> Self {
        let book = Arc::new(Mutex::new(Book {
            kubelet,
            scheduler: share.scheduler_name(),
            rooms: BTreeMap::new(),
            pods: BTreeMap::new(),
            homes: BTreeMap::new(),
            gangs: BTreeMap::new(),
            faults: Vec::new(),
            refused: 0,
            most: 0,
            complete: false,
        }));
        let ledger = Self {
            watching: tokio::spawn(watch(share.client(), share.namespace.clone(), book.clone())),
            book,
        };
        ledger.survey(share).await;
        wait_for("the pods are watched", async || {
            ledger.book().complete.then_some(()).ok_or("not listed")
        })
        .await;
        ledger
    }

    /// Reads the GPUs of the nodes; repeat after adding nodes.
    pub(crate) async fn survey(&self, share: &Share) {
        let own = ListParams::default().labels(&share.node_selector());
        let nodes = share.cluster_api::<Node>().list(&own).await.expect("a list of nodes");
        let rooms = nodes.items.into_iter().map(|node| {
            let amounts = node.status.and_then(|status| status.allocatable).unwrap_or_default();
            let gpus = amounts.get("nvidia.com/gpu").map_or(0, |gpus| number(&gpus.0));
            (node.metadata.name.unwrap_or_default(), gpus)
        });
        self.book().rooms.extend(rooms);
    }

    /// Number of bound pods.
    pub(crate) fn bound(&self) -> usize {
        self.book().pods.values().filter(|pod| pod.node.is_some()).count()
    }

    /// Number of pods that neither run nor finished.
    pub(crate) fn waiting(&self) -> usize {
        self.book().pods.values().filter(|pod| pod.node.is_none() && !pod.over).count()
    }

    /// The scheduler was cut off until now: it may know the present pods from this moment on.
    pub(crate) fn end_outage(&self) {
        let mut book = self.book();
        book.pods.values_mut().for_each(|pod| pod.since = Instant::now());
        for gang in book.gangs.values_mut() {
            gang.partial = gang.partial.map(|_| Instant::now());
        }
    }

    /// Watches the gang of this `GPUWorkload` or Job.
    pub(crate) fn add_gang(&self, name: &str, size: usize) {
        self.book().gangs.insert(name.to_owned(), Gang { size, partial: None });
    }

    /// The gang is being deleted.
    pub(crate) fn remove_gang(&self, name: &str) {
        self.book().gangs.remove(name);
    }

    /// Number of pods that kubelets rejected.
    pub(crate) fn refused(&self) -> u32 {
        self.book().refused
    }

    /// Maximum of GPUs in use at the same time.
    pub(crate) fn most(&self) -> i64 {
        self.book().most
    }

    /// Waits until this many pods are bound.
    pub(crate) async fn until_bound(&self, count: usize) {
        wait_for(&format!("{count} pods bound"), async || {
            let now = self.bound();
            if now >= count { Ok(()) } else { Err(format!("{now} are")) }
        })
        .await;
    }

    /// Fails on a recorded violation.
    #[track_caller]
    pub(crate) fn check(&self) {
        assert!(!self.watching.is_finished(), "the pods are not watched any more");
        let mut book = self.book();
        let names: Vec<String> = book.gangs.keys().cloned().collect();
        for name in names {
            book.inspect_gang(&name);
        }
        assert!(
            book.faults.is_empty(),
            "{} faults:\n{}",
            book.faults.len(),
            book.faults.join("\n")
        );
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().expect("no holder of the lock panicked")
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

async fn watch(client: Client, namespace: String, book: Arc<Mutex<Book>>) {
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    let mut events = watcher(pods.clone(), watcher::Config::default()).default_backoff().boxed();
    while let Some(event) = events.next().await {
        let refused = {
            let mut book = book.lock().expect("no holder of the lock panicked");
            match event {
                Ok(watcher::Event::Init) => {
                    book.pods.clear();
                    None
                }
                Ok(watcher::Event::InitDone) => {
                    book.complete = true;
                    None
                }
                Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) => book.see(&pod),
                Ok(watcher::Event::Delete(pod)) => {
                    let gone = book.pods.remove(&pod.metadata.name.unwrap_or_default());
                    if let Some(gang) = gone.and_then(|pod| pod.gang) {
                        book.inspect_gang(&gang);
                    }
                    None
                }
                Err(_) => None,
            }
        };
        if let Some(name) = refused {
            refuse(&pods, &name).await;
        }
    }
}

/// Status of a pod that a kubelet rejects.
async fn refuse(pods: &Api<Pod>, name: &str) {
    let status = json!({"status": {
        "phase": "Failed",
        "reason": "OutOfnvidia.com/gpu",
        "message": "Pod was rejected: Node didn't have enough resource: nvidia.com/gpu, requested: 1, used: 4, capacity: 4",
    }});
    let patched = pods.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await;
    // The pod may have been deleted.
    drop(patched);
}

impl Book {
    /// Records a pod; returns its name if the kubelet rejects it.
    fn see(&mut self, pod: &Pod) -> Option<String> {
        let name = pod.metadata.name.clone().unwrap_or_default();
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let spec = pod.spec.as_ref()?;
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let over = matches!(phase, Some("Succeeded" | "Failed"));
        let known = self.pods.get(&name).filter(|seen| seen.node == spec.node_name);
        let since = known.map_or_else(Instant::now, |seen| seen.since);
        let is_new = known.is_none();
        let (asked, node, gang) = (gpus(pod), spec.node_name.clone(), gang(pod));
        let part = match phase {
            Some("Succeeded") => Part::Succeeded,
            Some("Failed") => Part::Missing,
            _ if node.is_none() || pod.metadata.deletion_timestamp.is_some() => Part::Missing,
            _ => Part::Placed,
        };
        let seen = Seen { node: node.clone(), gpus: asked, over, since, gang: gang.clone(), part };
        self.pods.insert(name.clone(), seen);
        if let Some(gang) = gang {
            self.inspect_gang(&gang);
        }
        let node = node?;
        let home = self.homes.entry(uid).or_insert_with(|| node.clone());
        if *home != node {
            self.faults.push(format!("{name} was on {home}, then on {node}"));
        }
        if over || !is_new {
            return None;
        }
        let total: i64 = self
            .pods
            .values()
            .filter(|pod| pod.node.is_some() && !pod.over)
            .map(|pod| pod.gpus)
            .sum();
        self.most = self.most.max(total);
        let room = *self.rooms.get(&node)?;
        let (all, old) = self.used(&node);
        if all <= room {
            return None;
        }
        let must_know =
            spec.scheduler_name.as_deref() == Some(&self.scheduler) && old + asked > room;
        if self.kubelet == Kubelet::Absent || must_know {
            self.faults.push(format!(
                "{name} was put on {node}, which has {room} GPUs: then {all} were in use, {old} of them for a while"
            ));
        }
        self.refused += 1;
        (self.kubelet == Kubelet::Refuses).then_some(name)
    }

    /// Records a gang of which a part ran alone for too long.
    fn inspect_gang(&mut self, name: &str) {
        let Some(gang) = self.gangs.get_mut(name) else { return };
        let own = self.pods.values().filter(|pod| pod.gang.as_deref() == Some(name));
        let parts: Vec<Part> = own.map(|pod| pod.part).collect();
        let count = |wanted| parts.iter().filter(|part| **part == wanted).count();
        let (placed, succeeded) = (count(Part::Placed), count(Part::Succeeded));
        if let Some(since) = gang.partial.take_if(|since| since.elapsed() > ALONE) {
            let time = since.elapsed().as_secs();
            self.faults.push(format!("a part of {name} was alone for {time} s"));
        }
        let is_partial = placed > 0 && placed + succeeded < gang.size;
        gang.partial = is_partial.then(|| gang.partial.unwrap_or_else(Instant::now));
    }

    /// GPUs in use on a node: all, and the GPUs known to all components.
    fn used(&self, node: &str) -> (i64, i64) {
        let there = self.pods.values().filter(|pod| pod.node.as_deref() == Some(node) && !pod.over);
        there.fold((0, 0), |(all, old), pod| {
            let known = if pod.since.elapsed() > NEWS { pod.gpus } else { 0 };
            (all + pod.gpus, old + known)
        })
    }
}

fn gang(pod: &Pod) -> Option<String> {
    let labels = pod.metadata.labels.as_ref()?;
    GANG_LABELS.iter().find_map(|label| labels.get(*label)).cloned()
}

fn gpus(pod: &Pod) -> i64 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let limits = containers.filter_map(|container| container.resources.as_ref()?.limits.as_ref());
    limits.filter_map(|limits| limits.get("nvidia.com/gpu")).map(|gpus| number(&gpus.0)).sum()
}

fn number(text: &str) -> i64 {
    text.parse().expect("a whole number of GPUs")
}
