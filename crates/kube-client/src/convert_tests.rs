//! Tests of the conversion in both directions.

use agentaflow_api::Cores;
use agentaflow_api::job::{JobCreate, JobSpec, OnNodeLost, Runtime};
use serde_json::{Value, json};

use super::{job, object, valid_name};

fn short(spec: JobSpec) -> JobCreate {
    let docker_image = spec.docker_image.clone().or(Some("pytorch/pytorch".to_owned()));
    let runtime = spec.runtime.or(Some(Runtime::Docker));
    JobCreate { spec: JobSpec { docker_image, runtime, ..spec }, ..JobCreate::default() }
}

fn full() -> JobSpec {
    JobSpec {
        job_name: Some("train".to_owned()),
        docker_tag: Some("2.1".to_owned()),
        command: Some(vec!["python".to_owned(), "train.py".to_owned()]),
        env: [("EPOCHS".to_owned(), "3".to_owned())].into(),
        cpu_cores_required: Some(Cores(4500)),
        memory_required: Some(8192),
        gpu_count: Some(2),
        gpu_memory_required: Some(40_960),
        gpu_type: Some("A100".to_owned()),
        priority: Some(7),
        queue: Some("research".to_owned()),
        replicas: Some(2),
        max_retries: Some(3),
        timeout_seconds: Some(3600),
        stop_grace_seconds: Some(20),
        shm_size: Some(2048),
        working_dir: Some("/work".to_owned()),
        estimated_duration_seconds: Some(5400),
        preemptible: true,
        ..JobSpec::default()
    }
}

#[test]
fn a_short_job_becomes_a_workload_with_everything_it_says() {
    let made = object(&short(full())).unwrap();
    let container = json!({
        "name": "main",
        "image": "pytorch/pytorch:2.1",
        "command": ["python", "train.py"],
        "env": [{"name": "EPOCHS", "value": "3"}],
        "resources": {
            "requests": {"cpu": "4500m", "memory": "8192Mi"},
            "limits": {"memory": "8192Mi"},
        },
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],
        "workingDir": "/work",
        "terminationMessagePolicy": "FallbackToLogsOnError",
    });
    let expected = json!({
        "apiVersion": "agentaflow.io/v1",
        "kind": "GPUWorkload",
        "metadata": {"name": "train"},
        "spec": {
            "gpuMemoryRequired": 40_960,
            "gpuRequirements": {"gpuCount": 2, "requiredGPUType": "A100"},
            "preemptible": true,
            "priority": 7,
            "queue": "research",
            "gangSize": 2,
            "retries": 3,
            "estimatedDuration": "5400s",
            "podTemplate": {"spec": {
                "containers": [container],
                "volumes": [{
                    "name": "shared-memory",
                    "emptyDir": {"medium": "Memory", "sizeLimit": "2048Mi"},
                }],
                "activeDeadlineSeconds": 3600,
                "terminationGracePeriodSeconds": 20,
            }},
        },
    });
    assert_eq!(made, expected);
}

#[test]
fn a_job_is_unchanged_by_a_conversion_to_a_pod_and_back() {
    let there = object(&short(full())).unwrap();
    assert_eq!(job(&there).unwrap(), short(full()));
}

#[test]
fn the_smallest_jobs_get_one_gpu_or_none() {
    let one = object(&short(JobSpec { gpu_memory_required: Some(8192), ..JobSpec::default() }));
    let one = one.unwrap();
    assert_eq!(one["metadata"], json!({"generateName": "job-"}));
    assert_eq!(one["spec"]["gpuRequirements"], json!({"gpuCount": 1}));
    let none = JobSpec { priority: Some(3), ..JobSpec::default() };
    let none = object(&short(none)).unwrap();
    assert_eq!(
        (&none["kind"], &none["spec"]["schedulerName"]),
        (&json!("Pod"), &json!("agentaflow"))
    );
    let annotations =
        json!({"agentaflow.gpu/priority": "3", "agentaflow.gpu/preemptible": "false"});
    assert_eq!(none["metadata"]["annotations"], annotations);
    let slice = JobSpec { mig_profile: Some("1g.5gb".to_owned()), ..JobSpec::default() };
    let slice = object(&short(slice)).unwrap();
    assert_eq!(slice["spec"]["gpuRequirements"]["migProfile"], "1g.5gb");
}

