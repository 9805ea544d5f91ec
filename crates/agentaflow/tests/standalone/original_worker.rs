//! A played worker that behaves like the original one (Python, one event loop):
//!
//! * It registers node and agent at its start, with a new agent name each time, and then listens.
//! * It accepts a job, reports `running`, and blocks its event loop while the container runs: no heartbeat, no answer to
//!   any request, although the kernel accepts connections to its port.
//! * It reports the result with the whole output, once.
//! * After a restart it knows none of its jobs: `GET /jobs/{id}` answers 200 with the status `not_found`.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{self, sleep};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Cluster, SOON, eventually, free_port};
use crate::http::Connection;

/// Heartbeat interval in seconds, the least that the original worker can be given.
pub(crate) const INTERVAL: u64 = 1;
const STEP: Duration = Duration::from_millis(10);

/// Workers started by this test program: agent names are unique.
static STARTED: AtomicU32 = AtomicU32::new(0);

pub(crate) struct ContainerEnd {
    pub(crate) exit_code: i32,
    pub(crate) logs: &'static str,
}

pub(crate) struct OriginalWorker {
    shared: Arc<Shared>,
    /// `gpu-…` name of its node.
    node: String,
    containers: Sender<ContainerEnd>,
}

/// A job that the server submitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Submitted {
    pub(crate) job: i64,
    /// The server did not receive the result.
    pub(crate) lost: bool,
}

type Submissions = Arc<Mutex<Vec<Submitted>>>;

struct Shared {
    server: u16,
    token: String,
    port: u16,
    /// The event loop. The thread of a running container holds it.
    running: Mutex<BTreeSet<i64>>,
    ends: Mutex<Receiver<ContainerEnd>>,
    /// Jobs that the server submitted, in order, also before restarts.
    submitted: Submissions,
    streams: Mutex<Vec<TcpStream>>,
    killed: AtomicBool,
}

impl OriginalWorker {
    pub(crate) fn start(cluster: &Cluster, name: &str) -> Self {
        Self::start_at(cluster, name, free_port(), true, Submissions::default())
    }

    pub(crate) fn without_docker(cluster: &Cluster, name: &str) -> Self {
        Self::start_at(cluster, name, free_port(), false, Submissions::default())
    }

    fn start_at(
        cluster: &Cluster,
        name: &str,
        port: u16,
        docker: bool,
        submitted: Submissions,
    ) -> Self {
        let token = std::fs::read_to_string(cluster.path("data/registration-token")).unwrap();
        let (containers, ends) = mpsc::channel();
        let shared = Arc::new(Shared {
            server: cluster.port,
            token: token.trim().to_owned(),
            port,
            running: Mutex::default(),
            ends: Mutex::new(ends),
            submitted,
            streams: Mutex::default(),
            killed: AtomicBool::new(false),
        });
        let node = shared.register(name, docker);
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (accepting, beating) = (shared.clone(), shared.clone());
        thread::spawn(move || accepting.accept(&listener));
        let name = node.clone();
        thread::spawn(move || beating.send_heartbeats(&name));
        Self { shared, node, containers }
    }

    /// Kills the process: its port closes, and containers are left alone.
    pub(crate) fn kill(&self) {
        self.shared.killed.store(true, Ordering::SeqCst);
        for stream in self.shared.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        while TcpStream::connect(("127.0.0.1", self.shared.port)).is_ok() {
            sleep(STEP);
        }
    }

    /// The killed worker, started again at the same address.
    pub(crate) fn restarted(&self, cluster: &Cluster, name: &str) -> Self {
        let submitted = self.shared.submitted.clone();
        Self::start_at(cluster, name, self.shared.port, true, submitted)
    }

    pub(crate) fn end_container(&self, exit_code: i32, logs: &'static str) {
        self.containers.send(ContainerEnd { exit_code, logs }).unwrap();
    }

    /// Returns true while a container runs and blocks the event loop.
    pub(crate) fn is_blocked(&self) -> bool {
        self.shared.running.try_lock().is_err()
    }

    /// `gpu-…` name of its node.
    pub(crate) fn node(&self) -> &str {
        &self.node
    }

    /// Jobs that the server submitted, in order, also before restarts.
    pub(crate) fn submitted(&self) -> Vec<i64> {
        self.submissions().iter().map(|submitted| submitted.job).collect()
    }

    pub(crate) fn submissions(&self) -> Vec<Submitted> {
        self.shared.submitted.lock().unwrap().clone()
    }
}

impl Drop for OriginalWorker {
    fn drop(&mut self) {
        self.shared.killed.store(true, Ordering::SeqCst);
    }
}

impl Shared {
    fn is_killed(&self) -> bool {
        self.killed.load(Ordering::SeqCst)
    }

    fn call(&self, path: &str, body: &Value) -> Option<Value> {
        let mut connection = Connection::open(self.server, Some(&self.token)).ok()?;
        let answer = connection.call("POST", path, Some(body)).ok()?;
        (answer.status == 200).then(|| answer.json())
    }

    /// [`Self::call`] until the server answers.
    fn call_until_answered(&self, path: &str, body: &Value) -> Value {
        eventually("the server registers the worker", SOON, || self.call(path, body))
    }

