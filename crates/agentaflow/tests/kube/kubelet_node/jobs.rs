//! Logs, results and end reasons of server jobs on a kubelet.

use k8s_openapi::api::batch::v1::Job;
use kube::api::ListParams;
use serde_json::{Value, json};

use super::real::{NAME, RealNode, lent};
use crate::support::{Share, wait_for};
use crate::workers::Fleet;

/// A job with one GPU and a script.
pub(super) fn script(script: &str) -> Value {
    json!({
        "docker_image": "agentaflow-test/busybox",
        "docker_tag": "1",
        "gpu_count": 1,
        "cpu_cores_required": 0.1,
        "memory_required": 64,
        "command": ["sh", "-c", script],
        "stop_grace_seconds": 5,
    })
}

/// The images of the node are in no registry.
pub(super) async fn fleet(gpus: usize) -> (Fleet, RealNode) {
    fleet_with(gpus, &["--trust-local-images"]).await
}

async fn fleet_with(gpus: usize, options: &[&str]) -> (Fleet, RealNode) {
    let share = Share::new().await;
    let node = RealNode::join(&share, gpus).await;
    (Fleet::start(share, NAME.to_owned(), "5s", false, options).await, node)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes node"]
async fn a_job_of_a_server_returns_logs_and_result() {
    let _lent = lent().await;
    let (fleet, node) = fleet(1).await;
    let mut job = script(
        "echo devices=$NVIDIA_VISIBLE_DEVICES; echo visible=$CUDA_VISIBLE_DEVICES; echo '$(JOB_ID)' $WORD; \
         echo data=$JOB_DATA; echo wrong >&2; echo '{\"loss\": 0.5}' > $AGENTAFLOW_OUTPUT",
    );
    job["input_data"] = json!({"epochs": 3});
    job["secret_env"] = json!({"WORD": "hush-hush"});
    let id = fleet.post(&job);
    let done = fleet.is(id, "completed").await;
    let output = fleet.output(id);
    // Stdout and stderr of a container have no common order.
    let (errors, lines): (Vec<&str>, Vec<&str>) = output.lines().partition(|line| *line == "wrong");
    assert_eq!(errors.len(), 1, "{output}");
    assert_eq!(lines[0], format!("devices={}", node.devices[0]), "{output}");
    assert_eq!(lines[1..3], ["visible=0", "$(JOB_ID) hush-hush"], "{output}");
    assert!(lines[3].contains("\"epochs\":3"), "{output}");
    assert_eq!((&done["output_data"], &done["exit_code"]), (&json!({"loss": 0.5}), &json!(0)));
    let jobs = fleet.share.api::<Job>().list(&ListParams::default()).await.unwrap().items;
    let text = serde_json::to_string(&jobs).unwrap();
    assert!(text.contains("gpu-job-") && !text.contains("hush-hush"), "{text}");

    // A value too large for a variable is a file.
    let mut job = script("grep -c xxxx $JOB_DATA_FILE");
    job["input_data"] = json!({"long": "x".repeat(150 << 10)});
    let id = fleet.post(&job);
    fleet.is(id, "completed").await;
    assert_eq!(fleet.output(id), "1\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes node"]
async fn a_job_that_fails_on_a_kubelet_has_its_end_reason() {
    let _lent = lent().await;
    let (fleet, _node) = fleet(4).await;
    let table = [
        (script("echo no such file >&2; exit 3"), "Exited", json!(3)),
        (script("kill -SEGV $$"), "Signalled", json!(139)),
        (script("tail /dev/zero"), "OutOfMemory", json!(137)),
    ];
    for (job, word, code) in table {
        let id = fleet.post(&job);
        let failed = fleet.is(id, "failed").await;
        assert_eq!(
            (&failed["end_reason"], &failed["exit_code"]),
            (&json!(word), &code),
            "{failed}"
        );
    }
    let mut absent = script("true");
    absent["docker_image"] = json!("agentaflow-test/absent");
    let mut wrong = script("true");
    wrong["command"] = json!(["no-such-program"]);
    for (job, word) in [(absent, "ImagePull"), (wrong, "StartFailed")] {
        let id = fleet.post(&job);
        let failed = fleet.is(id, "failed").await;
        assert_eq!(failed["end_reason"], json!(word), "{failed}");
    }
    let mut slow = script("sleep 300");
    slow["timeout_seconds"] = json!(1);
    let id = fleet.post(&slow);
    let failed = fleet.is(id, "failed").await;
    assert_eq!(failed["end_reason"], json!("TimedOut"), "{failed}");
}

/// The registry of the image does not answer, as one that rejects the credentials of the job.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes node"]
async fn an_image_of_the_node_does_not_run_without_its_registry_unless_the_agent_trusts_it() {
    let _lent = lent().await;
    let (fleet, _node) = fleet_with(1, &[]).await;
    let id = fleet.post(&script("true"));
    let failed = fleet.is(id, "failed").await;
    assert_eq!(failed["end_reason"], json!("ImagePull"), "{failed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes node"]
async fn a_cancelled_job_gets_sigterm_and_its_last_logs_are_kept() {
    let _lent = lent().await;
    let (fleet, _node) = fleet(1).await;
    let id = fleet.post(&script(
        "trap 'echo last words; exit 5' TERM; echo begun; while true; do sleep 0.1; done",
    ));
    wait_for("it has begun", async || {
        let output = fleet.output(id);
        if output.contains("begun") { Ok(()) } else { Err(output) }
    })
    .await;
    fleet.call("POST", &format!("/gpu-workers/jobs/{id}/cancel"), None).ok();
    let job = fleet.is(id, "cancelled").await;
    assert_eq!(job["exit_code"], json!(5), "{job}");
    assert_eq!(fleet.output(id), "begun\nlast words\n");
    fleet.nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes node"]
async fn no_log_line_is_lost_or_repeated_after_an_agent_kill() {
    let _lent = lent().await;
    let (mut fleet, _node) = fleet(1).await;
    let id = fleet.post(&script("for n in $(seq 60); do echo line $n; sleep 0.1; done"));
    let shown = |fleet: &Fleet, words: &str| {
        let output = fleet.output(id);
        if output.contains(words) { Ok(()) } else { Err(output) }
    };
    wait_for("some lines", async || shown(&fleet, "line 10\n")).await;
    fleet.agent.kill();
    fleet.agent.restart();
    wait_for("more lines", async || shown(&fleet, "line 40\n")).await;
    fleet.agent.restart();
    let job = fleet.is(id, "completed").await;
    assert_eq!(job["attempt"], json!(1), "{job}");
    let all: Vec<String> = (1..=60).map(|n| format!("line {n}")).collect();
    assert_eq!(fleet.output(id), all.join("\n") + "\n");
}
