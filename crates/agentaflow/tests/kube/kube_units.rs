//! Jobs as units: queued and admitted whole through their suspend field.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::kube_gangs::pod_group_kind;
use crate::kube_manifests::{end_admission, start_with_admission};
use crate::plans::{alone, event};
use crate::support::{NodePlan, OWNER, PodPlan, Scheduler, Share, get, wait_for, wait_within};
use crate::{PROGRAM, controllers};

/// Pods of two GPUs each for the scheduler of the share.
pub(crate) fn template(share: &Share, gpus: u32) -> Value {
    let pod = PodPlan::new("").gpus(gpus).scheduler(&share.scheduler_name());
    // As the namespace adds it: pods equal their template and take the places kept for it.
    pod.spec("nodeSelector", json!({OWNER: share.id})).template()
}

/// Only a priority class gives the right to preempt; priority 5 has none.
pub(crate) fn job(share: &Share, name: &str, pods: u32, priority: u8) -> Value {
    let mut template = template(share, 2);
    if priority != 5 {
        template["spec"]["priorityClassName"] = json!(format!("agentaflow-{priority}"));
    }
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "suspend": true, "parallelism": pods, "completions": pods, "template": template,
        },
    })
}

pub(crate) fn path(share: &Share, group: &str, plural: &str, name: &str) -> String {
    format!("/apis/{group}/namespaces/{}/{plural}/{name}", share.namespace)
}

pub(crate) async fn suspended(
    share: &Share,
    group: &str,
    plural: &str,
    name: &str,
) -> Option<bool> {
    let answer = share.request("GET", &path(share, group, plural, name), None).await;
    answer.json()["spec"]["suspend"].as_bool()
}

async fn job_is_suspended(share: &Share, name: &str) -> bool {
    suspended(share, "batch/v1", "jobs", name).await == Some(true)
}

async fn pending_reason(share: &Share, name: &str) -> Option<String> {
    let job = share.request("GET", &path(share, "batch/v1", "jobs", name), None).await.json();
    job["metadata"]["annotations"]["agentaflow.gpu/pending-reason"].as_str().map(str::to_owned)
}

/// Waits until the job has this number of running pods and no other pods.
pub(crate) async fn runs(share: &Share, name: &str, pods: usize) {
    let selector = format!("batch.kubernetes.io/job-name={name}");
    let running = |pod: &Pod| {
        pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
    };
    wait_for(&format!("{pods} pods of {name} run"), async || {
        let all = share.pods(&selector).await;
        let count = all.iter().filter(|pod| running(pod)).count();
        let state = format!("{count} of {} run", all.len());
        (count == pods && all.len() == pods).then_some(()).ok_or(state)
    })
    .await;
}

