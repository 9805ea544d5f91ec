//! The sampler of the history, and the curves of the API.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use agentaflow_api::history::{Column, Curves, Series};
use agentaflow_api::ids::JobId;
use agentaflow_api::link::{TaskKey, TaskUse};
use agentaflow_api::node::GpuInstance;
use agentaflow_api::units::Stamp;
use agentaflow_history::{Class, Curve, History, Limits, Range, Values};

use crate::core::{Core, JobSample};

/// Interval of samples: the step of the finest curve.
const INTERVAL: Duration = Duration::from_secs(15);
/// Readings of one answer in each column.
const MOST_READINGS: u64 = 100_000;
const CLUSTER: &str = "cluster";

/// Columns of each kind of series. Their order is that of the files: changes need another format.
pub(crate) const CLUSTER_COLUMNS: [&str; 5] =
    ["gpus_used", "utilization_percent", "jobs_pending", "jobs_running", "dollars_per_hour"];
pub(crate) const GPU_COLUMNS: [&str; 5] =
    ["utilization_percent", "memory_mib", "power_watts", "temperature_celsius", "sm_clock_mhz"];
pub(crate) const JOB_COLUMNS: [&str; 5] =
    ["cpu_cores", "memory_mib", "gpu_utilization_percent", "gpu_memory_mib", "gpu_power_watts"];

/// Opens the history in a data directory; none if it is disabled or cannot be opened.
pub(crate) fn open(data_dir: &Path, bytes: u64) -> Option<Arc<History>> {
    if bytes == 0 {
        return None;
    }
    let limits = Limits { devices: bytes / 2, jobs: bytes / 2 };
    match History::open(&data_dir.join("history"), limits) {
        Ok((history, warnings)) => {
            for warning in warnings {
                tracing::warn!("{warning}");
            }
            Some(Arc::new(history))
        }
        Err(error) => {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            tracing::warn!("{error}: {}; pages have no history", cause.unwrap_or_default());
            None
        }
    }
}

/// Samples until the server stops.
pub(crate) async fn run(core: Core, history: Arc<History>, stopping: CancellationToken) {
    let mut sampler = Sampler::default();
    let mut failing = false;
    while stopping.run_until_cancelled(tokio::time::sleep(until_sample(core.now()))).await.is_some()
    {
        let (at, jobs) = (core.now(), core.job_samples());
        let readings = sampler.samples(&core, &jobs, Instant::now());
        let history = history.clone();
        let written = tokio::task::spawn_blocking(move || write(&history, at, &readings)).await;
        let failed = written.is_ok_and(|written| {
            if let (Err(error), false) = (&written, failing) {
                tracing::warn!(%error, "Cannot write the history");
            }
            written.is_err()
        });
        failing = failed;
    }
}

/// Time until the middle of the next interval: a late sample is then still in its interval.
fn until_sample(now: Stamp) -> Duration {
    let interval = INTERVAL.as_millis() as i64;
    let passed = (now.0 - interval / 2).rem_euclid(interval);
    Duration::from_millis((interval - passed) as u64)
}

/// A series with its readings.
struct Sample {
    class: Class,
    name: String,
    values: Values,
}

fn write(history: &History, at: Stamp, samples: &[Sample]) -> std::io::Result<()> {
    let seconds = seconds(at);
    for sample in samples {
        history.record(sample.class, &sample.name, seconds, &sample.values)?;
    }
    history.write_means(seconds)
}

/// Counters of the last sample, for rates.
#[derive(Debug, Default)]
struct Sampler {
    last: BTreeMap<TaskKey, (Instant, TaskUse)>,
}

impl Sampler {
    fn samples(
        &mut self,
        core: &Core,
        jobs: &BTreeMap<JobId, JobSample>,
        now: Instant,
    ) -> Vec<Sample> {
        let cluster = core.cluster_sample();
        let mut samples = vec![Sample {
            class: Class::Device,
            name: CLUSTER.to_owned(),
            values: [
                Some(cluster.gpus_used),
                cluster.utilization,
                Some(cluster.pending),
                Some(cluster.running),
                Some(cluster.dollars_per_hour),
            ],
        }];
        samples.extend(core.gpu_samples().iter().map(|gpu| Sample {
            class: Class::Device,
            name: gpu_name(&gpu.node_id, &gpu.gpu),
            values: gpu_values(&gpu.reading),
        }));
        samples.extend(jobs.iter().map(|(id, job)| Sample {
            class: Class::Job,
            name: job_name(*id),
            values: self.job_values(job, now),
        }));
        let uses = jobs.values().flat_map(|job| &job.tasks);
        self.last = uses.map(|used| (used.key, (now, *used))).collect();
        samples
    }

    fn job_values(&self, job: &JobSample, now: Instant) -> Values {
        let sum = |value: &dyn Fn(&TaskUse) -> Option<f64>| {
            job.tasks.iter().filter_map(value).reduce(|sum, value| sum + value)
        };
        let mib = |mib: u64| mib as f64;
        let allocated =
            sum(&|used| self.rate(used, now, |used| Some(used.gpu?.allocated_ms as f64)));
        let busy = sum(&|used| self.rate(used, now, |used| Some(used.gpu?.used_ms as f64)));
        let part = busy.zip(allocated).filter(|(_, allocated)| *allocated > 0.0);
        [
            sum(&|used| self.rate(used, now, |used| Some(used.cpu_ms? as f64 / 1e3))),
            sum(&|used| used.memory.map(mib)),
            part.map(|(busy, allocated)| (busy / allocated * 100.0).min(100.0)),
            sum(&|used| used.gpu_memory.map(mib)),
            sum(&|used| self.rate(used, now, |used| used.gpu_joules)),
        ]
    }

