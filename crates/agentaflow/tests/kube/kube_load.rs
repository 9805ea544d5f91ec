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
use crate::support::{NodePlan, PodPlan, Program, Scheduler, Share, free_port, wait_for};

/// Pods of each scheduler with a place, and pods with more GPUs than any node has.
const FITTING: usize = 100;
const TOO_LARGE: usize = 300;
/// Longest time for all of them.
const LIMIT: Duration = Duration::from_secs(120);
/// Calls per second that kube-scheduler may make; its default is 50.
const CALLS: u32 = 5000;
/// Tests beside this one disturb both schedulers.
const MARGIN: f64 = 1.2;

/// Times until all pods of a scheduler have a condition or a node.
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
    // Both wait while their pods are created, and start at the same time.
    for share in [&ours, &theirs] {
        share.nodes(2, &NodePlan::gpus(FITTING as u32 / 2)).await;
    }
    let patient = ["--lease-duration", "100s", "--renew-deadline", "95s"];
    let first = Scheduler::start(PROGRAM, &ours, &patient).await;
    let second = kube_scheduler(&theirs).await;
    for program in [&first.program, &second] {
        program.signal("STOP");
    }
    tokio::join!(create_pods(&ours), create_pods(&theirs));
    let programs = [&first.program, &second];
    let resume = async {
        for program in programs {
            program.signal("CONT");
        }
    };
    let (ours, theirs, ()) = tokio::join!(times(&ours), times(&theirs), resume);
    eprintln!("agentaflow: {ours:?}, kube-scheduler: {theirs:?}");
    assert!(ours.conditions <= theirs.conditions.mul_f64(MARGIN), "{ours:?}, {theirs:?}");
    assert!(ours.bindings <= theirs.bindings.mul_f64(MARGIN), "{ours:?}, {theirs:?}");
}

/// kube-scheduler without its limit of calls, for the scheduler name of the share.
async fn kube_scheduler(share: &Share) -> Program {
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
    let program = Program::start(command, &share.file("kube-scheduler.log"));
    // It schedules: its caches are filled.
    share.create_pod(&PodPlan::new("probe").gpus(64).scheduler(&share.scheduler_name())).await;
    wait_for("kube-scheduler runs", async || {
        let probe = share.pod("probe").await.filter(waits);
        probe.map(drop).ok_or("no condition")
    })
    .await;
    share.delete_pod("probe").await;
    program
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
    let began = Instant::now();
    let (mut waiting, mut bound) = (BTreeSet::new(), BTreeSet::new());
    let mut times = Times { conditions: LIMIT, bindings: LIMIT };
    let all = async {
        while bound.len() < FITTING || waiting.len() < TOO_LARGE {
            let event = events.try_next().await.expect("an event").expect("the watch goes on");
            let WatchEvent::Modified(pod) = event else { continue };
            let name = pod.metadata.name.clone();
            if has_node(&pod) && bound.insert(name.clone()) {
                times.bindings = began.elapsed();
            } else if waits(&pod) && waiting.insert(name) {
                times.conditions = began.elapsed();
            }
        }
    };
    tokio::time::timeout(LIMIT, all).await.expect("all pods have a condition or a node");
    times
}
