//! Kinds of other projects: what they run is checked as pods are.

use agentaflow_manifest::lint::not_looked_into;

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

#[test]
fn a_job_of_another_project_is_checked_by_its_own_templates() {
    let ids = ids(VOLCANO);
    for id in ["AF002", "AF101", "AF301"] {
        assert!(ids.contains(&id), "{id}: {ids:?}");
    }
    // What only jobs of Kubernetes have.
    for id in ["AF201", "AF204", "AF205", "AF206"] {
        assert!(!ids.contains(&id), "{id}: {ids:?}");
    }
    assert!(not_looked_into(&[input("a", VOLCANO)]).is_empty());
}

#[test]
fn the_model_of_an_inference_service_is_checked_as_a_container() {
    let findings = found(KSERVE);
    let paths: Vec<_> =
        findings.iter().map(|finding| (finding.rule.id, finding.path.as_str())).collect();
    let request = "spec.predictor.model.resources.requests[\"nvidia.com/gpu\"]";
    assert!(paths.contains(&("AF001", request)), "{paths:?}");
    assert!(paths.contains(&("AF101", "spec.predictor")), "{paths:?}");
    assert!(not_looked_into(&[input("a", KSERVE)]).is_empty());
    let once = fixed(KSERVE);
    assert!(once.contains("model: # the server") && once.contains("    tolerations:"), "{once}");
    assert!(once.contains("requests: {nvidia.com/gpu: 1}"), "{once}");
    assert_eq!(fixed(&once), once);
}
