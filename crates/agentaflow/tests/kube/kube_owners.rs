//! Annotations of Jobs, Deployments and Kubeflow jobs apply to their pods.

use serde_json::{Value, json};

use crate::PROGRAM;
use crate::plans::{placed_by_us, pod_waits};
use crate::support::{NodePlan, PodPlan, Scheduler, Share, wait_for};

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn pods_of_jobs_and_deployments_have_the_priority_of_their_owners() {
    let share = Share::new().await;
    let node = share.node("a", &NodePlan::gpus(2)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let template = || PodPlan::new("").gpus(2).scheduler(&share.scheduler_name());
    share.create_pod(&template_named("low", &share)).await;
    placed_by_us(&share, "low").await;
    share.in_phase("low", "Running").await;
    let job = json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "sweep", "annotations": {"agentaflow.gpu/priority": "7"}},
        "spec": {"template": template().complete_after("500ms").template()},
    });
    share.apply_object(job).await;
    let pod = only_pod(&share, "job-name=sweep").await;
    assert_eq!(placed_by_us(&share, &pod).await, node);
    share.gone("low").await;
    let written = share.pod(&pod).await.unwrap().metadata.annotations.unwrap();
    assert_eq!(written["agentaflow.gpu/priority"], "7", "written down with the binding");
    share.in_phase(&pod, "Succeeded").await;
    // Pods of a Deployment have two levels of owners.
    share.create_pod(&template_named("low-again", &share)).await;
    share.in_phase("low-again", "Running").await;
    let mut pods =
        template().label("app", "serve").spec("restartPolicy", json!("Always")).template();
    pods["metadata"]["annotations"] = json!({});
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "serve", "annotations": {"agentaflow.gpu/priority": "8"}},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "serve"}}, "template": pods},
    });
    share.apply_object(deployment).await;
    let pod = only_pod(&share, "app=serve").await;
    assert_eq!(placed_by_us(&share, &pod).await, node);
    share.gone("low-again").await;
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn annotations_of_a_pytorch_job_apply_to_its_pods() {
    let share = Share::new().await;
    let node = share.node("a", &NodePlan::gpus(2)).await;
    share.apply_object(pytorch_kind()).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let annotations = |strategy: &str| json!({"agentaflow.gpu/scheduling-strategy": strategy, "agentaflow.gpu/priority": "10"});
    let job = |name: &str, strategy: &str| {
        json!({
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": name, "annotations": annotations(strategy)},
        })
    };
    for (name, strategy) in [("good", "priority"), ("odd", "fastest")] {
        let owner = share.apply_object(job(name, strategy)).await;
        let pod = PodPlan::new(&format!("{name}-master-0")).gpus(1);
        let mut pod = pod.scheduler(&share.scheduler_name()).object();
        pod["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "controller": true,
            "name": name, "uid": owner.metadata.uid,
        }]);
        share.apply_object(pod).await;
    }
    assert_eq!(placed_by_us(&share, "good-master-0").await, node);
    let written = share.pod("good-master-0").await.unwrap().metadata.annotations.unwrap();
    assert_eq!(written["agentaflow.gpu/scheduling-strategy"], "priority");
    let words = pod_waits(&share, "odd-master-0", "InvalidAnnotation").await;
    assert!(words.contains("`fastest`") && words.contains("`least_utilized`"), "{words}");
}

fn template_named(name: &str, share: &Share) -> PodPlan {
    PodPlan::new(name)
        .gpus(2)
        .scheduler(&share.scheduler_name())
        .annotation("agentaflow.gpu/priority", "2")
}

async fn only_pod(share: &Share, selector: &str) -> String {
    wait_for(&format!("a pod with {selector}"), async || {
        let pods = share.pods(selector).await;
        pods.into_iter().next().and_then(|pod| pod.metadata.name).ok_or("none")
    })
    .await
}

/// Minimal Kubeflow CRD.
pub(crate) fn pytorch_kind() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "pytorchjobs.kubeflow.org"},
        "spec": {
            "group": "kubeflow.org",
            "names": {"kind": "PyTorchJob", "plural": "pytorchjobs", "singular": "pytorchjob"},
            "scope": "Namespaced",
            "versions": [{
                "name": "v1",
                "served": true,
                "storage": true,
                "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "x-kubernetes-preserve-unknown-fields": true,
                }},
            }],
        },
    })
}
