//! Settings from the environment and at run time, and state across a restart.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::PROGRAM;
use crate::http::Connection;
use crate::plans::pod_waits;
use crate::support::{NodePlan, PodPlan, Scheduler, Share, wait_for};

/// Two nodes on which strategies differ: `small` has less memory and is partly used, `large` is free.
/// `least_utilized` chooses `large`, `best_fit` chooses `small`.
async fn two_nodes(share: &Share) -> (String, String) {
    let small = NodePlan::gpus(4).model("NVIDIA-A100-SXM4-40GB", 40_960);
    let small = share.node("small", &small).await;
    let large = share.node("large", &NodePlan::gpus(4)).await;
    share.create_pod(&PodPlan::new("taken").gpus(1).spec("nodeName", json!(small))).await;
    (small, large)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn the_config_map_changes_the_strategy_at_run_time() {
    let share = Share::new().await;
    let (small, large) = two_nodes(&share).await;
    let scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    scheduler.counts("agentaflow_gpu_available", 7.0).await;
    would_place_on(&share, &scheduler, &large).await;
    let map = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "agentaflow-scheduler-config"},
        "data": {"strategy": "best_fit"},
    });
    share.apply_object(map).await;
    would_place_on(&share, &scheduler, &small).await;
    let maps = share.api::<ConfigMap>();
    maps.delete("agentaflow-scheduler-config", &DeleteParams::default()).await.expect("deleted");
    would_place_on(&share, &scheduler, &large).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn the_config_map_changes_the_policy_and_refused_values_are_reported() {
    let share = Share::new().await;
    share.apply_file("deploy/kubernetes/10-priority-classes.yaml").await;
    share.node("only", &NodePlan::gpus(1)).await;
    let scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    scheduler.counts("agentaflow_gpu_available", 1.0).await;
    share.create_pod(&share.one_gpu("low")).await;
    share.in_phase("low", "Running").await;
    configure(&share, json!({"minRuntime": "1h"})).await;
    // The second change keeps the refused setting at its previous value.
    configure(&share, json!({"minRuntime": "long", "patience": "5m"})).await;
    refused(&share, "minRuntime: `long`").await;
    let high = share.one_gpu("high").spec("priorityClassName", json!("agentaflow-9"));
    share.create_pod(&high).await;
    waits(&share, "high").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let low = share.pod("low").await.expect("it runs");
    assert_eq!(low.metadata.deletion_timestamp, None, "it has not run for an hour");
    configure(&share, json!({"minRuntime": "0s"})).await;
    share.bound("high").await;
}

/// Replaces the settings.
async fn configure(share: &Share, data: Value) {
    let map = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "agentaflow-scheduler-config"},
        "data": data,
    });
    share.apply_object(map).await;
}

