//! Containers on a Docker engine; `AGENTAFLOW_TEST_DOCKER` is the path of its socket.

use serde_json::{Value, json};

use crate::harness::{Cluster, SOON, eventually};
use crate::image::{IMAGE, make_image};

fn socket() -> String {
    std::env::var("AGENTAFLOW_TEST_DOCKER")
        .expect("AGENTAFLOW_TEST_DOCKER names the engine's socket")
}

fn cluster() -> Cluster {
    make_image(&socket());
    let mut cluster = Cluster::server(&[]);
    cluster.agent("box", &["--runtime", "docker", "--docker-socket", &socket()]);
    cluster.wait_for_nodes(1);
    cluster
}

fn submit(cluster: &Cluster, script: &str, more: &Value) -> i64 {
    let mut job = json!({"docker_image": IMAGE, "command": ["/bin/sh", "-c", script]});
    job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    cluster.post("/gpu-workers/jobs/", &job).ok()["id"].as_i64().unwrap()
}

#[test]
#[ignore = "needs a Docker engine: AGENTAFLOW_TEST_DOCKER"]
fn docker_runs_a_container_and_returns_its_output_and_code() {
    let cluster = cluster();
    let ran = cluster.run(&["run", IMAGE, "--", "sh", "-c", "echo hello from $JOB_ID; exit 5"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(5), "hello from 1\n"), "{}", ran.err);
}

#[test]
#[ignore = "needs a Docker engine: AGENTAFLOW_TEST_DOCKER"]
fn docker_stops_a_cancelled_container_and_one_that_runs_too_long() {
    let cluster = cluster();
    let script = "trap 'echo bye; exit 0' TERM; echo on; while :; do sleep 0.1; done";
    let id = submit(&cluster, script, &json!({}));
    eventually("it runs", SOON, || cluster.logs(id).contains("on").then_some(()));
    cluster.post(&format!("/gpu-workers/jobs/{id}/cancel"), &json!({})).ok();
    cluster.wait_for_status(id, "cancelled");
    assert_eq!(cluster.logs(id), "on\nbye\n");
    let id = submit(&cluster, "sleep 60", &json!({"timeout_seconds": 1, "stop_grace_seconds": 1}));
    assert_eq!(cluster.wait_for_status(id, "failed")["end_reason"], "TimedOut");
}

#[test]
#[ignore = "needs a Docker engine: AGENTAFLOW_TEST_DOCKER"]
fn docker_containers_outlive_a_killed_agent_and_are_adopted() {
    let mut cluster = cluster();
    let id = submit(&cluster, "echo begun; sleep 4; echo done", &json!({}));
    eventually("it runs", SOON, || cluster.logs(id).contains("begun").then_some(()));
    cluster.agents.get_mut("box").unwrap().kill();
    cluster.restart_agent("box");
    let job = cluster.wait_for_status(id, "completed");
    assert_eq!(job["attempt"], 1, "{job:#}");
    assert_eq!(cluster.logs(id), "begun\ndone\n");
}

#[test]
#[ignore = "needs a Docker engine: AGENTAFLOW_TEST_DOCKER"]
fn docker_a_container_above_its_disk_limit_is_stopped() {
    let cluster = cluster();
    let writes = |bytes: u64, seconds: u64| {
        let script = format!("busybox head -c {bytes} /dev/zero > /file && sleep {seconds}");
        submit(&cluster, &script, &json!({"storage_required": 1}))
    };
    let (over, under) = (writes(1_100_000_000, 60), writes(3_000_000, 6));
    let job = cluster.wait_for_status(over, "failed");
    // A storage driver with quotas fails the write instead.
    assert!(job["end_reason"] == "StorageExceeded" || job["exit_code"] == 1, "{job:#}");
    cluster.wait_for_status(under, "completed");
}

#[test]
#[ignore = "needs a Docker engine: AGENTAFLOW_TEST_DOCKER"]
fn docker_tells_memory_that_ran_out_and_an_image_that_is_not_there() {
    let cluster = cluster();
    // The reader buffers until the end of the line, which never comes.
    let hungry = "exec tail /dev/zero";
    let id = submit(&cluster, hungry, &json!({"memory_required": 64}));
    let job = cluster.wait_for_status(id, "failed");
    assert_eq!(job["end_reason"], "OutOfMemory", "{job:#}");
    let missing = json!({"docker_image": "127.0.0.1:1/no/such", "docker_tag": "image"});
    let id = cluster.post("/gpu-workers/jobs/", &missing).ok()["id"].as_i64().unwrap();
    let job = cluster.wait_for_status(id, "failed");
    assert_eq!(job["end_reason"], "ImagePull", "{job:#}");
}

#[test]
#[ignore = "needs a Docker engine: AGENTAFLOW_TEST_DOCKER"]
fn docker_result_files_and_folders_reach_the_container() {
    let cluster = cluster();
    let id = submit(&cluster, "echo '{\"answer\": 42}' > $AGENTAFLOW_OUTPUT", &json!({}));
    assert_eq!(cluster.wait_for_status(id, "completed")["output_data"]["answer"], 42);
    let volume = json!({"volumes": [{"source": "/etc", "target": "/host"}]});
    let id = submit(&cluster, "true", &volume);
    let job = cluster
        .wait_for(id, "refused", |job| job["status"] == "failed" || job["status"] == "pending");
    assert_ne!(job["status"], "completed", "a forbidden folder was mounted");
}

/// Task 0 waits for a line from every other task; the other tasks repeat until it answers.
const RENDEZVOUS: &str = r#"
    if [ "$RANK" = 0 ]; then busybox nc -l -p $MASTER_PORT -e echo "welcome to $WORLD_SIZE"; exit $?; fi
    for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        busybox nc -w 5 $MASTER_ADDR $MASTER_PORT < /dev/null | busybox grep welcome && exit 0
        sleep 0.5
    done
    exit 1"#;

#[test]
#[ignore = "needs a Docker engine: AGENTAFLOW_TEST_DOCKER"]
fn docker_containers_of_a_gang_on_one_host_meet_in_their_network() {
    let cluster = cluster();
    let id = submit(&cluster, RENDEZVOUS, &json!({"replicas": 2}));
    let job = cluster.wait_for(id, "ended", |job| job["completed_at"].is_string());
    assert_eq!(job["status"], "completed", "{job:#}");
    let task = |task: u32| {
        let path = format!("/gpu-workers/jobs/{id}/logs?task={task}");
        cluster.get(&path).body
    };
    assert!(task(1).contains("welcome to 2"), "{} {}", task(0), task(1));
}

/// Both agents are on this host, so Docker separates the networks of their jobs; only the network of the host joins them.
#[test]
#[ignore = "needs a Docker engine: AGENTAFLOW_TEST_DOCKER"]
fn docker_containers_of_a_gang_on_two_agents_meet_in_the_network_of_the_host() {
    make_image(&socket());
    let mut cluster = Cluster::server(&[]);
    for name in ["left", "right"] {
        let options = ["--runtime", "docker", "--docker-socket", &socket(), "--max-jobs", "1"];
        cluster.agent(name, &[&options[..], &["--container-network", "host"]].concat());
    }
    cluster.wait_for_nodes(2);
    let id = submit(&cluster, RENDEZVOUS, &json!({"replicas": 2}));
    let job = cluster.wait_for(id, "ended", |job| job["completed_at"].is_string());
    assert_eq!(job["status"], "completed", "{job:#}");
}
