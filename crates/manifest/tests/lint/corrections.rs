//! Manifests copied from manuals, with the mistakes in print: each mistake is found, and `--fix` makes the manifest
//! valid for the API server.

use std::path::Path;

use agentaflow_manifest::lint::{Options, Severity, fix};
use agentaflow_manifest::yaml::{Limits, read_text};
use serde_json::{Value, json};

use crate::{fixed, found, ids};

/// A job without restartPolicy, with a toleration of one value.
const JOB: &str = "\
apiVersion: batch/v1
kind: Job
metadata:
  name: gpu-ml-task
spec:
  template:
    spec:
      containers:
      - name: worker
        image: worker:1.2.0
        resources:
          limits:
            nvidia.com/gpu: 1
      nodeSelector:
        accelerator: nvidia-tesla-v100
      tolerations:
      - key: nvidia.com/gpu
        operator: Equal
        value: \"true\"
        effect: NoSchedule
";

/// A schedule that only adds nodes, with a command that does not exist.
const SCALER: &str = "\
# CronJob to scale the pool of GPU nodes
apiVersion: batch/v1
kind: CronJob
metadata:
  name: scale-gpu-nodes
spec:
  schedule: \"0 9 * * 1-5\"  # 9 AM on weekdays
  jobTemplate:
    spec:
      template:
        spec:
          containers:
          - name: scaler
            image: bitnami/kubectl
            command:
            - kubectl
            - scale
            - nodepool
            - gpu-pool
            - --replicas=5
";

/// A model server with a template without labels and two replicas on one claim.
const SERVER: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: llm-server
spec:
  replicas: 2
  selector:
    matchLabels:
      app: llm-server
  template:
    spec:
      nodeSelector:
        accelerator: nvidia-a100

      containers:
      - name: server
        image: vllm:v0.2.0
        ports:
        - containerPort: 8000
        resources:
          limits:
            nvidia.com/gpu: 1
            cpu: \"8\"
            memory: \"32Gi\"

        # Large model loading time
        startupProbe:
          httpGet:
            path: /health
            port: 8000
          failureThreshold: 120  # 20 minutes
          periodSeconds: 10

        # Cache models
        volumeMounts:
        - name: models
          mountPath: /root/.cache/huggingface

      volumes:
      - name: models
        persistentVolumeClaim:
          claimName: model-cache

---
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: model-cache
spec:
  accessModes:
  - ReadWriteOnce
  resources:
    requests:
      storage: 100Gi
  storageClassName: fast-ssd
";

/// An affinity with an \"or\" written as an \"and\", and an unknown label.
const AFFINITY: &str = "\
apiVersion: v1
kind: Pod
metadata:
  name: picky
