//! Ray and Kubeflow Trainer as units, with their operators.

use serde_json::{Value, json};

use crate::kube_units::{bound_of, delete, job, path, runs, suspended, template};
use crate::plans::event;
use crate::support::{NodePlan, Scheduler, Share, wait_for};
use crate::{PROGRAM, controllers};

const RAY: &str = "ray.io/v1";
const TRAINER: &str = "trainer.kubeflow.org/v1alpha1";
/// Pods of Ray clusters.
const RAY_PODS: &str = "ray.io/is-ray-node=yes";

/// A head without GPUs, and workers with two GPUs each.
fn ray_cluster_spec(share: &Share, workers: u32) -> Value {
    json!({
        "rayVersion": "2.46.0",
        "headGroupSpec": {"rayStartParams": {}, "template": template(share, 0)},
        "workerGroupSpecs": [{
            "groupName": "workers", "replicas": workers, "minReplicas": 0, "maxReplicas": workers,
            "rayStartParams": {}, "template": template(share, 2),
        }],
    })
}

fn ray_cluster(share: &Share, name: &str, workers: u32) -> Value {
    let mut spec = ray_cluster_spec(share, workers);
    spec["suspend"] = json!(true);
    json!({"apiVersion": RAY, "kind": "RayCluster", "metadata": {"name": name}, "spec": spec})
}

async fn is_suspended(share: &Share, group: &str, plural: &str, name: &str) {
    wait_for(&format!("{name} is suspended"), async || {
        let now = suspended(share, group, plural, name).await;
        if now == Some(true) { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await;
}

/// An urgent job preempts the unit, whose operator deletes its pods; without the job the unit runs again.
async fn preempts(share: &Share, group: &str, plural: &str, kind: &str, pods: (&str, usize)) {
    let (selector, count) = pods;
    share.apply_object(job(share, "urgent", 2, 9)).await;
    event(share, kind, "first", "Preempted").await;
    runs(share, "urgent", 2).await;
    is_suspended(share, group, plural, "first").await;
    bound_of(share, selector, 0, 0).await;
    delete(share, &path(share, "batch/v1", "jobs", "urgent")).await;
    bound_of(share, selector, count, count).await;
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_ray_cluster_with_its_operator_is_admitted_preempted_and_resumed_whole() {
    let share = Share::new().await;
    share.nodes(2, &NodePlan::gpus(4)).await;
    let _operator = controllers::ray(&share).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    share.apply_object(ray_cluster(&share, "first", 3)).await;
    event(&share, "RayCluster", "first", "Admitted").await;
    bound_of(&share, "ray.io/cluster=first", 4, 4).await;
    share.apply_object(ray_cluster(&share, "second", 2)).await;
    event(&share, "RayCluster", "second", "FailedScheduling").await;
    assert_eq!(suspended(&share, RAY, "rayclusters", "second").await, Some(true));
    preempts(&share, RAY, "rayclusters", "RayCluster", ("ray.io/cluster=first", 4)).await;
    delete(&share, &path(&share, RAY, "rayclusters", "first")).await;
    bound_of(&share, RAY_PODS, 3, 3).await;
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_ray_job_with_its_operator_is_admitted_preempted_and_resumed_whole() {
    let share = Share::new().await;
    share.nodes(2, &NodePlan::gpus(4)).await;
    let _operator = controllers::ray(&share).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let ray_job = |name: &str| {
        json!({
            "apiVersion": RAY, "kind": "RayJob", "metadata": {"name": name},
            "spec": {
                "suspend": true, "entrypoint": "python train.py", "shutdownAfterJobFinishes": true,
                "rayClusterSpec": ray_cluster_spec(&share, 3),
            },
        })
    };
    share.apply_object(ray_job("first")).await;
    event(&share, "RayJob", "first", "Admitted").await;
    bound_of(&share, RAY_PODS, 4, 4).await;
    // Timestamps have whole seconds, and the older job goes first.
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    share.apply_object(ray_job("second")).await;
    event(&share, "RayJob", "second", "FailedScheduling").await;
    assert_eq!(suspended(&share, RAY, "rayjobs", "second").await, Some(true));
    preempts(&share, RAY, "rayjobs", "RayJob", (RAY_PODS, 4)).await;
    is_suspended(&share, RAY, "rayjobs", "second").await;
    delete(&share, &path(&share, RAY, "rayjobs", "first")).await;
    wait_for("the second job is admitted", async || {
        let now = suspended(&share, RAY, "rayjobs", "second").await;
        if now == Some(false) { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await;
    bound_of(&share, RAY_PODS, 4, 4).await;
}

/// The trainer creates a JobSet from a runtime and copies the suspend field; the controllers of both run.
#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_train_job_with_its_operators_is_admitted_preempted_and_resumed_whole() {
    let share = Share::new().await;
    share.nodes(2, &NodePlan::gpus(4)).await;
    let _job_sets = controllers::job_set(&share).await;
    let _operator = controllers::trainer(&share).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let mut pod = template(&share, 2);
    pod["spec"]["containers"][0]["name"] = json!("node");
    let step = json!({"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"});
    let node = json!({
        "name": "node",
        "template": {"metadata": {"labels": step}, "spec": {"template": pod}},
    });
    let runtime = json!({
        "apiVersion": TRAINER, "kind": "TrainingRuntime", "metadata": {"name": "torch"},
        "spec": {
            "mlPolicy": {"numNodes": 4, "torch": {}},
            "template": {"spec": {"replicatedJobs": [node]}},
        },
    });
    share.apply_object(runtime).await;
    let train_job = |name: &str| {
        json!({
            "apiVersion": TRAINER, "kind": "TrainJob", "metadata": {"name": name},
            "spec": {"suspend": true, "runtimeRef": {"name": "torch", "kind": "TrainingRuntime"}},
        })
    };
    let pods = |name: &str| format!("jobset.sigs.k8s.io/jobset-name={name}");
    share.apply_object(train_job("first")).await;
    event(&share, "TrainJob", "first", "Admitted").await;
    bound_of(&share, &pods("first"), 4, 4).await;
    share.apply_object(train_job("second")).await;
    event(&share, "TrainJob", "second", "FailedScheduling").await;
    assert_eq!(suspended(&share, TRAINER, "trainjobs", "second").await, Some(true));
    delete(&share, &path(&share, TRAINER, "trainjobs", "second")).await;
    preempts(&share, TRAINER, "trainjobs", "TrainJob", (&pods("first"), 4)).await;
}
