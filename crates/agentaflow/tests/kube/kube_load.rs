//! Conditions of pending pods beside bindings, compared with kube-scheduler in the same run.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, WatchEvent, WatchParams};
use serde_json::json;

use crate::PROGRAM;
use crate::kube_writes::{has_node, waits};
use crate::skip::skip;
use crate::support::{NodePlan, PodPlan, Program, Scheduler, Share, free_port};

/// Pods of each scheduler with a place, and pods with more GPUs than any node has.
const FITTING: usize = 100;
const TOO_LARGE: usize = 300;
/// Longest time for all of them.
const LIMIT: Duration = Duration::from_mins(2);
/// Calls per second that kube-scheduler may make; its default is 50.
const CALLS: u32 = 5000;
/// Tests beside this one disturb both schedulers.
const MARGIN: f64 = 1.2;

/// Times from the first write of a scheduler until all its pods have a condition or a node.
#[derive(Debug)]
struct Times {
    conditions: Duration,
    bindings: Duration,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn conditions_and_bindings_under_load_are_not_later_than_with_kube_scheduler() {
    let (ours, theirs) = (Share::new().await, Share::new().await);
    if ours.cluster.programs.is_none() {
        skip!("needs the programs of the control plane");
    }
    ours.apply_file("deploy/crds").await;
    for share in [&ours, &theirs] {
        share.nodes(2, &NodePlan::gpus(FITTING as u32 / 2)).await;
    }
    tokio::join!(create_pods(&ours), create_pods(&theirs));
    let start = async {
        // A saturated machine must not end the scheduler.
        let patient = ["--lease-duration", "60s", "--renew-deadline", "50s"];
        let kubeconfig = &ours.cluster.kubeconfig;
        let first = Scheduler::launch(PROGRAM, &ours, kubeconfig, "scheduler", &patient);
        (first, kube_scheduler(&theirs))
    };
    let (ours, theirs, _schedulers) = tokio::join!(times(&ours), times(&theirs), start);
    eprintln!("agentaflow: {ours:?}, kube-scheduler: {theirs:?}");
    assert!(ours.conditions <= theirs.conditions.mul_f64(MARGIN), "{ours:?}, {theirs:?}");
    assert!(ours.bindings <= theirs.bindings.mul_f64(MARGIN), "{ours:?}, {theirs:?}");
}

/// Starts kube-scheduler without its limit of calls, for the scheduler name of the share.
fn kube_scheduler(share: &Share) -> Program {
    let programs = share.cluster.programs.as_ref().expect("the programs of the control plane");
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {
            "kubeconfig": share.cluster.kubeconfig, "qps": CALLS, "burst": 2 * CALLS,
        },
        "leaderElection": {"leaderElect": false},
        "profiles": [{"schedulerName": share.scheduler_name()}],
    });
    let file = share.file("kube-scheduler.json");
    std::fs::write(&file, config.to_string()).expect("a configuration");
    let port = free_port().to_string();
    let mut command = Command::new(programs.join("kube-scheduler"));
    command.arg("--config").arg(file).args(["--secure-port", &port, "--v", "0"]);
    Program::start(command, &share.file("kube-scheduler.log"))
}

/// Of four pods, one fits.
async fn create_pods(share: &Share) {
    let scheduler = share.scheduler_name();
    share
        .burst("p", FITTING + TOO_LARGE, |name| {
            let number: usize = name.trim_start_matches("p-").parse().expect("a number");
            let gpus = if number.is_multiple_of(4) { 1 } else { 64 };
            PodPlan::new(name).gpus(gpus).scheduler(&scheduler)
        })
        .await;
}

/// Watches the pods of a share from now on.
async fn times(share: &Share) -> Times {
    let pods = share.api::<Pod>();
    let listed = pods.list(&ListParams::default()).await.expect("a list of pods");
    let version = listed.metadata.resource_version.unwrap_or_default();
    let params = WatchParams::default().timeout(290);
    let mut events = pods.watch(&params, &version).await.expect("a watch").boxed();
    let (mut waiting, mut bound) = (BTreeSet::new(), BTreeSet::new());
    let mut began: Option<Instant> = None;
    let mut times = Times { conditions: LIMIT, bindings: LIMIT };
    let all = async {
        while bound.len() < FITTING || waiting.len() < TOO_LARGE {
            let event = events.try_next().await.expect("an event").expect("the watch continues");
            let WatchEvent::Modified(pod) = event else { continue };
            let name = pod.metadata.name.clone();
            // The time of a start does not count.
            let passed = began.get_or_insert_with(Instant::now).elapsed();
            if has_node(&pod) && bound.insert(name.clone()) {
                times.bindings = passed;
            } else if waits(&pod) && waiting.insert(name) {
                times.conditions = passed;
            }
        }
    };
    tokio::time::timeout(LIMIT, all).await.expect("all pods have a condition or a node");
    times
}