#[test]
fn a_field_that_a_cluster_does_not_support_is_rejected_by_name() {
    let password = JobCreate { docker_password: Some("x".into()), ..short(JobSpec::default()) };
    let secret = [("TOKEN".to_owned(), "x".into())].into();
    let secret = JobCreate { secret_env: secret, ..short(JobSpec::default()) };
    let table = [
        (short(JobSpec { runtime: Some(Runtime::Process), ..JobSpec::default() }), "runtime"),
        (short(JobSpec { gpu_fraction: Some(0.5), ..JobSpec::default() }), "gpu_fraction"),
        (short(JobSpec { replicas: Some(2), ..JobSpec::default() }), "replicas"),
        (
            short(JobSpec { on_node_lost: Some(OnNodeLost::Wait), ..JobSpec::default() }),
            "on_node_lost",
        ),
        (password, "docker_password"),
        (secret, "secret_env"),
    ];
    for (job, field) in table {
        assert_eq!(object(&job).unwrap_err().field, field);
    }
}

#[expect(clippy::needless_pass_by_value, reason = "values are written where they are used")]
fn workload(pod: Value) -> Value {
    json!({
        "apiVersion": "agentaflow.io/v1",
        "kind": "GPUWorkload",
        "metadata": {"name": "w"},
        "spec": {"gpuMemoryRequired": 0, "podTemplate": {"spec": pod}},
    })
}

#[test]
fn a_field_that_a_server_does_not_support_is_rejected_by_name() {
    let with = |field: &str, value: Value| {
        let mut pod = json!({"containers": [{"name": "c", "image": "i"}]});
        pod[field] = value;
        workload(pod)
    };
    let container = |field: &str, value: Value| {
        let mut container = json!({"name": "c", "image": "i"});
        container[field] = value;
        workload(json!({"containers": [container]}))
    };
    let two = json!([{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]);
    let claim = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
    let table = [
        (with("containers", two), "spec.podTemplate.spec.containers"),
        (with("containers", json!([])), "spec.podTemplate.spec.containers"),
        (with("nodeSelector", json!({"a": "b"})), "spec.podTemplate.spec.nodeSelector"),
        (with("affinity", json!({})), "spec.podTemplate.spec.affinity"),
        (with("initContainers", json!([])), "spec.podTemplate.spec.initContainers"),
        (with("restartPolicy", json!("Always")), "spec.podTemplate.spec.restartPolicy"),
        (with("volumes", claim), "spec.podTemplate.spec.volumes[0].persistentVolumeClaim"),
        (
            with("volumes", json!([{"name": "v", "emptyDir": {}}])),
            "spec.podTemplate.spec.volumes[0].emptyDir",
        ),
        (
            container("livenessProbe", json!({})),
            "spec.podTemplate.spec.containers[0].livenessProbe",
        ),
        (container("args", json!(["x"])), "spec.podTemplate.spec.containers[0].args"),
        (container("image", json!(null)), "spec.podTemplate.spec.containers[0].image"),
        (
            container("env", json!([{"name": "A", "valueFrom": {"secretKeyRef": {}}}])),
            "spec.podTemplate.spec.containers[0].env[0].valueFrom",
        ),
        (json!({"kind": "Deployment", "apiVersion": "apps/v1"}), "kind"),
        (json!({}), "kind"),
        (json!(null), "kind"),
    ];
    for (object, field) in table {
        assert_eq!(job(&object).unwrap_err().field, field, "{object}");
    }
}

#[test]
fn a_plain_workload_and_a_pod_can_be_handed_to_a_server() {
    let pod = json!({
        "restartPolicy": "Never",
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "containers": [{
            "name": "c",
            "image": "registry:5000/lab/train:v2",
            "command": ["sh"],
            "args": ["-c", "true"],
            "resources": {"limits": {"nvidia.com/gpu": 2, "memory": "16Gi"}, "requests": {"cpu": "500m"}},
            "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": true}],
        }],
        "volumes": [{"name": "data", "hostPath": {"path": "/srv/data"}}],
    });
    let made =
        job(&json!({"kind": "Pod", "metadata": {"generateName": "one-"}, "spec": pod})).unwrap();
    let spec = made.spec;
    assert_eq!(spec.job_name.as_deref(), Some("one"));
    assert_eq!(spec.docker_image.as_deref(), Some("registry:5000/lab/train"));
    assert_eq!(spec.docker_tag.as_deref(), Some("v2"));
    assert_eq!(spec.command.unwrap(), ["sh", "-c", "true"]);
    assert_eq!((spec.gpu_count, spec.memory_required), (Some(2), Some(16_384)));
    assert_eq!(spec.cpu_cores_required, Some(Cores(500)));
    assert_eq!(spec.volumes[0].source, "/srv/data");
    assert!(spec.volumes[0].read_only);
}

#[test]
fn names_are_made_valid() {
    for (name, expected) in [
        ("train", "train"),
        ("ml_task_123", "ml-task-123"),
        ("My Job!", "my-job"),
        ("--x--y--", "x-y"),
        ("日本", ""),
        ("", ""),
    ] {
        assert_eq!(valid_name(name), expected);
    }
    assert_eq!(valid_name(&"a".repeat(100)).len(), 52);
}
