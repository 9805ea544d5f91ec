use agentaflow_kube_core::crd::{GpuWorkload, PodTemplate};
use serde_json::json;

use super::*;

/// A workload with these requirements and containers.
fn workload(requirements: &Value, containers: &Value) -> GpuWorkload {
    let workload = json!({
        "metadata": {"name": "train", "namespace": "team"},
        "spec": {
            "gpuMemoryRequired": 8192,
            "gpuRequirements": requirements,
            "podTemplate": {"spec": {"containers": containers}},
        },
    });
    let mut workload = workload;
    workload["apiVersion"] = "agentaflow.io/v1".into();
    workload["kind"] = "GPUWorkload".into();
    serde_json::from_value(workload).unwrap()
}

fn container(limits: &Value) -> Value {
    json!({"name": "c", "image": "i", "resources": {"limits": limits}})
}

/// Asserts the rejection of the workload, or its admission without `message`.
fn check_messages(requirements: &Value, containers: &Value, words: &[&str]) {
    let spec = workload(requirements, containers).spec;
    let mut result = check(&spec);
    if result.problems.is_empty() {
        result.add(pod("train", "team", &spec, "agentaflow").err().unwrap_or_default());
    }
    let output = result.message();
    assert_eq!(output.is_empty(), words.is_empty(), "{requirements} {containers}: {output}");
    for word in words {
        assert!(output.contains(word), "no `{word}` in: {output}");
    }
}

#[test]
fn a_template_must_show_which_container_gets_the_gpus() {
    let one = json!([{"name": "a"}]);
    let two = json!([{"name": "a"}, {"name": "b"}]);
    let marked = json!([{"name": "a"}, container(&json!({"nvidia.com/gpu": 2}))]);
    let field = "spec.podTemplate.spec.containers: none of `a`, `b`";
    check_messages(&json!({}), &one, &[]);
    check_messages(&json!({"gpuCount": 2}), &two, &[field, "{nvidia.com/gpu: 2}"]);
    check_messages(&json!({"gpuCount": 2}), &marked, &[]);
    check_messages(&json!({}), &json!([]), &["spec.podTemplate.spec.containers", "at least one"]);
}

#[test]
fn the_container_that_kubectl_shows_is_the_one_that_gets_the_gpus() {
    let mut workload = workload(&json!({}), &json!([{"name": "a"}, {"name": "b"}]));
    let mut template = workload.spec.pod_template.value();
    template["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] = "b".into();
    workload.spec.pod_template = PodTemplate::new(&template);
    assert_eq!(check(&workload.spec), AdmissionResult::default());
    let pod = pod("train", "team", &workload.spec, "agentaflow").unwrap();
    assert_eq!(pod["spec"]["containers"][1]["resources"]["limits"]["nvidia.com/gpu"], "1");
}

#[test]
fn counts_and_resources_of_template_and_workload_must_agree() {
    let gpus = |count: Value| json!([container(&json!({"nvidia.com/gpu": count}))]);
    let slices = json!([container(&json!({"nvidia.com/mig-3g.20gb": 1}))]);
    check_messages(&json!({"gpuCount": 4}), &gpus(json!("4")), &[]);
    check_messages(
        &json!({"gpuCount": 4}),
        &gpus(json!(1)),
        &["spec.gpuRequirements.gpuCount is 4"],
    );
    check_messages(&json!({"migProfile": "3g.20gb"}), &slices, &[]);
    check_messages(&json!({"migProfile": "3g.20gb"}), &gpus(json!(1)), &["migProfile is 3g.20gb"]);
}

#[test]
fn sharing_one_gpu_is_refused_until_it_exists() {
    let bare = json!([{"name": "a"}]);
    let limited = json!([container(&json!({"nvidia.com/gpu": 1}))]);
    let shared = json!({"exclusiveAccess": false});
    check_messages(
        &shared,
        &bare,
        &["spec.gpuRequirements.exclusiveAccess", "`exclusiveAccess: true`"],
    );
    check_messages(&shared, &limited, &[]);
    check_messages(&json!({"exclusiveAccess": false, "gpuCount": 2}), &bare, &[]);
}

#[test]
fn a_slice_must_have_the_memory_that_is_asked_for() {
    let bare = json!([{"name": "a"}]);
    check_messages(&json!({"migProfile": "2g.10gb"}), &bare, &[]);
    let small = json!({"migProfile": "1g.5gb", "minGPUMemory": 6000});
    check_messages(
        &small,
        &bare,
        &[
            "spec.gpuMemoryRequired: 8192 MiB",
            "(5120 MiB)",
            "spec.gpuRequirements.minGPUMemory: 6000",
        ],
    );
    check_messages(&json!({"migProfile": "huge"}), &bare, &["migProfile", "`1g.5gb`"]);
}

#[test]
fn the_pod_to_look_at_has_a_name_that_cannot_be_taken() {
    let bare = workload(&json!({"gpuCount": 2}), &json!([{"name": "a"}]));
    let bare = pod("train", "team", &bare.spec, "agentaflow").unwrap();
    assert_eq!(bare["metadata"]["generateName"], "train-0-");
    assert_eq!(bare["metadata"].get("name"), None);
}

#[test]
fn no_template_causes_a_panic() {
    let odd = [
        json!(null),
        json!([]),
        json!({"spec": "text"}),
        json!({"metadata": 3, "spec": {"containers": [1, "x", {"resources": []}]}}),
        json!({"metadata": {"annotations": []}, "spec": {"containers": [{}, {}]}}),
        json!({"spec": {"containers": [{"resources": {"limits": "x"}}]}}),
        json!({"spec": {"restartPolicy": 7, "containers": {"a": 1}}}),
        json!({"spec": {"containers": [{"resources": "x"}]}}),
    ];
    for template in odd {
        let mut workload = workload(&json!({}), &json!([]));
        workload.spec.pod_template = PodTemplate::new(&template);
        let refused = !check(&workload.spec).problems.is_empty()
            || pod("train", "team", &workload.spec, "agentaflow").is_err();
        assert!(refused, "{template}");
    }
}
