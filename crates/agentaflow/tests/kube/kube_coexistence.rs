//! Coexistence with kube-scheduler.

use std::collections::BTreeMap;
use std::process::Command;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::json;

use crate::PROGRAM;
use crate::bursts::{is_over, workload};
use crate::kube_manifests::{end_admission, start_with_admission};
use crate::ledger::Ledger;
use crate::plans::{alone, event, pod_waits};
use crate::support::{NodePlan, OWNER, PodPlan, Scheduler, Share, get, wait_for};

/// Pods per scheduler; together they use all GPUs.
const EACH: usize = 104;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn two_schedulers_fill_the_same_nodes() {
    let share = Share::new().await;
    share.nodes(4, &NodePlan::gpus(52)).await;
    let ledger = Ledger::with_kubelets(&share).await;
    let scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    // A kubelet rejects a pod that does not fit after a moment.
    let plan = PodPlan::new("x").start_after("1s");
    let ours = async {
        deploy(&share, "ours", EACH / 2, &plan.clone().gpus(1).scheduler(&share.scheduler_name()))
            .await;
        for index in 0..EACH / 2 {
            share.create_workload(workload(&share, &format!("ours-{index}"), 1, 1, &plan)).await;
        }
    };
    let one_gpu = plan.clone().gpus(1);
    let theirs = deploy(&share, "theirs", EACH, &one_gpu);
    tokio::join!(ours, theirs);
    let pods = wait_for("every GPU in use", async || {
        let running: Vec<Pod> = share.pods("").await.into_iter().filter(is_running).collect();
        if running.len() == 2 * EACH {
            Ok(running)
        } else {
            Err(format!("{} pods run", running.len()))
        }
    })
    .await;
    ledger.check();
    eprintln!("kubelets refused {} pods", ledger.refused());
    let binders = binders(&share, &pods).await;
    for pod in &pods {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let ours = name.starts_with("ours");
        let annotations = pod.metadata.annotations.as_ref();
        let assigned = annotations.and_then(|all| all.get("agentaflow.gpu/assigned-node"));
        assert_eq!(assigned.is_some(), ours, "{name}");
        let wanted = if ours { "agentaflow" } else { "default-scheduler" };
        assert_eq!(binders.get(name).map(String::as_str), Some(wanted), "{name}");
    }
    for index in 0..EACH / 2 {
        let status = share.workload_is(&format!("ours-{index}"), "Running").await;
        assert_eq!(status.retries, 0, "ours-{index} did not fail");
    }
    scheduler.counts("agentaflow_gpu_available", 0.0).await;
    scheduler.counts("agentaflow_foreign_gpu_pods{state=\"placed\"}", EACH as f64).await;
}

/// A node whose four GPUs are in use by pods of this scheduler, and a pod of kube-scheduler that waits for one. The first pod
/// terminates in the given time, the other pods later.
async fn waiting_beside(share: &Share, theirs: &PodPlan, first_stops: &str) -> Scheduler {
    share.nodes(1, &NodePlan::gpus(4)).await;
    let scheduler = Scheduler::start(PROGRAM, share, &[]).await;
    for index in 0..4 {
        let stop_after = if index == 0 { first_stops } else { "6s" };
        let low = share.one_gpu(&format!("low-{index}")).stop_after(stop_after);
        share.create_pod(&low).await;
    }
    for index in 0..4 {
        share.in_phase(&format!("low-{index}"), "Running").await;
    }
    share.create_pod(theirs).await;
    pod_waits(share, "theirs", "Unschedulable").await;
    // Other tests may have pending pods of kube-scheduler, too.
    scheduler.counts_at_least("agentaflow_foreign_gpu_pods{state=\"pending\"}", 1.0).await;
    scheduler
}

/// A pod that may preempt the other pods.
fn high(share: &Share, gpus: u32) -> PodPlan {
    let plan = PodPlan::new("high").gpus(gpus).scheduler(&share.scheduler_name());
    plan.spec("priorityClassName", json!("agentaflow-9"))
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_preemption_makes_room_for_an_earlier_pod_of_kube_scheduler() {
    let share = Share::new().await;
    let class = format!("first-{}", share.id);
    share
        .apply_object(json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": class}, "value": 1000, "preemptionPolicy": "Never",
        }))
        .await;
    let theirs = PodPlan::new("theirs").gpus(1).spec("priorityClassName", json!(class));
    let _scheduler = waiting_beside(&share, &theirs, "6s").await;
    share.create_pod(&high(&share, 2)).await;
    wait_for("three victims at once", async || {
        let stops = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
        let count = share.pods("").await.iter().filter(|pod| stops(pod)).count();
        if count == 3 { Ok(()) } else { Err(format!("{count} are terminating")) }
    })
    .await;
    share.in_phase("high", "Running").await;
    share.in_phase("theirs", "Running").await;
    let left = share.pods("").await.iter().filter(|pod| is_running(pod)).count();
    assert_eq!(left, 3, "three of four pods made room");
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_workload_names_the_pod_that_took_the_room_of_its_preemption() {
    let share = Share::new().await;
    let thief = PodPlan::new("theirs").gpus(1);
    let scheduler = waiting_beside(&share, &thief, "1s").await;
    share.create_pod(&high(&share, 4)).await;
    share.in_phase("theirs", "Running").await;
    event(&share, "Pod", "high", "PreemptedRoomTaken").await;
    let path = format!("/explain/{}/high", share.namespace);
    let explained = get(scheduler.http, &path).expect("an answer").json();
    assert_eq!(explained["reason"], "PreemptedRoomTaken", "{explained}");
    share.delete_pod("theirs").await;
    share.in_phase("high", "Running").await;
}

