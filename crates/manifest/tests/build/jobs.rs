//! Jobs, servers and claims with defaults.

use agentaflow_manifest::build::{GpuJobRequest, create_gpu_job};
use agentaflow_manifest::catalogue::Catalogue;
use serde_json::{Value, json};

use crate::{check, make, refusal};

fn job_request() -> GpuJobRequest {
    GpuJobRequest {
        task_id: "ml_task_123".to_owned(),
        image: "agent_bus:latest".to_owned(),
        memory: Some("16Gi".to_owned()),
        cpu: Some("8000m".to_owned()),
        command: ["python", "-m", "src.workers.worker"].map(str::to_owned).to_vec(),
        env: vec![
            ("WORKER_TYPE".to_owned(), "gpu".to_owned()),
            ("TASK_ID".to_owned(), "ml_task_123".to_owned()),
        ],
        ..GpuJobRequest::default()
    }
}

#[test]
fn the_documented_call_makes_the_documented_job() {
    let made = create_gpu_job(&job_request(), &Catalogue::built_in().unwrap()).unwrap();
    assert_eq!(made.job_name, "gpu-job-ml-task-123");
    let job = serde_json::to_value(&made.job).unwrap();
    assert_eq!(check::problems(&job), Vec::<String>::new());
    assert_eq!(job["metadata"]["name"], "gpu-job-ml-task-123");
    let (spec, pod) = (&job["spec"], &job["spec"]["template"]["spec"]);
    assert_eq!(
        (&spec["backoffLimit"], &spec["ttlSecondsAfterFinished"]),
        (&json!(3), &json!(3600))
    );
    assert_eq!(spec["activeDeadlineSeconds"], Value::Null);
    assert_eq!(pod["restartPolicy"], "OnFailure");
    assert_eq!(pod["nodeSelector"], json!({"accelerator": "nvidia-tesla-v100"}));
    assert_eq!(
        pod["tolerations"],
        json!([{"key": "nvidia.com/gpu", "operator": "Equal", "value": "true", "effect": "NoSchedule"}])
    );
    let container = &pod["containers"][0];
    assert_eq!(container["command"], json!(["python", "-m", "src.workers.worker"]));
    assert_eq!(
        container["resources"],
        json!({
            "limits": {"cpu": "8000m", "memory": "16Gi", "nvidia.com/gpu": "1"},
            "requests": {"cpu": "4000m", "memory": "8Gi", "nvidia.com/gpu": "1"},
        })
    );
    let mut env: Vec<_> = container["env"].as_array().unwrap().clone();
    env.sort_by_key(|variable| variable["name"].to_string());
    assert_eq!(
        env,
        [
            json!({"name": "CUDA_VISIBLE_DEVICES", "value": "0"}),
            json!({"name": "TASK_ID", "value": "ml_task_123"}),
            json!({"name": "WORKER_TYPE", "value": "gpu"}),
        ]
    );
    assert_eq!(pod["volumes"][0]["emptyDir"], json!({"medium": "Memory", "sizeLimit": "2Gi"}));
}

#[test]
fn a_call_that_cannot_be_meant_says_which_part() {
    let catalogue = Catalogue::built_in().unwrap();
    let cases: [(&str, GpuJobRequest); 6] = [
        ("--task-id: ", GpuJobRequest { task_id: String::new(), ..job_request() }),
        ("--image: ", GpuJobRequest { image: "a b".to_owned(), ..job_request() }),
        ("--gpus: ", GpuJobRequest { gpu_count: 0, ..job_request() }),
        ("--gpu: ", GpuJobRequest { gpu_type: "zx81".to_owned(), ..job_request() }),
        ("--memory: ", GpuJobRequest { memory: Some("16".to_owned()), ..job_request() }),
        (
            "--env: ",
            GpuJobRequest { env: vec![("A B".to_owned(), String::new())], ..job_request() },
        ),
    ];
    for (flag, ask) in cases {
        let output = create_gpu_job(&ask, &catalogue).unwrap_err().to_string();
        assert!(output.starts_with(flag), "{output}");
    }
}

#[test]
fn a_negative_number_is_refused_with_its_flag() {
    use clap::Parser as _;
    for (line, flag) in [
        ("job --gpus -1", "--gpus"),
        ("job --backoff-limit -1", "--backoff-limit"),
        ("workload --gpu-memory -1", "--gpu-memory"),
        ("deployment --replicas -1", "--replicas"),
        ("deployment --port -1", "--port"),
        ("nodepool --max-gpus -8", "--max-gpus"),
        ("hpa --target a --max -1", "--max"),
    ] {
        let words = ["generate"].into_iter().chain(line.split(' '));
        let output = crate::Line::try_parse_from(words).unwrap_err().to_string();
        assert!(output.starts_with("error: invalid value '-"), "{line}: {output}");
        assert!(output.contains(&format!("for '{flag} <")), "{line}: {output}");
    }
    for (flags, words) in [
        ("--timeout -5", "--timeout: `-5` is not a duration"),
        ("--cpu -1", "--cpu: `-1` is not a number of cores"),
        ("--memory -1", "--memory: `-1` is not an amount of memory"),
    ] {
        let output = refusal(&format!("job --name t --image i:1 {flags}"));
        assert!(output.starts_with(words), "{flags}: {output}");
    }
}

