//! Manifests without schedulerName in a namespace that opted in.

use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::plans::{alone, placed_by_us, pod_waits};
use crate::support::{NodePlan, PodPlan, Scheduler, Share, free_port, repository, wait_for};
use crate::{PROGRAM, controllers};

/// Directory of the manifests.
const MANIFESTS: &str = "crates/agentaflow/tests/kube/manifests";

/// Expected pods: name prefix, number, and the only suitable node.
type Pods = &'static [(&'static str, usize, Option<&'static str>)];

/// Manifests with their expected pods.
const PLACED: [(&str, Pods); 9] = [
    ("worker-job.yaml", &[("gpu-ml-task-", 1, Some("v100"))]),
    ("worker-complete-job.yaml", &[("ml-training-job-", 1, Some("a100"))]),
    (
        "worker-fragments.yaml",
        &[
            ("worker-v100", 1, Some("v100")),
            ("worker-a100", 1, Some("a100")),
            ("worker-two-gpus", 1, Some("v100")),
            ("worker-prefers-a100", 1, Some("a100")),
            ("worker-spot", 1, Some("spot")),
        ],
    ),
    (
        "pods.yaml",
        &[
            ("gpu-pod", 1, None),
            ("tolerant", 1, Some("inference")),
            ("four-gpus", 1, None),
            ("time-slice", 1, Some("slices")),
            ("mig-1g", 1, Some("mig")),
            ("mig-2g", 1, Some("mig")),
            ("mig-3g", 1, Some("mig")),
            ("mig-7g", 1, Some("mig")),
            ("eks-type", 1, Some("a100")),
            ("eks-count", 1, Some("a100")),
            ("gke", 1, Some("gke")),
            ("aks", 1, Some("aks")),
        ],
    ),
    ("inference-deployment.yaml", &[("ml-inference-", 2, Some("inference"))]),
    ("affinity-pod.yaml", &[("choosy", 1, None)]),
    ("training-job.yaml", &[("training-job-", 1, Some("training"))]),
    ("model-server.yaml", &[("llm-server-", 2, Some("serving"))]),
    // Objects without pods are only applied.
    ("worker-scaling.yaml", &[]),
];

/// Published manifests that the API server rejects, with the code and the invalid field of its status.
const REFUSED: [(&str, u16, Option<&str>); 4] = [
    ("worker-job.yaml", 422, Some("spec.template.spec.restartPolicy")),
    ("worker-scaling.yaml", 422, Some("spec.jobTemplate.spec.template.spec.restartPolicy")),
    ("model-server.yaml", 422, Some("spec.template.metadata.labels")),
    // A Secret with a value that is not base64.
    ("alert-webhook.yaml", 500, None),
];

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn valid_manifests_of_the_guides_are_placed() {
    let _alone = alone().await;
    let share = Share::new().await;
    make_nodes(&share).await;
    make_volumes(&share).await;
    let _scheduler = start_with_admission(&share).await;
    owners_count_without_opting_in(&share).await;
    opt_in(&share).await;
    for (file, code, field) in REFUSED {
        let error = share.try_apply(manifest(&format!("printed/{file}"))).await.unwrap_err();
        let kube::Error::Api(status) = &error else { panic!("{file}: {error}") };
        let causes = status.details.iter().flat_map(|details| &details.causes);
        let fields: Vec<&str> = causes.map(|cause| cause.field.as_str()).collect();
        assert_eq!(status.code, code, "{file}: {error}");
        assert!(field.is_none_or(|field| fields.contains(&field)), "{file}: {fields:?}");
    }
    for file in ["alert-webhook.yaml", "time-slicing.yaml"] {
        share.apply_file(&format!("{MANIFESTS}/{file}")).await;
    }
    for (file, _) in PLACED {
        share.apply_file(&format!("{MANIFESTS}/{file}")).await;
    }
    for (file, pods) in PLACED {
        for (name, count, node) in pods {
            check(&share, file, name, *count, *node).await;
        }
    }
    printed_pods_wait(&share).await;
    the_workload_as_it_stands_succeeds(&share).await;
    share
        .request("DELETE", "/api/v1/namespaces/kube-system/configmaps/nvidia-device-plugin", None)
        .await;
    end_admission(&share).await;
}

