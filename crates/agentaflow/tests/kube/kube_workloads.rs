//! Lifecycle of a `GPUWorkload`.

use std::process::Command;

use serde_json::{Value, json};

use crate::PROGRAM;
use crate::ledger::Ledger;
use crate::plans::{
    WorkloadPlan, alone, condition, delete_workload, event, in_phase, placed_by_us, waits_because,
    workload,
};
use crate::support::{NodePlan, PodPlan, Scheduler, Share, wait_for};

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn status_events_and_printer_columns_follow_the_life_of_a_workload() {
    let share = Share::new().await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let pods = PodPlan::new("").start_after("2s").complete_after("4s");
    WorkloadPlan::new(&share, "train", &pods).gpus(2).create(&share).await;
    waits_because(&share, "train", "NoNodes").await;
    assert_eq!(workload(&share, "train").await.unwrap()["status"]["phase"], "Pending");
    let node = share.node("a", &NodePlan::gpus(4)).await;
    let status = in_phase(&share, "train", "Scheduled").await;
    assert_eq!(status["assignedNode"], node);
    assert_eq!(status["assignedGPU"], format!("{node}/0,{node}/1"));
    check(&status, "Schedulable", "True", "Scheduled");
    check(&status, "Assigned", "True", "Planned");
    check(&status, "Ready", "False", "Starting");
    let status = in_phase(&share, "train", "Running").await;
    check(&status, "Ready", "True", "Running");
    assert!(status["startTime"].is_string());
    check_columns(&share, &node);
    let status = in_phase(&share, "train", "Succeeded").await;
    assert!(status["completionTime"].is_string());
    check(&status, "Ready", "False", "Succeeded");
    for reason in ["Created", "Scheduled", "Started", "Succeeded"] {
        event(&share, "GPUWorkload", "train", reason).await;
    }
}