#[test]
fn several_gpus_get_their_share_of_everything() {
    let at =
        |line: &str, path: &str| make(line).objects[0].pointer(path).cloned().unwrap_or_default();
    for (gpus, devices, memory, cpu, shm) in [
        (2, "0,1", "64Gi", "32000m", "8Gi"),
        (4, "0,1,2,3", "128Gi", "64000m", "16Gi"),
        (8, "0,1,2,3,4,5,6,7", "256Gi", "128000m", "32Gi"),
    ] {
        let line = format!("job --task-id t --image i:1 --gpu a100 --gpus {gpus}");
        let pod = at(&line, "/spec/template/spec");
        let limits = &pod["containers"][0]["resources"]["limits"];
        assert_eq!((&limits["memory"], &limits["cpu"]), (&json!(memory), &json!(cpu)));
        assert_eq!(limits["nvidia.com/gpu"], json!(gpus.to_string()));
        let env = pod["containers"][0]["env"].as_array().unwrap();
        assert!(
            env.contains(&json!({"name": "CUDA_VISIBLE_DEVICES", "value": devices})),
            "{env:?}"
        );
        assert_eq!(pod["volumes"][0]["emptyDir"]["sizeLimit"], shm);
    }
}

#[test]
fn a_job_ends_in_time_is_cleaned_up_and_says_so() {
    let made = make("job --task-id t --image i:1");
    let spec = &made.objects[0]["spec"];
    assert_eq!(spec["activeDeadlineSeconds"], 86_400);
    assert!(made.notes.iter().any(|note| note.contains("deadline of 24h")), "{:?}", made.notes);
    let made = make("job --task-id t --image i:1 --timeout 1h30m --ttl none --backoff-limit 0");
    let spec = &made.objects[0]["spec"];
    assert_eq!((&spec["activeDeadlineSeconds"], &spec["backoffLimit"]), (&json!(5400), &json!(0)));
    assert_eq!((&spec["ttlSecondsAfterFinished"], made.notes.len()), (&Value::Null, 0));
}

