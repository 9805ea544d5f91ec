//! Jobs of a server that run in a cluster: `POST /gpu-workers/jobs/` ends in a `batch/v1` Job.
//!
//! KWOK pods have no logs and follow their annotations. `kubelet_node::jobs` tests logs, end reasons, cancels
//! and results on a real node.

use agentaflow_manifest::build::{GpuJobRequest, create_gpu_job};
use agentaflow_manifest::catalogue::Catalogue;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::ListParams;
use serde_json::{Value, json};

use crate::support::{NodePlan, PodPlan, wait_for};
use crate::workers::{Fleet, documented};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn a_posted_job_runs_as_a_kubernetes_job_and_is_billed() {
    let fleet = Fleet::new(&NodePlan::gpus(2)).await;
    let id = fleet.post(&documented());
    let job = fleet.is(id, "running").await;
    let name = job["k8s_job_name"].as_str().unwrap().to_owned();
    assert!(name.starts_with(&format!("gpu-job-{id}-1-0-")), "{name}");
    assert_eq!(job["k8s_namespace"], json!(fleet.share.namespace));
    let pod = job["k8s_pod_name"].as_str().unwrap().to_owned();
    assert!(pod.starts_with(&name), "{pod}");
    // A fraction of a GPU is a whole device for the device plugin.
    assert_eq!(job["assigned_gpu_id"], json!(0));
    assert_eq!(fleet.node()["gpu_memory_available"], json!(81_920));

    let made = fleet.share.api::<Job>().get(&name).await.unwrap();
    check_against_create_gpu_job(&made, &name, &fleet.node_name);
    let labels = made.metadata.labels.clone().unwrap();
    assert_eq!(
        (labels["agentaflow.io/job"].as_str(), labels["agentaflow.io/attempt"].as_str()),
        (&*id.to_string(), "1")
    );
    // The network policy selects the pods of jobs.
    let policy = fleet.share.api::<NetworkPolicy>().get("agentaflow-jobs").await.unwrap();
    crate::network_policy::check(&policy);
    let selector = policy.spec.unwrap().pod_selector.unwrap().match_expressions.unwrap();
    let pod_labels = made.spec.clone().unwrap().template.metadata.unwrap().labels.unwrap();
    assert!(selector.iter().all(|term| pod_labels.contains_key(&term.key)), "{pod_labels:?}");
    // Readers of Jobs must not see the secrets.
    assert!(!serde_json::to_string(&made).unwrap().contains("imagenet"));
    let secret = fleet.share.api::<Secret>().get(&format!("{name}-env")).await.unwrap();
    let data: Value = serde_json::from_slice(&secret.data.unwrap()["JOB_DATA"].0).unwrap();
    assert_eq!(data["input_data"], json!({"dataset": "imagenet", "epochs": 100}));

    fleet.tell_pod(&pod, &[("complete-after", "1100ms")]).await;
    let job = fleet.is(id, "completed").await;
    assert_eq!((&job["exit_code"], &job["end_reason"]), (&json!(0), &json!("Exited")));
    assert!(job["cost"].as_f64().unwrap() > 0.0, "{job}");
    // The Job stays until its TTL; its Secrets are deleted.
    wait_for("the Job is complete", async || {
        let status = fleet.job_object(id).await.status.unwrap_or_default();
        if status.succeeded == Some(1) { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
    wait_for("the Secret is gone", async || {
        let left = fleet.share.api::<Secret>().list(&ListParams::default()).await.unwrap().items;
        if left.is_empty() { Ok(()) } else { Err(format!("{} are left", left.len())) }
    })
    .await;
}

/// All fields are as in `create_gpu_job`, except fields that server and node decide.
fn check_against_create_gpu_job(made: &Job, name: &str, node: &str) {
    let ask = GpuJobRequest {
        task_id: name.trim_start_matches("gpu-job-").to_owned(),
        image: "pytorch/pytorch:latest".to_owned(),
        gpu_type: "a100-80".to_owned(),
        memory: Some("16384Mi".to_owned()),
        cpu: Some("4".to_owned()),
        ..GpuJobRequest::default()
    };
    let asked = create_gpu_job(&ask, &Catalogue::built_in().unwrap()).unwrap();
    assert_eq!(made.metadata.name.as_ref(), Some(&asked.job_name));
    let (spec, wanted) = (made.spec.clone().unwrap(), asked.job.spec.unwrap());
    assert_eq!(spec.ttl_seconds_after_finished, wanted.ttl_seconds_after_finished);
    assert_eq!((spec.backoff_limit, spec.suspend), (Some(0), Some(false)));
    let (pod, wanted) = (spec.template.spec.unwrap(), wanted.template.spec.unwrap());
    assert_eq!(pod.restart_policy.as_deref(), Some("Never"));
    assert_eq!(pod.tolerations, wanted.tolerations);
    assert_eq!(pod.volumes, wanted.volumes);
    let (has, wants) = (&pod.containers[0], &wanted.containers[0]);
    assert_eq!((&has.image, &has.name), (&wants.image, &wants.name));
    assert_eq!(has.volume_mounts, wants.volume_mounts);
    let amounts = |container: &k8s_openapi::api::core::v1::Container| {
        let resources = serde_json::to_string(&container.resources).unwrap();
        // The API server normalizes 16 GiB.
        resources.replace("16384Mi", "16Gi").replace("8192Mi", "8Gi").replace("2000m", "2")
    };
    assert_eq!(amounts(has), amounts(wants));
    for variable in wants.env.iter().flatten() {
        assert!(has.env.iter().flatten().any(|found| found == variable), "{variable:?}");
    }
    let affinity = serde_json::to_value(&pod.affinity).unwrap();
    let terms = &affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let field = &terms["nodeSelectorTerms"][0]["matchFields"][0];
    assert_eq!(field["values"], json!([node]), "{affinity}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn a_job_whose_pod_or_job_is_deleted_is_retried() {
    let fleet = Fleet::new(&NodePlan::gpus(1)).await;
    let id = fleet.post(&documented());
    let pod = fleet.pod_of(id).await;
    // As after the loss of its node, without a final status.
    let place = format!("/api/v1/namespaces/{}/pods/{pod}", fleet.share.namespace);
    let now = json!({"gracePeriodSeconds": 0});
    fleet.share.request("DELETE", &place, Some(&now)).await;
    let job = fleet.is_at(id, "running", 2).await;
    assert_eq!(job["retries_used"], json!(0), "{job}");
    let name = job["k8s_job_name"].as_str().unwrap();
    let jobs = format!("/apis/batch/v1/namespaces/{}/jobs/{name}", fleet.share.namespace);
    let orphan = json!({"propagationPolicy": "Background"});
    assert_eq!(fleet.share.request("DELETE", &jobs, Some(&orphan)).await.status, 200);
    fleet.is_at(id, "running", 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn a_restarted_agent_adopts_running_and_ended_jobs() {
    let mut fleet = Fleet::with_heartbeat(&NodePlan::gpus(3), "5s").await;
    // The next agent must not count its own jobs as foreign usage.
    fleet.share.create_pod(&PodPlan::new("theirs").gpus(1)).await;
    fleet.share.bound("theirs").await;
    let (long, short) = (fleet.post(&documented()), fleet.post(&documented()));
    let pods = [fleet.pod_of(long).await, fleet.pod_of(short).await];
    let uid = fleet.uid_of(&pods[0]).await;
    fleet.agent.kill();
    fleet.tell_pod(&pods[1], &[("fail-after", "1ms"), ("exit-code", "7")]).await;
    fleet.pod_is(&pods[1], "Failed").await;
    fleet.agent.restart();
    let job = fleet.is(short, "failed").await;
    assert_eq!((&job["exit_code"], &job["attempt"]), (&json!(7), &json!(1)), "{job}");
    let job = fleet.is(long, "running").await;
    assert_eq!((&job["attempt"], &job["k8s_pod_name"]), (&json!(1), &json!(pods[0])));
    assert_eq!(fleet.uid_of(&pods[0]).await, uid, "the same pod runs on");
    fleet.tell_pod(&pods[0], &[("complete-after", "1ms")]).await;
    let job = fleet.is(long, "completed").await;
    assert_eq!(job["attempt"], json!(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn a_job_without_an_agent_ends_at_its_deadline() {
    let mut fleet = Fleet::with_heartbeat(&NodePlan::gpus(1), "1s").await;
    let id = fleet.post(&documented());
    let pod = fleet.pod_of(id).await;
    // The lease is renewed beyond its duration.
    let begun = fleet.job_object(id).await.spec.unwrap().active_deadline_seconds.unwrap();
    wait_for("the deadline moves on", async || {
        let now = fleet.job_object(id).await.spec.unwrap().active_deadline_seconds.unwrap();
        if now >= begun + 3 { Ok(()) } else { Err(now) }
    })
    .await;
    fleet.agent.kill();
    wait_for("the pod is gone", async || match fleet.pod_phase(&pod).await {
        None => Ok(()),
        Some(phase) if phase == "Failed" => Ok(()),
        Some(phase) => Err(phase),
    })
    .await;
    fleet.agent.restart();
    let job = fleet.is_at(id, "running", 2).await;
    assert_eq!(job["retries_used"], json!(0), "a lost node is not the job's fault: {job}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn foreign_pods_cordons_and_device_changes_reach_the_server() {
    let fleet =
        Fleet::new(&NodePlan::gpus(2).taint("nvidia.com/gpu", "present", "NoSchedule")).await;
    let tolerations = json!([{"key": "nvidia.com/gpu", "operator": "Exists"}]);
    let foreign = PodPlan::new("foreign").gpus(1).asks("cpu", "60");
    fleet.share.create_pod(&foreign.spec("tolerations", tolerations)).await;
    fleet.share.bound("foreign").await;
    wait_for("the foreign usage", async || {
        let node = fleet.node();
        let [first, last] =
            [0, 1].map(|at| node["gpu_instances"][at]["gpu_memory_foreign"].clone());
        let counted = first == json!(0)
            && last.as_u64() > Some(80_000)
            && node["cpu_cores_available"] == json!(4);
        if counted { Ok(()) } else { Err(node.to_string()) }
    })
    .await;
    let first = fleet.post(&documented());
    fleet.is(first, "running").await;
    let second = fleet.post(&documented());
    assert_eq!(fleet.job(second)["status"], json!("pending"));

    fleet.cordon(true).await;
    wait_for("the cordon", async || {
        let node = fleet.node();
        if node["health_status"] == json!("unhealthy") { Ok(()) } else { Err(node.to_string()) }
    })
    .await;
    fleet.share.delete_pod("foreign").await;
    fleet.share.wait_deleted("foreign").await;
    let closest = wait_for("the cordon is the only obstacle", async || {
        let explanation = fleet.explanation(second);
        let closest = explanation["closest"].get(0).cloned().unwrap_or_default();
        let is_cordon = closest["shortfall"]["shortfall"] == json!("unschedulable");
        if is_cordon { Ok(closest) } else { Err(explanation.to_string()) }
    })
    .await;
    let lacks = closest["lacks"].as_str().unwrap();
    assert!(lacks.contains(&format!("`kubectl uncordon {}`", fleet.node_name)), "{lacks}");
    assert!(!lacks.contains("agentaflow uncordon"), "{lacks}");
    assert_eq!(fleet.job(second)["status"], json!("pending"));
    fleet.cordon(false).await;
    fleet.is(second, "running").await;

    // A device plugin restarts: the kubelet offers no GPU for a moment, then more.
    fleet.hand_out(0).await;
    let third = fleet.post(&documented());
    fleet.hand_out(3).await;
    fleet.is(third, "running").await;
    assert_eq!(fleet.node()["gpu_count"], json!(3));
    for id in [first, second] {
        let job = fleet.job(id);
        assert_eq!((&job["status"], &job["attempt"]), (&json!("running"), &json!(1)), "{job}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn jobs_survive_an_api_server_outage() {
    let mut fleet = Fleet::through_proxy(&NodePlan::gpus(2)).await;
    let id = fleet.post(&documented());
    let pod = fleet.pod_of(id).await;
    let proxy = fleet.proxy.take().unwrap();
    proxy.unplug();
    fleet.tell_pod(&pod, &[("complete-after", "1ms")]).await;
    fleet.pod_is(&pod, "Succeeded").await;
    let waiting = fleet.post(&documented());
    assert_eq!(fleet.job(id)["status"], json!("running"), "the end is not observable yet");
    proxy.plug();
    let job = fleet.is(id, "completed").await;
    assert_eq!((&job["attempt"], &job["exit_code"]), (&json!(1), &json!(0)));
    fleet.is(waiting, "running").await;
}
