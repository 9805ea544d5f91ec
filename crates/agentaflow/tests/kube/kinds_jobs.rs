//! Jobs of kinds whose controllers do not run here: the test creates and deletes their pods, by the real definitions.

use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::core::DynamicObject;
use serde_json::{Value, json};

use crate::kube_units::{bound_of, delete, job, job_set, path, runs, suspended, template};
use crate::plans::event;
use crate::support::{NodePlan, Scheduler, Share, wait_for};
use crate::{PROGRAM, controllers};

const RAY: &str = "ray.io/v1";
const TRAINER: &str = "trainer.kubeflow.org/v1alpha1";

async fn define(share: &Share, kind: &str) {
    let folder = std::env::var_os("AGENTAFLOW_TEST_KINDS").map(PathBuf::from);
    let folder = folder.expect("AGENTAFLOW_TEST_KINDS names a folder with definitions of kinds");
    let file = folder.join(format!("{kind}.yaml"));
    let text = std::fs::read_to_string(&file);
    let text = text.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    share.apply(&text).await;
}

/// A head without GPUs, and workers with two GPUs each.
fn ray_cluster_spec(share: &Share, workers: u32) -> Value {
    json!({
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

/// Waits until the suspend field has a value.
async fn becomes_suspended(share: &Share, group: &str, plural: &str, name: &str, value: bool) {
    wait_for(&format!("suspend of {name} is {value}"), async || {
        let now = suspended(share, group, plural, name).await;
        if now == Some(value) { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await;
}

fn owner(object: &DynamicObject) -> Value {
    let types = object.types.as_ref().expect("a kind");
    json!([{
        "apiVersion": types.api_version, "kind": types.kind, "controller": true,
        "name": object.metadata.name, "uid": object.metadata.uid,
    }])
}

/// Creates a pod of a Ray cluster as KubeRay does.
async fn create_ray_pod(share: &Share, cluster: &DynamicObject, name: &str, gpus: u32) {
    let mut pod = template(share, gpus);
    (pod["apiVersion"], pod["kind"]) = (json!("v1"), json!("Pod"));
    pod["metadata"]["name"] = json!(name);
    pod["metadata"]["labels"]["ray.io/cluster"] = json!(cluster.metadata.name);
    pod["metadata"]["ownerReferences"] = owner(cluster);
    share.apply_object(pod).await;
}

/// Creates head and workers; no pod is bound before the last one exists.
async fn start_ray_cluster(share: &Share, cluster: &DynamicObject, workers: u32) {
    let name = cluster.metadata.name.as_deref().expect("a name");
    let selector = format!("ray.io/cluster={name}");
    create_ray_pod(share, cluster, &format!("{name}-head"), 0).await;
    for number in 1..workers {
        create_ray_pod(share, cluster, &format!("{name}-{number}"), 2).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let bound = |pod: &Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    assert!(!share.pods(&selector).await.iter().any(bound), "a part of {name} is bound");
    create_ray_pod(share, cluster, &format!("{name}-{workers}"), 2).await;
    let all = workers as usize + 1;
    bound_of(share, &selector, all, all).await;
}

async fn delete_pods(share: &Share, selector: &str) {
    for pod in share.pods(selector).await {
        share.delete_pod(pod.metadata.name.as_deref().expect("a name")).await;
    }
    bound_of(share, selector, 0, 0).await;
}

#[tokio::test]
#[ignore = "needs definitions of kinds"]
async fn a_ray_cluster_is_admitted_preempted_and_resumed_whole() {
    let share = Share::new().await;
    share.nodes(2, &NodePlan::gpus(4)).await;
    define(&share, "ray.io_rayclusters").await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let ray = share.apply_object(ray_cluster(&share, "ray", 3)).await;
    becomes_suspended(&share, RAY, "rayclusters", "ray", false).await;
    event(&share, "RayCluster", "ray", "Admitted").await;
    start_ray_cluster(&share, &ray, 3).await;
    share.apply_object(ray_cluster(&share, "waits", 2)).await;
    event(&share, "RayCluster", "waits", "FailedScheduling").await;
    assert_eq!(suspended(&share, RAY, "rayclusters", "waits").await, Some(true));
    delete(&share, &path(&share, RAY, "rayclusters", "waits")).await;
    share.apply_object(job(&share, "urgent", 2, 9)).await;
    becomes_suspended(&share, RAY, "rayclusters", "ray", true).await;
    event(&share, "RayCluster", "ray", "Preempted").await;
    delete_pods(&share, "ray.io/cluster=ray").await;
    runs(&share, "urgent", 2).await;
    delete(&share, &path(&share, "batch/v1", "jobs", "urgent")).await;
    becomes_suspended(&share, RAY, "rayclusters", "ray", false).await;
    start_ray_cluster(&share, &ray, 3).await;
}

#[tokio::test]
#[ignore = "needs definitions of kinds"]
async fn a_ray_job_is_admitted_with_the_pods_of_its_cluster() {
    let share = Share::new().await;
    share.nodes(2, &NodePlan::gpus(4)).await;
    define(&share, "ray.io_rayclusters").await;
    define(&share, "ray.io_rayjobs").await;
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
    let first = share.apply_object(ray_job("first")).await;
    becomes_suspended(&share, RAY, "rayjobs", "first", false).await;
    let mut cluster = ray_cluster(&share, "first-cluster", 3);
    cluster["spec"]["suspend"] = json!(false);
    cluster["metadata"]["ownerReferences"] = owner(&first);
    let cluster = share.apply_object(cluster).await;
    start_ray_cluster(&share, &cluster, 3).await;
    share.apply_object(ray_job("second")).await;
    event(&share, "RayJob", "second", "FailedScheduling").await;
    assert_eq!(suspended(&share, RAY, "rayjobs", "second").await, Some(true));
    let status = json!({"status": {"jobDeploymentStatus": "Complete"}});
    let status_path = format!("{}/status", path(&share, RAY, "rayjobs", "first"));
    let answer = share.request("PATCH", &status_path, Some(&status)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    delete_pods(&share, "ray.io/cluster=first-cluster").await;
    becomes_suspended(&share, RAY, "rayjobs", "second", false).await;
}

/// The trainer creates a JobSet and copies the suspend field; the controller of JobSets runs.
#[tokio::test]
#[ignore = "needs definitions of kinds"]
async fn a_train_job_is_admitted_with_the_pods_of_its_job_set() {
    let share = Share::new().await;
    share.nodes(2, &NodePlan::gpus(4)).await;
    define(&share, "trainer.kubeflow.org_trainjobs").await;
    let _controller = controllers::job_set(&share).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let train_job = json!({
        "apiVersion": TRAINER, "kind": "TrainJob", "metadata": {"name": "train"},
        "spec": {"suspend": true, "runtimeRef": {"name": "torch-distributed"}},
    });
    let train_job = share.apply_object(train_job).await;
    let mut child = job_set(&share, "train");
    child["metadata"]["ownerReferences"] = owner(&train_job);
    share.apply_object(child).await;
    becomes_suspended(&share, TRAINER, "trainjobs", "train", false).await;
    event(&share, "TrainJob", "train", "Admitted").await;
    let job_sets = "jobset.x-k8s.io/v1alpha2";
    assert_eq!(suspended(&share, job_sets, "jobsets", "train").await, Some(true));
    let resume = json!({"spec": {"suspend": false}});
    let child_path = path(&share, job_sets, "jobsets", "train");
    let answer = share.request("PATCH", &child_path, Some(&resume)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    bound_of(&share, "jobset.sigs.k8s.io/jobset-name=train", 5, 5).await;
}