spec:
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
        - matchExpressions:
          - key: nvidia.com/gpu.product
            operator: In
            values:
            - NVIDIA-A100-SXM4-40GB
            - NVIDIA-A100-SXM4-80GB
          # Or by memory
          - key: gpu.gpu-vendor.example/installed-memory
            operator: Gt
            values: [\"40000\"]   # 40GB+ VRAM
  containers:
  - name: picky
    image: picky:1.0.0
    resources:
      limits:
        nvidia.com/gpu: 1
";

/// GPU work without restartPolicy.
const WORKLOAD: &str = "\
apiVersion: agentaflow.io/v1
kind: GPUWorkload
metadata:
  name: training
  namespace: agentaflow
spec:
  priority: 8
  gpuMemoryRequired: 16384
  estimatedDuration: \"4h\"
  schedulingStrategy: \"best_fit\"
  gpuRequirements:
    minGPUMemory: 16384
    preferredGPUType: \"NVIDIA A100\"
    gpuCount: 1
    exclusiveAccess: true
  podTemplate:
    spec:
      containers:
      - name: pytorch-training
        image: pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime
        command: [\"python\", \"train.py\"]
        resources:
          limits:
            nvidia.com/gpu: 1
          requests:
            nvidia.com/gpu: 1
            memory: \"8Gi\"
            cpu: \"4\"
";

/// A runner that requests a whole g4dn.xlarge, although the system reserves a part of the machine.
const RUNNER: &str = "\
apiVersion: v1
kind: Pod
metadata:
  name: runner
  namespace: arc-runners
spec:
  nodeSelector:
    node.kubernetes.io/instance-type: g4dn.xlarge
  containers:
  - name: runner
    image: runner-gpu:12.1.0
    resources:
      limits:
        nvidia.com/gpu: 1
        cpu: 8
        memory: 32Gi
      requests:
        nvidia.com/gpu: 1
        cpu: 4
        memory: 16Gi
  tolerations:
  - key: nvidia.com/gpu
    operator: Exists
    effect: NoSchedule
";

/// Asserts the findings, and the remaining ones after `--fix`.
fn check(text: &str, wrong: &[&str], left: &[&str]) -> Vec<Value> {
    let before = ids(text);
    for id in wrong {
        assert!(before.contains(id), "{id} is not in {before:?}");
    }
    let after_fix = fixed(text);
    let after: Vec<_> = ids(&after_fix).into_iter().filter(|id| wrong.contains(id)).collect();
    assert_eq!(after, left, "{after_fix}");
    values(&after_fix)
}

#[test]
fn a_job_gets_the_restart_policy_without_which_it_is_refused() {
    let objects = check(JOB, &["AF102", "AF201", "AF204", "AF205", "AF206"], &["AF204"]);
    let pod = &objects[0]["spec"]["template"]["spec"];
    assert_eq!(pod["restartPolicy"], "OnFailure");
    assert_eq!(
        pod["tolerations"],
        json!([{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}])
    );
    assert_eq!(objects[0]["spec"]["ttlSecondsAfterFinished"], 3600);
}

#[test]
fn a_schedule_that_scales_up_gets_one_that_scales_down() {
    let objects = check(SCALER, &["AF201", "AF301", "AF601", "AF602"], &["AF301", "AF602"]);
    assert_eq!(objects.len(), 2);
    let down = &objects[1];
    assert_eq!(down["metadata"]["name"], "scale-gpu-nodes-down");
    assert_eq!(down["spec"]["schedule"], "0 19 * * 1-5");
    let pod = &down["spec"]["jobTemplate"]["spec"]["template"]["spec"];
    assert_eq!(pod["containers"][0]["command"][4], "--replicas=0");
    assert_eq!(pod["restartPolicy"], "OnFailure");
    assert_eq!(
        objects[0]["spec"]["jobTemplate"]["spec"]["template"]["spec"]["restartPolicy"],
        "OnFailure"
    );
}

#[test]
fn a_model_server_gets_the_labels_of_its_selector() {
    let objects = check(SERVER, &["AF101", "AF103", "AF202", "AF503"], &["AF503"]);
    let template = &objects[0]["spec"]["template"];
    assert_eq!(template["metadata"]["labels"], json!({"app": "llm-server"}));
    assert_eq!(template["spec"]["nodeSelector"]["accelerator"], "nvidia-tesla-a100");
}

#[test]
fn an_or_becomes_two_terms_and_the_memory_a_label_that_exists() {
    let objects = check(AFFINITY, &["AF104", "AF107"], &[]);
    let terms = &objects[0]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        ["nodeSelectorTerms"];
    assert_eq!(terms.as_array().unwrap().len(), 2);
    assert_eq!(
        terms[1],
        json!({"matchExpressions": [{"key": "nvidia.com/gpu.memory", "operator": "Gt", "values": ["40000"]}]})
    );
}

#[test]
fn gpu_work_gets_a_restart_policy_with_which_it_can_succeed() {
    let objects = check(WORKLOAD, &["AF203"], &[]);
    assert_eq!(objects[0]["spec"]["podTemplate"]["spec"]["restartPolicy"], "Never");
    let always = WORKLOAD.replace(
        "    spec:\n      containers",
        "    spec:\n      restartPolicy: Always\n      containers",
    );
    let finding = found(&always).into_iter().find(|finding| finding.rule.id == "AF203").unwrap();
    assert_eq!(finding.severity, Severity::Error);
}

#[test]
fn a_runner_asks_for_no_more_than_its_machine_has_for_pods() {
    let objects = check(RUNNER, &["AF108"], &[]);
    let requests = &objects[0]["spec"]["containers"][0]["resources"]["requests"];
    assert_eq!(requests["cpu"], "3500m");
    assert!(requests["memory"].as_str().unwrap().ends_with("Mi"), "{requests}");
}

#[test]
fn fixed_manifests_have_only_errors_that_need_a_decision() {
    for text in [JOB, SCALER, SERVER, AFFINITY, WORKLOAD, RUNNER] {
        let left =
            found(&fixed(text)).into_iter().filter(|finding| finding.severity == Severity::Error);
        let left: Vec<_> =
            left.map(|finding| finding.rule.id).filter(|id| *id != "AF602").collect();
        assert!(left.is_empty(), "{left:?}\n{}", fixed(text));
    }
}

/// Blocks of the guides with a mistake in print, and their rules.
const PRINTED: [(&str, &[&str]); 4] = [
    ("worker-job", &["AF201"]),
    ("model-server", &["AF202", "AF103"]),
    ("training-job", &["AF103"]),
    ("inference-deployment", &["AF103"]),
];

#[test]
fn fixing_a_printed_block_gives_the_corrected_one() {
    for (file, rules) in PRINTED {
        let printed = block(&format!("printed/{file}"));
        let options = Options { only: rules.to_vec(), ..Options::default() };
        let after_fix = fix(&[(file.to_owned(), printed)], &options).texts.remove(0);
        assert_eq!(values(&after_fix), values(&block(file)), "{file}");
    }
}

fn block(file: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/blocks");
    std::fs::read_to_string(folder.join(format!("{file}.yaml"))).unwrap()
}

fn values(text: &str) -> Vec<Value> {
    let documents = read_text(text, &Limits::default()).unwrap();
    documents.into_iter().map(|document| document.value).collect()
}
