//! Metrics of the scheduler.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use agentaflow_metrics::MetricType::{self, Counter as CounterType, Gauge, Untyped};
use agentaflow_metrics::{Counter, Exposition, Histogram};

use crate::state::{BindResult, ClusterSummary};

/// Upper bounds of the buckets, in seconds.
const BUCKETS: [f64; 12] =
    [0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0];

#[derive(Debug)]
pub(crate) struct Metrics {
    summary: Mutex<ClusterSummary>,
    passes: Histogram<{ BUCKETS.len() }>,
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
            BindResult::Elsewhere(_) | BindResult::Refused(_) => self.refused.inc(),
        }
    }

    pub(crate) fn set_summary(&self, summary: ClusterSummary) {
        if let Ok(mut held) = self.summary.lock() {
            *held = summary;
        }
    }

    pub(crate) fn set_leading(&self, leading: bool) {
        self.leading.store(leading, Ordering::Relaxed);
    }

    /// Response to a scrape.
    pub(crate) fn text(&self) -> String {
        let mut text = Exposition::default();
        let summary = self.summary.lock().map(|summary| summary.clone()).unwrap_or_default();
        cluster(&summary, &mut text);
        self.activity(&mut text);
        let version = [([("version", env!("CARGO_PKG_VERSION"))], 1.0)];
        text.series("agentaflow_build_info", Gauge, "Version of the program.", version);
        text.into_text()
    }

    fn activity(&self, text: &mut Exposition) {
        let leading = f64::from(u8::from(self.leading.load(Ordering::Relaxed)));
        text.value("agentaflow_leader", Gauge, "1 if this replica is the leader.", leading);
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
        let help = "Duration of a scheduling pass in seconds.";
        text.histogram("agentaflow_scheduling_duration", help, &self.passes);
        text.histogram("agentaflow_scheduling_duration_seconds", help, &self.passes);
    }
}

fn cluster(summary: &ClusterSummary, text: &mut Exposition) {
    let pending: u64 = summary.pending.values().sum();
    let values: [(&str, MetricType, &str, f64); 8] = [
        ("agentaflow_gpu_total", Untyped, "GPUs managed.", summary.gpus),
        ("agentaflow_gpu_available", Gauge, "Free GPUs without the reserved ones.", summary.free),
        (
            "agentaflow_gpu_reserved",
            Gauge,
            "GPUs reserved for pending workloads.",
            summary.reserved,
        ),
        ("agentaflow_gpu_utilization", Gauge, "Mean utilization in percent.", summary.utilization),
        ("agentaflow_nodes", Gauge, "Nodes managed.", summary.nodes as f64),
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
        "agentaflow_queue_gpus_used",
        Gauge,
        "Used GPUs by queue.",
        summary.queues.iter().map(|(queue, milli)| ([("queue", queue)], *milli as f64 / 1000.0)),
    );
}
