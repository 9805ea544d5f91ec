//! Original workers, which the server calls: they block while a job runs and forget their jobs when they restart.

use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Cluster, SOON, eventually};
use crate::original_worker::{INTERVAL, OriginalWorker};

/// Longer than three heartbeat intervals and two probes of the server.
const LONG_SILENCE: Duration = Duration::from_secs(3 * INTERVAL + 9);

fn submit(cluster: &Cluster, more: &Value) -> i64 {
    let mut job =
        json!({"docker_image": "busybox", "gpu_memory_required": 1024, "stop_grace_seconds": 0});
    job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    cluster.post("/gpu-workers/jobs/", &job).ok()["id"].as_i64().unwrap()
}

fn node(cluster: &Cluster, name: &str) -> Value {
    let nodes = cluster.get("/gpu-workers/nodes/").ok();
    nodes.as_array().unwrap().iter().find(|node| node["node_name"] == name).unwrap().clone()
}

#[test]
fn a_worker_that_blocks_while_a_job_runs_keeps_the_job_and_the_result_is_billed() {
    let cluster = Cluster::server(&["--push-allow", "127.0.0.1"]);
    let worker = OriginalWorker::start(&cluster, "one");
    cluster.wait_for_nodes(1);
    let id = submit(&cluster, &json!({}));
    cluster.wait_for_status(id, "running");
    let other = OriginalWorker::start(&cluster, "two");
    eventually("the other worker is ready", SOON, || {
        (node(&cluster, "two")["reachable"] == true).then_some(())
    });
    sleep(LONG_SILENCE);
    let job = cluster.job(id);
    assert_eq!((&job["status"], &job["attempt"]), (&json!("running"), &json!(1)), "{job:#}");
    assert_eq!(node(&cluster, "one")["status"], "active", "silence is expected");
    assert_eq!(other.submitted(), Vec::<i64>::new(), "the job runs once");
    worker.end_container(0, "epoch 1\ndone\n");
    let job = cluster.wait_for_status(id, "completed");
    assert_eq!(
        (&job["attempt"], &job["exit_code"], &job["assigned_gpu_id"]),
        (&json!(1), &json!(0), &json!(0))
    );
    let seconds = job["duration_seconds"].as_f64().unwrap();
    assert!(seconds >= LONG_SILENCE.as_secs_f64(), "{job:#}");
    // One GPU at $36 an hour, of which the job has 1024 of 24564 MiB: 42 thousandths.
    let cost = seconds * 0.01 * 0.042;
    assert!((job["cost"].as_f64().unwrap() - cost).abs() < 1e-5, "{job:#}");
    assert_eq!(cluster.logs(id), "epoch 1\ndone\n");
    eventually("the worker takes work again", SOON, || {
        (node(&cluster, "one")["reachable"] == true).then_some(())
    });
}

#[test]
fn a_restarted_worker_ends_the_jobs_that_it_forgot() {
    for requeue in [false, true] {
        let cluster = Cluster::server(&["--push-allow", "127.0.0.1"]);
        let worker = OriginalWorker::start(&cluster, "one");
        cluster.wait_for_nodes(1);
        let policy = if requeue { json!({"on_node_lost": "requeue"}) } else { json!({}) };
        let id = submit(&cluster, &policy);
        cluster.wait_for_status(id, "running");
        sleep(Duration::from_secs(2));
        worker.kill();
        let again = worker.restarted(&cluster, "one");
        if requeue {
            let job = cluster.wait_for(id, "started again", |job| job["attempt"] == 2);
            assert_eq!(job["cancel_requested"], false);
            eventually("the job is submitted", SOON, || {
                (again.submitted() == [id, id]).then_some(())
            });
            again.end_container(0, "");
            cluster.wait_for_status(id, "completed");
        } else {
            let job = cluster.wait_for_status(id, "failed");
            assert_eq!(job["end_reason"], "NodeLost", "{job:#}");
            assert_eq!(node(&cluster, "one")["reachable"], true, "only the job is lost");
            assert!((1.0..8.0).contains(&job["duration_seconds"].as_f64().unwrap()), "{job:#}");
            assert!(job["cost"].as_f64().unwrap() > 0.0, "billed up to the last sign of life");
            assert_eq!(node(&cluster, "one")["current_jobs"], 0, "the slot is free");
            let next = submit(&cluster, &json!({}));
            cluster.wait_for_status(next, "running");
            again.end_container(0, "");
            cluster.wait_for_status(next, "completed");
        }
    }
}

#[test]
fn a_worker_whose_port_is_closed_is_lost() {
    let cluster = Cluster::server(&["--push-allow", "127.0.0.1"]);
    let worker = OriginalWorker::start(&cluster, "one");
    cluster.wait_for_nodes(1);
    let waiting = submit(&cluster, &json!({}));
    cluster.wait_for_status(waiting, "running");
    let other = OriginalWorker::start(&cluster, "two");
    cluster.wait_for(waiting, "alone", |_| node(&cluster, "two")["reachable"] == true);
    let moving = submit(&cluster, &json!({"on_node_lost": "requeue"}));
    cluster.wait_for_status(moving, "running");
    worker.kill();
    let job = cluster.wait_for_status(waiting, "failed");
    assert_eq!(job["end_reason"], "NodeLost", "{job:#}");
    assert_eq!(node(&cluster, "one")["status"], "inactive");
    let third = OriginalWorker::start(&cluster, "three");
    other.kill();
    let job = cluster.wait_for(moving, "elsewhere", |job| job["attempt"] == 2);
    assert_eq!(job["assigned_node_id"], node(&cluster, "three")["id"], "{job:#}");
    third.end_container(0, "");
    cluster.wait_for_status(moving, "completed");
}

#[test]
fn a_worker_without_docker_gets_no_containers() {
    let cluster = Cluster::server(&["--push-allow", "127.0.0.1"]);
    let worker = OriginalWorker::without_docker(&cluster, "one");
    cluster.wait_for_nodes(1);
    let id = submit(&cluster, &json!({}));
    sleep(Duration::from_secs(2));
    assert_eq!((worker.submitted(), &cluster.job(id)["status"]), (Vec::new(), &json!("pending")));
}

#[test]
fn a_failed_container_has_its_exit_code_and_output() {
    let cluster = Cluster::server(&["--push-allow", "127.0.0.1"]);
    let worker = OriginalWorker::start(&cluster, "one");
    cluster.wait_for_nodes(1);
    let id = submit(&cluster, &json!({}));
    cluster.wait_for_status(id, "running");
    worker.end_container(137, "epoch 1\nKilled\n");
    let job = cluster.wait_for_status(id, "failed");
    assert_eq!((&job["exit_code"], &job["end_reason"]), (&json!(137), &json!("Exited")), "{job:#}");
    assert_eq!(cluster.logs(id), "epoch 1\nKilled\n");
}
