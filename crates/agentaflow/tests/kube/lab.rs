//! A share of the cluster behind a filtering proxy, with a scheduler that is reachable as a service.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use agentaflow_api::Stamp;
use agentaflow_kube_core::names::SCHEDULER_NAME;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::runtime::Handle;

use crate::PROGRAM;
use crate::golden::Stage;
use crate::normal::Normal;
use crate::plans::{event, in_phase, wait_workload, waits_because, workload};
use crate::service::serve_in_cluster;
use crate::support::{NodePlan, OWNER, PodPlan, Scheduler, Share, free_port, wait_for};
use crate::view::{self, Amiss};

pub(crate) struct Lab {
    /// Dropped before the share, whose deletion the scheduler would react to.
    scheduler: Scheduler,
    share: Share,
    /// Port of the filtering proxy.
    seen: u16,
    amiss: Arc<Amiss>,
    leader: String,
    /// GPUs of all nodes.
    gpus: u32,
    /// Content of `config.toml`.
    contexts: String,
    variables: Vec<(String, PathBuf)>,
}

impl Lab {
    /// The namespace is `test-lab-NAME`; node names start with `lab-NAME-`.
    pub(crate) async fn start(name: &str) -> Self {
        let share = Share::called(&format!("lab-{name}")).await;
        let lease = "agentaflow-gpu-scheduler";
        // No monitor runs: its published report stays valid for the whole test.
        let patient = ["--monitor-timeout", "1h"];
        let extra = ["--scheduler-name", SCHEDULER_NAME, "--lease-name", lease];
        let extra = [&extra[..], &patient].concat();
        let scheduler = Scheduler::start(PROGRAM, &share, &extra).await;
        serve_in_cluster(&share, &scheduler).await;
        share.apply_file("deploy/kubernetes/22-rbac-users.yaml").await;
        let amiss = Arc::default();
        let seen = view::serve(&share, &amiss).await;
        let leader = leader_of(&share).await;
        let (contexts, variables) = (String::new(), Vec::new());
        let mut lab = Self { share, scheduler, seen, amiss, leader, gpus: 0, contexts, variables };
        let admin = lab.kubeconfig("admin", seen);
        lab.add_context("lab", &admin);
        lab.scheduler_is_known().await;
        lab
    }

