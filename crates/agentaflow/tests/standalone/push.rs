//! Push agents: the server calls the agent, according to the documented worker protocol.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Cluster, SOON, eventually};

/// Request of the server: method, path and body.
type Asked = (String, String, Value);

/// An agent that accepts every job and records the requests.
fn push_agent(address: &str) -> (u16, Receiver<Asked>) {
    let listener = TcpListener::bind((address, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let sender = sender.clone();
            thread::spawn(move || answer(&stream, &sender));
        }
    });
    (port, receiver)
}

fn answer(stream: &TcpStream, asked: &Sender<Asked>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let mut first = String::new();
        reader.read_line(&mut first).ok().filter(|length| *length > 0)?;
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            let line = line.trim().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let mut words = first.split(' ').map(String::from);
        let (method, path) = (words.next()?, words.next()?);
        if path.starts_with("/jobs") {
            let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
            asked.send((method, path, body)).ok()?;
        }
        let output = "{\"status\": \"healthy\"}";
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            output.len()
        );
        (&*stream).write_all(format!("{head}{output}").as_bytes()).ok()?;
    }
}

/// Registers the node and its push endpoint with the registration token only.
fn register(cluster: &Cluster, endpoint: &str) -> Value {
    let token = std::fs::read_to_string(cluster.path("data/registration-token")).unwrap();
    let call = |path: &str, body: Value| {
        cluster.try_call("POST", path, Some(&body), Some(token.trim())).unwrap().ok()
    };
    let node = call(
        "/gpu-workers/nodes/register",
        json!({"node_name": "old", "gpu_count": 1.0, "gpu_type": "RTX 4090", "gpu_memory_total": 24576.0,
               "cpu_cores": 16, "memory_total": 32768, "api_endpoint": endpoint, "zone": null}),
    );
    call(
        "/gpu-workers/agents/register",
        json!({"agent_id": "old-agent", "node_id": node["id"], "api_endpoint": endpoint}),
    );
    let path = format!("/gpu-workers/nodes/{}/heartbeat", node["node_id"].as_str().unwrap());
    call(&path, json!({"node_id": node["node_id"], "health_status": "healthy"}))
}

#[test]
fn a_push_agent_gets_a_job_and_reports_it_with_the_token() {
    let cluster = Cluster::server(&["--push-allow", "127.0.0.1"]);
    let (port, asked) = push_agent("127.0.0.1");
    register(&cluster, &format!("http://127.0.0.1:{port}"));
    cluster.wait_for_nodes(1);
    let job = json!({"docker_image": "pytorch/pytorch", "gpu_memory_required": 8192, "input_data": {"epochs": 3}});
    let id = cluster.post("/gpu-workers/jobs/", &job).ok()["id"].as_i64().unwrap();
    let (method, path, body) = asked.recv_timeout(SOON).unwrap();
    assert_eq!((method.as_str(), path.trim_end_matches('/')), ("POST", "/jobs"));
    assert_eq!((&body["job_id"], &body["docker_image"]), (&json!(id), &json!("pytorch/pytorch")));
    assert_eq!((&body["docker_tag"], &body["input_data"]["epochs"]), (&json!("latest"), &json!(3)));
    assert_eq!(body["timeout"], 3600);
    let token = std::fs::read_to_string(cluster.path("data/registration-token")).unwrap();
    let report = |status: &str, more: Value| {
        let mut news = json!({"job_id": id, "status": status});
        news.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let path = format!("/gpu-workers/jobs/{id}/status");
        cluster.try_call("POST", &path, Some(&news), Some(token.trim())).unwrap()
    };
    report("running", json!({})).ok();
    assert_eq!(cluster.job(id)["status"], "running");
    let done = json!({"output_data": {"loss": 0.5}, "resource_usage": {"gpu_memory": 4096.0}, "duration_seconds": 1.5});
    report("completed", done.clone()).ok();
    // Push agents repeat their status.
    report("completed", done).ok();
    assert!(report("running", json!({})).status >= 400, "a job that is over does not run again");
    let job = cluster.job(id);
    assert_eq!(
        (&job["status"], &job["output_data"]["loss"]),
        (&json!("completed"), &json!(0.5)),
        "{job:#}"
    );
}

#[test]
fn a_cancelled_job_is_cancelled_at_its_push_agent() {
    let cluster = Cluster::server(&["--push-allow", "127.0.0.1"]);
    let (port, asked) = push_agent("127.0.0.1");
    register(&cluster, &format!("http://127.0.0.1:{port}"));
    cluster.wait_for_nodes(1);
    let job = json!({"docker_image": "busybox", "stop_grace_seconds": 1});
    let id = cluster.post("/gpu-workers/jobs/", &job).ok()["id"].as_i64().unwrap();
    asked.recv_timeout(SOON).unwrap();
    cluster.post(&format!("/gpu-workers/jobs/{id}/cancel"), &json!({})).ok();
    let (method, path, _) = asked.recv_timeout(SOON).unwrap();
    assert_eq!((method, path), ("DELETE".to_owned(), format!("/jobs/{id}")));
    cluster.wait_for_status(id, "cancelled");
}

#[test]
fn an_unsupported_job_is_not_pushed() {
    let cluster = Cluster::server(&["--push-allow", "127.0.0.1"]);
    let (port, asked) = push_agent("127.0.0.1");
    register(&cluster, &format!("http://127.0.0.1:{port}"));
    cluster.wait_for_nodes(1);
    let job = json!({"docker_image": "busybox", "command": ["echo", "hello"]});
    let id = cluster.post("/gpu-workers/jobs/", &job).ok()["id"].as_i64().unwrap();
    assert!(asked.recv_timeout(Duration::from_secs(2)).is_err(), "it was pushed");
    assert_eq!(cluster.job(id)["status"], "pending");
}

#[test]
fn a_worker_on_the_host_of_the_server_is_called_only_if_allowed() {
    let cluster = Cluster::server(&["--push-allow", "localhost"]);
    for host in ["127.0.0.1", "localhost"] {
        let (port, asked) = push_agent("127.0.0.1");
        register(&cluster, &format!("http://{host}:{port}"));
        let id = cluster.post("/gpu-workers/jobs/", &json!({"docker_image": "busybox"})).ok();
        assert!(asked.recv_timeout(Duration::from_secs(2)).is_err(), "{host}: {id:#}");
    }
    eventually("the server logs the remedy", SOON, || {
        cluster.server.output().contains("--push-allow 127.0.0.1").then_some(())
    });
}

#[test]
fn a_foreign_push_endpoint_is_called_only_if_allowed() {
    let job = json!({"docker_image": "busybox"});
    for allowed in [false, true] {
        let extra: &[&str] = if allowed { &["--push-allow", "127.0.0.2"] } else { &[] };
        let cluster = Cluster::server(extra);
        let (port, asked) = push_agent("127.0.0.2");
        register(&cluster, &format!("http://127.0.0.2:{port}"));
        let id = cluster.post("/gpu-workers/jobs/", &job).ok()["id"].as_i64().unwrap();
        let patience = if allowed { SOON } else { Duration::from_secs(2) };
        assert_eq!(asked.recv_timeout(patience).is_ok(), allowed, "{:#}", cluster.job(id));
    }
}
