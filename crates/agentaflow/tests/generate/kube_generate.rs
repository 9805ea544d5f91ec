//! An API server accepts the generated objects.

use std::process::Output;

use tokio::process::Command;

use crate::PROGRAM;
use crate::support::Share;

/// One command per built-in kind; `kinds_generate` covers KEDA and Karpenter.
const LINES: [&str; 24] = [
    "job --task-id ml_task_123 --image train:v1",
    "job --bare --name train --image train:v1",
    "job --name train --image train:v1 --cloud eks --gpu a100 --gpus 8 --spot --workspace --model-cache models",
    "job --name train --image train:v1 --prefer a100=100 --prefer v100=50 --restart-policy Never --timeout none",
    "pod --name one --image train:v1 --cloud gke --gpu l4",
    "pod --name one --image train:v1 --cloud aks --gpu a100 --gpus 8 --spot",
    "pod --name one --image train:v1 --cloud nvidia --gpu a100 --gpu-memory-over 40000",
    "pod --name one --image train:v1 --cloud karpenter --gpus 4 --mount data:/data --env A=b",
    "pod --name one --image train:v1 --mig 1g.5gb --gpus 2",
    "deployment --name serve --image serve:v1 --replicas 2 --service",
    "deployment --bare --name serve --image serve:v1",
    "model-server --name llm --image vllm:v1 --gpu l4 --replicas 2 --service",
    "pvc --name models --size 50Gi --storage-class fast-ssd --access-mode rwx",
    "time-slicing --replicas 8 --rename",
    "time-slicing --mps --name mps",
    "mig-config --gpu h100 --slices 3g.40gb=2 --namespace kube-system",
    "scaler --cloud eks --cluster ml --location us-east-1 --time-zone Europe/Berlin",
    "scaler --cloud gke --cluster ml --location us-central1",
    "scaler --cloud aks --cluster ml --resource-group rg",
    "scaler --cloud karpenter",
    "hpa --target llm",
    "hpa --target llm --external --metric queue --metric-label q=llm",
    "workload --name train --image train:v1 --gpu a100 --gpus 2 --duration 4h",
    "workload --bare --name slices --image train:v1 --mig 1g.5gb --strategy pack",
];

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn the_api_server_accepts_generated_objects() {
    let share = Share::new().await;
    share.apply_file("deploy/crds").await;
    for line in LINES {
        let output = generate(&share, &format!("{line} --apply --dry-run")).await;
        let (message, errors) = texts(&output);
        assert!(output.status.success(), "{line}: {errors}");
        assert!(
            !message.is_empty() && message.lines().all(|line| line.ends_with(" applied (dry run)")),
            "{message}"
        );
    }
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn apply_is_idempotent() {
    let share = Share::new().await;
    let line =
        format!("model-server --name llm --image vllm:v1 --namespace {} --apply", share.namespace);
    for _ in 0..2 {
        let output = generate(&share, &line).await;
        let (message, errors) = texts(&output);
        assert!(output.status.success(), "{errors}");
        assert_eq!(
            message,
            "deployment.apps/llm applied\npersistentvolumeclaim/llm-models applied\n"
        );
    }
    let path = format!("/apis/apps/v1/namespaces/{}/deployments/llm", share.namespace);
    let found = share.request("GET", &path, None).await.json();
    assert_eq!(found["metadata"]["managedFields"][0]["manager"], "agentaflow");
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn nothing_is_applied_when_one_of_the_objects_is_refused() {
    let share = Share::new().await;
    // A claim cannot shrink: the second object is rejected, so the first is not changed.
    let line = |image: &str, size: &str| {
        let namespace = &share.namespace;
        format!(
            "model-server --name llm --image {image} --cache-size {size} --namespace {namespace} --apply"
        )
    };
    assert!(generate(&share, &line("vllm:v1", "10Gi")).await.status.success());
    let output = generate(&share, &line("vllm:v2", "5Gi")).await;
    let (_, errors) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("cannot apply persistentvolumeclaim/llm-models"), "{errors}");
    let path = format!("/apis/apps/v1/namespaces/{}/deployments/llm", share.namespace);
    let found = share.request("GET", &path, None).await.json();
    assert_eq!(found["spec"]["template"]["spec"]["containers"][0]["image"], "vllm:v1");
}

pub(crate) async fn generate(share: &Share, line: &str) -> Output {
    let mut command = Command::new(PROGRAM);
    command.arg("generate").args(line.split_whitespace());
    command.arg("--kubeconfig").arg(&share.cluster.kubeconfig);
    command.output().await.expect("the program runs")
}

pub(crate) fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}