pub(crate) async fn delete(share: &Share, path: &str) {
    let body = json!({"propagationPolicy": "Background"});
    let answer = share.request("DELETE", path, Some(&body)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}

/// Reason and sentences of the scheduler's explanation.
fn explanation(share: &Share, scheduler: &Scheduler, name: &str) -> Value {
    let path = format!("/explain/{}/{name}", share.namespace);
    let answer = get(scheduler.http, &path).map(|answer| answer.body).unwrap_or_default();
    serde_json::from_str(&answer).unwrap_or_default()
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn of_two_jobs_one_runs_whole_and_the_other_waits_suspended() {
    let share = Share::new().await;
    share.nodes(2, &NodePlan::gpus(4)).await;
    let scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    share.apply_object(job(&share, "first", 4, 5)).await;
    runs(&share, "first", 4).await;
    event(&share, "Job", "first", "Admitted").await;
    share.apply_object(job(&share, "second", 4, 5)).await;
    event(&share, "Job", "second", "FailedScheduling").await;
    assert!(job_is_suspended(&share, "second").await);
    assert_eq!(explanation(&share, &scheduler, "second")["reason"], "GangIncomplete");
    assert!(share.pods("batch.kubernetes.io/job-name=second").await.is_empty());
    wait_for("the job has its pending reason", async || {
        pending_reason(&share, "second").await.ok_or("none")
    })
    .await;
    delete(&share, &path(&share, "batch/v1", "jobs", "first")).await;
    runs(&share, "second", 4).await;
    assert_eq!(pending_reason(&share, "second").await, None);
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_preempted_job_is_suspended_whole_and_runs_again() {
    let share = Share::new().await;
    share.nodes(2, &NodePlan::gpus(4)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    share.apply_object(job(&share, "low", 4, 1)).await;
    runs(&share, "low", 4).await;
    share.apply_object(job(&share, "high", 1, 9)).await;
    runs(&share, "high", 1).await;
    assert!(job_is_suspended(&share, "low").await);
    event(&share, "Job", "low", "Preempted").await;
    wait_for("no pod of low is left", async || {
        let left = share.pods("batch.kubernetes.io/job-name=low").await.len();
        if left == 0 { Ok(()) } else { Err(left) }
    })
    .await;
    // A suspended Job counts no failed pod.
    let low = share.request("GET", &path(&share, "batch/v1", "jobs", "low"), None).await.json();
    assert_eq!(low["status"]["failed"].as_u64().unwrap_or(0), 0, "{}", low["status"]);
    delete(&share, &path(&share, "batch/v1", "jobs", "high")).await;
    runs(&share, "low", 4).await;
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_job_with_more_pods_than_its_backoff_limit_restarts_whole() {
    let share = Share::new().await;
    let nodes = share.nodes(2, &NodePlan::gpus(8)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    // The default limit is 6 failed pods.
    let mut large = job(&share, "large", 8, 5);
    large["metadata"]["annotations"] = json!({"agentaflow.gpu/replacement-timeout": "5s"});
    large["spec"]["template"]["metadata"]["annotations"] =
        json!({"agentaflow.gpu/replacement-timeout": "5s"});
    share.apply_object(large).await;
    runs(&share, "large", 8).await;
    for node in &nodes {
        share.patch_node(node, &json!({"spec": {"unschedulable": true}})).await;
    }
    let pods = share.pods("batch.kubernetes.io/job-name=large").await;
    share.delete_pod(pods[0].metadata.name.as_deref().expect("a name")).await;
    event(&share, "Job", "large", "GangRestarted").await;
    wait_for("the job is suspended, and no pod of it is left", async || {
        let left = share.pods("batch.kubernetes.io/job-name=large").await.len();
        let done = left == 0 && job_is_suspended(&share, "large").await;
        if done { Ok(()) } else { Err(format!("{left} pods")) }
    })
    .await;
    for node in &nodes {
        share.patch_node(node, &json!({"spec": {"unschedulable": false}})).await;
    }
    runs(&share, "large", 8).await;
    let large = share.request("GET", &path(&share, "batch/v1", "jobs", "large"), None).await.json();
    assert_eq!(large["status"]["failed"].as_u64().unwrap_or(0), 1, "{}", large["status"]);
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn of_two_jobs_with_quota_for_one_each_runs_in_turn() {
    let share = Share::new().await;
    let _scheduler = scheduler_without_quota(&share).await;
    for name in ["one", "two"] {
        share.apply_object(job(&share, name, 6, 5)).await;
    }
    run_in_turn(&share).await;
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn of_two_jobs_of_pod_groups_with_quota_for_one_each_runs_in_turn() {
    let share = Share::new().await;
    share.apply_object(pod_group_kind()).await;
    let _scheduler = scheduler_without_quota(&share).await;
    for name in ["one", "two"] {
        share
            .apply_object(json!({
                "apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup",
                "metadata": {"name": name}, "spec": {"minMember": 6},
            }))
            .await;
        let mut job = job(&share, name, 6, 5);
        job["spec"]["suspend"] = json!(false);
        job["spec"]["template"]["metadata"]["labels"] =
            json!({"scheduling.x-k8s.io/pod-group": name});
        share.apply_object(job).await;
    }
    run_in_turn(&share).await;
}

/// A scheduler on nodes for twelve pods in a namespace whose quota admits none.
async fn scheduler_without_quota(share: &Share) -> Scheduler {
    share.nodes(2, &NodePlan::gpus(12)).await;
    share.apply_object(no_pods()).await;
    quota_in_force(share, "0").await;
    Scheduler::start(PROGRAM, share, &[]).await
}

/// The jobs `one` and `two` are suspended without quota, and run in turn with quota for one.
async fn run_in_turn(share: &Share) {
    for name in ["one", "two"] {
        resumed(share, name).await;
    }
    for name in ["one", "two"] {
        wait_within(Duration::from_secs(100), "the job is suspended again", async || {
            if job_is_suspended(share, name).await { Ok(()) } else { Err("resumed") }
        })
        .await;
    }
    share.apply_object(quota(6)).await;
    quota_in_force(share, "6").await;
    let all_run = async |name: &str| {
        let pods = share.pods(&format!("batch.kubernetes.io/job-name={name}")).await;
        let running = |pod: &Pod| {
            pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
        };
        pods.iter().filter(|pod| running(pod)).count() == 6
    };
    let limit = Duration::from_secs(150);
    let first = wait_within(limit, "all pods of one job run", async || {
        for name in ["one", "two"] {
            if all_run(name).await {
                return Ok(name);
            }
        }
        Err("neither")
    })
    .await;
    let second = if first == "one" { "two" } else { "one" };
    delete(share, &path(share, "batch/v1", "jobs", first)).await;
    wait_within(limit, "all pods of the other job run", async || {
        if all_run(second).await { Ok(()) } else { Err("not all") }
    })
    .await;
}

fn no_pods() -> Value {
    quota(0)
}

/// A quota that admits this number of pods.
pub(crate) fn quota(pods: u32) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "pods"},
        "spec": {"hard": {"pods": pods.to_string()}},
    })
}

async fn resumed(share: &Share, name: &str) {
    wait_for(&format!("{name} is resumed"), async || {
        if job_is_suspended(share, name).await { Err("suspended") } else { Ok(()) }
    })
    .await;
}

pub(crate) async fn quota_in_force(share: &Share, pods: &str) {
    let path = format!("/api/v1/namespaces/{}/resourcequotas/pods", share.namespace);
    wait_for("the quota has a status", async || {
        let quota = share.request("GET", &path, None).await.json();
        let hard = &quota["status"]["hard"]["pods"];
        if hard == pods { Ok(()) } else { Err(hard.to_string()) }
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_scheduler_killed_between_admission_and_pods_keeps_the_places() {
    let share = Share::new().await;
    share.nodes(2, &NodePlan::gpus(4)).await;
    share.apply_object(no_pods()).await;
    quota_in_force(&share, "0").await;
    let mut scheduler = Scheduler::start(PROGRAM, &share, &["--identity", "one"]).await;
    share.apply_object(job(&share, "first", 4, 5)).await;
    resumed(&share, "first").await;
    scheduler.program.kill();
    share.apply_object(job(&share, "second", 4, 5)).await;
    scheduler.program.restart();
    scheduler.ready().await;
    event(&share, "Job", "second", "FailedScheduling").await;
    let quota = format!("/api/v1/namespaces/{}/resourcequotas/pods", share.namespace);
    delete(&share, &quota).await;
    runs(&share, "first", 4).await;
    assert!(job_is_suspended(&share, "second").await);
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_job_whose_pods_a_quota_refuses_is_suspended_again() {
    let share = Share::new().await;
    share.nodes(1, &NodePlan::gpus(4)).await;
    share.apply_object(no_pods()).await;
    quota_in_force(&share, "0").await;
    let scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    share.apply_object(job(&share, "refused", 2, 5)).await;
    resumed(&share, "refused").await;
    wait_within(Duration::from_secs(100), "the job is suspended again", async || {
        if job_is_suspended(&share, "refused").await { Ok(()) } else { Err("resumed") }
    })
    .await;
    event(&share, "Job", "refused", "NotStarted").await;
    wait_for("the explanation", async || {
        let found = explanation(&share, &scheduler, "refused");
        if found["reason"] == "StartBackoff" { Ok(()) } else { Err(found.to_string()) }
    })
    .await;
}

pub(crate) fn job_set(share: &Share, name: &str) -> Value {
    let part = |pods: u32, gpus: u32| {
        json!({"spec": {"parallelism": pods, "completions": pods,
            "template": template(share, gpus)}})
    };
    json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {
            "suspend": true,
            "replicatedJobs": [
                {"name": "driver", "template": part(1, 0)},
                {"name": "worker", "replicas": 2, "template": part(2, 2)},
            ],
        },
    })
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_job_set_with_its_controller_is_admitted_and_preempted_whole() {
    let share = Share::new().await;
    share.nodes(2, &NodePlan::gpus(4)).await;
    let _controller = controllers::job_set(&share).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let group = "jobset.x-k8s.io/v1alpha2";
    let pods_run = async |name: &str, count: usize| {
        let selector = format!("jobset.sigs.k8s.io/jobset-name={name}");
        bound_of(&share, &selector, count, count).await;
    };
    share.apply_object(job_set(&share, "first")).await;
    pods_run("first", 5).await;
    // Timestamps have whole seconds, and the older set goes first.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    share.apply_object(job_set(&share, "second")).await;
    event(&share, "JobSet", "second", "FailedScheduling").await;
    assert_eq!(suspended(&share, group, "jobsets", "second").await, Some(true));
    share.apply_object(job(&share, "urgent", 1, 9)).await;
    runs(&share, "urgent", 1).await;
    event(&share, "JobSet", "first", "Preempted").await;
    assert_eq!(suspended(&share, group, "jobsets", "first").await, Some(true));
    pods_run("first", 0).await;
    delete(&share, &path(&share, "batch/v1", "jobs", "urgent")).await;
    pods_run("first", 5).await;
    delete(&share, &path(&share, group, "jobsets", "first")).await;
    pods_run("second", 5).await;
}

/// Waits until `bound` of `all` pods have a node.
pub(crate) async fn bound_of(share: &Share, selector: &str, bound: usize, all: usize) {
    wait_for(&format!("{bound} of {all} pods {selector} have a node"), async || {
        let pods = share.pods(selector).await;
        let has_node = |pod: &&Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        let found = (pods.iter().filter(has_node).count(), pods.len());
        (found == (bound, all)).then_some(()).ok_or_else(|| format!("{} of {}", found.0, found.1))
    })
    .await;
}

/// A suspended `PyTorchJob` with one master and three workers.
fn pytorch_job(share: &Share, name: &str) -> Value {
    let replicas = |count: u32| {
        let mut template = template(share, 2);
        template["spec"]["containers"][0]["name"] = json!("pytorch");
        json!({"replicas": count, "restartPolicy": "OnFailure", "template": template})
    };
    json!({
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {
            "runPolicy": {"suspend": true},
            "pytorchReplicaSpecs": {"Master": replicas(1), "Worker": replicas(3)},
        },
    })
}

/// A suspended `MPIJob` with a launcher and two workers.
fn mpi_job(share: &Share, name: &str) -> Value {
    let replicas =
        |count: u32, gpus: u32| json!({"replicas": count, "template": template(share, gpus)});
    json!({
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": name},
        "spec": {
            "runPolicy": {"suspend": true},
            "mpiReplicaSpecs": {"Launcher": replicas(1, 0), "Worker": replicas(2, 4)},
        },
    })
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn kubeflow_jobs_with_their_controllers_are_admitted_whole() {
    let share = Share::new().await;
    share.nodes(2, &NodePlan::gpus(4)).await;
    let _controllers = controllers::kubeflow(&share).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let selector = |name: &str| format!("training.kubeflow.org/job-name={name}");
    share.apply_object(pytorch_job(&share, "torch")).await;
    bound_of(&share, &selector("torch"), 4, 4).await;
    share.apply_object(mpi_job(&share, "mpi")).await;
    event(&share, "MPIJob", "mpi", "FailedScheduling").await;
    bound_of(&share, &selector("mpi"), 0, 0).await;
    delete(&share, &path(&share, "kubeflow.org/v1", "pytorchjobs", "torch")).await;
    bound_of(&share, &selector("mpi"), 3, 3).await;
    share.apply_object(pytorch_job(&share, "later")).await;
    event(&share, "PyTorchJob", "later", "FailedScheduling").await;
    bound_of(&share, &selector("later"), 0, 0).await;
    delete(&share, &path(&share, "kubeflow.org/v2beta1", "mpijobs", "mpi")).await;
    bound_of(&share, &selector("later"), 4, 4).await;
}

async fn is_suspended_kubeflow_job(share: &Share, path: &str) -> bool {
    let job = share.request("GET", path, None).await.json();
    job["spec"]["runPolicy"]["suspend"] == true
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn preempted_kubeflow_jobs_are_suspended_whole_and_run_again() {
    let share = Share::new().await;
    share.nodes(2, &NodePlan::gpus(4)).await;
    let _controllers = controllers::kubeflow(&share).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    for (kind, group, plural, pods, object) in [
        ("PyTorchJob", "kubeflow.org/v1", "pytorchjobs", 4, pytorch_job(&share, "torch")),
        ("MPIJob", "kubeflow.org/v2beta1", "mpijobs", 3, mpi_job(&share, "mpi")),
    ] {
        let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
        let (path, urgent) = (path(&share, group, plural, &name), format!("urgent-{name}"));
        let selector = format!("training.kubeflow.org/job-name={name}");
        share.apply_object(object).await;
        bound_of(&share, &selector, pods, pods).await;
        share.apply_object(job(&share, &urgent, 1, 9)).await;
        runs(&share, &urgent, 1).await;
        event(&share, kind, &name, "Preempted").await;
        assert!(is_suspended_kubeflow_job(&share, &path).await, "{name}");
        bound_of(&share, &selector, 0, 0).await;
        delete(&share, &self::path(&share, "batch/v1", "jobs", &urgent)).await;
        bound_of(&share, &selector, pods, pods).await;
        assert!(!is_suspended_kubeflow_job(&share, &path).await, "{name}");
        let status = share.request("GET", &path, None).await.json()["status"].take();
        assert!(!has_failed(&status), "{name}: {status}");
        delete(&share, &path).await;
        bound_of(&share, &selector, 0, 0).await;
    }
}

fn has_failed(status: &Value) -> bool {
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    conditions.any(|one| one["type"] == "Failed" && one["status"] == "True")
}

/// The webhook suspends the job and names the scheduler in the templates of its parts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn a_job_set_that_is_opted_in_becomes_a_unit() {
    let _alone = alone().await;
    let share = Share::new().await;
    share.nodes(2, &NodePlan::gpus(4)).await;
    let _controller = controllers::job_set(&share).await;
    let _scheduler = start_with_admission(&share).await;
    let mut plain = job_set(&share, "train");
    plain["metadata"]["annotations"] = json!({"agentaflow.gpu/estimated-duration": "1h"});
    plain["spec"]["suspend"] = json!(false);
    for part in plain["spec"]["replicatedJobs"].as_array_mut().into_iter().flatten() {
        part["template"]["spec"]["template"]["spec"]["schedulerName"].take();
    }
    let made = share.apply_object(plain).await;
    assert_eq!(made.data["spec"]["suspend"], true);
    for part in made.data["spec"]["replicatedJobs"].as_array().expect("parts") {
        let scheduler = &part["template"]["spec"]["template"]["spec"]["schedulerName"];
        assert_eq!(scheduler, "agentaflow", "{part}");
    }
    bound_of(&share, "jobset.sigs.k8s.io/jobset-name=train", 5, 5).await;
    event(&share, "JobSet", "train", "Admitted").await;
    delete(&share, &path(&share, "jobset.x-k8s.io/v1alpha2", "jobsets", "train")).await;
    bound_of(&share, "jobset.sigs.k8s.io/jobset-name=train", 0, 0).await;
    end_admission(&share).await;
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn each_group_of_a_leader_worker_set_with_its_controller_is_placed_whole() {
    let share = Share::new().await;
    share.nodes(2, &NodePlan::gpus(4)).await;
    let _controller = controllers::leader_worker_set(&share).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    // Two groups of four GPUs; six GPUs are left, enough for the leader of the second group.
    share.create_pod(&PodPlan::new("other").gpus(2).scheduler(&share.scheduler_name())).await;
    share.bound("other").await;
    let mut worker = template(&share, 2);
    worker["spec"]["restartPolicy"] = json!("Always");
    share
        .apply_object(json!({
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": {"name": "serve"},
            "spec": {
                "replicas": 2,
                "leaderWorkerTemplate": {"size": 2, "workerTemplate": worker},
            },
        }))
        .await;
    let selector = "leaderworkerset.sigs.k8s.io/name=serve";
    bound_of(&share, selector, 2, 4).await;
    let bound = |pod: &Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    let group = |pod: &Pod| {
        pod.metadata.labels.as_ref()?.get("leaderworkerset.sigs.k8s.io/group-index").cloned()
    };
    let mut groups: Vec<_> =
        share.pods(selector).await.iter().filter(|pod| bound(pod)).map(group).collect();
    groups.dedup();
    assert_eq!(groups.len(), 1, "the bound pods are one group: {groups:?}");
    event_of_group(&share, selector).await;
    share.delete_pod("other").await;
    bound_of(&share, selector, 4, 4).await;
}

/// Waits until every pod without a node has its pending reason.
async fn event_of_group(share: &Share, selector: &str) {
    wait_for("the second group waits", async || {
        let pods = share.pods(selector).await;
        let reason = |pod: &Pod| {
            let conditions = pod.status.as_ref()?.conditions.as_ref()?;
            let scheduled = conditions.iter().find(|one| one.type_ == "PodScheduled")?;
            (scheduled.status == "False").then_some(())
        };
        let waiting = pods.iter().filter(|pod| reason(pod).is_some()).count();
        if waiting == 2 { Ok(()) } else { Err(waiting) }
    })
    .await;
}