#[test]
fn a_server_has_time_to_load_its_model() {
    let made = make("model-server --name llm --image vllm:v1 --gpu a100 --load-time 45m --service");
    let container = &made.objects[0]["spec"]["template"]["spec"]["containers"][0];
    let probe = &container["startupProbe"];
    assert_eq!((&probe["failureThreshold"], &probe["periodSeconds"]), (&json!(270), &json!(10)));
    assert_eq!(container["livenessProbe"]["periodSeconds"], 30);
    let kinds: Vec<_> =
        made.objects.iter().map(|object| object["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["Deployment", "PersistentVolumeClaim", "Service"]);
    assert_eq!(made.objects[1]["metadata"]["name"], "llm-models");
    assert_eq!(made.objects[1]["spec"]["accessModes"], json!(["ReadWriteOnce"]));
}

#[test]
fn options_are_arguments_of_the_entrypoint() {
    for kind in ["model-server", "job", "workload"] {
        let line =
            format!("{kind} --name llm --image vllm/vllm-openai:v0.11.0 -- --model m --port 8000");
        let made = make(&line);
        let object = &made.objects[0];
        let template = if kind == "workload" { "podTemplate" } else { "template" };
        let container = &object["spec"][template]["spec"]["containers"][0];
        assert_eq!(container["command"], Value::Null, "{kind}");
        assert_eq!(container["args"], json!(["--model", "m", "--port", "8000"]), "{kind}");
    }
    let made = make("job --name a --image a:v1 -- python --version");
    let container = &made.objects[0]["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(
        (&container["command"], &container["args"]),
        (&json!(["python", "--version"]), &Value::Null)
    );
}

#[test]
fn an_update_of_a_server_does_not_wait_for_its_own_volume() {
    let strategy = |flags: &str| {
        make(&format!("model-server --name llm --image vllm:v1 {flags}")).objects[0]["spec"]["strategy"].clone()
    };
    for flags in ["", "--access-mode rwop", "--replicas 2 --access-mode rwo"] {
        assert_eq!(strategy(flags), json!({"type": "Recreate"}), "{flags}");
    }
    for flags in ["--replicas 2", "--access-mode rwx", "--bare"] {
        assert_eq!(strategy(flags), Value::Null, "{flags}");
    }
}

#[test]
fn replicas_share_a_claim_only_where_it_can_be_shared() {
    let line = "model-server --name llm --image vllm:v1 --replicas 2";
    let made = make(line);
    assert_eq!(made.objects[1]["spec"]["accessModes"], json!(["ReadWriteMany"]));
    let made = make(&format!("{line} --access-mode rwo"));
    assert_eq!(made.objects[1]["spec"]["accessModes"], json!(["ReadWriteOnce"]));
    assert!(
        made.notes.iter().any(|note| note.contains("ReadWriteMany allows several nodes")),
        "{:?}",
        made.notes
    );
}

#[test]
fn invalid_flags_have_a_suggestion() {
    for (line, words) in [
        ("job --image i:1", "--name: a name is required"),
        ("job --name t", "--image: an image is required"),
        ("job --name Ä --image i:1", "--name: `Ä` is not a name"),
        (
            "job --task-id t --image i:1 --memory lots",
            "--memory: `lots` is not an amount of memory",
        ),
        (
            "job --task-id t --image i:1 --memory 8Gi --memory-request 9Gi",
            "--memory-request: the request exceeds",
        ),
        (
            "job --task-id t --image Train:v1",
            "--image: `Train:v1` is not an image: use a form such as",
        ),
        (
            "scaler --cloud karpenter --image a:b:c",
            "--image: `a:b:c` is not an image: use a form such as",
        ),
        ("job --task-id t --image i:1 --cpu 0", "--cpu: `0` is not a number of cores"),
        ("job --task-id t --image i:1 --cpu 100000", "--cpu: `100000` is more than 4096 cores"),
        (
            "job --task-id t --image i:1 --memory-request 1",
            "--memory-request: `1` is less than a MiB",
        ),
        (
            "job --task-id t --image i:1 --memory 2Gi --shm 3Gi",
            "--shm: counts against the memory limit",
        ),
        ("job --task-id t --image i:1 --timeout soon", "--timeout: `soon` is not a duration"),
        ("job --task-id t --image i:1 --env 1A=x", "--env: `1A` is not a variable name"),
        ("job --task-id t --image i:1 --label a/b/c=x", "--label: `a/b/c=x` is not a label"),
        (
            "job --task-id t --image i:1 --mount a:/x --mount b:/x",
            "--mount: the volume `b` or the path `/x`",
        ),
        ("job --task-id t --image i:1 --mount a:/dev/shm", "--mount: "),
        ("job --task-id t --image i:1 --mig 9g.9gb", "--mig: no GPU has the profile `9g.9gb`"),
        ("job --task-id t --image i:1 --gpus 65", "--gpus: 65 is not between 1 and 64"),
        ("pod --name p --image i:1 --annotation b%=x", "--annotation: "),
        ("deployment --name d --image i:1 --health up", "--health: `up` is not a path"),
        ("deployment --name d --image i:1 --port 0", "--port: "),
        ("deployment --name 1d --image i:1 --service", "--name: must start with a letter"),
        ("model-server --name d --image i:1 --cache-size x", "--cache-size: `x` is not an amount"),
        ("model-server --name d --image i:1 --cache-path /dev/shm", "--cache-path: `/dev/shm` is"),
        (
            "model-server --name d --image i:1 --cache-path /models --model-cache c",
            "--cache-path: `/models` is already mounted",
        ),
        (
            "pod --name p --image i:1 --gpu t4 --gpu-memory-over 40000",
            "--gpu-memory-over: the GPU T4 16 GB does not have more than 40000 MiB",
        ),
        (
            "pod --name p --image i:1 --cloud eks --gpu a100 --gpu-memory-over 50000",
            "--gpu-memory-over: the GPU A100 40 GB does not have more than 50000 MiB",
        ),
        ("pvc --name c --size 0Gi", "--size: "),
        ("pvc --name c --storage-class A", "--storage-class: `A`"),
        ("workload --name w --image i:1 --priority 11", "--priority: must be 0 to 10"),
        ("workload --name w --image i:1 --gpu-memory 8589934592", "--gpu-memory: must be in MiB"),
        ("hpa --target d --min 0", "--min: a HorizontalPodAutoscaler keeps one pod"),
        ("hpa --target d --min 5 --max 4", "--min: 5 is more than the maximum, 4"),
        ("hpa --target d --value none", "--value: `none` is not a quantity"),
        ("hpa", "--target: the deployment to scale is required"),
        ("keda --target d --min 0", "--query: with --min 0 the query must count pending requests"),
        ("keda --target d --prometheus here", "--prometheus: use a form such as http"),
        ("keda --target d --prometheus http://", "--prometheus: use a form such as http"),
        ("keda --target d --prometheus https://:9090", "--prometheus: use a form such as http"),
        ("scaler", "--cloud: required: eks, gke, aks or karpenter"),
        ("scaler --cloud eks", "--cluster: required for this cloud"),
        ("scaler --cloud aks --cluster c", "--resource-group: required for this cloud"),
        (
            "scaler --cloud gke --cluster=--all --location x",
            "--cluster: `--all` is not a valid cloud resource name",
        ),
        ("scaler --cloud karpenter --up '0 9 * *'", "--up: `0 9 * *` is not a schedule"),
        ("scaler --cloud karpenter --down-to 5", "--down-to: 5 is not less than the 5"),
        ("nodepool", "--gpu: the GPU model is required"),
        ("nodepool --gpu a100 --cloud gke", "--cloud: Karpenter does not run on gke"),
        ("nodepool --gpu a30", "--gpu: no eks machine of the catalogue has the GPU A30"),
    ] {
        let output = refusal(line);
        assert!(output.starts_with(words), "{line}: {output}");
    }
}