/// Checks number, scheduler and node of the pods.
async fn check(share: &Share, file: &str, name: &str, count: usize, node: Option<&str>) {
    let names = wait_for(&format!("{count} pods {name} of {file}"), async || {
        let pods = share.pods("").await.into_iter().filter_map(|pod| pod.metadata.name);
        let names: Vec<String> = pods.filter(|found| found.starts_with(name)).collect();
        if names.len() == count { Ok(names) } else { Err(format!("{names:?}")) }
    })
    .await;
    for pod in names {
        let found = placed_by_us(share, &pod).await;
        if let Some(node) = node {
            assert_eq!(found, share.node_name(node), "{file}: {pod}");
        }
    }
}

/// Published manifests that the API server accepts but that never run.
async fn printed_pods_wait(share: &Share) {
    for (file, pod) in
        [("affinity-pod.yaml", "too-choosy"), ("equal-toleration-pod.yaml", "intolerant")]
    {
        share.apply_file(&format!("{MANIFESTS}/printed/{file}")).await;
        pod_waits(share, pod, "Unschedulable").await;
    }
}

/// Pods of a Kubeflow job with agentaflow annotations are scheduled; other GPU pods are not.
async fn owners_count_without_opting_in(share: &Share) {
    share.create_pod(&PodPlan::new("theirs").gpus(1)).await;
    controllers::define(share, &["kubeflow.org_pytorchjobs"]).await;
    let owner = share.apply_object(manifest("pytorch-job.yaml")).await;
    let mut pod = PodPlan::new("pytorch-training-master-0").gpus(1).pod();
    pod.metadata.owner_references = serde_json::from_value(json!([{
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "controller": true,
        "name": "pytorch-training", "uid": owner.metadata.uid,
    }]))
    .expect("an owner");
    share.api::<Pod>().create(&PostParams::default(), &pod).await.expect("a new pod");
    placed_by_us(share, "pytorch-training-master-0").await;
    let pod = share.pod("pytorch-training-master-0").await.unwrap();
    let annotations = pod.metadata.annotations.unwrap();
    assert_eq!(annotations["agentaflow.gpu/priority"], "10");
    assert_eq!(annotations["agentaflow.gpu/scheduling-strategy"], "priority");
    assert_eq!(share.bound_by("theirs").await.assigned_node, None);
}

/// The workload has neither schedulerName nor restartPolicy.
async fn the_workload_as_it_stands_succeeds(share: &Share) {
    let home = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "agentaflow"}});
    share.request("POST", "/api/v1/namespaces", Some(&home)).await;
    share.apply_file(&format!("{MANIFESTS}/gpu-workload.yaml")).await;
    let path = "/apis/agentaflow.io/v1/namespaces/agentaflow/gpuworkloads/my-training-job";
    let phase = async |wanted: &str| {
        wait_for(&format!("my-training-job {wanted}"), async || {
            let status = share.request("GET", path, None).await.json()["status"].clone();
            (status["phase"] == wanted).then_some(status.clone()).ok_or(status)
        })
        .await
    };
    let status = phase("Running").await;
    let pods: Api<Pod> = Api::namespaced(share.client(), "agentaflow");
    let pod = pods.get("my-training-job-0").await.expect("its pod");
    let (spec, annotations) = (pod.spec.unwrap(), pod.metadata.annotations.unwrap());
    let node = spec.node_name.unwrap();
    assert_eq!(annotations["agentaflow.gpu/assigned-node"], node, "bound by us");
    assert_eq!(
        (&status["assignedNode"], &json!(annotations["agentaflow.gpu/assigned-gpu"])),
        (&json!(node), &status["assignedGPU"])
    );
    assert_eq!(spec.scheduler_name.as_deref(), Some("agentaflow"));
    assert_eq!(spec.restart_policy.as_deref(), Some("Never"));
    assert_eq!((spec.priority_class_name, spec.priority), (None, Some(0)), "the default class");
    let end = json!({"metadata": {"annotations": {"kwok.agentaflow.io/complete-after": "100ms"}}});
    let how = PatchParams::default();
    pods.patch("my-training-job-0", &how, &Patch::Merge(end)).await.expect("a patched pod");
    phase("Succeeded").await;
    share.request("DELETE", path, None).await;
    wait_for("my-training-job gone", async || {
        let answer = share.request("GET", path, None).await;
        if answer.status == 404 { Ok(()) } else { Err(answer.body) }
    })
    .await;
}

