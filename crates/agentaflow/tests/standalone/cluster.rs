//! One server and three agents with the process runtime.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Cluster, SOON, eventually};

/// A server with three ready agents.
pub(crate) fn three_agents() -> Cluster {
    three_agents_with(&[])
}

/// Three agents that keep their jobs for longer than a busy machine needs to restart a program.
pub(crate) fn three_patient_agents() -> Cluster {
    three_agents_with(&["--lease", "30s"])
}

fn three_agents_with(extra: &[&str]) -> Cluster {
    let mut cluster = Cluster::server(extra);
    for name in ["one", "two", "three"] {
        cluster.agent(name, &[]);
    }
    cluster.wait_for_nodes(3);
    cluster
}

/// Node of the first task of a job.
pub(crate) fn node_of(job: &Value) -> String {
    job["tasks"][0]["node_name"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn many_jobs_run_on_all_nodes_and_all_end_well() {
    let cluster = three_agents();
    let more = || json!({"gpu_count": 1, "estimated_duration_seconds": 1});
    let ids: Vec<_> = (0..30)
        .map(|number| cluster.submit(&format!("echo {number}; sleep 0.3"), more()))
        .collect();
    let mut nodes = BTreeSet::new();
    for (number, id) in ids.iter().enumerate() {
        let job = cluster.wait_for_status(*id, "completed");
        assert_eq!((&job["exit_code"], &job["simulated"]), (&json!(0), &json!(true)));
        assert!(cluster.logs(*id).ends_with(&format!("{number}\n")), "{}", cluster.logs(*id));
        nodes.insert(node_of(&job));
    }
    assert_eq!(nodes.len(), 3, "{nodes:?}");
}

#[test]
fn a_gang_knows_its_ranks_and_its_master() {
    let cluster = three_agents();
    let out = cluster.shared("gang");
    let script = format!("echo $RANK/$WORLD_SIZE $MASTER_ADDR:$MASTER_PORT >> {out}");
    let id = cluster.submit(&script, json!({"replicas": 4, "gpu_count": 1}));
    let job = cluster.wait_for_status(id, "completed");
    assert_eq!(job["tasks"].as_array().unwrap().len(), 4);
    let text = std::fs::read_to_string(out).unwrap();
    let lines: BTreeSet<_> = text.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(lines, BTreeSet::from(["0/4", "1/4", "2/4", "3/4"]), "{text}");
    let masters: BTreeSet<_> = text.lines().map(|line| line.split(' ').nth(1).unwrap()).collect();
    assert_eq!(masters.len(), 1, "{text}");
    assert!(
        !masters.first().unwrap().starts_with(':') && !masters.first().unwrap().ends_with(':'),
        "{text}"
    );
}

#[test]
fn a_failed_task_stops_its_gang() {
    let cluster = three_agents();
    let script = "if [ $RANK = 1 ]; then exit 7; fi; sleep 60";
    let id = cluster.submit(script, json!({"replicas": 3, "gpu_count": 1}));
    let job = cluster.wait_for_status(id, "failed");
    assert_eq!(job["exit_code"], 7, "{job:#}");
}

#[test]
fn the_logs_of_a_gang_have_the_task_number() {
    let cluster = three_agents();
    let ran = cluster.run(&["run", "--replicas", "2", "--", "sh", "-c", "echo I am $RANK"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let lines: BTreeSet<_> = ran.out.lines().collect();
    assert_eq!(lines, BTreeSet::from(["[0] I am 0", "[1] I am 1"]), "{}", ran.out);
}

#[test]
fn a_cancelled_job_gets_sigterm_first() {
    let cluster = three_agents();
    let id = cluster
        .submit("trap 'echo bye; exit 0' TERM; echo on; while :; do sleep 0.1; done", json!({}));
    eventually("it runs", SOON, || cluster.logs(id).contains("on").then_some(()));
    assert_eq!(cluster.run(&["cancel", &id.to_string()]).code, Some(0));
    let job = cluster.wait_for_status(id, "cancelled");
    assert_eq!(job["end_reason"], "Cancelled");
    // The shell may also report the end of its `sleep`.
    let logs = cluster.logs(id);
    assert!(logs.starts_with("on\n") && logs.ends_with("bye\n"), "{logs}");
    assert!(
        cluster.events(id).iter().any(|kind| kind.contains("Cancel")),
        "{:?}",
        cluster.events(id)
    );
}

#[test]
fn a_job_that_takes_term_badly_is_killed_after_its_grace() {
    let cluster = three_agents();
    let script = "trap '' TERM; echo on; while :; do sleep 0.1; done";
    let id = cluster.submit(script, json!({"stop_grace_seconds": 1}));
    eventually("it runs", SOON, || cluster.logs(id).contains("on").then_some(()));
    cluster.post(&format!("/gpu-workers/jobs/{id}/cancel"), &json!({})).ok();
    let job = cluster.wait_for_status(id, "cancelled");
    assert_eq!(job["exit_code"], 128 + 9, "{job:#}");
}

#[test]
fn a_job_that_runs_too_long_is_stopped_as_timed_out() {
    let cluster = three_agents();
    let id = cluster.submit("sleep 60", json!({"timeout_seconds": 1}));
    let job = cluster.wait_for_status(id, "failed");
    assert_eq!(job["end_reason"], "TimedOut", "{job:#}");
    assert!(job["duration_seconds"].as_f64().unwrap() < 20.0, "{job:#}");
}

#[test]
fn a_failure_is_tried_again_as_often_as_asked() {
    let cluster = three_agents();
    let file = cluster.shared("tries");
    let script = format!("echo x >> {file}; [ $(wc -l < {file}) -ge 3 ]");
    let id = cluster.submit(&script, json!({"max_retries": 5}));
    let job = cluster.wait_for_status(id, "completed");
    assert_eq!((&job["retries_used"], &job["attempt"]), (&json!(2), &json!(3)), "{job:#}");
    let hopeless = cluster.submit("exit 4", json!({"max_retries": 1}));
    let job = cluster.wait_for_status(hopeless, "failed");
    assert_eq!((&job["retries_used"], &job["exit_code"]), (&json!(1), &json!(4)), "{job:#}");
}

#[test]
fn jobs_of_a_drained_node_move_without_using_a_retry() {
    let cluster = three_agents();
    let id = cluster.submit("sleep 60", json!({}));
    let job = cluster.wait_for_status(id, "running");
    let (node, name) = (job["tasks"][0]["node_id"].as_str().unwrap().to_owned(), node_of(&job));
    cluster.put(&format!("/gpu-workers/nodes/{node}"), &json!({"drain": true})).ok();
    let moved =
        cluster.wait_for(id, "elsewhere", |job| job["status"] == "running" && node_of(job) != name);
    assert_eq!(moved["retries_used"], 0, "{moved:#}");
    let drained = cluster.get(&format!("/gpu-workers/nodes/{node}")).ok();
    assert_eq!(
        (&drained["draining"], &drained["current_jobs"]),
        (&json!(true), &json!(0)),
        "{drained:#}"
    );
}

#[test]
fn an_evicted_job_with_exit_code_0_is_not_completed() {
    let cluster = three_agents();
    // As training that writes a checkpoint on SIGTERM.
    let script = "trap 'exit 0' TERM; echo on; while :; do sleep 0.1; done";
    let id = cluster.submit(script, json!({}));
    eventually("it runs", SOON, || cluster.logs(id).contains("on").then_some(()));
    let job = cluster.wait_for_status(id, "running");
    let (node, name) = (job["tasks"][0]["node_id"].as_str().unwrap().to_owned(), node_of(&job));
    cluster.put(&format!("/gpu-workers/nodes/{node}"), &json!({"drain": true})).ok();
    let moved = |job: &Value| job["status"] == "running" && node_of(job) != name;
    cluster.wait_for(id, "elsewhere", moved);
}

#[test]
fn the_output_file_of_a_job_is_its_result() {
    let cluster = three_agents();
    let id = cluster.submit("echo '{\"loss\": 0.25}' > $AGENTAFLOW_OUTPUT", json!({}));
    let job = cluster.wait_for_status(id, "completed");
    assert_eq!(job["output_data"]["loss"], 0.25, "{job:#}");
}

#[test]
fn job_input_is_an_environment_variable_or_a_file_if_large() {
    let cluster = three_agents();
    let small =
        cluster.submit("echo \"$JOB_ID $JOB_DATA\"", json!({"input_data": {"word": "small"}}));
    cluster.wait_for_status(small, "completed");
    assert!(cluster.logs(small).starts_with(&format!("{small} {{")), "{}", cluster.logs(small));
    assert!(cluster.logs(small).contains("\"word\":\"small\""), "{}", cluster.logs(small));
    let large = json!({"input_data": {"word": "x".repeat(200_000)}});
    let large = cluster.submit("wc -c < $JOB_DATA_FILE", large);
    cluster.wait_for_status(large, "completed");
    assert!(
        cluster.logs(large).trim().parse::<u64>().unwrap() > 200_000,
        "{}",
        cluster.logs(large)
    );
}

#[test]
fn a_restarted_server_loses_nothing_and_stops_nothing() {
    let mut cluster = three_patient_agents();
    let file = cluster.shared("once");
    let end = cluster.shared("end");
    let script = format!("echo x >> {file}; until [ -e {end} ]; do sleep 0.05; done; echo done");
    let running = cluster.submit(&script, json!({}));
    let waiting = cluster.submit("true", json!({"gpu_count": 64}));
    cluster.wait_for_status(running, "running");
    cluster.server.kill();
    std::thread::sleep(Duration::from_millis(300));
    cluster.restart_server();
    std::fs::write(end, "").unwrap();
    let job = cluster.wait_for_status(running, "completed");
    assert_eq!(job["attempt"], 1, "{job:#}");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "x\n");
    assert_eq!(cluster.logs(running), "done\n");
    assert_eq!(cluster.job(waiting)["status"], "pending");
}

#[test]
fn the_same_submission_twice_is_one_job() {
    let cluster = Cluster::server(&[]);
    let address = format!("http://127.0.0.1:{}/gpu-workers/jobs/", cluster.port);
    let submit = |body: &str| {
        let output = std::process::Command::new("curl")
            .args(["-sS", "-H", "Idempotency-Key: k1", "-d", body, &address])
            .args(["-H", &format!("Authorization: Bearer {}", cluster.token())])
            .args(["-H", "Content-Type: application/json"])
            .output()
            .unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let job = r#"{"docker_image": "busybox"}"#;
    assert_eq!(submit(job)["id"], submit(job)["id"]);
    let other = submit(r#"{"docker_image": "alpine"}"#);
    assert!(other["code"].is_string() && other["id"].is_null(), "{other:#}");
}
