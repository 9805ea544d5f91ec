//! The command line with a cluster.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use agentaflow_api::GpuAmount;
use agentaflow_api::event::EventKind;
use agentaflow_api::job::JobStatus;
use agentaflow_api::node::GpuStatus;
use agentaflow_api::queue::{QueueSpec, QuotaSpec};
use agentaflow_kube_client::{Cluster, Failure};
use agentaflow_kube_core::names::SCHEDULER_NAME;
use futures_util::StreamExt as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};

use crate::PROGRAM;
use crate::plans::{WorkloadPlan, alone, in_phase, waits_because};
use crate::service::serve_in_cluster;
use crate::support::{NodePlan, PodPlan, Program, Scheduler, Share, wait_for};

/// The command line with the context of the share.
pub(crate) struct Person {
    home: PathBuf,
}

impl Person {
    /// `scheduler` is the URL of the scheduler; `None` uses the API server proxy.
    pub(crate) fn new(share: &Share, scheduler: Option<&Scheduler>) -> Self {
        let home = share.file("home");
        std::fs::create_dir_all(home.join("agentaflow")).expect("a folder for contexts");
        let mut text = format!(
            "current = \"kube\"\n[contexts.kube.kubernetes]\nkubeconfig = \"{}\"\n\
             namespace = \"{namespace}\"\nsystem_namespace = \"{namespace}\"\n",
            share.cluster.kubeconfig.display(),
            namespace = share.namespace,
        );
        if let Some(scheduler) = scheduler {
            let http = scheduler.http;
            let _ = writeln!(text, "scheduler = \"http://127.0.0.1:{http}\"");
        }
        std::fs::write(home.join("agentaflow/config.toml"), text).expect("a list of contexts");
        Self { home }
    }

    pub(crate) fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("the program can be started")
    }

    /// Starts a long-running command.
    pub(crate) fn starts(&self, share: &Share, words: &[&str]) -> Program {
        Program::start(self.command(words), &share.file(&format!("{}.log", words[0])))
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(words).env("XDG_CONFIG_HOME", &self.home).env("COLUMNS", "200");
        for name in ["AGENTAFLOW_SERVER", "AGENTAFLOW_TOKEN", "AGENTAFLOW_CONTEXT", "KUBECONFIG"] {
            command.env_remove(name);
        }
        command
    }

    /// Stdout of a successful command.
    #[track_caller]
    pub(crate) fn says(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {told}");
        String::from_utf8(output.stdout).expect("text")
    }

    #[track_caller]
    pub(crate) fn json(&self, words: &[&str]) -> Value {
        let text = self.says(words);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{words:?}: {error}: {text}"))
    }

    /// Stderr of a failing command.
    #[track_caller]
    pub(crate) fn fails(&self, words: &[&str], code: i32) -> String {
        let output = self.run(words);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{words:?}: {told}");
        told
    }
}

/// Ignores the wrapping of long lines.
#[track_caller]
pub(crate) fn check(text: &str, parts: &[&str]) {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in parts {
        assert!(text.contains(part), "`{part}` is missing:\n{text}");
    }
}

/// A scheduler with the default schedulerName.
async fn our_scheduler(share: &Share) -> Scheduler {
    Scheduler::start(PROGRAM, share, &["--scheduler-name", SCHEDULER_NAME]).await
}

fn priced(gpus: u32) -> NodePlan {
    NodePlan::gpus(gpus).annotation("agentaflow.gpu/price-per-gpu-hour", "2.50")
}