    /// A command for this cluster.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(words);
        for name in ["AGENTAFLOW_SERVER", "AGENTAFLOW_TOKEN", "AGENTAFLOW_CONTEXT", "KUBECONFIG"] {
            command.env_remove(name);
        }
        self.prepare(&mut command);
        command
    }

    /// Adds a context; `lab` is the current one.
    fn add_context(&mut self, name: &str, kubeconfig: &Path) {
        let (home, namespace) = (self.home(), &self.share.namespace);
        std::fs::create_dir_all(home.join("agentaflow")).expect("a folder for contexts");
        let _ = writeln!(
            self.contexts,
            "[contexts.{name}.kubernetes]\nkubeconfig = \"{}\"\n\
             namespace = \"{namespace}\"\nsystem_namespace = \"{namespace}\"",
            kubeconfig.display(),
        );
        let text = format!("current = \"lab\"\n{}", self.contexts);
        std::fs::write(home.join("agentaflow/config.toml"), text).expect("a list of contexts");
    }

    /// Remaining workloads would be pending in queues of other tests.
    pub(crate) async fn leave_nothing(&self) {
        let path =
            format!("/apis/agentaflow.io/v1/namespaces/{}/gpuworkloads", self.share.namespace);
        self.share.request("DELETE", &path, None).await;
        wait_for("all work is gone", async || {
            let left = self.share.request("GET", &path, None).await.json();
            let left = left["items"].as_array().map_or(0, Vec::len);
            if left == 0 { Ok(()) } else { Err(format!("{left} are left")) }
        })
        .await;
    }

    fn home(&self) -> PathBuf {
        self.share.file("home")
    }

    fn kubeconfig(&self, name: &str, port: u16) -> PathBuf {
        let file = self.share.file(&format!("{name}.kubeconfig"));
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": {"server": format!("http://127.0.0.1:{port}")}}],
            "users": [{"name": name, "user": {}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": name}}],
            "current-context": "lab",
        });
        std::fs::write(&file, config.to_string()).expect("a kubeconfig");
        file
    }

    /// Waits until the API server proxies requests to the scheduler.
    async fn scheduler_is_known(&self) {
        let path = format!(
            "/api/v1/namespaces/{}/services/agentaflow-scheduler-service:8080/proxy/readyz",
            self.share.namespace
        );
        wait_for("the scheduler answers through the API server", async || {
            let answer = self.share.request("GET", &path, None).await;
            if answer.status == 200 { Ok(()) } else { Err(answer.body) }
        })
        .await;
    }

    /// Executes a directive of a script.
    pub(crate) async fn carry_out(&mut self, words: &[&str]) {
        match words {
            ["node", name, gpus] => {
                let gpus = gpus.parse().expect("a number of GPUs");
                // A price below one cent for a run of minutes.
                let plan =
                    NodePlan::gpus(gpus).annotation("agentaflow.gpu/price-per-gpu-hour", "0.10");
                self.share.node(name, &plan).await;
                self.gpus += gpus;
                self.scheduler.counts("agentaflow_gpu_total", f64::from(self.gpus)).await;
            }
            ["bare", name] => {
                let plan = NodePlan::plain().label("nvidia.com/gpu.product", "NVIDIA-L4");
                self.share.node(name, &plan).await;
                self.is_installed_on(2).await;
            }
            ["monitored", name] => self.monitor(name).await,
            ["install"] => self.install().await,
            ["wait", job, "on", node] => {
                wait_workload(&self.share, job, node, |object| {
                    let there = object["status"]["assignedNode"] == *node
                        && object["status"]["phase"] == "Running";
                    there.then_some(())
                })
                .await;
            }
            ["wait", job, "because", reason] => {
                waits_because(&self.share, job, reason).await;
                // Events arrive later.
                for (kind, name) in
                    [("GPUWorkload", (*job).to_owned()), ("Pod", format!("{job}-0"))]
                {
                    event(&self.share, kind, &name, "FailedScheduling").await;
                }
            }
            ["wait", job, "event", reason] => {
                event(&self.share, "GPUWorkload", job, reason).await;
            }
            ["wait", job, phase] => {
                in_phase(&self.share, job, phase).await;
            }
            // Creation timestamps have whole seconds, and lists are sorted by them.
            ["later"] => {
                let begun = Stamp::now().0 / 1000;
                wait_for("a later second", async || {
                    if Stamp::now().0 / 1000 > begun { Ok(()) } else { Err("the same") }
                })
                .await;
            }
            // The garbage collector deletes the pods after the workload.
            ["gone", job] => {
                wait_for(&format!("{job} is gone"), async || {
                    let workload = workload(&self.share, job).await.is_some();
                    let selector = format!("agentaflow.gpu/workload={job}");
                    let pods = self.share.pods(&selector).await.len();
                    let gone = !workload && pods == 0;
                    if gone { Ok(()) } else { Err(format!("workload: {workload}, pods: {pods}")) }
                })
                .await;
            }
            ["foreign", pod] => {
                self.share.create_pod(&PodPlan::new(pod).gpus(1)).await;
                self.share.bound(pod).await;
            }
            ["budget", job] => self.protect(job).await,
            ["account", name, roles @ ..] => self.account(name, roles).await,
            ["everywhere", name, role] => self.bind("ClusterRoleBinding", name, role).await,
            ["clock", ahead] => {
                let ahead = ahead.parse().expect("seconds");
                self.amiss.ahead.store(ahead, Ordering::Relaxed);
            }
            ["kindless"] => self.amiss.kindless.store(true, Ordering::Relaxed),
            ["leaderless"] => self.lose_leader().await,
            ["unreachable"] => {
                let file = self.kubeconfig("nobody", free_port());
                self.variables.push(("UNREACHABLE".to_owned(), file));
            }
            ["kubeconfig"] => {
                let file = self.kubeconfig("admin", self.seen);
                self.variables.push(("KUBECONFIG".to_owned(), file));
            }
            _ => panic!("there is no order `{words:?}`"),
        }
    }

    /// Kills the scheduler and advances the clock by an hour.
    async fn lose_leader(&mut self) {
        self.scheduler.program.kill();
        let namespace = &self.share.namespace;
        let lease = format!(
            "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/agentaflow-gpu-scheduler"
        );
        let renewed = Timestamp::now() - SignedDuration::from_hours(1);
        let silent = json!({"spec": {"renewTime": format!("{renewed:.6}")}});
        let answer = self.share.request("PATCH", &lease, Some(&silent)).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
    }

    /// Publishes two A100 GPUs as a monitor would, the first one busy.
    async fn monitor(&self, short: &str) {
        let node = self.share.node_name(short);
        let namespace = &self.share.namespace;
        let gpu = |index: u32| {
            json!({
                "id": format!("GPU-0000000{index}-0000-0000-0000-000000000000"),
                "name": "NVIDIA A100-SXM4-80GB",
                "memoryTotal": 81_920,
                "driverVersion": "580.95.05",
            })
        };
        let status = |index: u32, used: u32, utilization: u32| {
            json!({
                "id": gpu(index)["id"],
                "available": true,
                "memoryUsed": used,
                "utilization": utilization,
                "temperature": 40 + utilization / 4,
                "powerUsage": 80 + 3 * utilization,
            })
        };
        let object = |rest: Value| {
            let mut object = json!({
                "apiVersion": "agentaflow.io/v1",
                "kind": "GPUNode",
                "metadata": {"name": node, "namespace": namespace},
            });
            for (key, value) in rest.as_object().expect("fields") {
                object[key] = value.clone();
            }
            object
        };
        let spec = json!({"spec": {"nodeName": node, "gpuDevices": [gpu(0), gpu(1)]}});
        self.share.apply_object(object(spec)).await;
        let now = Stamp::now().to_string();
        let body = json!({"status": {
            "phase": "Active",
            "gpuStatus": [status(0, 40_960, 92), status(1, 0, 0)],
            "lastUpdated": now,
            "conditions": [],
        }});
        let path = format!("/apis/agentaflow.io/v1/namespaces/{namespace}/gpunodes/{node}/status");
        let answer = self.share.request("PATCH", &path, Some(&body)).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
    }

    /// Creates a disruption budget for all pods of a job, and waits until it counts them.
    async fn protect(&self, job: &str) {
        let namespace = &self.share.namespace;
        let selector = json!({"matchLabels": {"agentaflow.gpu/workload": job}});
        let budget = json!({
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": job, "namespace": namespace},
            "spec": {"minAvailable": 1, "selector": selector},
        });
        self.share.apply_object(budget).await;
        let path = format!("/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/{job}");
        wait_for("the budget counts its pods", async || {
            let status = self.share.request("GET", &path, None).await.json()["status"].take();
            (status["currentHealthy"] == 1).then_some(()).ok_or_else(|| status.to_string())
        })
        .await;
    }

    async fn account(&mut self, name: &str, roles: &[&str]) {
        let namespace = &self.share.namespace;
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}});
        self.share.apply_object(account).await;
        for role in roles {
            self.bind("RoleBinding", name, role).await;
        }
        let file = self.share.kubeconfig_of(name).await;
        self.add_context(name, &file);
    }

    async fn bind(&self, kind: &str, name: &str, role: &str) {
        let namespace = &self.share.namespace;
        let mut binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": format!("{namespace}-{name}-{role}")},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        });
        if kind == "RoleBinding" {
            binding["metadata"]["namespace"] = json!(namespace);
        }
        self.share.apply_object(binding).await;
    }

    /// Creates ready pods in place of scheduler and monitor, and a webhook that is never called.
    async fn install(&self) {
        let namespace = &self.share.namespace;
        let object = |kind: &str, name: &str, version: &str| {
            let labels = json!({"app": name});
            json!({
                "apiVersion": version,
                "kind": kind,
                "metadata": {"name": name, "namespace": namespace},
                "spec": {
                    "selector": {"matchLabels": labels},
                    "template": {
                        "metadata": {"labels": labels},
                        "spec": {"containers": [{"name": "main", "image": "registry.example/none"}]},
                    },
                },
            })
        };
        let rules = json!([{"apiGroups": ["example.com"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["nothings"]}]);
        let webhook = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "agentaflow"},
            "webhooks": [{
                "name": "pods.agentaflow.io",
                "clientConfig": {"url": "https://127.0.0.1:1", "caBundle": "bm9uZQ=="},
                "rules": rules,
                "failurePolicy": "Ignore",
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }],
        });
        self.share.apply_object(object("Deployment", "agentaflow-gpu-scheduler", "apps/v1")).await;
        // Not on nodes of other tests.
        let mut monitor = object("DaemonSet", "agentaflow-gpu-monitor", "apps/v1");
        monitor["spec"]["template"]["spec"]["nodeSelector"] = json!({OWNER: self.share.id});
        self.share.apply_object(monitor).await;
        self.share.apply_object(webhook).await;
        self.is_installed_on(1).await;
    }

    /// Waits until the scheduler and this many monitors are ready.
    async fn is_installed_on(&self, nodes: u64) {
        let namespace = &self.share.namespace;
        let status = async |kind: &str, name: &str| {
            let path = format!("/apis/apps/v1/namespaces/{namespace}/{kind}/{name}");
            self.share.request("GET", &path, None).await.json()["status"].take()
        };
        wait_for("all of it is ready", async || {
            let scheduler = status("deployments", "agentaflow-gpu-scheduler").await;
            let monitor = status("daemonsets", "agentaflow-gpu-monitor").await;
            let ready = scheduler["readyReplicas"] == 1
                && monitor["desiredNumberScheduled"] == nodes
                && monitor["numberReady"] == nodes;
            if ready { Ok(()) } else { Err(format!("{scheduler} {monitor}")) }
        })
        .await;
    }
}

impl Stage for Lab {
    fn obey(&mut self, order: &str) {
        let words: Vec<_> = order.split(' ').collect();
        Handle::current().block_on(self.carry_out(&words));
    }

    fn prepare(&self, command: &mut Command) {
        command.env("XDG_CONFIG_HOME", self.home());
        command.envs(self.variables.iter().map(|(name, file)| (name, file)));
    }

    fn normal(&self, home: &Path) -> Normal {
        let mut normal = Normal::default();
        normal.hide(&format!("127.0.0.1:{}", self.seen), "127.0.0.1:PORT");
        normal.hide(&self.leader, "LEADER");
        normal.hide(&self.share.file("").display().to_string(), "LAB/");
        normal.hide(&home.display().to_string(), "HOME");
        normal
    }
}

/// Identity of the scheduler.
async fn leader_of(share: &Share) -> String {
    let path = format!(
        "/apis/coordination.k8s.io/v1/namespaces/{}/leases/agentaflow-gpu-scheduler",
        share.namespace
    );
    wait_for("a leader is elected", async || {
        let lease = share.request("GET", &path, None).await.json();
        lease["spec"]["holderIdentity"].as_str().map(str::to_owned).ok_or("nobody")
    })
    .await
}