    /// Increase of a counter in a second since the last sample.
    fn rate(
        &self,
        used: &TaskUse,
        now: Instant,
        value: fn(&TaskUse) -> Option<f64>,
    ) -> Option<f64> {
        let (at, before) = self.last.get(&used.key)?;
        let passed = now.saturating_duration_since(*at).as_secs_f64();
        let increase = value(used)? - value(before)?;
        (passed > 0.0 && increase >= 0.0).then(|| increase / passed)
    }
}

fn gpu_values(reading: &GpuInstance) -> Values {
    let used = reading.gpu_memory.zip(reading.gpu_memory_available);
    [
        reading.utilization,
        used.map(|(all, free)| all.saturating_sub(free) as f64),
        reading.power_usage,
        reading.temperature,
        reading.sm_clock.map(f64::from),
    ]
}

fn gpu_name(node_id: &str, gpu: &str) -> String {
    format!("{node_id}/{gpu}")
}

fn job_name(id: JobId) -> String {
    id.to_string()
}

fn seconds(at: Stamp) -> u64 {
    u64::try_from(at.0 / 1000).unwrap_or(0)
}

/// Time and resolution of curves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Period {
    pub(crate) from: Stamp,
    pub(crate) to: Stamp,
    pub(crate) points: u64,
    pub(crate) now: Stamp,
}

impl Period {
    fn range(self, series: usize) -> Range {
        Range {
            from: seconds(self.from),
            to: seconds(self.to),
            points: self.points.min(MOST_READINGS / (series.max(1) as u64)).max(1),
            now: seconds(self.now),
        }
    }
}

/// Curves of the cluster; without the jobs and costs of other users unless `sees_all`.
pub(crate) fn cluster(
    history: &History,
    period: Period,
    sees_all: bool,
) -> std::io::Result<Curves> {
    let curve = history.read(Class::Device, CLUSTER, period.range(1))?;
    let shown = if sees_all { CLUSTER_COLUMNS.len() } else { 2 };
    let series = series("", &CLUSTER_COLUMNS[..shown], &curve);
    Ok(curves(&curve, vec![series]))
}

/// Curves of the GPUs of a node.
pub(crate) fn node(
    history: &History,
    period: Period,
    node_id: &str,
    gpus: &[String],
) -> std::io::Result<Curves> {
    let range = period.range(gpus.len());
    let mut all = Vec::new();
    let mut times = Curve::default();
    for gpu in gpus {
        times = history.read(Class::Device, &gpu_name(node_id, gpu), range)?;
        all.push(series(gpu, &GPU_COLUMNS, &times));
    }
    Ok(curves(&times, all))
}

/// Curves of a job.
pub(crate) fn job(history: &History, period: Period, id: JobId) -> std::io::Result<Curves> {
    let curve = history.read(Class::Job, &job_name(id), period.range(1))?;
    let series = series("", &JOB_COLUMNS, &curve);
    Ok(curves(&curve, vec![series]))
}

fn curves(times: &Curve, series: Vec<Series>) -> Curves {
    Curves {
        start: Stamp(i64::try_from(times.start * 1000).unwrap_or(i64::MAX)),
        step_seconds: times.step,
        series,
    }
}

fn series(name: &str, columns: &[&str], curve: &Curve) -> Series {
    let column = |(at, name): (usize, &&str)| Column {
        name: (*name).to_owned(),
        values: curve.rows.iter().map(|row| row[at].map(rounded)).collect(),
    };
    Series { name: name.to_owned(), columns: columns.iter().enumerate().map(column).collect() }
}

/// Two decimals, which the readings have at most.
fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use agentaflow_api::job::GpuUsage;

    use super::*;

    fn used(cpu_ms: u64, allocated_ms: u64, used_ms: u64, joules: f64) -> TaskUse {
        TaskUse {
            key: TaskKey { job: JobId(1), epoch: 1, incarnation: 0, task: 0 },
            cpu_ms: Some(cpu_ms),
            memory: Some(700),
            gpu_memory: Some(9_000),
            gpu_joules: Some(joules),
            gpu: Some(GpuUsage { allocated_ms, used_ms, ..GpuUsage::default() }),
        }
    }

    fn values(sampler: &Sampler, used: TaskUse, now: Instant) -> Values {
        sampler.job_values(&JobSample { tasks: vec![used] }, now)
    }

    #[test]
    fn counters_of_a_job_become_rates() {
        let (mut sampler, start) = (Sampler::default(), Instant::now());
        let first = used(1_000, 0, 0, 0.0);
        assert_eq!(values(&sampler, first, start), [None, Some(700.0), None, Some(9_000.0), None]);
        sampler.last = [(first.key, (start, first))].into();
        let now = start + Duration::from_secs(10);
        let second = used(31_000, 20_000, 5_000, 2_500.0);
        let rates = [Some(3.0), Some(700.0), Some(25.0), Some(9_000.0), Some(250.0)];
        assert_eq!(values(&sampler, second, now), rates);
        // The agent was restarted and counts anew.
        let reset = used(10, 0, 0, 0.0);
        assert_eq!(values(&sampler, reset, now)[0], None);
    }

    #[test]
    fn samples_are_in_the_middle_of_their_interval() {
        let cases = [(0, 7_500), (7_500, 15_000), (7_499, 1), (20_000, 2_500), (-1, 7_501)];
        for (now, wait) in cases {
            assert_eq!(until_sample(Stamp(now)), Duration::from_millis(wait), "{now}");
        }
    }
}