const IMAGE: &str = "registry.example/train:1";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn a_job_lives_its_life_from_the_command_line() {
    let _alone = alone().await;
    let share = Share::new().await;
    let node = share.node("a", &priced(2)).await;
    let scheduler = our_scheduler(&share).await;
    scheduler.counts("agentaflow_gpu_available", 2.0).await;
    let me = Person::new(&share, Some(&scheduler));
    assert_eq!(me.says(&["jobs"]), "", "what is not a job is said on stderr");

    let told = me.says(&["what-if", "--gpus", "2", IMAGE]);
    check(&told, &[&format!("Would start now on {node}"), "2 × NVIDIA-A100", "$5.00 per hour"]);
    let line =
        ["submit", "--name", "train", "--gpus", "2", "--memory", "8G", IMAGE, "--", "python"];
    assert_eq!(me.says(&line), "train\n");
    in_phase(&share, "train", "Running").await;
    assert_eq!(me.says(&["submit", "--name", "Next One", "--gpus", "1", IMAGE]), "next-one\n");
    waits_because(&share, "next-one", "NoRoom").await;

    check(&me.says(&["jobs"]), &["train", "running", &node, "next-one", "pending"]);
    let jobs = me.json(&["jobs", "-o", "json"]);
    assert_eq!(jobs.as_array().map(Vec::len), Some(2));
    let train = me.json(&["status", "train", "-o", "json"]);
    assert_eq!(
        (&train["k8s_job_name"], &train["k8s_pod_name"]),
        (&json!("train"), &json!("train-0"))
    );
    assert_eq!(train["k8s_namespace"], share.namespace);
    assert_eq!(
        (&train["docker_image"], &train["docker_tag"]),
        (&json!("registry.example/train"), &json!("1"))
    );
    assert_eq!((&train["command"], &train["memory_required"]), (&json!(["python"]), &json!(8192)));
    assert_eq!((&train["price_per_hour"], &train["gpu_count"]), (&json!(5), &json!(2)));
    assert_eq!(train["tasks"][0]["gpus"].as_array().map(Vec::len), Some(2));
    check(&me.says(&["status", "next-one"]), &["pending", "lacks 1 free GPU"]);
    check(&me.says(&["status"]), &["1 running, 1 pending", &node]);

    let told = me.says(&["explain", "next-one"]);
    check(&told, &["0/1 nodes fit", "lacks 1 free GPU (most free 0)", "Position 1 of 1", &node]);
    check(&me.says(&["explain", "train"]), &[&format!("Running on {node}"), "$5.00 per hour"]);
    let told = me.says(&["what-if", "--gpus", "1", IMAGE]);
    check(&told, &["0/1 nodes fit", "$2.50 per hour"]);

    let nodes = me.json(&["nodes", "-o", "json"]);
    let mine: Vec<&Value> =
        nodes.as_array().expect("nodes").iter().filter(|one| one["node_name"] == node).collect();
    assert_eq!((&mine[0]["gpu_count"], &mine[0]["current_jobs"]), (&json!(2), &json!(1)));
    assert_eq!(mine[0]["gpu_instances"][0]["status"], "busy");
    assert_eq!(
        (&mine[0]["status"], &mine[0]["price_per_gpu_hour"]),
        (&json!("active"), &json!(2.5))
    );
    check(&me.says(&["events", "train"]), &["Created", "Scheduled", "Started"]);
    let events = me.json(&["events", "next-one", "-o", "json"]);
    assert!(events.as_array().expect("events").iter().all(|event| event["job"] == "next-one"));

    check(&me.says(&["cancel", "train"]), &["job train cancelling"]);
    in_phase(&share, "next-one", "Running").await;
    wait_for("the workload is gone", async || {
        let output = me.run(&["status", "train"]);
        if output.status.code() == Some(3) { Ok(()) } else { Err("it is still there") }
    })
    .await;
    check(&me.fails(&["explain", "train"], 3), &["there is no workload `train` in namespace"]);
    check(&me.fails(&["cancel", "../secrets"], 3), &["names no job"]);
    check(&me.fails(&["submit", "--fraction", "0.5", IMAGE], 2), &["gpu_fraction"]);
    check(&me.fails(&["submit", "--", "hostname"], 2), &["runtime", "name an IMAGE"]);
    check(&me.fails(&["submit", "--gpus", "100", IMAGE], 1), &["refuses", "gpuCount"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn a_failed_job_is_explained_with_its_remedy() {
    let share = Share::new().await;
    share.node("a", &NodePlan::gpus(4)).await;
    let scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let me = Person::new(&share, Some(&scheduler));
    for (name, code) in [("wrong", 2), ("killed", 137), ("missing", 127)] {
        let pods = PodPlan::new("").fail_after("100ms", code);
        WorkloadPlan::new(&share, name, &pods).create(&share).await;
    }
    for (name, code, words, remedy) in [
        ("wrong", 2, "code 2", "Check the logs"),
        ("killed", 137, "SIGKILL", "Check the events"),
        ("missing", 127, "code 127", "the command exists in the image"),
    ] {
        in_phase(&share, name, "Failed").await;
        check(&me.says(&["explain", name]), &["Failed: ", words, remedy]);
        let job = me.json(&["status", name, "-o", "json"]);
        assert_eq!((&job["status"], &job["exit_code"]), (&json!("failed"), &json!(code)));
    }
    let failed = me.json(&["jobs", "--status", "failed", "-o", "json"]);
    assert_eq!(failed.as_array().map(Vec::len), Some(3));
    assert_eq!(me.json(&["jobs", "--status", "running", "-o", "json"]), json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn the_scheduler_is_queried_through_the_api_server() {
    let share = Share::new().await;
    share.node("a", &priced(1)).await;
    let scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let me = Person::new(&share, None);
    WorkloadPlan::new(&share, "vast", &PodPlan::new("")).gpus(4).create(&share).await;
    waits_because(&share, "vast", "NeverFits").await;
    let told = me.says(&["explain", "vast"]);
    check(&told, &["even when empty", "the scheduler could not be asked"]);
    let told = me.fails(&["what-if", "--gpus", "1", IMAGE], 5);
    check(&told, &["agentaflow-scheduler-service", "run `agentaflow doctor`"]);

    serve_in_cluster(&share, &scheduler).await;
    wait_for("the API server passes questions on", async || {
        let told = me.says(&["explain", "vast"]);
        if told.contains("could not") { Err(told) } else { Ok(()) }
    })
    .await;
    check(&me.says(&["explain", "vast"]), &["even when empty", "Start time unknown"]);
    check(&me.says(&["what-if", "--gpus", "1", IMAGE]), &["Would start now", "$2.50 per hour"]);
    let metrics = cluster(&share, None).await.metrics().await.expect("metrics");
    check(&metrics, &["agentaflow_gpu_total", "agentaflow_workloads_pending"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn a_workload_is_completed_by_hand_and_events_are_followed() {
    let share = Share::new().await;
    share.node("a", &NodePlan::gpus(2)).await;
    let scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let asked = cluster(&share, Some(&scheduler)).await;
    WorkloadPlan::new(&share, "serve", &PodPlan::new("")).create(&share).await;
    in_phase(&share, "serve", "Running").await;
    let mut events = asked.follow_events(Some("serve")).await.expect("events");
    asked.complete("serve").await.expect("completed");
    let seen = tokio::time::timeout(Duration::from_secs(30), async {
        while let Some(event) = events.next().await {
            let event = event.expect("an event");
            assert_eq!(event.job.as_deref(), Some("serve"));
            if event.kind == EventKind::Completed {
                return event.message;
            }
        }
        String::new()
    });
    assert_eq!(seen.await.expect("an event in time"), "Completed by the user.");
    in_phase(&share, "serve", "Succeeded").await;
    assert_eq!(asked.job("serve").await.expect("a job").status, JobStatus::Completed);
    wait_for("its GPU is free", async || {
        let nodes = asked.nodes().await.map_err(|error| error.to_string())?;
        let mine = nodes.iter().find(|node| node.node_id == share.node_name("a"));
        let jobs = mine.map(|node| node.current_jobs);
        if jobs == Some(0) { Ok(()) } else { Err(format!("{jobs:?}")) }
    })
    .await;
    let query = agentaflow_kube_client::LogQuery::default();
    wait_for("its pod is gone, and its output", async || match asked.logs("serve", &query).await {
        Err(Failure::NotFound(_)) => Ok(()),
        Err(other) => Err(other.to_string()),
        Ok(_) => Err("there is output".to_owned()),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn nodes_and_gpus_are_closed_and_emptied() {
    let share = Share::new().await;
    let node = share.node("a", &NodePlan::gpus(2)).await;
    let scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let asked = cluster(&share, Some(&scheduler)).await;
    asked.cordon(&format!("{node}/1"), true).await.expect("closed");
    scheduler.counts("agentaflow_gpu_available", 1.0).await;
    let shown = asked.nodes().await.expect("nodes");
    let shown = shown.iter().find(|shown| shown.node_id == node).expect("the node");
    assert_eq!(shown.spec.gpu_instances[1].status, Some(GpuStatus::Maintenance));
    let missing = asked.cordon(&format!("{node}/7"), true).await.unwrap_err();
    assert!(matches!(&missing, Failure::NotFound(why) if why.contains("it has 0, 1")), "{missing}");
    asked.cordon(&format!("{node}/1"), false).await.expect("opened");
    scheduler.counts("agentaflow_gpu_available", 2.0).await;

    share.create_pod(&share.one_gpu("goes")).await;
    share.create_pod(&share.one_gpu("stays").label("app", "stays")).await;
    share.create_pod(&PodPlan::new("plain")).await;
    share.bound("goes").await;
    // A budget does not protect unstarted pods.
    share.in_phase("stays", "Running").await;
    share
        .apply_object(json!({
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "stays", "namespace": share.namespace},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "stays"}}},
        }))
        .await;
    let kept = asked.drain(&node).await.unwrap_err().to_string();
    check(&kept, &[&format!("{}/stays", share.namespace), "disruption budget", "goes evicted"]);
    share.gone("goes").await;
    let shown = asked.nodes().await.expect("nodes");
    let shown = shown.iter().find(|shown| shown.node_id == node).expect("the node");
    assert!(shown.cordoned);
    asked.cordon(&node, false).await.expect("opened");
    assert!(matches!(asked.drain("nowhere").await, Err(Failure::NotFound(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn queues_and_the_strategy_are_read_and_written() {
    let share = Share::new().await;
    let mut scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let asked = cluster(&share, Some(&scheduler)).await;
    assert_eq!(asked.strategy().await.expect("a strategy"), "least_utilized");
    asked.set_strategy("best_fit").await.expect("changed");
    assert_eq!(asked.strategy().await.expect("a strategy"), "best_fit");
    scheduler.program.says("strategy=best_fit").await;
    let wrong = asked.set_strategy("fastest").await.unwrap_err().to_string();
    check(&wrong, &["unknown strategy `fastest`", "best_fit"]);

    let name = format!("q-{}", share.id);
    let limit = QuotaSpec { gpus: Some(GpuAmount(4000)), ..QuotaSpec::default() };
    let users = vec![share.namespace.clone()];
    let said = QueueSpec { name: name.clone(), limit, users, ..QueueSpec::default() };
    let made = asked.set_queue(&said).await.expect("a queue");
    assert_eq!((made.spec.weight, made.spec.limit.gpus), (Some(100), Some(GpuAmount(4000))));
    let heavier = QueueSpec { name: name.clone(), weight: Some(7), ..QueueSpec::default() };
    let made = asked.set_queue(&heavier).await.expect("a queue");
    assert_eq!((made.spec.weight, made.spec.limit.gpus), (Some(7), Some(GpuAmount(4000))));
    let listed = asked.queues().await.expect("queues");
    assert!(
        listed
            .iter()
            .any(|queue| queue.spec.name == name && queue.spec.users == [share.namespace.clone()])
    );
    asked.delete_queue(&name).await.expect("removed");
    assert!(matches!(asked.delete_queue(&name).await, Err(Failure::NotFound(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn any_object_can_be_submitted_and_rejections_name_the_cause() {
    let share = Share::new().await;
    share.apply_file("deploy/crds").await;
    let asked = cluster(&share, None).await;
    let template = json!({
        "metadata": {"labels": {"app": "x"}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]},
    });
    let job = |name: &str| json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": template}});
    let tried = asked.create(&job("one"), true).await.expect("a dry run");
    assert_eq!(tried.handle(), "job/one");
    let path = format!("/apis/batch/v1/namespaces/{}/jobs/one", share.namespace);
    assert_eq!(share.request("GET", &path, None).await.status, 404, "nothing is kept");
    asked.create(&job("one"), false).await.expect("a job");
    assert_eq!(share.request("GET", &path, None).await.status, 200);
    let again = asked.create(&job("one"), false).await.unwrap_err();
    assert!(matches!(&again, Failure::Refused(why) if why.contains("already exists")), "{again}");
    let mut pod = PodPlan::new("alone").gpus(1).scheduler(SCHEDULER_NAME).object();
    pod["spec"]["schedulingGates"] = json!([{"name": "example.com/wait"}]);
    assert_eq!(asked.create(&pod, false).await.expect("a pod").handle(), "pod/alone");
    let listed = asked.jobs(&[JobStatus::Pending]).await.expect("jobs");
    assert!(listed.iter().any(|job| job.handle() == "pod/alone"), "{listed:?}");
    assert!(asked.cancel("pod/alone").await.expect("cancelled").cancel_requested);
    for (object, words) in [
        (json!({"kind": "Pod"}), "no `apiVersion`"),
        (
            json!({"apiVersion": "v9", "kind": "Teapot", "metadata": {"name": "x"}}),
            "does not know Teapot",
        ),
        (
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": []}}),
            "containers",
        ),
        (
            json!({"apiVersion": "agentaflow.io/v1", "kind": "GPUWorkload", "metadata": {"name": "x"}, "spec": {}}),
            "podTemplate",
        ),
        (json!([]), "no Kubernetes object"),
    ] {
        let error = asked.create(&object, false).await.unwrap_err();
        assert!(
            matches!(&error, Failure::Refused(why) if why.contains(words)),
            "{object}: {error}"
        );
    }
}

async fn cluster(share: &Share, scheduler: Option<&Scheduler>) -> Cluster {
    let read = Kubeconfig::read_from(&share.cluster.kubeconfig).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
    let mut config = config.expect("a whole kubeconfig");
    config.default_retry = false;
    Cluster {
        client: Client::try_from(config).expect("a client"),
        namespace: share.namespace.clone(),
        everywhere: false,
        system: share.namespace.clone(),
        scheduler: scheduler.map(|scheduler| format!("http://127.0.0.1:{}", scheduler.http)),
    }
}