    /// Registers node and agent; returns the name of the node.
    fn register(&self, name: &str, docker: bool) -> String {
        let endpoint = format!("http://127.0.0.1:{}", self.port);
        let node = json!({"node_name": name, "hostname": name, "ip_address": "127.0.0.1", "cluster_name": "default",
            "gpu_count": 1, "gpu_type": "NVIDIA GeForce RTX 4090", "gpu_memory_total": 24564.0, "cpu_cores": 16,
            "memory_total": 32768, "storage_total": 100, "max_concurrent_jobs": 1, "auto_register": true,
            "price_per_gpu_hour": 36.0, "api_endpoint": endpoint, "node_metadata": {"pod_name": ""}});
        let node = self.call_until_answered("/gpu-workers/nodes/register", &node);
        let number = STARTED.fetch_add(1, Ordering::SeqCst);
        let agent = json!({"node_id": node["id"], "agent_id": format!("agent-{name}-{number}"), "agent_version": "1.0.0",
            "config": {"heartbeat_interval": INTERVAL, "max_concurrent_jobs": 1},
            "capabilities": {"docker": docker, "gpu_count": 1, "gpu_types": ["NVIDIA GeForce RTX 4090"]},
            "api_endpoint": endpoint, "websocket_endpoint": "ws://127.0.0.1:8081"});
        self.call_until_answered("/gpu-workers/agents/register", &agent);
        node["node_id"].as_str().unwrap().to_owned()
    }

    fn send_heartbeats(&self, node: &str) {
        let path = format!("/gpu-workers/nodes/{node}/heartbeat");
        while !self.is_killed() {
            {
                let running = self.running.lock().unwrap();
                let beat = json!({"node_id": node, "gpu_memory_available": 24564.0, "cpu_cores_available": 16,
                    "current_jobs": running.len(), "gpu_instances": [{"gpu_index": 0, "gpu_memory": 24564.0,
                    "utilization": null, "status": "available"}], "health_status": "healthy"});
                self.call(&path, &beat);
            }
            sleep(Duration::from_secs(INTERVAL));
        }
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        while !self.is_killed() {
            let Ok((stream, _)) = listener.accept() else {
                sleep(STEP);
                continue;
            };
            stream.set_nonblocking(false).unwrap();
            self.streams.lock().unwrap().push(stream.try_clone().unwrap());
            let worker = self.clone();
            thread::spawn(move || worker.serve(&stream));
        }
    }

    fn serve(self: &Arc<Self>, stream: &TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream.try_clone().ok()?);
        loop {
            let (method, path, body) = read_request(&mut reader)?;
            let job: Option<i64> = path.strip_prefix("/jobs/").and_then(|id| id.parse().ok());
            let running = self.running.lock().unwrap();
            let (status, answer) = match (method.as_str(), job) {
                ("POST", _) if !running.is_empty() => {
                    (429, json!({"detail": "Maximum concurrent jobs reached"}))
                }
                ("POST", _) => (200, json!({"message": "submitted for execution"})),
                ("GET", Some(id)) if running.contains(&id) => {
                    (200, json!({"job_id": id, "status": "running"}))
                }
                ("GET", Some(id)) => (200, json!({"job_id": id, "status": "not_found"})),
                ("DELETE", _) => (404, json!({"detail": "Job not found"})),
                _ => (200, json!({"status": "healthy"})),
            };
            drop(running);
            if self.is_killed() {
                return None;
            }
            if method == "POST" && status == 200 {
                let id = body["job_id"].as_i64()?;
                let worker = self.clone();
                let mut submitted = self.submitted.lock().unwrap();
                let position = submitted.len();
                submitted.push(Submitted { job: id, lost: true });
                thread::spawn(move || {
                    let reported = worker.execute(id);
                    worker.submitted.lock().unwrap()[position].lost = !reported;
                });
            }
            let text = answer.to_string();
            let head = format!(
                "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
                text.len()
            );
            (&*stream).write_all(format!("{head}{text}").as_bytes()).ok()?;
        }
    }

    /// Returns true if the server received the result.
    fn execute(&self, id: i64) -> bool {
        let path = format!("/gpu-workers/jobs/{id}/status");
        self.call(&path, &json!({"job_id": id, "status": "running", "output_data": null}));
        let mut event_loop = self.running.lock().unwrap();
        event_loop.insert(id);
        let ends = self.ends.lock().unwrap();
        let ContainerEnd { exit_code, logs } = loop {
            if self.is_killed() {
                return false;
            }
            if let Ok(end) = ends.recv_timeout(STEP) {
                break end;
            }
        };
        drop(event_loop);
        let usage = json!({"cpu_usage": 1, "memory_usage": 1, "gpu_memory": null});
        let result = if exit_code == 0 {
            json!({"job_id": id, "status": "completed", "output_data": {"logs": logs, "exit_code": 0},
                "resource_usage": usage})
        } else {
            let message = format!("Container exited with code {exit_code}: {logs}");
            json!({"job_id": id, "status": "failed", "error_message": message, "resource_usage": usage})
        };
        let answer = self.call(&path, &result);
        self.running.lock().unwrap().remove(&id);
        answer.is_some()
    }
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<(String, String, Value)> {
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
    Some((words.next()?, words.next()?, serde_json::from_slice(&body).unwrap_or(Value::Null)))
}
