//! Writes about pending pods, compared with kube-scheduler.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Event, Pod, PodCondition};
use kube::Resource;
use kube::api::{ListParams, WatchEvent, WatchParams};
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;

use crate::PROGRAM;
use crate::support::{NodePlan, PodPlan, Scheduler, Share, wait_for};

/// GPUs of the node, and pods of one GPU.
const GPUS: u32 = 4;
const PODS: u32 = 8;
/// Pods with more GPUs than the node has.
const TOO_LARGE: u32 = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn pods_cause_no_more_writes_than_with_kube_scheduler() {
    let (ours, theirs) = (Share::new().await, Share::new().await);
    let _scheduler = Scheduler::start(PROGRAM, &ours, &[]).await;
    let name = ours.scheduler_name();
    let (ours, theirs) = tokio::join!(writes(&ours, &name), writes(&theirs, "default-scheduler"));
    eprintln!("agentaflow: {ours:?}, kube-scheduler: {theirs:?}");
    assert!(ours.pods <= theirs.pods && ours.events <= theirs.events, "{ours:?}, {theirs:?}");
    // One binding or condition of each pod, and for pods that wait first both.
    assert!(ours.pods >= (PODS + TOO_LARGE) as usize, "{ours:?}");
}

/// Effective writes of a scheduler.
#[derive(Clone, Copy, Debug, Default)]
struct Writes {
    /// To pods without a node, their bindings included.
    pods: usize,
    /// Events of the scheduler about pods: new ones and counts.
    events: usize,
}

/// Fills a node, lets all pods that fit run in turn, and counts the writes.
async fn writes(share: &Share, scheduler: &str) -> Writes {
    share.node("only", &NodePlan::gpus(GPUS)).await;
    let writes: Arc<Mutex<Writes>> = Arc::default();
    let watches = [count_pod_writes(share, &writes).await, count_events(share, &writes).await];
    let plan = |name: String, gpus: u32| PodPlan::new(&name).gpus(gpus).scheduler(scheduler);
    for number in 0..TOO_LARGE {
        share.create_pod(&plan(format!("large-{number}"), GPUS + 1)).await;
    }
    for number in 0..PODS {
        share.create_pod(&plan(format!("small-{number}"), 1)).await;
    }
    let waiting = PODS - GPUS + TOO_LARGE;
    wait_for("every pod has a node or a condition", async || {
        let pods = share.pods("").await;
        let counts = (count(&pods, has_node), count(&pods, waits));
        let expected = (GPUS as usize, waiting as usize);
        if counts == expected { Ok(()) } else { Err(format!("{counts:?}")) }
    })
    .await;
    for left in (0..PODS - GPUS).rev() {
        let pods = share.pods("").await;
        let running = pods.iter().find(|pod| has_node(pod)).expect("a pod with a node");
        let name = running.metadata.name.clone().expect("a name");
        share.delete_pod(&name).await;
        wait_for("a pending pod gets the free GPU", async || {
            let pods = share.pods("").await;
            let counts = (count(&pods, has_node), pods.len());
            let expected = (GPUS as usize, (GPUS + TOO_LARGE + left) as usize);
            if counts == expected { Ok(()) } else { Err(format!("{counts:?}")) }
        })
        .await;
    }
    // Events follow later.
    tokio::time::sleep(Duration::from_secs(3)).await;
    watches.iter().for_each(JoinHandle::abort);
    *writes.lock().expect("no watch panicked")
}

async fn count_pod_writes(share: &Share, writes: &Arc<Mutex<Writes>>) -> JoinHandle<()> {
    let (mut bound, writes) = (BTreeSet::new(), writes.clone());
    watch(share, move |event: WatchEvent<Pod>| {
        let WatchEvent::Modified(pod) = event else { return };
        if !bound.contains(&pod.metadata.uid) {
            writes.lock().expect("no watch panicked").pods += 1;
        }
        if has_node(&pod) {
            bound.insert(pod.metadata.uid);
        }
    })
    .await
}

async fn count_events(share: &Share, writes: &Arc<Mutex<Writes>>) -> JoinHandle<()> {
    let writes = writes.clone();
    watch(share, move |event: WatchEvent<Event>| {
        let (WatchEvent::Added(event) | WatchEvent::Modified(event)) = event else { return };
        let reporter = event.reporting_component.as_deref();
        let is_scheduler = matches!(reporter, Some("agentaflow" | "default-scheduler"));
        if is_scheduler && event.involved_object.kind.as_deref() == Some("Pod") {
            writes.lock().expect("no watch panicked").events += 1;
        }
    })
    .await
}

/// Watches the objects of a share from now on.
async fn watch<K>(
    share: &Share,
    mut observe: impl FnMut(WatchEvent<K>) + Send + 'static,
) -> JoinHandle<()>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    K: Clone + Debug + DeserializeOwned + Send + 'static,
{
    let objects = share.api::<K>();
    let listed = objects.list(&ListParams::default()).await.expect("a list");
    let version = listed.metadata.resource_version.unwrap_or_default();
    let events = objects.watch(&WatchParams::default().timeout(290), &version).await;
    let mut events = events.expect("a watch").boxed();
    tokio::spawn(async move {
        while let Ok(Some(event)) = events.try_next().await {
            observe(event);
        }
    })
}

fn count(pods: &[Pod], is: fn(&Pod) -> bool) -> usize {
    pods.iter().filter(|pod| is(pod)).count()
}

pub(crate) fn has_node(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())
}

pub(crate) fn waits(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let is_false = |one: &PodCondition| one.type_ == "PodScheduled" && one.status == "False";
    !has_node(pod) && conditions.is_some_and(|all| all.iter().any(is_false))
}
