//! Metrics of the scheduler.

mod api;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agentaflow_api::pending::PendingCode;
use agentaflow_engine::PreemptionReason;
use agentaflow_metrics::MetricType::{self, Counter as CounterType, Gauge, Untyped};
use agentaflow_metrics::{
    Bounded, Counter, Decisions, Exposition, Histogram, MetricSource, PreemptionRight,
};

pub(crate) use api::ApiRequests;

use crate::state::{Activity, BindResult, ClusterSummary};

/// Upper bounds of the buckets, in seconds.
const BUCKETS: [f64; 12] =
    [0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0];

/// Upper bounds of the buckets of a binding, in seconds.
const BIND_BUCKETS: [f64; 10] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

/// Queues with their own label value; all other queues are `other`, so that the number of series is bounded.
const MOST_QUEUES: usize = 200;

#[derive(Debug)]
pub(crate) struct Metrics {
    summary: Mutex<ClusterSummary>,
    passes: Histogram<{ BUCKETS.len() }>,
    pub(crate) binds: Histogram<{ BIND_BUCKETS.len() }>,
    decisions: Decisions,
    evicted: Counter,
    eviction_refused: Counter,
    kubelet_rejections: Counter,
    pub(crate) api_requests: Arc<ApiRequests>,
    bound: Counter,
    refused: Counter,
    gone: Counter,
    pub(crate) dropped_events: Counter,
    pub(crate) rejected_events: Counter,
    leading: AtomicBool,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            summary: Mutex::default(),
            passes: Histogram::new(BUCKETS),
            binds: Histogram::new(BIND_BUCKETS),
            decisions: Decisions::new(PendingCode::ALL.iter().map(|code| code.as_str())),
            evicted: Counter::default(),
            eviction_refused: Counter::default(),
            kubelet_rejections: Counter::default(),
            api_requests: Arc::default(),
            bound: Counter::default(),
            refused: Counter::default(),
            gone: Counter::default(),
            dropped_events: Counter::default(),
            rejected_events: Counter::default(),
            leading: AtomicBool::new(false),
        }
    }
}

impl Metrics {
    /// Records the duration of one scheduling pass.
    pub(crate) fn pass(&self, took: Duration) {
        self.passes.observe(took);
    }

    pub(crate) fn bindings(&self, result: &BindResult) {
        match result {
            BindResult::Bound => self.bound.inc(),
            BindResult::Gone => self.gone.inc(),
            BindResult::BoundToOther(_) | BindResult::Refused(_) => self.refused.inc(),
        }
    }

    pub(crate) fn record(&self, activity: &Activity) {
        for wait in &activity.queue_waits {
            self.decisions.count_placement(*wait);
        }
        for reason in &activity.preemptions {
            self.decisions.count_preemption(match reason {
                PreemptionReason::Priority => PreemptionRight::Priority,
                PreemptionReason::Reclaim => PreemptionRight::Reclaim,
            });
        }
        for code in &activity.waits {
            self.decisions.count_wait(code.as_str());
        }
        for error in &activity.eta_errors {
            self.decisions.observe_eta_error(*error);
        }
        for _ in 0..activity.displacements {
            self.decisions.count_displacement();
        }
        for _ in 0..activity.kubelet_rejections {
            self.kubelet_rejections.inc();
        }
    }

    pub(crate) fn eviction(&self, refused: bool) {
        if refused { self.eviction_refused.inc() } else { self.evicted.inc() }
    }

    /// `passed` is the time since the previous summary.
    pub(crate) fn set_summary(&self, summary: ClusterSummary, passed: Duration) {
        self.decisions.add_gpu_time(summary.allocated, summary.busy, passed);
        if let Ok(mut held) = self.summary.lock() {
            *held = summary;
        }
    }

    pub(crate) fn set_leading(&self, leading: bool) {
        self.leading.store(leading, Ordering::Relaxed);
    }

    pub(crate) fn is_leading(&self) -> bool {
        self.leading.load(Ordering::Relaxed)
    }

    fn activity(&self, text: &mut Exposition) {
        self.decisions.write(text);
        text.value(
            "agentaflow_events_dropped_total",
            CounterType,
            "Kubernetes events dropped because too many were queued.",
            self.dropped_events.get(),
        );
        text.value(
            "agentaflow_engine_rejections_total",
            CounterType,
            "Events that the engine rejected.",
            self.rejected_events.get(),
        );
        let bindings = [("bound", &self.bound), ("refused", &self.refused), ("gone", &self.gone)];
        text.series(
            "agentaflow_bindings_total",
            CounterType,
            "Bindings by result.",
            bindings.map(|(result, counter)| ([("result", result)], counter.get())),
        );
        let evictions = [("evicted", &self.evicted), ("refused", &self.eviction_refused)];
        text.series(
            "agentaflow_evictions_total",
            CounterType,
            "Evictions of pods by result.",
            evictions.map(|(result, counter)| ([("result", result)], counter.get())),
        );
        text.value(
            "agentaflow_kubelet_rejections_total",
            CounterType,
            "Pods of this scheduler that a kubelet rejected, because another pod took their resources.",
            self.kubelet_rejections.get(),
        );
    }

