//! Pods of other projects' kinds.

use agentaflow_manifest::lint::unchecked_kinds;

use crate::{fixed, found, ids, input};

const VOLCANO: &str = "apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: train}
spec:
  minAvailable: 1
  tasks:
  - name: worker
    replicas: 2
    template:
      spec:
        containers:
        - name: worker
          image: horovod/horovod
          resources: {requests: {nvidia.com/gpu: 1}}
";

const KSERVE: &str = "apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: llama}
spec:
  predictor:
    minReplicas: 1
    model: # the server
      modelFormat: {name: huggingface}
      storageUri: hf://meta-llama/Llama-3.1-8B
      resources:
        limits: {memory: 24Gi, nvidia.com/gpu: 1}
        requests: {nvidia.com/gpu: 2}
";

const WORKFLOW: &str = "apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {generateName: train-}
spec:
  entrypoint: train
  tolerations: [{key: nvidia.com/gpu, operator: Exists}]
  nodeSelector: {nvidia.com/gpu.product: NVIDIA-L4}
  volumes:
  - name: shm
    emptyDir: {medium: Memory, sizeLimit: 4Gi}
  volumeClaimTemplates:
  - metadata: {name: work}
  templates:
  - name: train
    container:
      image: a:1
      command: [torchrun, train.py]
      resources: {limits: {memory: 32Gi, nvidia.com/gpu: \"{{inputs.parameters.gpus}}\"}}
      volumeMounts: [{name: shm, mountPath: /dev/shm}, {name: work, mountPath: /work}]
  - name: report
    script: {image: a:1, source: print(1), resources: {limits: {memory: 8Gi, nvidia.com/gpu: 1}}}
  - name: all
    steps: [[{name: a, template: train}]]
";

#[test]
fn workflow_templates_inherit_the_workflow_defaults() {
    assert_eq!(ids(WORKFLOW), Vec::<&str>::new());
    assert!(unchecked_kinds(&[input("a", WORKFLOW)]).is_empty());
    let bare = WORKFLOW.replace("  tolerations: [{key: nvidia.com/gpu, operator: Exists}]\n", "");
    let own = bare
        .replace("  - name: train\n", "  - name: train\n    tolerations: [{operator: Exists}]\n");
    let defaults = bare + "  templateDefaults: {tolerations: [{operator: Exists}]}\n";
    assert_eq!(ids(&defaults), Vec::<&str>::new());
    let paths: Vec<_> = found(&own).into_iter().map(|one| (one.rule.id, one.path)).collect();
    assert_eq!(paths, [("AF101", "spec.templates[1]".to_owned())]);
    // A template's field replaces the workflow's: no field is added.
    assert_eq!(fixed(&own), own);
    let wrong = WORKFLOW
        .replace("product: NVIDIA-L4", "prodcut: NVIDIA-L4")
        .replace("image: a:1\n", "image: a\n");
    assert_eq!(ids(&wrong), ["AF104", "AF301"]);
    let (head, spec) = wrong.split_once("spec:\n").unwrap();
    let head = head.replace("kind: Workflow", "kind: CronWorkflow");
    let cron = format!("{head}spec:\n  workflowSpec:\n  {}", spec.trim_end().replace('\n', "\n  "));
    assert_eq!(ids(&cron), ["AF104", "AF301"]);
}

#[test]
fn a_workflow_that_says_too_much_for_too_many_is_named() {
    let many = "  - {name: a, container: {image: a}}\n".repeat(3000);
    let large = "  - {name: a, emptyDir: {}}\n".repeat(3000);
    let text = WORKFLOW.replace("  volumes:\n", &format!("  volumes:\n{large}")) + &many;
    let inputs = [input("a", &text)];
    assert_eq!(unchecked_kinds(&inputs), ["Workflow"]);
    assert_eq!(ids(&text), Vec::<&str>::new());
}

#[test]
fn a_workflow_with_pod_patches_is_listed_as_unchecked() {
    let patched = WORKFLOW.replace("    script:", "    podSpecPatch: '{}'\n    script:");
    assert_eq!(unchecked_kinds(&[input("a", &patched)]), ["Workflow"]);
    let set = WORKFLOW.replace("    script: {", "    containerSet: {containers: [{name: a}], ");
    assert_eq!(unchecked_kinds(&[input("a", &set)]), ["Workflow"]);
}

#[test]
fn a_job_of_another_project_is_checked_by_its_own_templates() {
    let ids = ids(VOLCANO);
    for id in ["AF002", "AF101", "AF301"] {
        assert!(ids.contains(&id), "{id}: {ids:?}");
    }
    // Specific to Kubernetes jobs.
    for id in ["AF201", "AF204", "AF205", "AF206"] {
        assert!(!ids.contains(&id), "{id}: {ids:?}");
    }
    assert!(unchecked_kinds(&[input("a", VOLCANO)]).is_empty());
}

#[test]
fn the_model_of_an_inference_service_is_checked_as_a_container() {
    let findings = found(KSERVE);
    let paths: Vec<_> =
        findings.iter().map(|finding| (finding.rule.id, finding.path.as_str())).collect();
    let request = "spec.predictor.model.resources.requests[\"nvidia.com/gpu\"]";
    assert!(paths.contains(&("AF001", request)), "{paths:?}");
    assert!(paths.contains(&("AF101", "spec.predictor")), "{paths:?}");
    assert!(unchecked_kinds(&[input("a", KSERVE)]).is_empty());
    let once = fixed(KSERVE);
    assert!(once.contains("model: # the server") && once.contains("    tolerations:"), "{once}");
    assert!(once.contains("requests: {nvidia.com/gpu: 1}"), "{once}");
    assert_eq!(fixed(&once), once);
}
