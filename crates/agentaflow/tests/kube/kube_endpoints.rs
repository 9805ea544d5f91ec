//! Health endpoints and documented metrics.

use std::collections::BTreeMap;

use crate::PROGRAM;
use crate::promtool;
use crate::skip::skip;
use crate::support::{NodePlan, Scheduler, Share, get};

/// Documented metrics with their types.
const DOCUMENTED: [(&str, &str); 23] = [
    ("agentaflow_gpu_total", "untyped"),
    ("agentaflow_gpu_available", "gauge"),
    ("agentaflow_gpu_utilization", "gauge"),
    ("agentaflow_workloads_pending", "gauge"),
    ("agentaflow_workloads_running", "gauge"),
    ("agentaflow_scheduling_duration", "histogram"),
    ("agentaflow_scheduling_duration_seconds", "histogram"),
    ("agentaflow_queue_wait_seconds", "histogram"),
    ("agentaflow_bind_duration_seconds", "histogram"),
    ("agentaflow_preemptions_total", "counter"),
    ("agentaflow_evictions_total", "counter"),
    ("agentaflow_kubelet_rejections_total", "counter"),
    ("agentaflow_api_errors_total", "counter"),
    ("agentaflow_foreign_gpu_pods", "gauge"),
    ("agentaflow_gpus_allocated", "gauge"),
    ("agentaflow_gpus_fragmented", "gauge"),
    ("agentaflow_gpus_largest_block", "gauge"),
    ("agentaflow_running_cost_dollars_per_hour", "gauge"),
    ("agentaflow_decisions_total", "counter"),
    ("agentaflow_gpu_allocated_seconds_total", "counter"),
    ("agentaflow_gpu_used_seconds_total", "counter"),
    ("agentaflow_eta_error_seconds", "histogram"),
    ("agentaflow_api_request_duration_seconds", "histogram"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn metrics_and_health_of_leader_and_follower() {
    let share = Share::new().await;
    share.nodes(2, &NodePlan::gpus(4)).await;
    let scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    scheduler.leads().await;
    share.create_pod(&share.one_gpu("runs")).await;
    share.create_pod(&share.one_gpu("waits").gpus(8)).await;
    share.bound("runs").await;
    for (name, value) in [
        ("agentaflow_gpu_total", 8.0),
        ("agentaflow_gpu_available", 7.0),
        ("agentaflow_nodes", 2.0),
        ("agentaflow_gpus_allocated", 1.0),
        ("agentaflow_gpus_largest_block", 4.0),
        ("agentaflow_decisions_total{outcome=\"placed\",reason=\"\"}", 1.0),
        ("agentaflow_decisions_total{outcome=\"pending\",reason=\"NeverFits\"}", 1.0),
        ("agentaflow_workloads_running", 1.0),
        ("agentaflow_workloads_pending", 1.0),
        ("agentaflow_bindings_total{result=\"bound\"}", 1.0),
        ("agentaflow_queue_wait_seconds_count", 1.0),
        ("agentaflow_bind_duration_seconds_count", 1.0),
        ("agentaflow_queue_workloads_pending{queue=\"root\",reason=\"NeverFits\"}", 1.0),
    ] {
        scheduler.counts(name, value).await;
    }
    let text = get(scheduler.metrics, "/metrics").expect("a response").body;
    let types: BTreeMap<&str, &str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    for (name, kind) in DOCUMENTED {
        assert_eq!(types.get(name), Some(&kind), "{name}");
        assert!(text.contains(&format!("# HELP {name} ")), "{name} has no help");
    }
    let price = scheduler.metric("agentaflow_running_cost_dollars_per_hour").expect("a price");
    assert!(price > 0.0, "an A100 has a price: {price}");
    for name in ["agentaflow_scheduling_duration", "agentaflow_scheduling_duration_seconds"] {
        let count = scheduler.metric(&format!("{name}_count")).expect("passes");
        let all = scheduler.metric(&format!("{name}_bucket{{le=\"+Inf\"}}")).expect("passes");
        assert!(count >= 1.0 && all >= count, "{name}: {count} of {all}");
    }
    let Some(problems) = promtool::problems(&text) else {
        skip!("needs promtool; `sudo apt-get install prometheus` installs it");
    };
    assert!(problems.is_empty(), "{problems:#?}");

    for path in ["/healthz", "/livez", "/readyz"] {
        assert_eq!(status(&scheduler, path), Some(200), "{path}");
    }
    assert_eq!(status(&scheduler, "/metrics"), Some(404), "metrics have their own port");
    // A follower is ready, has no cluster state, and forwards questions to the leader.
    let kubeconfig = share.cluster.kubeconfig.clone();
    let mut follower = Scheduler::launch(PROGRAM, &share, &kubeconfig, "follower", &[]);
    follower.ready().await;
    let path = format!("/explain/{}/missing", share.namespace);
    assert_eq!(status(&scheduler, &path), Some(404));
    assert_eq!(status(&follower, &path), Some(404), "the leader's response");
    let path = format!("/explain/{}/waits", share.namespace);
    let explained = |scheduler: &Scheduler| get(scheduler.http, &path).expect("a response").json();
    assert_eq!(explained(&follower)["reason"], explained(&scheduler)["reason"]);
    let own = get(follower.metrics, "/metrics").expect("a response").body;
    assert!(own.contains("agentaflow_leader 0\n"), "{own}");
    assert!(!own.contains("agentaflow_gpu_total"), "zeros would be summed: {own}");
    assert_eq!(promtool::problems(&own), Some(Vec::new()));
    let leaders = get(follower.metrics, "/metrics?leader=true").expect("a response").body;
    assert!(leaders.contains("agentaflow_gpu_total 8\n"), "{leaders}");
}

fn status(scheduler: &Scheduler, path: &str) -> Option<u16> {
    get(scheduler.http, path).map(|response| response.status)
}
