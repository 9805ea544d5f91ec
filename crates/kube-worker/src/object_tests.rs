use std::path::PathBuf;

use serde_json::{Value, json};

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
        user: None,
        mps_pipes: None,
    }
}

#[expect(clippy::needless_pass_by_value, reason = "values are written where they are used")]
fn node(labels: Value, taint: &str) -> slim::Node {
    let taints = json!([{"key": "nvidia.com/gpu", "value": taint, "effect": "NoSchedule"}]);
    let node = json!({"metadata": {"name": "gpu-7", "labels": labels}, "spec": {"taints": taints}});
    serde_json::from_value(node).unwrap()
}

fn built(launch: &Launch, node: &slim::Node) -> Result<(Value, Vec<Secret>), StartError> {
    built_on(launch, &target(node))
}

fn target(node: &slim::Node) -> JobTarget<'_> {
    let lease = Duration::from_mins(1);
    JobTarget { node, namespace: "imagepod", owner: "us", lease, trust_local_images: false }
}

fn built_on(launch: &Launch, target: &JobTarget<'_>) -> Result<(Value, Vec<Secret>), StartError> {
    build(launch, target)
        .map(|objects| (serde_json::to_value(objects.job).unwrap(), objects.secrets))
}

#[test]
fn the_job_of_a_task_is_pinned_to_its_node_and_not_retried() {
    let (job, secrets) = built(&launch(|_| {}), &node(json!({}), "true")).unwrap();
    assert_eq!(
        (&job["metadata"]["name"], &job["metadata"]["namespace"]),
        (&json!("gpu-job-17-2-0-00000000"), &json!("imagepod"))
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
    let private = secrets[0].data.as_ref().unwrap();
    assert_eq!(private.keys().collect::<Vec<_>>(), ["TOKEN"]);
    assert_eq!(job["metadata"]["annotations"][names::GPUS], json!("gpu-7/0"));
}

#[test]
fn the_job_matches_the_labels_and_tolerates_the_gpu_taint_of_its_node() {
    let tolerated = |node: &slim::Node| {
        let (job, _) = built(&launch(|_| {}), node).unwrap();
        let pod = job["spec"]["template"]["spec"].clone();
        (pod["nodeSelector"].clone(), pod["tolerations"].as_array().unwrap().len())
    };
    let label = json!({"accelerator": "nvidia-tesla-a100", "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"});
    assert_eq!(tolerated(&node(label, "true")), (json!({"accelerator": "nvidia-tesla-a100"}), 1));
    assert_eq!(tolerated(&node(json!({}), "present")), (Value::Null, 2));
    let unknown_model = json!({"nvidia.com/gpu.product": "NVIDIA-Z900"});
    assert_eq!(tolerated(&node(unknown_model, "true")), (Value::Null, 1));
}

#[test]
fn resources_that_are_not_requested_have_no_limit() {
    let bare = launch(|job| {
        (job["gpus"], job["cpu"], job["memory"]) = (json!([]), json!(0), json!(0));
        (job["read_only"], job["shm"], job["leased"]) = (json!(true), json!(512), json!(false));
    });
    let (job, _) = built(&bare, &node(json!({}), "true")).unwrap();
    assert_eq!(job["spec"]["activeDeadlineSeconds"], Value::Null);
    let pod = &job["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(container["resources"], json!({"limits": {}, "requests": {}}));
    assert!(!container.to_string().contains("CUDA_VISIBLE_DEVICES"), "{container}");
    let void = json!({"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"});
    assert!(container["env"].as_array().unwrap().contains(&void), "{container}");
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], json!(true));
    let volumes = pod["volumes"].to_string();
    assert!(volumes.contains("512Mi") && volumes.contains("\"tmp\""), "{volumes}");
}

#[test]
fn a_job_with_gpus_gets_its_devices_from_the_device_plugin_and_its_disk_limit() {
    let (job, _) =
        built(&launch(|job| job["storage"] = json!(2048)), &node(json!({}), "true")).unwrap();
    let container = &job["spec"]["template"]["spec"]["containers"][0];
    assert!(!container.to_string().contains("NVIDIA_VISIBLE_DEVICES"), "{container}");
    assert_eq!(container["resources"]["limits"]["ephemeral-storage"], json!("2048Mi"));
}

