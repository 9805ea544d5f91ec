//! Every command as people see it who work with a cluster: scripts in `golden/` are typed into a real shell, as in
//! `tests/commands`. The scheduler is ours, nodes and pods are KWOK's.
//!
//! * `@node NAME GPUS` adds a node, `@bare NAME` one that is marked and hands out no GPU, `@monitored NODE` lets a monitor
//!   tell of its GPUs. `@install` adds what an installation has, but for the scheduler, which runs beside the cluster.
//! * `@wait JOB PHASE`, `@wait JOB because REASON`, `@wait JOB on NODE` and `@gone JOB` wait.
//! * `@account NAME ROLE…` makes somebody with these roles in the namespace, and a context of that name;
//!   `@everywhere NAME ROLE` gives them one more role, for the whole cluster.
//! * `@unreachable` makes `$NOBODY` the kubeconfig of a cluster that does not answer.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use agentaflow_kube::names::SCHEDULER_NAME;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::task::block_in_place;

use crate::PROGRAM;
use crate::golden::{self, Stage};
use crate::normal::Normal;
use crate::plans::{alone, in_phase, wait_workload, waits_because, workload};
use crate::service::serve_in_cluster;
use crate::support::{NodePlan, Scheduler, Share, free_port, wait_for};
use crate::view;

macro_rules! scripts {
    ($($test:ident: $name:literal,)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        #[ignore = "needs a Kubernetes control plane"]
        async fn $test() {
            check($name).await;
        }
    )*};
}

scripts! {
    work_is_handed_in_and_followed_to_its_end: "work",
    lists_are_chosen_sorted_and_printed_in_every_format: "lists",
    one_thing_is_described_and_explained: "one",
    the_fleet_is_looked_after: "fleet",
    what_goes_wrong_is_said_with_what_to_do_and_an_exit_code: "errors",
    what_only_a_server_can_do_says_so: "servers-only",
    a_doctor_looks_at_a_cluster_and_names_what_mends_it: "doctor",
    people_may_do_what_their_roles_say: "roles",
}

/// Plays `golden/NAME.txt` in the namespace `test-lab-NAME`, with a scheduler of its own.
async fn check(name: &str) {
    let _alone = alone().await;
    let share = Share::called(&format!("lab-{name}")).await;
    let lease = "agentaflow-gpu-scheduler";
    let extra = ["--scheduler-name", SCHEDULER_NAME, "--lease-name", lease];
    let scheduler = Scheduler::start(PROGRAM, &share, &extra).await;
    serve_in_cluster(&share, &scheduler).await;
    share.apply_file("deploy/kubernetes/22-rbac-users.yaml").await;
    let seen = view::serve(&share).await;
    let mut stage = Lab { share, seen, contexts: String::new(), variables: Vec::new() };
    let admin = stage.kubeconfig("admin", seen);
    stage.add_context("lab", &admin);
    stage.scheduler_is_known().await;
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/kube/golden");
    let path = folder.join(format!("{name}.txt"));
    block_in_place(|| golden::check(&path, PROGRAM, &mut stage));
    stage.leave_nothing().await;
    drop(scheduler);
}

/// A share of the cluster, seen as if it were all of it.
struct Lab {
    share: Share,
    /// The port of its API server.
    seen: u16,
    /// What `config.toml` says.
    contexts: String,
    variables: Vec<(String, PathBuf)>,
}

impl Lab {
    /// One more context; `lab` is the current one.
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

    /// Work that is left would wait in other tests' queues.
    async fn leave_nothing(&self) {
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

    /// Waits until the API server passes questions on to the scheduler.
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

    async fn carry_out(&mut self, words: &[&str]) {
        match words {
            ["node", name, gpus] => {
                let plan = NodePlan::gpus(gpus.parse().expect("a number of GPUs"))
                    .annotation("agentaflow.gpu/price-per-gpu-hour", "2.50");
                self.share.node(name, &plan).await;
            }
            ["bare", name] => {
                let plan = NodePlan::plain().label("nvidia.com/gpu.product", "NVIDIA-L4");
                self.share.node(name, &plan).await;
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
            }
            ["wait", job, phase] => {
                in_phase(&self.share, job, phase).await;
            }
            ["gone", job] => {
                wait_for(&format!("{job} is gone"), async || {
                    let left = workload(&self.share, job).await;
                    left.map_or(Ok(()), |_| Err("it is still there".to_owned()))
                })
                .await;
            }
            ["account", name, roles @ ..] => self.account(name, roles).await,
            ["everywhere", name, role] => self.bind("ClusterRoleBinding", name, role).await,
            ["unreachable"] => {
                let file = self.kubeconfig("nobody", free_port());
                self.variables.push(("NOBODY".to_owned(), file));
            }
            _ => panic!("there is no order `{words:?}`"),
        }
    }

    /// What a monitor on the node would publish: two A100s, the first of them busy.
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
        let now = agentaflow_api::Stamp::now().to_string();
        let told = json!({"status": {
            "phase": "Active",
            "gpuStatus": [status(0, 40_960, 92), status(1, 0, 0)],
            "lastUpdated": now,
            "conditions": [],
        }});
        let path = format!("/apis/agentaflow.io/v1/namespaces/{namespace}/gpunodes/{node}/status");
        let answer = self.share.request("PATCH", &path, Some(&told)).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
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

    /// Pods in the place of scheduler and monitor, which are ready at once, and a webhook that is never called.
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
        self.share.apply_object(object("DaemonSet", "agentaflow-gpu-monitor", "apps/v1")).await;
        self.share.apply_object(webhook).await;
        let of = |kind: &str, name: &str| {
            format!("/apis/apps/v1/namespaces/{namespace}/{kind}/{name}")
        };
        wait_for("all of it is ready", async || {
            let get = async |path: String| self.share.request("GET", &path, None).await.json();
            let scheduler = get(of("deployments", "agentaflow-gpu-scheduler")).await;
            let monitor = get(of("daemonsets", "agentaflow-gpu-monitor")).await;
            let status = &monitor["status"];
            let wanted = status["desiredNumberScheduled"].as_u64().unwrap_or(0);
            let ready = scheduler["status"]["readyReplicas"] == 1
                && wanted > 0
                && status["numberReady"] == wanted;
            if ready { Ok(()) } else { Err(format!("{} {status}", scheduler["status"])) }
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
        normal.hide(&self.share.file("").display().to_string(), "LAB/");
        normal.hide(&home.display().to_string(), "HOME");
        normal
    }
}