/// Pods for each scheduler, ten times as many as GPUs.
const CROWD: usize = 80;

/// Without exclusive use, kubelets reject pods in this situation: see the test above.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn with_exclusive_use_no_gpu_is_overcommitted_beside_kube_scheduler() {
    let _alone = alone().await;
    let share = Share::new().await;
    share.nodes(2, &NodePlan::gpus(8)).await;
    // Every overcommitment is a fault.
    let ledger = Ledger::open(&share).await;
    let scheduler = start_with_admission(&share).await;
    let own = format!("{OWNER}={}", share.id);
    exclusive(&share, &["on", "--namespaces", &own]);
    wait_for("GPU pods are assigned, and those of others refused", async || {
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        let plan = |name: &str| PodPlan::new(name).gpus(1);
        let created = share.api::<Pod>().create(&dry, &plan("plain").pod()).await;
        let created = created.map_err(|error| error.to_string())?;
        let assigned = created.spec.and_then(|spec| spec.scheduler_name);
        let foreign = plan("foreign").scheduler("volcano").pod();
        let refused = share.api::<Pod>().create(&dry, &foreign).await.is_err();
        let done = assigned.as_deref() == Some("agentaflow") && refused;
        done.then_some(()).ok_or_else(|| format!("{assigned:?} {refused}"))
    })
    .await;
    let plan = PodPlan::new("x").gpus(1);
    let ours = plan.clone().scheduler("agentaflow");
    tokio::join!(deploy(&share, "ours", CROWD, &ours), deploy(&share, "theirs", CROWD, &plan));
    ledger.until_bound(16).await;
    scheduler.counts("agentaflow_gpu_available", 0.0).await;
    // Chaos: delete half of the running pods, so that both groups want their room.
    let running = wait_for("all GPUs in use", async || {
        let running: Vec<Pod> = share.pods("").await.into_iter().filter(is_running).collect();
        if running.len() == 16 { Ok(running) } else { Err(format!("{} run", running.len())) }
    })
    .await;
    let deleted: Vec<String> =
        running.into_iter().take(8).filter_map(|pod| pod.metadata.name).collect();
    for name in &deleted {
        let _ = share.api::<Pod>().delete(name, &DeleteParams::default()).await;
    }
    wait_for("all GPUs in use again", async || {
        let new = |pod: &Pod| pod.metadata.name.as_ref().is_none_or(|name| !deleted.contains(name));
        let pods = share.pods("").await;
        let count = pods.iter().filter(|pod| is_running(pod) && new(pod)).count();
        if count == 16 { Ok(()) } else { Err(format!("{count} run")) }
    })
    .await;
    scheduler.counts("agentaflow_gpu_available", 0.0).await;
    ledger.check();
    assert_eq!(ledger.refused(), 0, "kubelets reject no pod");
    assert_eq!(scheduler.metric("agentaflow_kubelet_rejections_total"), Some(0.0));
    // Other tests have pods of other schedulers too, for a while.
    scheduler.counts("agentaflow_foreign_gpu_pods{state=\"pending\"}", 0.0).await;
    exclusive(&share, &["off"]);
    // Tests after this one use the same scheduler name: none of these pods may be left.
    for name in ["ours", "theirs"] {
        let deployments = share.api::<Deployment>();
        deployments.delete(name, &DeleteParams::default()).await.expect("a deletion");
    }
    wait_for("no pods", async || {
        let left = share.pods("").await.len();
        if left == 0 { Ok(()) } else { Err(format!("{left} pods")) }
    })
    .await;
    end_admission(&share).await;
}

/// Runs `agentaflow exclusive`.
fn exclusive(share: &Share, words: &[&str]) {
    let mut command = Command::new(PROGRAM);
    command.arg("exclusive").args(words).arg("--kubeconfig").arg(&share.cluster.kubeconfig);
    let done = command.output().expect("the program starts");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

fn is_running(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase == Some("Running") && pod.metadata.deletion_timestamp.is_none() && !is_over(pod)
}

async fn deploy(share: &Share, name: &str, replicas: usize, plan: &PodPlan) {
    let mut template = plan.template();
    template["metadata"]["labels"]["app"] = json!(name);
    template["spec"]["restartPolicy"] = json!("Always");
    let deployment = json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": template,
        },
    });
    let deployment: Deployment = serde_json::from_value(deployment).expect("a deployment");
    share.api().create(&PostParams::default(), &deployment).await.expect("a new deployment");
}

/// Source of the `Scheduled` event per pod. Events arrive after bindings.
async fn binders(share: &Share, pods: &[Pod]) -> BTreeMap<String, String> {
    let wish = ListParams::default();
    wait_for("an event for every pod", async || {
        let events = share.api::<Event>().list(&wish).await.expect("events").items;
        let scheduled =
            events.into_iter().filter(|event| event.reason.as_deref() == Some("Scheduled"));
        let binders: BTreeMap<String, String> = scheduled
            .map(|event| {
                let who = event.reporting_component.filter(|name| !name.is_empty());
                let source = event.source.and_then(|source| source.component);
                (event.involved_object.name.unwrap_or_default(), who.or(source).unwrap_or_default())
            })
            .collect();
        let reported =
            |pod: &&Pod| binders.contains_key(pod.metadata.name.as_deref().unwrap_or_default());
        let count = pods.iter().filter(reported).count();
        if count == pods.len() { Ok(binders) } else { Err(format!("{count} have the condition")) }
    })
    .await
}
