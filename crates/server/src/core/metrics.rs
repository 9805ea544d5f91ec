//! Metrics of the server: totals of the cluster, jobs, costs, and its own latencies. Series of single GPUs come from the
//! agents. A scrape takes no lock of the core: it reads the published views.

use std::time::Duration;

use agentaflow_api::job::JobStatus;
use agentaflow_api::node::{GpuStatus, NodeStatus};
use agentaflow_metrics::MetricType::{Counter, Gauge, Untyped};
use agentaflow_metrics::{Bounded, Exposition, Labels, MetricSource};

use super::activity::Activity;
use super::handle::Core;
use super::node::NodeView;

/// Queues and users with label values of their own.
const MOST_QUEUES: usize = 200;
const MOST_USERS: usize = 100;

/// Interval at which GPU time is added up.
const GPU_TIME_INTERVAL: Duration = Duration::from_secs(5);

impl MetricSource for Core {
    fn write(&self, text: &mut Exposition) {
        self.write_cluster(text);
        self.write_queues(text);
        self.write_accounts(text);
        write_activity(&self.inner.activity, text);
    }
}

/// GPUs of the cluster, in thousandths where they are shared.
#[derive(Debug, Default)]
struct GpuTotals {
    gpus: u64,
    available: u64,
    allocated_milli: u64,
    fragmented_milli: u64,
    largest_block: u64,
    utilization_sum: f64,
    readings: u64,
}

impl GpuTotals {
    fn add(&mut self, view: &NodeView) {
        let Some(room) = view.room() else { return };
        self.gpus += u64::from(room.gpus);
        self.allocated_milli += room.gpu_milli_allocated;
        if room.takes_tasks {
            self.available += u64::from(room.gpus_free);
            self.fragmented_milli += room.gpu_milli_fragmented;
            self.largest_block = self.largest_block.max(u64::from(room.gpus_free));
        }
        for gpu in &view.node().spec.gpu_instances {
            if let Some(utilization) = gpu.utilization {
                self.utilization_sum += utilization;
                self.readings += 1;
            }
        }
    }
}

impl Core {
    fn write_cluster(&self, text: &mut Exposition) {
        let views = self.inner.published.node_views();
        let mut totals = GpuTotals::default();
        let mut nodes = [0u64; 5];
        for view in &views {
            let status = view.status();
            nodes[NodeStatus::ALL.iter().position(|known| *known == status).unwrap_or(0)] += 1;
            // Lost nodes have no GPUs to give, and their readings are old.
            if matches!(status, NodeStatus::Active | NodeStatus::Maintenance | NodeStatus::Error) {
                totals.add(view);
            }
        }
        let mean = totals.utilization_sum / (totals.readings.max(1) as f64);
        let milli = |amount: u64| amount as f64 / 1_000.0;
        let values = [
            ("agentaflow_gpu_total", Untyped, "GPUs managed.", totals.gpus as f64),
            ("agentaflow_gpu_available", Gauge, "Free GPUs.", totals.available as f64),
            ("agentaflow_gpu_utilization", Gauge, "Mean utilization in percent.", mean),
            (
                "agentaflow_gpus_allocated",
                Gauge,
                "Allocated GPUs; a shared GPU counts with its allocated share.",
                milli(totals.allocated_milli),
            ),
            (
                "agentaflow_gpus_fragmented",
                Gauge,
                "Free shares of partly allocated GPUs, which no whole-GPU job can use.",
                milli(totals.fragmented_milli),
            ),
            (
                "agentaflow_gpus_largest_block",
                Gauge,
                "Most free GPUs on one node.",
                totals.largest_block as f64,
            ),
        ];
        for (name, kind, help, value) in values {
            text.value(name, kind, help, value);
        }
        // Rules and dashboards read totals of the part that leads; one server has a database at a time.
        text.value("agentaflow_leader", Gauge, "1 if this part decides.", 1.0);
        let by_status = NodeStatus::ALL.iter().zip(nodes);
        text.series(
            "agentaflow_nodes",
            Gauge,
            "Registered nodes by status.",
            by_status.map(|(status, count)| ([("status", status.as_str())], count as f64)),
        );
    }

    fn write_queues(&self, text: &mut Exposition) {
        let queues = self.inner.published.queue_views();
        let sum = |count: fn(&super::job::QueueJobs) -> u32| {
            queues.iter().map(|queue| f64::from(count(&queue.jobs))).sum::<f64>()
        };
        let values = [
            ("agentaflow_workloads_pending", "Pending jobs.", sum(|jobs| jobs.pending)),
            (
                "agentaflow_workloads_scheduled",
                "Placed jobs that do not run yet.",
                sum(|jobs| jobs.scheduled),
            ),
            ("agentaflow_workloads_running", "Running jobs.", sum(|jobs| jobs.running)),
        ];
        for (name, help, value) in values {
            text.value(name, Gauge, help, value);
        }
        let reasons = self.inner.published.pending_reasons();
        let mut by_reason = std::collections::BTreeMap::new();
        for ((_, code), count) in reasons.iter() {
            *by_reason.entry(*code).or_insert(0.0) += f64::from(*count);
        }
        text.series(
            "agentaflow_workloads_pending_by_reason",
            Gauge,
            "Pending jobs by reason.",
            by_reason.iter().map(|(code, count)| ([("reason", code.as_str())], *count)),
        );
        let bounded = |amount: fn(&super::published::QueueView) -> f64| {
            let mut sums = Bounded::new(MOST_QUEUES);
            queues.iter().for_each(|queue| sums.add(&queue.name, amount(queue)));
            sums
        };
        let pending = bounded(|queue| f64::from(queue.jobs.pending));
        let used = bounded(|queue| queue.gpu_milli as f64 / 1_000.0);
        for (name, help, sums) in [
            ("agentaflow_queue_workloads_pending", "Pending jobs by queue.", pending),
            ("agentaflow_queue_gpus_used", "Used GPUs by queue, children included.", used),
        ] {
            text.series(
                name,
                Gauge,
                help,
                sums.iter().map(|(queue, sum)| ([("queue", queue)], sum)),
            );
        }
    }

