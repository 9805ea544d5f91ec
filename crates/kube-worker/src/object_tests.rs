use agentaflow_api::end::{EndReason, StartFailure};
use std::path::PathBuf;

use serde_json::Value;

use super::*;

fn launch(change: impl FnOnce(&mut Value)) -> Launch {
    let mut assignment = json!({
        "job": 17, "epoch": 2, "task": 0, "job_name": "AI Training Job", "runtime": "docker",
        "image": "reg.example:5000/train:v1", "env": {}, "job_data": {},
        "gpus": [{"index": 0, "uuid": "gpu-7/0", "milli": 1000, "memory": 81920, "shared": false}],
        "cpu": 4, "memory": 16384, "shm": 0, "volumes": [], "read_only": false, "grace_ms": 10_500,
        "leased": true, "simulated": false, "user": "ada", "command": ["sh", "-c", "echo $HOME $(date)"],
    });
    change(&mut assignment);
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    Launch {
        assignment: serde_json::from_value(assignment).unwrap(),
        env: vec![
            pair("JOB_ID", "17"),
            pair("TOKEN", "hush"),
            pair("CUDA_VISIBLE_DEVICES", "gpu-7/0"),
        ],
        dir: PathBuf::from("/nowhere"),
        devices: Vec::new(),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "values are written where they are used")]
fn node(labels: Value, taint: &str) -> slim::Node {
    let taints = json!([{"key": "nvidia.com/gpu", "value": taint, "effect": "NoSchedule"}]);
    let node = json!({"metadata": {"name": "gpu-7", "labels": labels}, "spec": {"taints": taints}});
    serde_json::from_value(node).unwrap()
}

fn made(launch: &Launch, node: &slim::Node) -> Result<(Value, Vec<Secret>), StartError> {
    let catalogue = Catalogue::built_in().unwrap();
    let lease = Duration::from_mins(1);
    let spot = Spot { node, namespace: "imagepod", owner: "us", lease, catalogue: &catalogue };
    make(launch, &spot).map(|made| (serde_json::to_value(made.job).unwrap(), made.secrets))
}

#[test]
fn a_task_is_the_documented_job_pinned_to_its_node_with_no_retries_of_its_own() {
    let (job, secrets) = made(&launch(|_| {}), &node(json!({}), "true")).unwrap();
    assert_eq!(
        (&job["metadata"]["name"], &job["metadata"]["namespace"]),
        (&json!("gpu-job-17-2-0"), &json!("imagepod"))
    );
    let spec = &job["spec"];
    assert_eq!(
        (&spec["backoffLimit"], &spec["ttlSecondsAfterFinished"], &spec["activeDeadlineSeconds"]),
        (&json!(0), &json!(3600), &json!(60))
    );
    let pod = &spec["template"]["spec"];
    assert_eq!(
        (&pod["restartPolicy"], &pod["terminationGracePeriodSeconds"]),
        (&json!("Never"), &json!(11))
    );
    assert_eq!(
        (&pod["nodeSelector"], &pod["automountServiceAccountToken"]),
        (&Value::Null, &json!(false))
    );
    let container = &pod["containers"][0];
    assert_eq!(container["command"], json!(["sh", "-c", "echo $$HOME $$(date)"]));
    let limits = json!({"cpu": "4000m", "memory": "16384Mi", "nvidia.com/gpu": "1"});
    assert_eq!(container["resources"]["limits"], limits);
    let text = job.to_string();
    assert!(text.contains("TASK_ID") && !text.contains("hush"), "{text}");
    assert!(!text.contains("CUDA_VISIBLE_DEVICES\",\"value\":\"gpu-7"), "{text}");
    let hidden = secrets[0].data.as_ref().unwrap();
    assert_eq!(hidden.keys().collect::<Vec<_>>(), ["TOKEN"]);
    assert_eq!(job["metadata"]["annotations"][names::GPUS], json!("gpu-7/0"));
}

#[test]
fn labels_that_the_node_lacks_and_taints_that_it_has_are_not_in_the_way() {
    let tolerated = |node: &slim::Node| {
        let (job, _) = made(&launch(|_| {}), node).unwrap();
        let pod = job["spec"]["template"]["spec"].clone();
        (pod["nodeSelector"].clone(), pod["tolerations"].as_array().unwrap().len())
    };
    let label = json!({"accelerator": "nvidia-tesla-a100", "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"});
    assert_eq!(tolerated(&node(label, "true")), (json!({"accelerator": "nvidia-tesla-a100"}), 1));
    assert_eq!(tolerated(&node(json!({}), "present")), (Value::Null, 2));
    // A model that nobody has heard of yet.
    let strange = json!({"nvidia.com/gpu.product": "NVIDIA-Z900"});
    assert_eq!(tolerated(&node(strange, "true")), (Value::Null, 1));
}

#[test]
fn who_asks_for_no_gpu_gets_none_and_who_asks_for_nothing_is_not_limited() {
    let bare = launch(|job| {
        (job["gpus"], job["cpu"], job["memory"]) = (json!([]), json!(0), json!(0));
        (job["read_only"], job["shm"], job["leased"]) = (json!(true), json!(512), json!(false));
    });
    let (job, _) = made(&bare, &node(json!({}), "true")).unwrap();
    assert_eq!(job["spec"]["activeDeadlineSeconds"], Value::Null);
    let pod = &job["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(container["resources"], json!({"limits": {}, "requests": {}}));
    assert!(!container.to_string().contains("CUDA_VISIBLE_DEVICES"), "{container}");
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], json!(true));
    let volumes = pod["volumes"].to_string();
    assert!(volumes.contains("512Mi") && volumes.contains("\"tmp\""), "{volumes}");
}

#[test]
fn a_password_of_a_registry_is_in_a_secret_of_its_own() {
    let auth = json!({"server": null, "username": "ada", "password": "pass-word"});
    let (job, secrets) =
        made(&launch(|job| job["registry_auth"] = auth), &node(json!({}), "true")).unwrap();
    let pod = &job["spec"]["template"]["spec"];
    assert_eq!(pod["imagePullSecrets"], json!([{"name": "gpu-job-17-2-0-pull"}]));
    assert!(!job.to_string().contains("pass-word"));
    let config: Value =
        serde_json::from_slice(&secrets[1].data.as_ref().unwrap()[".dockerconfigjson"].0).unwrap();
    assert_eq!(config["auths"]["reg.example:5000"]["username"], json!("ada"));
}

#[test]
fn what_kubernetes_cannot_take_is_refused_in_words() {
    let check = |env: (String, String), words: &str| {
        let mut launch = launch(|_| {});
        launch.env.push(env);
        let error = made(&launch, &node(json!({}), "true")).unwrap_err();
        assert!(
            matches!(error, StartError::Job(StartFailure { reason: EndReason::StartFailed, .. })),
            "{error:?}"
        );
        assert!(error.to_string().contains(words), "{error}");
    };
    check(("BIG".to_owned(), "x".repeat(1 << 20)), "1 MiB");
    check(("A B".to_owned(), String::new()), "`A B`");
}
