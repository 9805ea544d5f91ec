//! Metrics in the text format of Prometheus.
//!
//! Written by hand: the documented name `agentaflow_gpu_total` is a number of devices and no counter, which only the
//! plain text format can say (`untyped`).

use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::state::{BindResult, ClusterSummary};

/// Upper bounds of the buckets, in seconds.
const BUCKETS: [f64; 12] =
    [0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0];

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn inc(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What is counted.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    census: Mutex<ClusterSummary>,
    passes: Histogram,
    bound: Counter,
    refused: Counter,
    gone: Counter,
    pub(crate) dropped_events: Counter,
    pub(crate) rejected_events: Counter,
    leading: AtomicU64,
}

#[derive(Debug, Default)]
struct Histogram {
    buckets: [AtomicU64; BUCKETS.len()],
    count: AtomicU64,
    nanos: AtomicU64,
}

impl Histogram {
    fn observe(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        for (bucket, bound) in self.buckets.iter().zip(BUCKETS) {
            if seconds <= bound {
                bucket.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
    }

    fn write(&self, name: &str, help: &str, text: &mut String) {
        let count = self.count.load(Ordering::Relaxed);
        let sum = self.nanos.load(Ordering::Relaxed) as f64 / 1e9;
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} histogram");
        for (bucket, bound) in self.buckets.iter().zip(BUCKETS) {
            let below = bucket.load(Ordering::Relaxed);
            let _ = writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {below}");
        }
        let _ = writeln!(text, "{name}_bucket{{le=\"+Inf\"}} {count}");
        let _ = writeln!(text, "{name}_sum {sum}\n{name}_count {count}");
    }
}

impl Metrics {
    /// One pass of the engine took so long.
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

    pub(crate) fn set_census(&self, census: ClusterSummary) {
        if let Ok(mut held) = self.census.lock() {
            *held = census;
        }
    }

    pub(crate) fn set_leading(&self, leading: bool) {
        self.leading.store(u64::from(leading), Ordering::Relaxed);
    }

    /// Everything, as text.
    pub(crate) fn text(&self) -> String {
        let census = self.census.lock().map(|census| census.clone()).unwrap_or_default();
        let mut text = String::with_capacity(4096);
        let mut simple = |name: &str, kind: &str, help: &str, value: f64| {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
        };
        let pending: u64 = census.pending.values().sum();
        simple("agentaflow_gpu_total", "untyped", "GPUs that are looked after.", census.gpus);
        simple(
            "agentaflow_gpu_available",
            "gauge",
            "GPUs that could be given out now; those kept for work that waits are counted apart.",
            census.free,
        );
        simple(
            "agentaflow_gpu_reserved",
            "gauge",
            "GPUs that are kept free for work that waits.",
            census.kept,
        );
        simple(
            "agentaflow_gpu_utilization",
            "gauge",
            "Mean utilisation of the GPUs in percent.",
            census.utilization,
        );
        simple("agentaflow_nodes", "gauge", "Nodes that are looked after.", census.nodes as f64);
        simple("agentaflow_workloads_pending", "gauge", "Workloads that wait.", pending as f64);
        simple(
            "agentaflow_workloads_scheduled",
            "gauge",
            "Workloads that are placed, and of which not every pod runs yet.",
            census.scheduled as f64,
        );
        simple(
            "agentaflow_workloads_running",
            "gauge",
            "Workloads of which every pod runs.",
            census.running as f64,
        );
        simple(
            "agentaflow_leader",
            "gauge",
            "Whether this replica leads.",
            self.leading.load(Ordering::Relaxed) as f64,
        );
        simple(
            "agentaflow_events_dropped_total",
            "counter",
            "Events that were not written because too many waited.",
            self.dropped_events.get() as f64,
        );
        simple(
            "agentaflow_engine_rejections_total",
            "counter",
            "Changes that the engine did not take.",
            self.rejected_events.get() as f64,
        );
        labelled(
            &mut text,
            "agentaflow_workloads_pending_by_reason",
            "gauge",
            "Workloads that wait, by reason.",
            "reason",
            census.pending.iter().map(|(reason, count)| (*reason, *count as f64)),
        );
        labelled(
            &mut text,
            "agentaflow_queue_gpus_used",
            "gauge",
            "GPUs in use, by queue.",
            "queue",
            census.queues.iter().map(|(queue, milli)| (queue.as_str(), *milli as f64 / 1000.0)),
        );
        let bindings = [("bound", &self.bound), ("refused", &self.refused), ("gone", &self.gone)];
        labelled(
            &mut text,
            "agentaflow_bindings_total",
            "counter",
            "Bindings, by what came of them.",
            "result",
            bindings.into_iter().map(|(result, counter)| (result, counter.get() as f64)),
        );
        let help = "One pass of the engine, in seconds.";
        self.passes.write("agentaflow_scheduling_duration", help, &mut text);
        self.passes.write("agentaflow_scheduling_duration_seconds", help, &mut text);
        let version = env!("CARGO_PKG_VERSION");
        let _ = writeln!(
            text,
            "# HELP agentaflow_build_info The program.\n# TYPE agentaflow_build_info gauge\nagentaflow_build_info{{version=\"{version}\"}} 1"
        );
        text
    }
}

fn labelled<'a>(
    text: &mut String,
    name: &str,
    kind: &str,
    help: &str,
    label: &str,
    values: impl Iterator<Item = (&'a str, f64)>,
) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for (value, number) in values {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let _ = writeln!(text, "{name}{{{label}=\"{value}\"}} {number}");
    }
}