    /// Phases of scheduling after the queue: in a pass, and in the binding request.
    fn latencies(&self, text: &mut Exposition) {
        let help = "Duration of a scheduling pass in seconds.";
        text.histogram("agentaflow_scheduling_duration", help, &self.passes);
        text.histogram("agentaflow_scheduling_duration_seconds", help, &self.passes);
        text.histogram(
            "agentaflow_bind_duration_seconds",
            "Time from the placement of a pod to the response to its binding.",
            &self.binds,
        );
    }
}

impl MetricSource for Metrics {
    fn write(&self, text: &mut Exposition) {
        let leading = self.is_leading();
        // A standby replica knows nothing about the cluster; zeros would spoil sums and means.
        if leading {
            let summary = self.summary.lock().map(|summary| summary.clone()).unwrap_or_default();
            cluster(&summary, text);
        }
        let leader = f64::from(u8::from(leading));
        text.value("agentaflow_leader", Gauge, "1 if this replica is the leader.", leader);
        if leading {
            self.activity(text);
            self.latencies(text);
        }
        self.api_requests.write(text);
    }
}

/// Pending workloads by queue and reason, with a bounded number of queues.
fn pending_by_queue(summary: &ClusterSummary) -> BTreeMap<(&str, &'static str), u64> {
    let mut named = BTreeSet::new();
    let mut bounded: BTreeMap<(&str, &'static str), u64> = BTreeMap::new();
    for ((queue, reason), count) in &summary.pending_by_queue {
        let known = named.contains(queue) || named.len() < MOST_QUEUES;
        if known {
            named.insert(queue);
        }
        let queue = if known { queue.as_str() } else { Bounded::OTHER };
        *bounded.entry((queue, *reason)).or_default() += count;
    }
    bounded
}

fn cluster(summary: &ClusterSummary, text: &mut Exposition) {
    let pending: u64 = summary.pending.values().sum();
    let values: [(&str, MetricType, &str, f64); 13] = [
        ("agentaflow_gpu_total", Untyped, "GPUs managed.", summary.gpus),
        ("agentaflow_gpu_available", Gauge, "Free GPUs without the reserved ones.", summary.free),
        (
            "agentaflow_gpu_reserved",
            Gauge,
            "GPUs reserved for pending workloads.",
            summary.reserved,
        ),
        ("agentaflow_gpu_utilization", Gauge, "Mean utilization in percent.", summary.utilization),
        (
            "agentaflow_gpus_allocated",
            Gauge,
            "Allocated GPUs; a shared GPU counts with its allocated share.",
            summary.allocated,
        ),
        (
            "agentaflow_gpus_fragmented",
            Gauge,
            "Free shares of partly allocated GPUs, which no whole-GPU workload can use.",
            summary.fragmented,
        ),
        (
            "agentaflow_gpus_largest_block",
            Gauge,
            "Most free GPUs on one node.",
            summary.largest_block,
        ),
        (
            "agentaflow_running_cost_dollars_per_hour",
            Gauge,
            "Cost of the placed pods.",
            summary.dollars_per_hour,
        ),
        ("agentaflow_nodes", Gauge, "Nodes managed.", summary.nodes as f64),
        (
            "agentaflow_monitors_lost",
            Gauge,
            "Nodes whose monitor does not report.",
            summary.monitors_lost as f64,
        ),
        ("agentaflow_workloads_pending", Gauge, "Pending workloads.", pending as f64),
        (
            "agentaflow_workloads_scheduled",
            Gauge,
            "Placed workloads with pods that do not run yet.",
            summary.scheduled as f64,
        ),
        (
            "agentaflow_workloads_running",
            Gauge,
            "Workloads with all pods running.",
            summary.running as f64,
        ),
    ];
    for (name, kind, help, value) in values {
        text.value(name, kind, help, value);
    }
    text.series(
        "agentaflow_workloads_pending_by_reason",
        Gauge,
        "Pending workloads by reason.",
        summary.pending.iter().map(|(reason, count)| ([("reason", *reason)], *count as f64)),
    );
    text.series(
        "agentaflow_queue_workloads_pending",
        Gauge,
        "Pending workloads by queue and reason.",
        pending_by_queue(summary)
            .into_iter()
            .map(|((queue, reason), count)| ([("queue", queue), ("reason", reason)], count as f64)),
    );
    let foreign = [("pending", summary.foreign_pending), ("placed", summary.foreign_placed)];
    text.series(
        "agentaflow_foreign_gpu_pods",
        Gauge,
        "GPU pods of other schedulers: pending, or placed on managed nodes.",
        foreign.map(|(state, count)| ([("state", state)], count as f64)),
    );
    let mut used = Bounded::new(MOST_QUEUES);
    summary.queues.iter().for_each(|(queue, milli)| used.add(queue, *milli as f64 / 1000.0));
    let used = used.iter().map(|(queue, gpus)| ([("queue", queue)], gpus));
    text.series("agentaflow_queue_gpus_used", Gauge, "Used GPUs by queue.", used);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(metrics: &Metrics) -> String {
        let mut text = Exposition::default();
        metrics.write(&mut text);
        text.into_text()
    }

    #[test]
    fn a_standby_replica_has_no_series_about_the_cluster() {
        let metrics = Metrics::default();
        let text = text_of(&metrics);
        assert!(text.contains("agentaflow_leader 0\n"), "{text}");
        for name in ["agentaflow_gpu_total", "agentaflow_workloads_pending", "_duration"] {
            assert!(!text.contains(name), "{name}: {text}");
        }
        metrics.set_leading(true);
        assert!(text_of(&metrics).contains("agentaflow_gpu_total 0\n"));
    }

    #[test]
    fn the_number_of_queues_in_labels_is_bounded() {
        let mut summary = ClusterSummary::default();
        for number in 0..MOST_QUEUES + 50 {
            summary.pending_by_queue.insert((format!("q{number:04}"), "NoRoom"), 1);
            summary.queues.insert(format!("q{number:04}"), 2_000);
        }
        let bounded = pending_by_queue(&summary);
        assert_eq!(bounded.len(), MOST_QUEUES + 1);
        assert_eq!(bounded.get(&("other", "NoRoom")), Some(&50));
        let metrics = Metrics::default();
        metrics.set_leading(true);
        metrics.set_summary(summary, Duration::ZERO);
        let text = text_of(&metrics);
        let used = text.lines().filter(|line| line.starts_with("agentaflow_queue_gpus_used{"));
        assert_eq!(used.count(), MOST_QUEUES + 1);
        assert!(text.contains("agentaflow_queue_gpus_used{queue=\"other\"} 100\n"), "{text}");
    }

    #[test]
    fn every_phase_and_kind_is_counted() {
        let metrics = Metrics::default();
        metrics.set_leading(true);
        metrics.record(&Activity {
            queue_waits: vec![Duration::from_secs(90)],
            eta_errors: vec![Duration::from_secs(30)],
            preemptions: vec![PreemptionReason::Reclaim],
            waits: vec![PendingCode::NoRoom, PendingCode::NoRoom],
            displacements: 3,
            kubelet_rejections: 2,
        });
        let summary = ClusterSummary {
            allocated: 2.5,
            busy: 1.5,
            fragmented: 0.5,
            largest_block: 4.0,
            dollars_per_hour: 7.25,
            ..ClusterSummary::default()
        };
        metrics.set_summary(summary, Duration::from_secs(10));
        metrics.eviction(false);
        metrics.api_requests.throttled.inc();
        metrics.api_requests.observe(&http::Method::PATCH, Duration::from_millis(3));
        let text = text_of(&metrics);
        for line in [
            "agentaflow_queue_wait_seconds_bucket{le=\"60\"} 0",
            "agentaflow_queue_wait_seconds_bucket{le=\"300\"} 1",
            "agentaflow_kubelet_rejections_total 2",
            "agentaflow_evictions_total{result=\"evicted\"} 1",
            "agentaflow_api_errors_total{kind=\"throttled\"} 1",
            "agentaflow_api_request_duration_seconds_bucket{method=\"PATCH\",le=\"0.0025\"} 0",
            "agentaflow_api_request_duration_seconds_bucket{method=\"PATCH\",le=\"0.005\"} 1",
            "agentaflow_preemptions_total{reason=\"priority\"} 0",
            "agentaflow_preemptions_total{reason=\"reclaim\"} 1",
            "agentaflow_decisions_total{outcome=\"placed\",reason=\"\"} 1",
            "agentaflow_decisions_total{outcome=\"displaced\",reason=\"\"} 3",
            "agentaflow_decisions_total{outcome=\"pending\",reason=\"NoRoom\"} 2",
            "agentaflow_eta_error_seconds_sum 30",
            "agentaflow_gpu_allocated_seconds_total 25",
            "agentaflow_gpu_used_seconds_total 15",
            "agentaflow_gpus_allocated 2.5",
            "agentaflow_gpus_fragmented 0.5",
            "agentaflow_gpus_largest_block 4",
            "agentaflow_running_cost_dollars_per_hour 7.25",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing:\n{text}");
        }
    }
}