/// Nodes of the guides.
async fn make_nodes(share: &Share) {
    let a100 = || NodePlan::gpus(8);
    let taint = |plan: NodePlan, value: &str| plan.taint("nvidia.com/gpu", value, "NoSchedule");
    let v100 = a100()
        .model("Tesla-V100-SXM2-16GB", 16_384)
        .label("accelerator", "nvidia-tesla-v100")
        .label("node.kubernetes.io/instance-type", "p3.2xlarge");
    let p4d = a100()
        .label("accelerator", "nvidia-tesla-a100")
        .label("node.kubernetes.io/instance-type", "p4d.24xlarge")
        .label("karpenter.k8s.aws/instance-gpu-count", "8");
    let spot = a100().label("node.kubernetes.io/lifecycle", "spot");
    let slices = NodePlan::gpus(16)
        .label("nvidia.com/gpu.count", "4")
        .label("nvidia.com/gpu.replicas", "4")
        .label("nvidia.com/gpu.sharing-strategy", "time-slicing");
    let mig = ["1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb"]
        .iter()
        .fold(NodePlan::plain(), |plan, slice| {
            plan.amount(&format!("nvidia.com/mig-{slice}"), "1")
        });
    let aks =
        a100().label("accelerator", "nvidia").label("kubernetes.azure.com/agentpool", "gpupool");
    for (name, plan) in [
        ("v100", taint(v100, "true")),
        ("a100", taint(p4d, "true")),
        ("inference", taint(a100().label("accelerator", "nvidia-gpu"), "present")),
        ("training", taint(a100().label("accelerator", "nvidia-a100"), "present")),
        ("serving", NodePlan::gpus(16).label("accelerator", "nvidia-a100")),
        ("spot", spot.taint("spot", "true", "NoSchedule")),
        ("slices", slices),
        ("mig", mig),
        ("gke", a100().label("cloud.google.com/gke-accelerator", "nvidia-tesla-a100")),
        ("aks", aks),
    ] {
        share.node(name, &plan).await;
    }
}

/// Claims that the guides assume, with volumes.
async fn make_volumes(share: &Share) {
    share
        .apply_object(json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "fast-ssd"},
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        }))
        .await;
    let claims = ["ml-workspace", "model-cache-pvc", "training-data", "training-output"];
    for (claim, class) in
        claims.map(|claim| (claim, "")).into_iter().chain([("model-cache", "fast-ssd")])
    {
        let modes = json!(["ReadWriteOnce"]);
        share
            .apply_object(json!({
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": format!("{claim}-{}", share.id)},
                "spec": {
                    "accessModes": modes,
                    "capacity": {"storage": "100Gi"},
                    "claimRef": {"namespace": share.namespace, "name": claim},
                    "hostPath": {"path": "/data"},
                    "persistentVolumeReclaimPolicy": "Retain",
                    "storageClassName": class,
                },
            }))
            .await;
        if class.is_empty() {
            share
                .apply_object(json!({
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "metadata": {"name": claim},
                    "spec": {
                        "accessModes": modes,
                        "resources": {"requests": {"storage": "100Gi"}},
                        "storageClassName": class,
                    },
                }))
                .await;
        }
    }
}

