//! Faults of simulated GPUs: each class of driver error (XID) has the effect that NVIDIA's catalogue asks for.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::cluster::node_of;
use crate::harness::{Cluster, SOON, eventually, free_port};
use crate::http::Connection;

/// A server with agents of two simulated GPUs each; the faults of the first agent are in a file.
struct Lab {
    cluster: Cluster,
    faults: PathBuf,
    /// Port of the metrics of the first agent.
    metrics: u16,
}

impl Lab {
    fn new(agents: usize) -> Self {
        let mut cluster = Cluster::server(&[]);
        let faults = cluster.path("faults.json");
        let variable = "AGENTAFLOW_SIMULATED_FAULTS".to_owned();
        cluster.set_agent_environment("sick", vec![(variable, faults.display().to_string())]);
        let metrics = free_port();
        cluster.agent("sick", &["--health-listen", &format!("127.0.0.1:{metrics}")]);
        cluster.wait_for_nodes(1);
        for number in 1..agents {
            cluster.agent(&format!("well-{number}"), &[]);
        }
        cluster.wait_for_nodes(agents);
        Self { cluster, faults, metrics }
    }

    /// Replaces the faults of the first agent.
    fn inject(&self, faults: &Value) {
        let new = self.faults.with_extension("new");
        fs::write(&new, faults.to_string()).unwrap();
        fs::rename(new, &self.faults).unwrap();
    }

    /// A job with one GPU on the first agent, and the index of its GPU.
    fn job_on_sick(&self) -> (i64, usize) {
        let body = json!({"runtime": "process", "command": ["sleep", "1000"], "gpu_count": 1,
            "stop_grace_seconds": 1});
        let path = format!("/gpu-workers/nodes/{}/jobs/", self.node("sick")["id"]);
        let id = self.cluster.post(&path, &body).ok()["id"].as_i64().unwrap();
        let job = self.cluster.wait_for_status(id, "running");
        assert_eq!(node_of(&job), "sick");
        let gpu = eventually("a busy GPU", SOON, || {
            self.gpus().iter().position(|gpu| gpu["status"] == "busy")
        });
        (id, gpu)
    }

    fn node(&self, name: &str) -> Value {
        let nodes = self.cluster.get("/gpu-workers/nodes/").ok();
        let mut nodes = nodes.as_array().unwrap().iter();
        nodes.find(|node| node["node_name"] == name).cloned().unwrap()
    }

    fn gpus(&self) -> Vec<Value> {
        self.node("sick")["gpu_instances"].as_array().unwrap().clone()
    }

    /// Waits until the GPU of the first agent has this status; returns its problem.
    fn gpu_is(&self, gpu: usize, status: &str) -> String {
        let instance = eventually(&format!("GPU {gpu} is {status}"), SOON, || {
            let instance = self.gpus()[gpu].clone();
            (instance["status"] == status).then_some(instance)
        });
        instance["problem"].as_str().unwrap_or_default().to_owned()
    }

    fn node_is(&self, status: &str) {
        eventually(&format!("the node is {status}"), SOON, || {
            (self.node("sick")["status"] == status).then_some(())
        });
    }

    /// Waits until the agent has counted one driver error.
    fn counts(&self, xid: u64) {
        let label = format!("xid=\"{xid}\"}} 1");
        eventually(&format!("{label} is counted"), SOON, || {
            let mut connection = Connection::open(self.metrics, None).ok()?;
            let text = connection.call("GET", "/metrics", None).ok()?.body;
            let mut lines = text.lines();
            lines
                .any(|line| {
                    line.starts_with("agentaflow_gpu_xid_errors_total{") && line.ends_with(&label)
                })
                .then_some(())
        });
    }

    /// Output of `agentaflow health`, and its exit code.
    fn health(&self) -> (String, Option<i32>) {
        let ran = self.cluster.run(&["health"]);
        (ran.out, ran.code)
    }

    fn is_untouched(&self, id: i64) {
        let job = self.cluster.job(id);
        assert_eq!((&job["status"], &job["attempt"]), (&json!("running"), &json!(1)), "{job:#}");
    }
}

#[test]
fn an_informational_xid_is_counted_and_changes_nothing() {
    let lab = Lab::new(1);
    let (id, gpu) = lab.job_on_sick();
    lab.inject(&json!({gpu.to_string(): {"xid": 63}}));
    lab.counts(63);
    assert_eq!(lab.gpu_is(gpu, "busy"), "");
    assert_eq!(lab.health().1, Some(0));
    lab.is_untouched(id);
}

#[test]
fn an_xid_of_the_application_is_an_event_of_the_job_and_restarts_only_a_job_with_retries() {
    let lab = Lab::new(1);
    let (kept, first) = lab.job_on_sick();
    let again = lab.cluster.submit("sleep 1000", json!({"gpu_count": 1, "max_retries": 1}));
    lab.cluster.wait_for_status(again, "running");
    let second = 1 - first;
    lab.gpu_is(second, "busy");
    lab.inject(&json!({first.to_string(): {"xid": 94}, second.to_string(): {"xid": 94}}));
    lab.counts(94);
    let job = lab.cluster.wait_for(again, "started again", |job| {
        job["retries_used"] == 1 && job["status"] == "running"
    });
    assert_eq!(job["attempt"], 2, "{job:#}");
    lab.is_untouched(kept);
    for id in [kept, again] {
        let events = lab.cluster.get(&format!("/gpu-workers/jobs/{id}/events")).ok();
        let mut events = events.as_array().unwrap().iter();
        let message = |event: &Value| event["message"].as_str().unwrap_or_default().to_owned();
        assert!(events.any(|event| message(event).contains("XID 94")), "{id}");
    }
    assert!(lab.cluster.events(again).contains(&"Retrying".to_owned()));
    assert_eq!(lab.node("sick")["status"], "active");
}

