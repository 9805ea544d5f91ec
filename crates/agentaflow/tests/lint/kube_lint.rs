//! `agentaflow lint --cluster` on a control plane checks objects of users, not of controllers.

use std::collections::BTreeSet;

use serde_json::Value;
use tokio::process::Command;

use crate::PROGRAM;
use crate::support::{Share, repository, wait_for};

/// Objects with mistakes that the API server accepts.
const MISTAKEN: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: server
spec:
  replicas: 2
  selector:
    matchLabels: {app: server}
  template:
    metadata:
      labels: {app: server}
    spec:
      containers:
      - name: server
        image: server:latest
        resources:
          limits: {nvidia.com/gpu: 1, memory: 8Gi}
        volumeMounts:
        - {name: models, mountPath: /models}
      volumes:
      - name: models
        persistentVolumeClaim: {claimName: models}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: models
spec:
  accessModes: [ReadWriteOnce]
  resources:
    requests: {storage: 1Gi}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: train
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: train
        image: train:1.0.0
        resources:
          limits: {nvidia.com/gpu: 2, memory: 8Gi}
      tolerations:
      - {key: nvidia.com/gpu, operator: Equal, value: \"true\", effect: NoSchedule}
---
apiVersion: batch/v1
kind: CronJob
metadata:
  name: scale
spec:
  schedule: 0 9 * * 1-5
  jobTemplate:
    spec:
      template:
        spec:
          restartPolicy: OnFailure
          containers:
          - name: scaler
            image: kubectl:1.34.0
            command: [kubectl, scale, nodepool, gpu-pool, --replicas=5]
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: device-plugin
data:
  config.yaml: |
    version: v1
    flags: {migStrategy: mixed}
    sharing:
      timeSlicing:
        resources:
        - {name: nvidia.com/gpu, replicas: 4}
---
apiVersion: v1
kind: Pod
metadata:
  name: alone
spec:
  containers:
  - name: alone
    image: alone:1.0.0
    env:
    - {name: NVIDIA_VISIBLE_DEVICES, value: all}
---
apiVersion: agentaflow.io/v1
kind: GPUWorkload
metadata:
  name: forever
spec:
  gpuMemoryRequired: 1024
  gpuRequirements: {gpuCount: 1}
  podTemplate:
    spec:
      restartPolicy: Always
      containers:
      - name: forever
        image: forever:1.0.0
        resources:
          limits: {nvidia.com/gpu: 1}
";

/// Expected errors and warnings.
const WRONG: [(&str, &str); 12] = [
    ("ConfigMap/device-plugin", "AF005"),
    ("CronJob/scale", "AF601"),
    ("CronJob/scale", "AF602"),
    ("Deployment/server", "AF101"),
    ("Deployment/server", "AF301"),
    ("Deployment/server", "AF503"),
    ("GPUWorkload/forever", "AF203"),
    ("Job/train", "AF102"),
    ("Job/train", "AF204"),
    ("Job/train", "AF205"),
    ("Job/train", "AF401"),
    ("Pod/alone", "AF303"),
];

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn mistakes_of_live_objects_are_found_at_their_owners() {
    let share = Share::new().await;
    share.apply_file("deploy/crds").await;
    wait_for("the kind GPUWorkload", async || {
        let answer = share.request("GET", "/apis/agentaflow.io/v1/gpuworkloads", None).await;
        if answer.status == 200 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    share.apply(MISTAKEN).await;
    wait_for("the pods of the deployment and the job", async || {
        let pods = share.pods("").await.len();
        if pods >= 4 { Ok(()) } else { Err(format!("{pods} pods")) }
    })
    .await;
    let (code, found) = lint(&share).await;
    assert_eq!(code, 1);
    let wrong: BTreeSet<_> =
        WRONG.iter().map(|(object, id)| ((*object).to_owned(), (*id).to_owned())).collect();
    assert_eq!(found, wrong);
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn generated_and_applied_objects_have_no_findings() {
    let share = Share::new().await;
    share.apply_file("deploy/crds").await;
    for line in [
        "job --name train --image train:v1 --gpu a100 --workspace -- python train.py",
        "model-server --name llm --image vllm/vllm-openai:v0.11.0 --gpu l4 --replicas 2 --service",
        "workload --name tune --image tune:v1 --gpu a100 --gpus 2 --duration 4h",
    ] {
        let (line, command) = line.split_once(" -- ").unwrap_or((line, "serve"));
        let mut generate = Command::new(PROGRAM);
        generate.arg("generate").args(line.split_whitespace()).args(["--apply", "--namespace"]);
        generate.arg(&share.namespace).arg("--kubeconfig").arg(&share.cluster.kubeconfig);
        let output = generate.arg("--").args(command.split(' ')).output().await.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(lint(&share).await, (0, BTreeSet::new()));
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_namespace_that_is_misspelt_is_not_called_clean() {
    let share = Share::new().await;
    for (namespace, code, words) in [
        (share.namespace.clone(), 0, ""),
        (format!("{}-x", share.namespace), 3, "error: namespace `"),
    ] {
        let mut command = Command::new(PROGRAM);
        command.args(["lint", "--cluster", "-n", &namespace, "--kubeconfig"]);
        let output = command.arg(&share.cluster.kubeconfig).output().await.unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{message}");
        assert!(message.contains(words), "{message}");
    }
}

/// Published manifests, and true if the API server rejects them.
const PRINTED: [(&str, bool); 5] = [
    ("worker-job.yaml", true),
    ("worker-scaling.yaml", true),
    ("model-server.yaml", true),
    ("affinity-pod.yaml", false),
    ("equal-toleration-pod.yaml", false),
];

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn the_api_server_accepts_a_fixed_manifest() {
    let share = Share::new().await;
    for (file, refused) in PRINTED {
        let path = repository().join("crates/agentaflow/tests/kube/manifests/printed").join(file);
        let printed = std::fs::read_to_string(path).unwrap();
        let object = serde_saphyr::from_multiple::<Value>(&printed).unwrap().remove(0);
        assert_eq!(share.try_apply(object).await.is_err(), refused, "{file}");
        let fixed = share.file(file);
        std::fs::write(&fixed, &printed).unwrap();
        let output = Command::new(PROGRAM).args(["lint", "--fix"]).arg(&fixed).output().await;
        let message = String::from_utf8(output.unwrap().stdout).unwrap();
        let text = std::fs::read_to_string(&fixed).unwrap();
        assert_ne!(text, printed, "{file}: {message}");
        for object in serde_saphyr::from_multiple::<Value>(&text).unwrap() {
            if refused {
                share.apply_object(object).await;
            }
        }
    }
}

/// Exit code, and errors and warnings per object of the namespace.
async fn lint(share: &Share) -> (i32, BTreeSet<(String, String)>) {
    let mut command = Command::new(PROGRAM);
    command.args(["lint", "--cluster", "-o", "json", "-n", &share.namespace, "--kubeconfig"]);
    let output = command.arg(&share.cluster.kubeconfig).output().await.expect("the program runs");
    let answer: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    let findings = answer["findings"].as_array().unwrap();
    let bad = findings.iter().filter(|finding| finding["severity"] != "info");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let found = bad.map(|finding| (text(&finding["object"]), text(&finding["rule"])));
    (output.status.code().unwrap(), found.collect())
}
