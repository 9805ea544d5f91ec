//! Lifecycle of a `GPUWorkload` on a kubelet.

use std::sync::{Arc, Mutex};

use futures_util::{StreamExt as _, TryStreamExt as _};
use kube::Api;
use kube::api::WatchParams;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind, WatchEvent};
use serde_json::{Value, json};

use super::real::{LISTENS, NAME, RealNode, UNTIL_TOLD, go_on, lent, script};
use crate::PROGRAM;
use crate::command_line::CommandLine;
use crate::plans::{
    WorkloadPlan, condition, in_phase, placed_by_us, wait_workload, waits_because, workload,
};
use crate::support::{Scheduler, Share, wait_for};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes node"]
async fn a_workload_on_a_kubelet_has_its_allocated_gpus_in_its_status() {
    let _lent = lent().await;
    let share = Share::new().await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let history = History::of(&share).await;
    let says = format!("{LISTENS}; echo devices=$NVIDIA_VISIBLE_DEVICES; {UNTIL_TOLD}");
    let pods = script("", &says);
    WorkloadPlan::new(&share, "train", &pods).gpus(2).create(&share).await;
    waits_because(&share, "train", "NoNodes").await;
    let node = RealNode::join(&share, 4).await;
    assert_eq!(placed_by_us(&share, "train-0").await, NAME);
    let planned = in_phase(&share, "train", "Running").await;
    assert_eq!(planned["assignedNode"], NAME, "{planned}");
    let confirmed = wait_workload(&share, "train", "confirmed", |object| {
        let reported = condition(&object["status"], "Assigned");
        (reported["reason"] == "Confirmed").then(|| object["status"].clone())
    })
    .await;
    // The plugin prefers its last devices, which the scheduler does not know.
    let chosen = [&node.devices[3], &node.devices[2]];
    let mut wanted: Vec<String> = chosen.iter().map(|id| format!("{NAME}/{id}")).collect();
    wanted.sort();
    let mut reported: Vec<&str> = confirmed["assignedGPU"].as_str().unwrap().split(',').collect();
    reported.sort_unstable();
    assert_eq!(reported, wanted);
    let log = wait_for("it names the device", async || {
        let log = share.log("train-0").await;
        if log.ends_with('\n') { Ok(log) } else { Err(log) }
    })
    .await;
    let mut given: Vec<&str> = log.trim().trim_start_matches("devices=").split(',').collect();
    given.sort_unstable();
    assert_eq!(given, wanted.iter().map(|gpu| &gpu[NAME.len() + 1..]).collect::<Vec<_>>());

    go_on(&share, "train-0").await;
    let ended = in_phase(&share, "train", "Succeeded").await;
    assert!(ended["completionTime"].is_string(), "{ended}");
    assert_eq!(
        history.phases("train"),
        ["Pending", "Scheduled", "Running", "Succeeded"],
        "each once, in this order"
    );
    assert_eq!(history.assigned("train"), ["Planned", "Confirmed"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes node"]
async fn a_failing_workload_is_retried_and_has_its_exit_code() {
    let _lent = lent().await;
    let share = Share::new().await;
    let _node = RealNode::join(&share, 1).await;
    let scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let pods = script("", "echo no such file >&2; exit 3");
    WorkloadPlan::new(&share, "crash", &pods).spec("retries", 1).create(&share).await;
    let me = CommandLine::new(&share, &scheduler);
    let mut follows = me.starts(&share, &["logs", "-f", "crash"]);
    let status = in_phase(&share, "crash", "Failed").await;
    assert_eq!(status["retries"], 1, "{status}");
    let job = me.json(&["status", "crash", "-o", "json"]);
    assert_eq!((&job["end_reason"], &job["exit_code"]), (&json!("Exited"), &json!(3)), "{job}");
    assert!(share.pod("crash-0-r1").await.is_some(), "the second try is another pod");
    assert_eq!(follows.ended().await.code(), Some(0), "{}", follows.log());
    // Stderr may report first that the job has not started.
    let log = follows.log();
    let written = log.lines().filter(|line| *line == "no such file").count();
    assert_eq!(written, 2, "both attempts are followed:\n{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes node"]
async fn a_pod_rejected_by_the_kubelet_is_recreated_without_a_retry() {
    let _lent = lent().await;
    let share = Share::new().await;
    let node = RealNode::join(&share, 1).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    node.plugin.refuse_next();
    let events = script("", "sleep 300");
    WorkloadPlan::new(&share, "train", &events).spec("retries", 0).create(&share).await;
    // The rejected pod may be gone before a test can read it.
    wait_for("the rejection", async || match node.plugin.refusals() {
        0 => Ok(()),
        left => Err(left),
    })
    .await;
    let status = in_phase(&share, "train", "Running").await;
    assert_eq!(status["retries"].as_u64().unwrap_or(0), 0, "{status}");
    assert_eq!(placed_by_us(&share, "train-0-r1").await, NAME);
    let object = workload(&share, "train").await.unwrap();
    assert_eq!(object["spec"]["retries"], 0, "it may not fail once by its own doing");
}

/// History of the statuses of the workloads.
struct History(Arc<Mutex<Vec<Value>>>);

impl History {
    async fn of(share: &Share) -> Self {
        let kind = GroupVersionKind::gvk("agentaflow.io", "v1", "GPUWorkload");
        let resource = ApiResource::from_gvk_with_plural(&kind, "gpuworkloads");
        let api: Api<DynamicObject> =
            Api::namespaced_with(share.client(), &share.namespace, &resource);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let watch = api.watch(&WatchParams::default(), "0").await.expect("news of workloads");
        let notes = Arc::clone(&seen);
        tokio::spawn(async move {
            let mut watch = watch.boxed();
            while let Ok(Some(event)) = watch.try_next().await {
                if let WatchEvent::Added(object) | WatchEvent::Modified(object) = event {
                    let object = serde_json::to_value(object).expect("an object");
                    notes.lock().unwrap().push(object);
                }
            }
        });
        Self(seen)
    }

    fn phases(&self, name: &str) -> Vec<String> {
        self.each(name, |status| status["phase"].as_str().map(str::to_owned))
    }

    /// Source of the GPU ids in the status.
    fn assigned(&self, name: &str) -> Vec<String> {
        self.each(name, |status| {
            let reported = condition(status, "Assigned");
            let reason = reported["reason"].as_str().filter(|_| reported["status"] == "True");
            reason.map(str::to_owned)
        })
    }

    /// The history without repetitions.
    fn each(&self, name: &str, read: impl Fn(&Value) -> Option<String>) -> Vec<String> {
        let seen = self.0.lock().unwrap();
        let own = seen.iter().filter(|object| object["metadata"]["name"] == name);
        let mut reported: Vec<String> = own.filter_map(|object| read(&object["status"])).collect();
        reported.dedup();
        reported
    }
}