/// Even if the variables of the user reach this crate.
#[test]
fn a_user_cannot_make_gpus_visible_by_a_variable() {
    let visible = |gpus: Value| {
        let mut launch = launch(|job| job["gpus"] = gpus);
        launch.env = vec![
            ("NVIDIA_VISIBLE_DEVICES".to_owned(), "all".to_owned()),
            ("CUDA_VISIBLE_DEVICES".to_owned(), "0,1,2,3".to_owned()),
        ];
        let (job, secrets) = built(&launch, &node(json!({}), "true")).unwrap();
        assert!(secrets.iter().all(|secret| secret.data.as_ref().is_none_or(BTreeMap::is_empty)));
        let env = job["spec"]["template"]["spec"]["containers"][0]["env"].clone();
        let env = env.as_array().unwrap().iter();
        let devices = env.filter(|one| one["name"].as_str().unwrap().ends_with("_VISIBLE_DEVICES"));
        devices.map(|one| format!("{}={}", one["name"], one["value"])).collect::<Vec<_>>()
    };
    let gpu =
        json!([{"index": 0, "uuid": "gpu-7/0", "milli": 1000, "memory": 81920, "shared": false}]);
    assert_eq!(visible(json!([])), [r#""NVIDIA_VISIBLE_DEVICES"="void""#]);
    // The device plugin sets the other variable.
    assert_eq!(visible(gpu), [r#""CUDA_VISIBLE_DEVICES"="0""#]);
}

#[test]
fn an_image_of_the_node_is_used_only_if_the_registry_permits_it_or_the_agent_trusts_it() {
    let node = node(json!({}), "true");
    let policy = |trust_local_images: bool| {
        let target = JobTarget { trust_local_images, ..target(&node) };
        let (job, _) = built_on(&launch(|_| {}), &target).unwrap();
        job["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"].clone()
    };
    assert_eq!((policy(false), policy(true)), (json!("Always"), json!("IfNotPresent")));
}

#[test]
fn registry_credentials_are_in_a_separate_secret() {
    let auth = json!({"server": null, "username": "ada", "password": "pass-word"});
    let (job, secrets) =
        built(&launch(|job| job["registry_auth"] = auth), &node(json!({}), "true")).unwrap();
    let pod = &job["spec"]["template"]["spec"];
    assert_eq!(pod["imagePullSecrets"], json!([{"name": "gpu-job-17-2-0-00000000-pull"}]));
    assert!(!job.to_string().contains("pass-word"));
    let config: Value =
        serde_json::from_slice(&secrets[1].data.as_ref().unwrap()[".dockerconfigjson"].0).unwrap();
    assert_eq!(config["auths"]["reg.example:5000"]["username"], json!("ada"));
}

#[test]
fn oversized_data_and_invalid_variable_names_are_rejected() {
    let check = |env: (String, String)| {
        let mut launch = launch(|_| {});
        launch.env.push(env);
        let error = built(&launch, &node(json!({}), "true")).unwrap_err();
        let StartError::Job(failure) = error else { panic!("{error:?}") };
        assert_eq!(failure.reason, EndReason::StartFailed);
    };
    check(("BIG".to_owned(), "x".repeat(1 << 20)));
    check(("A B".to_owned(), String::new()));
}

#[test]
fn a_container_has_requests_of_half_its_limits_and_shared_memory() {
    let label = json!({"accelerator": "nvidia-tesla-a100"});
    let (job, _) = built(&launch(|_| {}), &node(label.clone(), "true")).unwrap();
    let pod = &job["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(
        container["resources"]["requests"],
        json!({"cpu": "2000m", "memory": "8Gi", "nvidia.com/gpu": "1"})
    );
    assert_eq!(container["volumeMounts"], json!([{"name": "shm", "mountPath": "/dev/shm"}]));
    let shm = |job: &Value| job["spec"]["template"]["spec"]["volumes"][0]["emptyDir"].clone();
    assert_eq!(shm(&job), json!({"medium": "Memory", "sizeLimit": "4Gi"}));
    let small = launch(|job| job["memory"] = json!(1001));
    let (job, _) = built(&small, &node(label, "true")).unwrap();
    assert_eq!(shm(&job), json!({"medium": "Memory", "sizeLimit": "500Mi"}));
}

#[test]
fn a_command_that_begins_with_an_option_becomes_arguments_of_the_image() {
    let options = launch(|job| job["command"] = json!(["--model", "a"]));
    let (job, _) = built(&options, &node(json!({}), "true")).unwrap();
    let container = &job["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(
        (&container["command"], &container["args"]),
        (&Value::Null, &json!(["--model", "a"]))
    );
}

#[test]
fn a_job_without_an_image_is_rejected() {
    let error = built(&launch(|job| job["image"] = Value::Null), &node(json!({}), "true"));
    assert!(matches!(error, Err(StartError::Job(_))));
}
