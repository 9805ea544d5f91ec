//! Manifests that the API server rejects, and similar valid ones.

use crate::{found, ids};

/// A pod on GPUs with more fields of its spec, and of its container.
fn pod(spec: &str, container: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec:\n  nodeSelector: {{nvidia.com/gpu.product: NVIDIA-L4}}\n{spec}  \
         containers:\n  - name: c\n    image: b:1\n{container}"
    )
}

#[test]
fn values_that_the_api_server_refuses_are_errors() {
    let resources = |text: &str| format!("    resources: {text}\n");
    for (text, message) in [
        (
            pod("  restartPolicy: Sometimes\n", ""),
            "`Sometimes` is not one of Always, OnFailure, Never",
        ),
        (
            pod("  restartPolicy: onFailure\n", ""),
            "`onFailure` is not one of Always, OnFailure, Never (did you mean `OnFailure`?)",
        ),
        (
            pod("", "    imagePullPolicy: IfNotPresnt\n"),
            "`IfNotPresnt` is not one of Always, IfNotPresent, Never (did you mean `IfNotPresent`?)",
        ),
        (
            pod("  tolerations: [{key: nvidia.com/gpu, operator: Exists, value: \"true\"}]\n", ""),
            "`operator: Exists` takes no value: remove it",
        ),
        (
            pod("  tolerations: [{key: a, operator: Exists, effect: NoSchedul}]\n", ""),
            "`NoSchedul` is not one of NoSchedule, PreferNoSchedule, NoExecute (did you mean `NoSchedule`?)",
        ),
        (
            pod("  tolerations: [{operator: Equal, value: x}]\n", ""),
            "a toleration without a key needs `operator: Exists`",
        ),
        (
            pod("", &resources("{limits: {memory: 8GB}}")),
            "`8GB` is not a quantity: use a form such as 500m, 4, 512Mi or 16Gi",
        ),
        (
            pod("", &resources("{requests: {memory: 16Gi}, limits: {memory: 8192Mi}}")),
            "the request of 16Gi memory exceeds the limit of 8192Mi",
        ),
        (
            pod(
                "  volumes: [{name: models, emptyDir: {}}]\n",
                "    volumeMounts: [{name: model, mountPath: /m}]\n",
            ),
            "no volume is named `model` (did you mean `models`?)",
        ),
        (pod("  initContainers: [{name: c, image: \"b:1\"}]\n", ""), "duplicate container `c`"),
        (
            pod("  volumes: [{name: v, emptyDir: {}}, {name: v, emptyDir: {}}]\n", ""),
            "duplicate volume `v`",
        ),
    ] {
        let messages: Vec<_> = found(&text)
            .into_iter()
            .filter(|finding| finding.rule.id == "AF703")
            .map(|finding| finding.message)
            .collect();
        assert_eq!(messages, [message], "{text}");
    }
}

#[test]
fn values_that_the_api_server_takes_are_none() {
    for (spec, container) in [
        ("  tolerations: [{operator: Exists}]\n", ""),
        ("  tolerations: [{key: a, operator: Exists, value: \"\", effect: \"\"}]\n", ""),
        ("  tolerations: [{key: a, value: b}]\n", ""),
        (
            "",
            "    resources: {requests: {cpu: 500m, memory: 1Gi}, limits: {cpu: 0.5, memory: 1024Mi}}\n",
        ),
        ("", "    resources: {limits: {cpu: 1e1, memory: 1e9, ephemeral-storage: 1E}}\n"),
        (
            "  volumes: [{name: v, emptyDir: {}}]\n",
            "    volumeMounts: [{name: v, mountPath: /v}]\n",
        ),
        ("", "    resources: {limits: {nvidia.com/gpu: 1000m}, requests: {nvidia.com/gpu: 1}}\n"),
    ] {
        let text = pod(spec, container);
        let errors: Vec<_> = ids(&text)
            .into_iter()
            .filter(|id| matches!(*id, "AF001" | "AF003" | "AF703"))
            .collect();
        assert!(errors.is_empty(), "{errors:?}: {text}");
    }
    // The claims of a StatefulSet are volumes as well.
    let set = "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: s}\nspec:\n  serviceName: s\n  selector: \
               {matchLabels: {a: b}}\n  template:\n    metadata: {labels: {a: b}}\n    spec:\n      containers: [{name: \
               c, image: \"b:1\", volumeMounts: [{name: m, mountPath: /m}]}]\n  volumeClaimTemplates: [{metadata: \
               {name: m}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]\n";
    assert_eq!(ids(set), Vec::<&str>::new());
}

