//! A server, and an agent for a cluster node with the permissions of `deploy/worker`.

use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;

use k8s_openapi::api::batch::v1::Job;
use kube::api::ListParams;
use serde_json::{Value, json};

use crate::PROGRAM;
use crate::http::{Answer, Connection};
use crate::support::{NodePlan, Program, Proxy, Share, free_port, repository, wait_for};

/// Body of the documented request.
pub(crate) fn documented() -> Value {
    json!({
        "job_name": "AI Training Job",
        "docker_image": "pytorch/pytorch",
        "docker_tag": "latest",
        "gpu_memory_required": 8192,
        "cpu_cores_required": 4,
        "memory_required": 16384,
        "input_data": {"dataset": "imagenet", "epochs": 100},
    })
}

/// A server with a cluster node as its only node.
pub(crate) struct Fleet {
    pub(crate) agent: Program,
    _server: Program,
    pub(crate) proxy: Option<Proxy>,
    port: u16,
    token: String,
    pub(crate) node_name: String,
    pub(crate) share: Share,
}

impl Fleet {
    /// With a KWOK node.
    pub(crate) async fn new(plan: &NodePlan) -> Self {
        Self::with_heartbeat(plan, "2s").await
    }

    /// With this heartbeat interval; the lease is twice as long.
    pub(crate) async fn with_heartbeat(plan: &NodePlan, heartbeat: &str) -> Self {
        let share = Share::new().await;
        let node = share.node("gpu", plan).await;
        Self::start(share, node, heartbeat, false, &[]).await
    }

    /// The agent uses a proxy to the API server that can be disconnected.
    pub(crate) async fn through_proxy(plan: &NodePlan) -> Self {
        let share = Share::new().await;
        let node = share.node("gpu", plan).await;
        Self::start(share, node, "10s", true, &[]).await
    }

    /// With an existing node and more options of the agent.
    pub(crate) async fn start(
        share: Share,
        node: String,
        heartbeat: &str,
        proxied: bool,
        options: &[&str],
    ) -> Self {
        let account = format!("worker-{}", share.id);
        let rights = fs::read_to_string(repository().join("deploy/worker/10-rbac.yaml")).unwrap();
        let rights = rights.replace("imagepod-gpu-worker", &account);
        let own = format!("namespace: {}", share.namespace);
        share.apply(&rights.replace("namespace: imagepod", &own)).await;
        let policy = repository().join("deploy/worker/15-network-policy.yaml");
        let policy = fs::read_to_string(policy).unwrap();
        share.apply(&policy.replace("namespace: imagepod", &own)).await;
        let mut kubeconfig = share.kubeconfig_of(&account).await;
        let mut proxy = None;
        if proxied {
            let between = Proxy::start(&kubeconfig).await;
            kubeconfig = between.write_kubeconfig(share.file("proxied.kubeconfig"));
            proxy = Some(between);
        }
        let port = free_port();
        let data = share.file("data");
        let mut command = Command::new(PROGRAM);
        command.args([
            "server",
            "--lease",
            "1ms",
            "--listen",
            &format!("127.0.0.1:{port}"),
            "--data-dir",
        ]);
        let server = Program::start(with_path(command, &data), &share.file("server.log"));
        wait_for("the server listens", async || TcpStream::connect(("127.0.0.1", port)).map(drop))
            .await;
        // The server may write its tokens after it listens.
        let token = wait_for("the tokens of the server", async || {
            fs::read_to_string(data.join("registration-token"))?;
            fs::read_to_string(data.join("admin-token"))
        })
        .await;
        let token = token.trim().to_owned();
        let mut command = Command::new(PROGRAM);
        command.args(["agent", "--runtime", "kubernetes", "--health-listen", "none"]);
        command.args(["--server", &format!("http://127.0.0.1:{port}"), "--node", &node]);
        command.args(options);
        command.args(["--namespace", &share.namespace, "--heartbeat", heartbeat, "--kubeconfig"]);
        let mut command = with_path(command, &kubeconfig);
        command.arg("--token-file").arg(data.join("registration-token"));
        command.arg("--state-dir").arg(share.file("agent"));
        let agent = Program::start(command, &share.file("agent.log"));
        let fleet = Self { agent, _server: server, proxy, port, token, node_name: node, share };
        wait_for("the node takes work", async || {
            let nodes = fleet.call("GET", "/gpu-workers/nodes/", None).json();
            let ready = nodes[0]["reachable"] == json!(true)
                && nodes[0]["health_status"] == json!("healthy");
            if ready { Ok(()) } else { Err(nodes.to_string()) }
        })
        .await;
        fleet
    }