fn manifest(file: &str) -> Value {
    let path = repository().join(MANIFESTS).join(file);
    let text = std::fs::read_to_string(&path).expect("a manifest");
    let mut documents: Vec<Value> = serde_saphyr::from_multiple(&text).expect("YAML");
    documents.swap_remove(0)
}

/// The scheduler with the default schedulerName, and the webhook for the namespace of the share.
pub(crate) async fn start_with_admission(share: &Share) -> Scheduler {
    start_with_admission_as(share, &share.cluster.kubeconfig).await
}

/// As [`start_with_admission`], with another kubeconfig.
pub(crate) async fn start_with_admission_as(share: &Share, kubeconfig: &Path) -> Scheduler {
    share.apply_file("deploy/crds").await;
    let address = format!("127.0.0.1:{}", free_port());
    let url = format!("https://{address}");
    let extra = ["--scheduler-name", "agentaflow", "--webhook", &address, "--webhook-url", &url];
    let mut scheduler = Scheduler::launch(PROGRAM, share, kubeconfig, "scheduler", &extra);
    scheduler.ready().await;
    let own = json!({"key": "kubernetes.io/metadata.name", "operator": "In",
        "values": [share.namespace, "agentaflow"]});
    for path in configurations() {
        wait_for("admission confined to this test", async || {
            let answer = share.request("GET", path, None).await;
            let mut found = answer.json();
            for hook in found["webhooks"].as_array_mut().ok_or(answer.body)? {
                let selector = &mut hook["namespaceSelector"]["matchExpressions"];
                let mut all = selector.as_array().cloned().unwrap_or_default();
                all.push(own.clone());
                *selector = json!(all);
            }
            found["metadata"]["labels"][crate::support::OWNER] = json!(share.id);
            let answer = share.request("PUT", path, Some(&found)).await;
            if answer.status == 200 { Ok(()) } else { Err(answer.body) }
        })
        .await;
    }
    wait_for("the API server asks us", async || {
        if becomes_ours(share).await { Ok(()) } else { Err("it does not") }
    })
    .await;
    scheduler
}

/// Removes the webhook while the program still serves it.
pub(crate) async fn end_admission(share: &Share) {
    for path in configurations() {
        share.request("DELETE", path, None).await;
    }
    wait_for("the API server asks us no more", async || {
        if becomes_ours(share).await { Err("it still does") } else { Ok(()) }
    })
    .await;
}

fn configurations() -> [&'static str; 2] {
    [
        "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/agentaflow",
        "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/agentaflow",
    ]
}

/// A dry run of a pod with an agentaflow annotation gets the schedulerName.
async fn becomes_ours(share: &Share) -> bool {
    let pod = PodPlan::new("probe").annotation("agentaflow.gpu/priority", "5").pod();
    let for_show = PostParams { dry_run: true, ..PostParams::default() };
    let pod = share.api::<Pod>().create(&for_show, &pod).await;
    pod.is_ok_and(|pod| pod.spec.unwrap().scheduler_name.as_deref() == Some("agentaflow"))
}

async fn opt_in(share: &Share) {
    let path = format!("/api/v1/namespaces/{}", share.namespace);
    let label = json!({"metadata": {"labels": {"agentaflow.gpu/scheduling": "enabled"}}});
    let answer = share.request("PATCH", &path, Some(&label)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    wait_for("the namespace opted in", async || {
        let for_show = PostParams { dry_run: true, ..PostParams::default() };
        let pod = PodPlan::new("probe").gpus(1).pod();
        let pod =
            share.api::<Pod>().create(&for_show, &pod).await.map_err(|error| error.to_string())?;
        let scheduler = pod.spec.unwrap().scheduler_name.unwrap_or_default();
        if scheduler == "agentaflow" { Ok(()) } else { Err(scheduler) }
    })
    .await;
}