/// Columns of `kubectl get gpuworkloads -o wide` for the running workload `train`.
fn check_columns(share: &Share, node: &str) {
    let programs = share.cluster.programs.clone().unwrap_or_default();
    let mut kubectl = Command::new(programs.join("kubectl"));
    kubectl.arg("--kubeconfig").arg(&share.cluster.kubeconfig);
    kubectl.args(["--namespace", &share.namespace, "get", "gw", "-o", "wide"]);
    let output = kubectl.output().expect("kubectl");
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<Vec<&str>> =
        text.lines().map(|line| line.split_whitespace().collect()).collect();
    let [head, row] = &lines[..] else { panic!("{text}") };
    assert_eq!(
        head,
        &["NAME", "QUEUE", "PHASE", "GPUS", "NODE", "PODS", "PRIORITY", "PRICE/H", "REASON", "AGE"]
    );
    // The queue is empty; the column of the price follows the priority.
    assert_eq!(row[..6], ["train", "Running", "2", node, "1", "5"], "{text}");
    assert_eq!(row[7], "Scheduled", "{text}");
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn workloads_that_cannot_run_have_a_reason_and_do_not_block() {
    let _alone = alone().await;
    let share = Share::new().await;
    share.node("a", &NodePlan::gpus(2)).await;
    share.apply_file("deploy/crds").await;
    create_unreadable(&share, "unreadable").await;
    // The schedulerName of an unreadable workload is unknown; the default scheduler reports the error.
    let _scheduler = Scheduler::start(PROGRAM, &share, &["--scheduler-name", "agentaflow"]).await;
    let plan = |name: &str, template: Value| {
        WorkloadPlan::new(&share, name, &PodPlan::new("")).spec("podTemplate", template)
    };
    plan("invalid", json!({"spec": {"containers": "none"}})).create(&share).await;
    plan("rejected", json!({"spec": {"containers": [{"image": "a b"}]}})).create(&share).await;
    plan("good", PodPlan::new("").template()).create(&share).await;
    placed_by_us(&share, "good-0").await;
    for (name, reason) in
        [("invalid", "InvalidTemplate"), ("rejected", "PodRejected"), ("unreadable", "InvalidSpec")]
    {
        waits_because(&share, name, reason).await;
        delete_workload(&share, name).await;
        wait_for(&format!("workload {name} gone"), async || {
            workload(&share, name).await.map_or(Ok(()), |object| Err(object.to_string()))
        })
        .await;
    }
}

/// Creates an unreadable workload while the CRD accepts all fields.
async fn create_unreadable(share: &Share, name: &str) {
    let definition =
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gpuworkloads.agentaflow.io";
    let path = format!("/apis/agentaflow.io/v1/namespaces/{}/gpuworkloads", share.namespace);
    let object = json!({
        "apiVersion": "agentaflow.io/v1",
        "kind": "GPUWorkload",
        "metadata": {"name": name},
        "spec": {"priority": "high", "gpuMemoryRequired": 0, "podTemplate": {}},
    });
    // Other tests may restore the CRD at any time.
    wait_for("an unreadable workload", async || {
        let mut lax = share.request("GET", definition, None).await.json();
        let version = lax["spec"]["versions"][0].as_object_mut().expect("a version");
        version.remove("selectableFields");
        version["schema"]["openAPIV3Schema"] =
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        share.request("PUT", definition, Some(&lax)).await;
        let answer = share.request("POST", &path, Some(&object)).await;
        if answer.status == 201 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    share.apply_file("deploy/crds").await;
}

#[track_caller]
fn check(status: &Value, kind: &str, is: &str, reason: &str) {
    let found = condition(status, kind);
    assert_eq!((&found["status"], &found["reason"]), (&json!(is), &json!(reason)), "{status}");
}

/// A namespace of the share with `count` workloads, of which two fit.
async fn crowded_namespace(share: &Share, count: usize) -> String {
    let space = format!("{}-more", share.namespace);
    share.create_namespace(&space, json!({})).await;
    let path = format!("/apis/agentaflow.io/v1/namespaces/{space}/gpuworkloads");
    for index in 0..count {
        let object = crate::bursts::workload(share, &format!("w-{index}"), 1, 1, &PodPlan::new(""));
        let answer = share.request("POST", &path, Some(&object)).await;
        assert_eq!(answer.status, 201, "{}", answer.body);
    }
    wait_for("two workloads run", async || {
        let list = share.request("GET", &path, None).await.json();
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let running = items.iter().filter(|item| item["status"]["phase"] == "Running").count();
        if running == 2 { Ok(()) } else { Err(format!("{running} run")) }
    })
    .await;
    space
}

async fn delete_namespace(share: &Share, space: &str) {
    let path = format!("/api/v1/namespaces/{space}");
    let answer = share.request("DELETE", &path, None).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    wait_for("the namespace is gone", async || {
        let answer = share.request("GET", &path, None).await;
        if answer.status == 404 { Ok(()) } else { Err(answer.body) }
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_namespace_with_workloads_is_deleted_while_no_scheduler_runs() {
    let share = Share::new().await;
    share.node("a", &NodePlan::gpus(2)).await;
    let mut scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let space = crowded_namespace(&share, 3).await;
    scheduler.program.kill();
    delete_namespace(&share, &space).await;
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn the_deletion_of_a_namespace_is_no_reason_for_warnings() {
    let share = Share::new().await;
    share.node("a", &NodePlan::gpus(2)).await;
    let scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let space = crowded_namespace(&share, 40).await;
    let before = scheduler.program.log();
    delete_namespace(&share, &space).await;
    let log = scheduler.program.log();
    // Other tests change the kinds, which interrupts watches.
    let is_warning = |line: &&str| line.contains("WARN") && !line.contains("watch interrupted");
    let warnings: Vec<&str> = log[before.len()..].lines().filter(is_warning).collect();
    assert_eq!(warnings, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn a_node_with_128_time_slices_takes_128_pods() {
    let share = Share::new().await;
    let slices = NodePlan::gpus(8)
        .label("nvidia.com/gpu.replicas", "16")
        .amount("nvidia.com/gpu", "128")
        .amount("pods", "200");
    share.node("sliced", &slices).await;
    let ledger = Ledger::open(&share).await;
    let scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    share.burst("slice", 129, |name| share.one_gpu(name)).await;
    ledger.until_bound(128).await;
    scheduler.counts("agentaflow_workloads_pending", 1.0).await;
    scheduler.counts("agentaflow_gpu_available", 0.0).await;
    ledger.check();
}