    pub(crate) fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        let connection = Connection::open(self.port, Some(&self.token));
        connection.and_then(|mut server| server.call(method, path, body)).expect("an answer")
    }

    /// Submits a job; returns its id.
    pub(crate) fn post(&self, job: &Value) -> i64 {
        let made = self.call("POST", "/gpu-workers/jobs/", Some(job));
        assert_eq!(made.status, 201, "{}", made.body);
        made.json()["id"].as_i64().unwrap()
    }

    pub(crate) fn job(&self, id: i64) -> Value {
        self.call("GET", &format!("/gpu-workers/jobs/{id}"), None).ok()
    }

    pub(crate) fn explanation(&self, id: i64) -> Value {
        self.call("GET", &format!("/gpu-workers/jobs/{id}/explain"), None).ok()
    }

    /// Logs of a task from the server.
    pub(crate) fn output(&self, id: i64) -> String {
        self.call("GET", &format!("/gpu-workers/jobs/{id}/logs"), None).body
    }

    pub(crate) fn node(&self) -> Value {
        self.call("GET", "/gpu-workers/nodes/", None).ok()[0].clone()
    }

    /// Waits until a job has this status.
    pub(crate) async fn is(&self, id: i64, status: &str) -> Value {
        self.wait_job(id, &format!("is {status}"), |job| job["status"] == json!(status)).await
    }

    /// Waits until a job has this status in this attempt.
    pub(crate) async fn is_at(&self, id: i64, status: &str, attempt: u32) -> Value {
        let there =
            |job: &Value| job["status"] == json!(status) && job["attempt"] == json!(attempt);
        self.wait_job(id, &format!("is {status} in try {attempt}"), there).await
    }

    async fn wait_job(&self, id: i64, what: &str, test: impl Fn(&Value) -> bool) -> Value {
        wait_for(&format!("job {id} {what}"), async || {
            let job = self.job(id);
            if test(&job) { Ok(job) } else { Err(job.to_string()) }
        })
        .await
    }

    /// Pod of a running job.
    pub(crate) async fn pod_of(&self, id: i64) -> String {
        let job = self
            .wait_job(id, "has a pod that runs", |job| {
                job["status"] == json!("running") && job["k8s_pod_name"].is_string()
            })
            .await;
        job["k8s_pod_name"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn job_object(&self, id: i64) -> Job {
        let name = self.job(id)["k8s_job_name"].as_str().unwrap().to_owned();
        self.share.api().get(&name).await.unwrap()
    }

    /// Sets a KWOK annotation on a pod.
    pub(crate) async fn tell_pod(&self, pod: &str, orders: &[(&str, &str)]) {
        let orders = orders
            .iter()
            .map(|(order, value)| (format!("kwok.agentaflow.io/{order}"), json!(value)));
        let orders: serde_json::Map<String, Value> = orders.collect();
        let place = format!("/api/v1/namespaces/{}/pods/{pod}", self.share.namespace);
        let patch = json!({"metadata": {"annotations": orders}});
        let answer = self.share.request("PATCH", &place, Some(&patch)).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
    }

    pub(crate) async fn pod_phase(&self, pod: &str) -> Option<String> {
        self.share.pod(pod).await?.status?.phase
    }

    pub(crate) async fn pod_is(&self, pod: &str, phase: &str) {
        self.share.in_phase(pod, phase).await;
    }

    pub(crate) async fn uid_of(&self, pod: &str) -> Option<String> {
        self.share.pod(pod).await?.metadata.uid
    }

    /// Waits until the namespace has no Job and no pod.
    pub(crate) async fn nothing_is_left(&self) {
        wait_for("no Job and no pod is left", async || {
            let jobs = self.share.api::<Job>().list(&ListParams::default()).await.unwrap().items;
            let pods = self.share.pods("").await;
            let left = (jobs.len(), pods.len());
            if left == (0, 0) { Ok(()) } else { Err(format!("{left:?}")) }
        })
        .await;
    }

    /// Sets the allocatable GPUs of the node.
    pub(crate) async fn hand_out(&self, gpus: u32) {
        let amounts = json!({"nvidia.com/gpu": gpus.to_string()});
        let patch = json!({"status": {"capacity": amounts, "allocatable": amounts}});
        self.share.patch_node_status(&self.node_name, &patch).await;
    }

    pub(crate) async fn cordon(&self, on: bool) {
        let patch = json!({"spec": {"unschedulable": on}});
        self.share.patch_node(&self.node_name, &patch).await;
    }
}

fn with_path(mut command: Command, path: &PathBuf) -> Command {
    command.arg(path);
    command
}