    fn write_accounts(&self, text: &mut Exposition) {
        let now = self.now();
        let users: Vec<_> = self.directory(|directory| {
            let limited = directory.users.values().filter(|user| user.spending_limit.is_some());
            let limit = |user: &crate::store::UserRow| user.spending_limit.unwrap_or_default();
            limited
                .take(MOST_USERS)
                .map(|user| (user.id, user.username.clone(), limit(user)))
                .collect()
        });
        let dollars = |micros: i64| micros as f64 / 1e6;
        let spent = users.iter().map(|(id, name, _)| {
            let account = self.inner.published.account(*id, now, self.inner.clock);
            ([("user", name.as_str())], dollars(account.spent_this_month.0))
        });
        let help = "Spending of the month by users with a limit.";
        text.series("agentaflow_account_spent_dollars", Gauge, help, spent);
        let limits =
            users.iter().map(|(_, name, limit)| ([("user", name.as_str())], dollars(limit.0)));
        let help = "Spending limit of a month.";
        text.series("agentaflow_account_limit_dollars", Gauge, help, limits);
        let running = self.inner.published.running_cost();
        let help = "Cost of the running jobs.";
        text.value(
            "agentaflow_running_cost_dollars_per_hour",
            Gauge,
            help,
            dollars(running.hourly().0),
        );
    }

    /// Adds up allocated and used GPU time until the server stops.
    pub(crate) async fn meter_gpu_time(self) {
        let mut ticks = tokio::time::interval(GPU_TIME_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        let mut last = std::time::Instant::now();
        while self.inner.stop.run_until_cancelled(ticks.tick()).await.is_some() {
            let passed = last.elapsed();
            last = std::time::Instant::now();
            let (mut allocated, mut used) = (0.0, 0.0);
            for view in self.inner.published.node_views() {
                let own = view.room().map_or(0.0, |room| room.gpu_milli_allocated as f64 / 1_000.0);
                allocated += own;
                used += busy_gpus(&view).min(own);
            }
            self.inner.activity.decisions.add_gpu_time(allocated, used, passed);
        }
    }
}

/// Sum of the utilization of allocated GPUs.
fn busy_gpus(view: &NodeView) -> f64 {
    let gpus = view.node().spec.gpu_instances.iter();
    let busy = gpus.filter(|gpu| gpu.status == Some(GpuStatus::Busy));
    busy.filter_map(|gpu| gpu.utilization).map(|percent| percent.clamp(0.0, 100.0) / 100.0).sum()
}

fn write_activity(activity: &Activity, text: &mut Exposition) {
    activity.decisions.write(text);
    let ended = [
        (JobStatus::Completed, activity.completed.get()),
        (JobStatus::Failed, activity.failed.get()),
        (JobStatus::Cancelled, activity.cancelled.get()),
    ];
    text.series(
        "agentaflow_jobs_ended_total",
        Counter,
        "Ended jobs by status.",
        ended.map(|(status, count)| ([("status", status.as_str())], count)),
    );
    let values = [
        ("agentaflow_billed_dollars_total", "Booked costs.", activity.billed.get() / 1e6),
        (
            "agentaflow_store_commit_failures_total",
            "Failed transactions.",
            activity.failed_commits.get(),
        ),
    ];
    for (name, help, value) in values {
        text.value(name, Counter, help, value);
    }
    write_latencies(activity, text);
}

fn write_latencies(activity: &Activity, text: &mut Exposition) {
    let help = "Duration of a scheduling pass.";
    text.histogram("agentaflow_scheduling_duration", help, &activity.passes);
    text.histogram("agentaflow_scheduling_duration_seconds", help, &activity.passes);
    let help = "Duration of a transaction of the store.";
    text.histogram("agentaflow_store_commit_duration_seconds", help, &activity.commits);
    let requests = activity.requests.series();
    let labels: Vec<_> = requests
        .iter()
        .map(|([route, method, code], _)| [("route", *route), ("method", *method), ("code", *code)])
        .collect();
    let series = requests.iter().zip(&labels);
    let series = series.map(|((_, histogram), labels)| (labels as Labels<'_>, &**histogram));
    let help = "Duration of an API request; streams are excluded.";
    text.histograms("agentaflow_http_request_duration_seconds", help, series);
}