#[test]
fn no_gpus_need_no_toleration_and_google_adds_it() {
    let asks = |gpus: &str| {
        format!("    resources: {{limits: {{nvidia.com/gpu: {gpus}, memory: 1Gi}}}}\n")
    };
    assert!(ids(&pod("", &asks("1"))).contains(&"AF101"));
    assert_eq!(ids(&pod("", &asks("0"))), Vec::<&str>::new());
    let google = pod("", &asks("1")).replace(
        "nvidia.com/gpu.product: NVIDIA-L4",
        "cloud.google.com/gke-accelerator: nvidia-l4",
    );
    assert_eq!(ids(&google), Vec::<&str>::new());
}

#[test]
fn init_containers_must_fit_the_machine() {
    let on = |init: &str| {
        let text = pod(
            &format!("  initContainers: [{init}]\n"),
            "    resources: {requests: {memory: 8Gi}, limits: {nvidia.com/gpu: 1, memory: 8Gi}}\n",
        );
        let text = text.replace(
            "nvidia.com/gpu.product: NVIDIA-L4",
            "node.kubernetes.io/instance-type: g4dn.xlarge",
        );
        ids(&text).contains(&"AF108")
    };
    let container = |memory: &str, more: &str| {
        format!("{{name: i, image: \"b:1\", resources: {{requests: {{memory: {memory}}}}}{more}}}")
    };
    assert!(on(&container("15.9Gi", "")));
    assert!(!on(&container("12Gi", "")));
    // A sidecar counts in addition.
    assert!(on(&container("12Gi", ", restartPolicy: Always")));
    assert!(!on(&container("1Gi", ", restartPolicy: Always")));
}

#[test]
fn a_tag_that_moves_is_no_version() {
    let moves = |tag: &str| ids(&pod("", "").replace("b:1", tag)).contains(&"AF301");
    for tag in
        ["b:latest", "b", "b:latest-gpu", "b:devel-latest", "b:nightly", "b:main", "r:5000/b"]
    {
        assert!(moves(tag), "{tag}");
    }
    for tag in ["b:1", "b:nightly-20260101", "b:v0.11.0-main", "b:latest@sha256:0", "b:24.05-py3"] {
        assert!(!moves(tag), "{tag}");
    }
}

#[test]
fn equivalent_forms_are_accepted() {
    let two = "  tolerations: [{key: nvidia.com/gpu, operator: Equal, value: \"true\"}, {key: nvidia.com/gpu, operator: \
               Exists}]\n";
    assert!(!ids(&pod(two, "")).contains(&"AF102"));
    assert!(
        ids(&pod(&two.replace(", {key: nvidia.com/gpu, operator: Exists}", ""), ""))
            .contains(&"AF102")
    );
    let job = |limit: &str| {
        format!(
            "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: a}}\nspec:\n  completions: 2\n  completionMode: \
             Indexed\n{limit}  template:\n    spec:\n      restartPolicy: Never\n      containers: [{{name: c, image: \
             \"b:1\", resources: {{limits: {{nvidia.com/gpu: 1}}}}}}]\n"
        )
    };
    assert!(ids(&job("")).contains(&"AF206"));
    assert!(!ids(&job("  backoffLimitPerIndex: 1\n")).contains(&"AF206"));
}