/// Waits for the Event about a refused setting: the other settings of the same change are in force.
async fn refused(share: &Share, setting: &str) {
    wait_for(&format!("an Event about {setting}"), async || {
        let events = share.events("agentaflow-scheduler-config").await;
        let about = |event: &k8s_openapi::api::core::v1::Event| {
            event.reason.as_deref() == Some("InvalidSetting")
                && event.message.as_deref().is_some_and(|text| text.starts_with(setting))
        };
        events.iter().any(about).then_some(()).ok_or(events.len())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn ageing_applies_without_a_restart_and_changes_the_order() {
    let share = Share::new().await;
    share.apply_file("deploy/kubernetes/10-priority-classes.yaml").await;
    share.node("only", &NodePlan::gpus(1)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    share.create_pod(&share.one_gpu("first")).await;
    share.bound("first").await;
    // Never a preemption: both are below the pod that runs, or equal to it.
    let class =
        |name: &str, class: &str| share.one_gpu(name).spec("priorityClassName", json!(class));
    share.create_pod(&class("older", "agentaflow-3")).await;
    pod_waits(&share, "older", "Unschedulable").await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    share.create_pod(&class("newer", "agentaflow-4")).await;
    pod_waits(&share, "newer", "Unschedulable").await;
    // The refused half-life shows when the change is in force. Points change the order and give no right: without a minimum
    // run time, `newer` could preempt `older` afterwards.
    let settings =
        json!({"ageingPointsPerMinute": "1000000", "minRuntime": "10m", "usageHalfLife": "30s"});
    configure(&share, settings).await;
    refused(&share, "usageHalfLife: `30s`").await;
    share.delete_pod("first").await;
    share.bound("older").await;
    let newer = share.pod("newer").await.expect("it waits");
    assert_eq!(newer.spec.and_then(|spec| spec.node_name), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn backfill_and_patience_apply_without_a_restart() {
    let share = Share::new().await;
    share.node("only", &NodePlan::gpus(4)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let plan =
        |name: &str, gpus: u32| PodPlan::new(name).gpus(gpus).scheduler(&share.scheduler_name());
    share.create_pod(&plan("runs", 2)).await;
    share.bound("runs").await;
    share.create_pod(&plan("head", 4)).await;
    pod_waits(&share, "head", "Unschedulable").await;
    // The refused value shows when a change is in force.
    configure(&share, json!({"backfill": "false", "minRuntime": "one"})).await;
    refused(&share, "minRuntime: `one`").await;
    share.create_pod(&plan("behind", 1)).await;
    waits(&share, "behind").await;
    configure(&share, json!({"backfill": "true"})).await;
    share.bound("behind").await;
    // Without patience the head has a reservation at once, which keeps the last GPU.
    configure(&share, json!({"patience": "0s", "minRuntime": "two"})).await;
    refused(&share, "minRuntime: `two`").await;
    share.create_pod(&plan("patient", 1)).await;
    waits(&share, "patient").await;
}

/// Waits until the pod has a pending reason.
async fn waits(share: &Share, name: &str) {
    share
        .wait_pod(name, "waits", |pod| {
            let conditions = pod.status.as_ref()?.conditions.as_ref()?;
            conditions.iter().any(|one| one.status == "False").then_some(())
        })
        .await;
}

/// Waits until the forecast of a pod with one GPU names this node.
async fn would_place_on(share: &Share, scheduler: &Scheduler, node: &str) {
    let path = format!("/what-if?namespace={}", share.namespace);
    let pod = share.one_gpu("forecast").object();
    wait_for(&format!("a forecast for {node}"), async || {
        let connection = Connection::open(scheduler.http, None);
        let response = connection.and_then(|mut http| http.call("POST", &path, Some(&pod)));
        let forecast = response.map_err(|error| error.to_string())?.ok();
        let is_there = forecast["placement"][0]["node_name"] == node;
        is_there.then_some(()).ok_or_else(|| forecast.to_string())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn environment_variables_are_defaults_of_options() {
    let share = Share::new().await;
    share.apply_file("deploy/crds").await;
    let (small, large) = two_nodes(&share).await;
    let kubeconfig = share.cluster.kubeconfig.clone();
    let busy = [("SCHEDULING_STRATEGY", "best_fit"), ("SCHEDULING_INTERVAL", "50ms")];
    let mut busy = Scheduler::launch_in(&busy, PROGRAM, &share, &kubeconfig, "busy", &[]);
    // The second scheduler receives the same events and has a long interval.
    let other = Share::new().await;
    let idle = [("SCHEDULING_INTERVAL", "1h")];
    let idle = Scheduler::launch_in(&idle, PROGRAM, &other, &kubeconfig, "idle", &[]);
    idle.leads().await;
    // Metrics are fresher than the interval.
    let own = other.node("a", &NodePlan::gpus(3)).await;
    idle.counts("agentaflow_gpu_total", 3.0).await;
    other.create_pod(&other.one_gpu("counted")).await;
    assert_eq!(other.bound("counted").await, own);
    idle.counts("agentaflow_gpu_available", 2.0).await;
    idle.counts("agentaflow_workloads_running", 1.0).await;
    busy.counts("agentaflow_gpu_available", 7.0).await;
    share.create_pod(&share.one_gpu("by-environment")).await;
    assert_eq!(share.bound("by-environment").await, small);
    let passes = |scheduler: &Scheduler| {
        scheduler.metric("agentaflow_scheduling_duration_seconds_count").unwrap_or_default()
    };
    let start = passes(&busy) - passes(&idle);
    wait_for("forty passes more than for changes", async || {
        let more = passes(&busy) - passes(&idle) - start;
        if more > 40.0 { Ok(()) } else { Err(more.to_string()) }
    })
    .await;
    busy.program.terminate();
    let both = [("SCHEDULING_STRATEGY", "best_fit")];
    let line = ["--strategy", "least_utilized"];
    let _flag = Scheduler::launch_in(&both, PROGRAM, &share, &kubeconfig, "flag", &line);
    share.create_pod(&share.one_gpu("by-flag")).await;
    assert_eq!(share.bound("by-flag").await, large, "the command line has the last word");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn usage_history_survives_a_restart() {
    let share = Share::new().await;
    share.node("only", &NodePlan::gpus(1)).await;
    let [greedy, modest] = ["greedy", "modest"].map(|name| format!("{name}-{}", share.id));
    share.apply_file("deploy/crds").await;
    for name in [&greedy, &modest] {
        let queue = json!({
            "apiVersion": "agentaflow.io/v1",
            "kind": "GPUQueue",
            "metadata": {"name": name},
            "spec": {"namespaces": [share.namespace]},
        });
        share.apply_object(queue).await;
    }
    let of =
        |name: &str, queue: &str| share.one_gpu(name).annotation("agentaflow.gpu/queue", queue);
    let arguments = ["--identity", "one"];
    let mut scheduler = Scheduler::start(PROGRAM, &share, &arguments).await;
    share.create_pod(&of("used", &greedy)).await;
    share.in_phase("used", "Running").await;
    // A period of usage.
    tokio::time::sleep(Duration::from_secs(2)).await;
    share.delete_pod("used").await;
    share.wait_deleted("used").await;
    scheduler.counts("agentaflow_gpu_available", 1.0).await;
    assert!(scheduler.program.terminate().success());
    let memory = memory(&share).await;
    let past = |name: &str| {
        let queues = memory["queues"].as_array().expect("queues");
        let queue = queues.iter().find(|facts| facts["queue"]["id"] == name).expect("the queue");
        queue["past"][0].as_array().expect("past use").iter().any(|bits| bits.as_u64() != Some(0))
    };
    assert!(past(&greedy), "{memory}");
    assert!(!past(&modest), "{memory}");
    // The older workload is second only because of usage before the restart.
    share.create_pod(&of("older", &greedy)).await;
    wait_for("a second later", async || {
        let older = share.pod("older").await.and_then(|pod| pod.metadata.creation_timestamp);
        let age = older.map(|created| jiff::Timestamp::now().duration_since(created.0));
        let is_older = age.is_some_and(|age| age > jiff::SignedDuration::from_millis(1100));
        is_older.then_some(()).ok_or("too soon")
    })
    .await;
    share.create_pod(&of("newer", &modest)).await;
    scheduler.program.restart();
    share.bound("newer").await;
    let older = share.pod("older").await.expect("it waits");
    assert_eq!(older.spec.and_then(|spec| spec.node_name), None);
}

/// State that the scheduler saved.
async fn memory(share: &Share) -> Value {
    let name = format!("{}-memory", share.scheduler_name());
    let map = share.api::<ConfigMap>().get(&name).await.expect("the memory");
    let data = map.data.unwrap_or_default();
    serde_json::from_str(data.get("memory.json").expect("the memory")).expect("JSON")
}
