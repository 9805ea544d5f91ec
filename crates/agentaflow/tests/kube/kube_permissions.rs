//! The scheduler with exactly the permissions of `deploy/`.

use std::path::PathBuf;

use serde_json::json;

use crate::kube_faults::old_report;
use crate::kube_manifests::{end_admission, start_with_admission_as};
use crate::kube_units::{bound_of, job, job_set, runs};
use crate::plans::{
    WorkloadPlan, alone, condition, delete_workload, event, in_phase, placed_by_us, workload,
};
use crate::support::{NodePlan, PodPlan, Scheduler, Share, repository, wait_for};
use crate::{PROGRAM, controllers};

/// Workloads, preemption, a claim, a queue and a restart with the service account of the role.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn the_scheduler_works_with_the_permissions_of_its_role() {
    let share = Share::new().await;
    let node = share.node("a", &NodePlan::gpus(1)).await;
    share.apply_file("deploy/crds").await;
    let kubeconfig = kubeconfig_of_role(&share).await;
    let mut scheduler = Scheduler::launch(PROGRAM, &share, &kubeconfig, "scheduler", &[]);
    scheduler.ready().await;
    scheduler.leads().await;

    let plan = |name: &str| WorkloadPlan::new(&share, name, &PodPlan::new(""));
    plan("low").spec("priority", 2).create(&share).await;
    in_phase(&share, "low", "Running").await;
    plan("high").spec("priority", 9).create(&share).await;
    assert_eq!(placed_by_us(&share, "high-0").await, node);
    event(&share, "GPUWorkload", "low", "Preempted").await;
    delete_workload(&share, "high").await;
    in_phase(&share, "low", "Running").await;
    delete_workload(&share, "low").await;
    wait_for("the workload is gone", async || match workload(&share, "low").await {
        None => Ok(()),
        Some(object) => Err(object.to_string()),
    })
    .await;

    let class = json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": format!("late-{}", share.id)},
        "provisioner": "example.com/late",
        "volumeBindingMode": "WaitForFirstConsumer",
    });
    share.apply_object(class).await;
    let claim = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": format!("late-{}", share.id),
        },
    });
    share.apply_object(claim).await;
    let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    share.create_pod(&share.one_gpu("with-claim").spec("volumes", volumes)).await;
    let path = format!("/api/v1/namespaces/{}/persistentvolumeclaims/data", share.namespace);
    wait_for("the claim has the node that was chosen", async || {
        let claim = share.request("GET", &path, None).await.json();
        let annotations = &claim["metadata"]["annotations"];
        let is_so = annotations["volume.kubernetes.io/selected-node"] == node.as_str();
        is_so.then_some(()).ok_or_else(|| claim.to_string())
    })
    .await;
    assert_nothing_denied(&mut scheduler);
}

/// Suspend fields of jobs, Services of gangs, conditions of reports and finished workloads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn the_scheduler_writes_jobs_services_and_reports_with_the_permissions_of_its_role() {
    let share = Share::new().await;
    let node = share.node("a", &NodePlan::gpus(16)).await;
    share.apply_file("deploy/crds").await;
    let _controller = controllers::job_set(&share).await;
    old_report(&share, &node).await;
    let kubeconfig = kubeconfig_of_role(&share).await;
    let mut scheduler = Scheduler::launch(PROGRAM, &share, &kubeconfig, "scheduler", &[]);
    scheduler.ready().await;
    scheduler.leads().await;

    share.apply_object(job(&share, "job", 2, 5)).await;
    runs(&share, "job", 2).await;
    share.apply_object(job_set(&share, "set")).await;
    bound_of(&share, "jobset.sigs.k8s.io/jobset-name=set", 5, 5).await;
    let space = &share.namespace;
    let report = format!("/apis/agentaflow.io/v1/namespaces/{space}/gpunodes/{node}");
    wait_for("the report is out of date", async || {
        let status = share.request("GET", &report, None).await.json()["status"].take();
        let is_lost = condition(&status, "Ready")["status"] == "Unknown";
        is_lost.then_some(()).ok_or_else(|| status.to_string())
    })
    .await;
    let ends = PodPlan::new("").complete_after("500ms");
    let gang = WorkloadPlan::new(&share, "gang", &ends).spec("gangSize", 2);
    gang.spec("ttlSecondsAfterFinished", 2).create(&share).await;
    let service = format!("/api/v1/namespaces/{space}/services/gang-gang");
    wait_for("the Service of the gang", async || {
        let answer = share.request("GET", &service, None).await;
        if answer.status == 200 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    wait_for("the finished gang is deleted", async || match workload(&share, "gang").await {
        None => Ok(()),
        Some(object) => Err(object["status"].to_string()),
    })
    .await;
    assert_nothing_denied(&mut scheduler);
}

/// Outside of the cluster the scheduler creates the webhook configurations.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn the_scheduler_creates_its_webhooks_with_the_permissions_of_its_role() {
    let _alone = alone().await;
    let share = Share::new().await;
    let kubeconfig = kubeconfig_of_role(&share).await;
    end_admission(&share).await;
    let mut scheduler = start_with_admission_as(&share, &kubeconfig).await;
    end_admission(&share).await;
    assert_nothing_denied(&mut scheduler);
}

/// Creates the role of the scheduler with an account for this test.
pub(crate) async fn kubeconfig_of_role(share: &Share) -> PathBuf {
    let roles = repository().join("deploy/kubernetes/20-rbac-scheduler.yaml");
    let roles = std::fs::read_to_string(roles).expect("the roles");
    // Account, names and namespace of the share, since other tests use the cluster.
    let roles = roles
        .replace("namespace: agentaflow\n", &format!("namespace: {}\n", share.namespace))
        .replace("name: agentaflow-scheduler\n", &format!("name: scheduler-{}\n", share.id))
        .replace("agentaflow-gpu-scheduler", &share.scheduler_name());
    share.apply(&roles).await;
    share.kubeconfig_of(&format!("scheduler-{}", share.id)).await
}

#[track_caller]
pub(crate) fn assert_nothing_denied(scheduler: &mut Scheduler) {
    scheduler.program.terminate();
    // `Forbidden` is the reason of a status with code 403; no metric counts denied requests.
    let log = scheduler.program.log();
    let denied = log.lines().find(|line| line.to_ascii_lowercase().contains("forbidden"));
    assert_eq!(denied, None);
}