#[test]
fn an_xid_that_asks_for_a_reset_takes_one_gpu_out_until_its_cordon_ends() {
    let lab = Lab::new(1);
    let (id, gpu) = lab.job_on_sick();
    lab.inject(&json!({gpu.to_string(): {"xid": 109}}));
    let problem = lab.gpu_is(gpu, "error");
    assert!(problem.contains("XID 109") && problem.contains("--gpu-reset"), "{problem}");
    lab.gpu_is(1 - gpu, "busy");
    let job = lab
        .cluster
        .wait_for(id, "on the other GPU", |job| job["status"] == "running" && job["attempt"] == 2);
    assert_eq!(node_of(&job), "sick");
    lab.node_is("active");
    let (text, code) = lab.health();
    assert!(
        text.contains(&format!(
            "critical  {} GPU {gpu}: failed: the driver reported XID 109",
            node_of(&job)
        )),
        "{text}"
    );
    assert_eq!(code, Some(1));
    let name = format!("sick/{gpu}");
    assert_eq!(lab.cluster.run(&["drain", &name]).code, Some(0));
    lab.inject(&json!({}));
    eventually("the agent knows the cordon", SOON, || {
        let node = lab.node("sick");
        let closed = node["draining_gpus"].to_string() + &node["cordoned_gpus"].to_string();
        closed.contains(&gpu.to_string()).then_some(())
    });
    std::thread::sleep(crate::harness::HEARTBEAT * 4);
    lab.gpu_is(gpu, "error");
    assert_eq!(lab.cluster.run(&["uncordon", &name]).code, Some(0));
    lab.gpu_is(gpu, "available");
}

#[test]
fn an_xid_that_asks_for_a_restart_of_the_machine_moves_the_work_of_all_its_gpus() {
    let lab = Lab::new(2);
    let (first, gpu) = lab.job_on_sick();
    let (second, _) = lab.job_on_sick();
    lab.inject(&json!({gpu.to_string(): {"xid": 79}}));
    for index in [0, 1] {
        let problem = lab.gpu_is(index, "error");
        assert!(problem.contains("XID 79") && problem.contains("restart the machine"), "{problem}");
    }
    lab.node_is("error");
    // Jobs for this machine wait for it; a new job runs elsewhere.
    for id in [first, second] {
        lab.cluster.wait_for_status(id, "pending");
    }
    let elsewhere = lab.cluster.submit("sleep 1000", json!({"gpu_count": 1}));
    assert_eq!(node_of(&lab.cluster.wait_for_status(elsewhere, "running")), "well-1");
    let (text, code) = lab.health();
    assert!(text.contains("critical  sick: reports an error"), "{text}");
    assert_eq!(code, Some(1));
}

#[test]
fn jobs_of_a_machine_that_must_restart_run_on_another_one() {
    let lab = Lab::new(1);
    let id = lab.cluster.submit("sleep 1000", json!({"gpu_count": 2, "stop_grace_seconds": 1}));
    lab.cluster.wait_for_status(id, "running");
    let mut lab = lab;
    lab.cluster.agent("well", &[]);
    lab.cluster.wait_for_nodes(2);
    lab.inject(&json!({"1": {"xid": 79}}));
    let job = lab
        .cluster
        .wait_for(id, "elsewhere", |job| job["status"] == "running" && node_of(job) == "well");
    assert_eq!(job["attempt"], 2, "{job:#}");
}

#[test]
fn an_xid_that_asks_for_support_takes_one_gpu_out() {
    let lab = Lab::new(1);
    let (id, gpu) = lab.job_on_sick();
    lab.inject(&json!({gpu.to_string(): {"xid": 54}}));
    let problem = lab.gpu_is(gpu, "error");
    assert!(problem.contains("XID 54") && problem.contains("support of the vendor"), "{problem}");
    lab.cluster
        .wait_for(id, "on the other GPU", |job| job["status"] == "running" && job["attempt"] == 2);
    lab.node_is("active");
}

#[test]
fn memory_errors_and_heat_keep_running_jobs_and_lost_gpus_do_not() {
    let lab = Lab::new(1);
    let (id, gpu) = lab.job_on_sick();
    for fault in [json!({"temperature": 96}), json!({"ecc_errors": 2})] {
        lab.inject(&json!({gpu.to_string(): fault}));
        assert_ne!(lab.gpu_is(gpu, "maintenance"), "");
        lab.is_untouched(id);
    }
    lab.inject(&json!({gpu.to_string(): {"lost": true}}));
    lab.gpu_is(gpu, "error");
    lab.cluster
        .wait_for(id, "on the other GPU", |job| job["status"] == "running" && job["attempt"] == 2);
    lab.inject(&json!({"driver": "version mismatch"}));
    let problem = lab.gpu_is(1 - gpu, "error");
    assert!(problem.contains("version mismatch"), "{problem}");
    lab.node_is("error");
}
