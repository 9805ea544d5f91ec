//! Lifecycle of a `GPUWorkload`.

use std::process::Command;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::PROGRAM;
use crate::plans::{
    WorkloadPlan, alone, condition, delete_workload, in_phase, placed_by_us, wait_workload,
    waits_because, workload,
};
use crate::support::{NodePlan, PodPlan, Scheduler, Share, wait_for};

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_workload_is_pending_scheduled_running_and_succeeded() {
    let share = Share::new().await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let pods = PodPlan::new("").start_after("2s").complete_after("1s");
    WorkloadPlan::new(&share, "train", &pods).gpus(2).create(&share).await;
    let words = waits_because(&share, "train", "NoNodes").await;
    assert!(words.contains("No nodes in the cluster"), "{words}");
    assert_eq!(workload(&share, "train").await.unwrap()["status"]["phase"], "Pending");
    let node = share.node("a", &NodePlan::gpus(4)).await;
    let status = in_phase(&share, "train", "Scheduled").await;
    assert_eq!(status["assignedNode"], node);
    assert_eq!(status["assignedGPU"], format!("{node}/0,{node}/1"));
    check(&status, "Schedulable", "True", "Scheduled");
    check(&status, "Assigned", "True", "Planned");
    check(&status, "Ready", "False", "Starting");
    assert_eq!(placed_by_us(&share, "train-0").await, node);
    let status = in_phase(&share, "train", "Running").await;
    check(&status, "Ready", "True", "Running");
    assert!(status["startTime"].is_string());
    let status = in_phase(&share, "train", "Succeeded").await;
    assert!(status["completionTime"].is_string());
    check(&status, "Ready", "False", "Succeeded");
    wait_for("the events of its life", async || {
        let events = share.events("train").await;
        let seen: Vec<String> = events.into_iter().filter_map(|event| event.reason).collect();
        let wanted = ["Created", "Scheduled", "Started", "Succeeded"];
        let all = wanted.iter().all(|reason| seen.iter().any(|seen| seen == reason));
        all.then_some(()).ok_or_else(|| format!("{seen:?}"))
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn the_planned_gpus_give_way_to_those_that_the_kubelet_chose() {
    let share = Share::new().await;
    let node = share.node("a", &NodePlan::gpus(2)).await;
    share.apply_file("deploy/crds").await;
    share.apply_object(gpu_node(&share, &node)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    for (name, real) in [("told-by-monitor", "GPU-b"), ("told-by-kubelet", "GPU-a")] {
        WorkloadPlan::new(&share, name, &PodPlan::new("")).create(&share).await;
        let status = in_phase(&share, name, "Running").await;
        check(&status, "Assigned", "True", "Planned");
        let planned = status["assignedGPU"].as_str().unwrap().to_owned();
        assert!(planned.starts_with(&format!("{node}/GPU-")), "{planned}");
        let pod = format!("{name}-0");
        if name == "told-by-monitor" {
            annotate(&share, &pod, json!({"agentaflow.gpu/allocated-devices": real})).await;
        } else {
            tell_devices(&share, &pod, real).await;
        }
        let status = wait_workload(&share, name, "confirmed", |object| {
            let told = condition(&object["status"], "Assigned");
            (told["reason"] == "Confirmed").then(|| object["status"].clone())
        })
        .await;
        assert_eq!(status["assignedGPU"], format!("{node}/{real}"));
    }
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_failing_workload_fails_after_its_retries() {
    let share = Share::new().await;
    share.node("a", &NodePlan::gpus(1)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let pods = PodPlan::new("").fail_after("100ms", 3);
    WorkloadPlan::new(&share, "crash", &pods).spec("retries", 1).create(&share).await;
    placed_by_us(&share, "crash-0").await;
    placed_by_us(&share, "crash-0-r1").await;
    let status = in_phase(&share, "crash", "Failed").await;
    assert_eq!(status["retries"], 1);
    let words = status["message"].as_str().unwrap();
    assert!(words.contains("after 1 retry") && words.contains("exited with code 3"), "{words}");
    check(&status, "Ready", "False", "Failed");
    // A failed workload releases its GPUs.
    WorkloadPlan::new(&share, "next", &PodPlan::new("")).create(&share).await;
    in_phase(&share, "next", "Running").await;
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_deleted_workload_releases_its_gpus_after_its_pods_stop() {
    let share = Share::new().await;
    let node = share.node("a", &NodePlan::gpus(2)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let slow = PodPlan::new("").stop_after("2s");
    WorkloadPlan::new(&share, "first", &slow).spec("gangSize", 2).create(&share).await;
    in_phase(&share, "first", "Running").await;
    WorkloadPlan::new(&share, "second", &PodPlan::new("")).gpus(2).create(&share).await;
    let words = waits_because(&share, "second", "NoRoom").await;
    assert!(words.contains("lacks 2 free GPUs"), "{words}");
    delete_workload(&share, "first").await;
    let going = workload(&share, "first").await.expect("its pods are still there");
    assert!(going["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(placed_by_us(&share, "second-0").await, node);
    assert!(share.pod("first-0").await.is_none() && share.pod("first-1").await.is_none());
    wait_for("workload first gone", async || {
        workload(&share, "first").await.map_or(Ok(()), |object| Err(object["status"].to_string()))
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn an_invalid_pod_template_is_reported_and_does_not_block() {
    let share = Share::new().await;
    share.node("a", &NodePlan::gpus(2)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let scheduler = share.scheduler_name();
    let bad = json!({"spec": {"schedulerName": scheduler, "containers": "none"}});
    let odd = json!({"spec": {"schedulerName": scheduler, "containers": [{"image": "a b"}]}});
    let plan = |name: &str| WorkloadPlan::new(&share, name, &PodPlan::new(""));
    plan("bad").spec("podTemplate", bad).create(&share).await;
    plan("odd").spec("podTemplate", odd).create(&share).await;
    plan("good").create(&share).await;
    in_phase(&share, "good", "Running").await;
    let words = waits_because(&share, "bad", "InvalidTemplate").await;
    assert!(words.contains("podTemplate.spec.containers"), "{words}");
    let words = waits_because(&share, "odd", "PodRejected").await;
    assert!(words.contains("containers[0].name"), "{words}");
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn kubectl_shows_workloads_with_their_phase_gpus_and_node() {
    let share = Share::new().await;
    let node = share.node("a", &NodePlan::gpus(2)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    WorkloadPlan::new(&share, "train", &PodPlan::new("")).gpus(2).create(&share).await;
    in_phase(&share, "train", "Running").await;
    let programs = share.cluster.programs.clone().unwrap_or_default();
    let mut kubectl = Command::new(programs.join("kubectl"));
    kubectl.arg("--kubeconfig").arg(&share.cluster.kubeconfig);
    kubectl.args(["--namespace", &share.namespace, "get", "gw", "-o", "wide"]);
    let shown = kubectl.output().expect("kubectl");
    let text = String::from_utf8_lossy(&shown.stdout);
    let lines: Vec<Vec<&str>> =
        text.lines().map(|line| line.split_whitespace().collect()).collect();
    let [head, row] = &lines[..] else { panic!("{text}") };
    assert_eq!(
        head,
        &["NAME", "QUEUE", "PHASE", "GPUS", "NODE", "PODS", "PRIORITY", "PRICE/H", "REASON", "AGE"]
    );
    assert_eq!(row[..6], ["train", "Running", "2", &node, "1", "5"]);
    assert!(row.contains(&"Scheduled"), "{text}");
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn an_unreadable_workload_is_reported_and_does_not_block() {
    let _alone = alone().await;
    let share = Share::new().await;
    share.node("a", &NodePlan::gpus(2)).await;
    share.apply_file("deploy/crds").await;
    create_unreadable(&share, "odd").await;
    // The schedulerName is unreadable, so the default scheduler reports the error.
    let _scheduler = Scheduler::start(PROGRAM, &share, &["--scheduler-name", "agentaflow"]).await;
    let plan = WorkloadPlan::new(&share, "good", &PodPlan::new(""));
    plan.spec("podTemplate", PodPlan::new("").template()).create(&share).await;
    placed_by_us(&share, "good-0").await;
    let words = waits_because(&share, "odd", "InvalidSpec").await;
    assert!(words.contains("Cannot read the spec") && words.contains("high"), "{words}");
    delete_workload(&share, "odd").await;
    wait_for("workload odd gone", async || {
        workload(&share, "odd").await.map_or(Ok(()), |object| Err(object.to_string()))
    })
    .await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn an_unhealthy_gpu_is_not_used_until_it_recovers() {
    let share = Share::new().await;
    let node = share.node("a", &NodePlan::gpus(2)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    share.apply_object(gpu_node(&share, &node)).await;
    let health = async |well: bool| {
        let status = json!({"phase": "Active", "gpuStatus": [
            {"id": "GPU-a", "available": true}, {"id": "GPU-b", "available": well}]});
        let path =
            format!("/apis/agentaflow.io/v1/namespaces/{}/gpunodes/{node}/status", share.namespace);
        let answer = share.request("PATCH", &path, Some(&json!({"status": status}))).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
    };
    health(false).await;
    let plan = WorkloadPlan::new(&share, "both", &PodPlan::new("")).gpus(2);
    plan.create(&share).await;
    waits_because(&share, "both", "NoRoom").await;
    health(true).await;
    in_phase(&share, "both", "Running").await;
}

#[track_caller]
fn check(status: &Value, kind: &str, is: &str, reason: &str) {
    let found = condition(status, kind);
    assert_eq!((&found["status"], &found["reason"]), (&json!(is), &json!(reason)), "{status}");
}

/// `GPUNode` of a monitor.
fn gpu_node(share: &Share, node: &str) -> Value {
    let device = |id: &str| {
        json!({"id": id, "name": "NVIDIA A100-SXM4-80GB", "memoryTotal": 81_920,
            "pciBusID": "00000000:07:00.0", "driverVersion": "580.65.06"})
    };
    json!({
        "apiVersion": "agentaflow.io/v1",
        "kind": "GPUNode",
        "metadata": {"name": node, "namespace": share.namespace},
        "spec": {"nodeName": node, "gpuDevices": [device("GPU-a"), device("GPU-b")]},
    })
}

pub(crate) async fn annotate(share: &Share, pod: &str, annotations: Value) {
    let patch = json!({"metadata": {"annotations": annotations}});
    let patched =
        share.api::<Pod>().patch(pod, &PatchParams::default(), &Patch::Merge(patch)).await;
    patched.expect("an annotated pod");
}

/// Device status of a container from the kubelet.
async fn tell_devices(share: &Share, pod: &str, id: &str) {
    let path = format!("/api/v1/namespaces/{}/pods/{pod}/status", share.namespace);
    let mut object = share.request("GET", &path, None).await.json();
    object["status"]["containerStatuses"][0]["allocatedResourcesStatus"] = json!([
        {"name": "nvidia.com/gpu", "resources": [{"resourceID": id, "health": "Healthy"}]}
    ]);
    let answer = share.request("PUT", &path, Some(&object)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}
