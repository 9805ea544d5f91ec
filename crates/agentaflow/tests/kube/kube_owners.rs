//! Annotations of Jobs, Deployments and Kubeflow jobs apply to their pods; replaced pods keep their place in the queue.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::EvictParams;
use serde_json::json;

use crate::plans::{placed_by_us, pod_waits};
use crate::support::{NodePlan, Scheduler, Share, wait_for};
use crate::{PROGRAM, controllers};

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn annotations_of_owners_apply_to_their_pods() {
    let share = Share::new().await;
    share.node("a", &NodePlan::gpus(8)).await;
    controllers::define(&share, &["kubeflow.org_pytorchjobs"]).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let metadata =
        |name: &str| json!({"name": name, "annotations": {"agentaflow.gpu/priority": "7"}});
    let template = |app: &str, restart: &str| {
        let pod = share.one_gpu("").label("app", app);
        pod.spec("restartPolicy", json!(restart)).template()
    };
    let job = json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata("sweep"),
        "spec": {"template": template("sweep", "Never")},
    });
    share.apply_object(job).await;
    // A pod of a Deployment has two levels of owners.
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata("serve"),
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "serve"}},
            "template": template("serve", "Always"),
        },
    });
    share.apply_object(deployment).await;
    let pytorch = json!({
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": metadata("pytorch"),
        "spec": {"pytorchReplicaSpecs": {"Master": {"template": {"spec": {
            "containers": [{"name": "pytorch", "image": "registry.example/main:1"}],
        }}}}},
    });
    let owner = share.apply_object(pytorch).await;
    let mut pod = share.one_gpu("pytorch-master-0").label("app", "pytorch").object();
    pod["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "controller": true,
        "name": "pytorch", "uid": owner.metadata.uid,
    }]);
    share.apply_object(pod).await;
    for app in ["sweep", "serve", "pytorch"] {
        let pod = only_pod(&share, &format!("app={app}")).await;
        placed_by_us(&share, &pod).await;
        // Written with the binding.
        let annotations = share.pod(&pod).await.unwrap().metadata.annotations.unwrap();
        assert_eq!(annotations["agentaflow.gpu/priority"], "7", "{app}");
    }
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn the_replacement_of_an_evicted_pod_starts_before_a_younger_pod() {
    let share = Share::new().await;
    share.node("only", &NodePlan::gpus(1)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    // The replacement exists before the GPU is free.
    let pod = share.one_gpu("").label("app", "serve").stop_after("3s");
    let template = pod.spec("restartPolicy", json!("Always")).template();
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "serve"},
        "spec": {
            "replicas": 1, "selector": {"matchLabels": {"app": "serve"}}, "template": template,
        },
    });
    share.apply_object(deployment).await;
    let first = only_pod(&share, "app=serve").await;
    share.in_phase(&first, "Running").await;
    // Creation timestamps have whole seconds.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    share.create_pod(&share.one_gpu("younger")).await;
    pod_waits(&share, "younger", "Unschedulable").await;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let evicted = share.api::<Pod>().evict(&first, &EvictParams::default()).await;
    evicted.expect("an eviction");
    share.wait_deleted(&first).await;
    let second = only_pod(&share, "app=serve").await;
    placed_by_us(&share, &second).await;
    let younger = share.pod("younger").await.expect("the younger pod").spec;
    assert_eq!(younger.and_then(|spec| spec.node_name), None, "the younger pod passed it");
}

async fn only_pod(share: &Share, selector: &str) -> String {
    wait_for(&format!("a pod with {selector}"), async || {
        let pods = share.pods(selector).await;
        pods.into_iter().next().and_then(|pod| pod.metadata.name).ok_or("none")
    })
    .await
}
