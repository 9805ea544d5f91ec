//! Present readings of the cluster, of GPUs and of jobs, for the history and for the waste report.

use std::collections::{BTreeMap, BTreeSet};

use agentaflow_api::ids::{JobId, UserId};
use agentaflow_api::job::TaskState;
use agentaflow_api::link::TaskUse;
use agentaflow_api::node::{GpuInstance, GpuStatus, Node, NodeStatus};

use super::handle::Core;
use super::node::{LiveNode, NodeView, TaskRef, gpu_id};
use super::state::State;
use crate::store::{GpuAccount, JobRow, MeasuredJob};

/// Readings of the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ClusterSample {
    pub(crate) gpus_used: f64,
    /// Percent; none without a reading.
    pub(crate) utilization: Option<f64>,
    pub(crate) pending: f64,
    pub(crate) running: f64,
    pub(crate) dollars_per_hour: f64,
}

/// Readings of one GPU.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GpuSample {
    /// `gpu-…` name.
    pub(crate) node_id: String,
    /// Index or UUID.
    pub(crate) gpu: String,
    pub(crate) reading: GpuInstance,
}

/// Use of a running job as of the last heartbeats.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct JobSample {
    pub(crate) tasks: Vec<TaskUse>,
}

impl Core {
    pub(crate) fn cluster_sample(&self) -> ClusterSample {
        let mut sample = ClusterSample::default();
        let (mut sum, mut readings) = (0.0, 0_u32);
        for view in self.inner.published.node_views() {
            for gpu in present_gpus(&view) {
                sample.gpus_used += f64::from(u8::from(gpu.status == Some(GpuStatus::Busy)));
                if let Some(utilization) = gpu.utilization {
                    sum += utilization;
                    readings += 1;
                }
            }
        }
        for queue in self.inner.published.queue_views().iter() {
            sample.pending += f64::from(queue.jobs.pending);
            sample.running += f64::from(queue.jobs.placed());
        }
        sample.utilization = (readings > 0).then(|| sum / f64::from(readings));
        sample.dollars_per_hour = self.inner.published.running_cost().hourly().0 as f64 / 1e6;
        sample
    }

    /// Readings of all GPUs that have some.
    pub(crate) fn gpu_samples(&self) -> Vec<GpuSample> {
        let views = self.inner.published.node_views();
        let each = views.iter().flat_map(|view| {
            present_gpus(view).iter().enumerate().map(|(at, reading)| GpuSample {
                node_id: view.node().node_id.clone(),
                gpu: gpu_id(reading, at).to_string(),
                reading: reading.clone(),
            })
        });
        each.filter(|sample| sample.reading.utilization.is_some()).collect()
    }

    /// Names of the GPUs of a node in [`GpuSample`].
    pub(crate) fn gpu_names(&self, node: &Node) -> Vec<String> {
        let gpus = self.node_gpus(node.id);
        gpus.iter().enumerate().map(|(at, gpu)| gpu_id(gpu, at).to_string()).collect()
    }

    /// Use of all running jobs that an agent reports.
    pub(crate) fn job_samples(&self) -> BTreeMap<JobId, JobSample> {
        let state = self.inner.lock();
        let mut samples: BTreeMap<JobId, JobSample> = BTreeMap::new();
        for used in state.nodes.iter().flat_map(LiveNode::task_uses) {
            samples.entry(used.key.job).or_default().tasks.push(used);
        }
        samples
    }

    /// Running jobs whose use of GPUs is measured, with earlier attempts.
    pub(crate) fn running_measured_jobs(&self, user: Option<UserId>) -> Vec<MeasuredJob> {
        let state = self.inner.lock();
        let reported = state.nodes.iter().flat_map(LiveNode::task_uses);
        let jobs: BTreeSet<JobId> = reported.map(|used| used.key.job).collect();
        let jobs = jobs.into_iter().filter_map(|id| state.jobs.get(id));
        let jobs = jobs.filter(|job| user.is_none_or(|user| job.user_id == user));
        jobs.filter_map(|job| {
            let account = state.running_account(job)?;
            let JobRow { id, user_id, queue, spec, .. } = job;
            let (queue, name) = (queue.clone(), spec.job_name.clone());
            Some(MeasuredJob { id: *id, user: *user_id, queue, name, account })
        })
        .collect()
    }
}

impl State {
    /// GPU time of a job until now; none if no use was measured.
    fn running_account(&self, job: &JobRow) -> Option<GpuAccount> {
        let now = self.now();
        let running = job.state.tasks.iter().filter(|task| task.state == TaskState::Running);
        let accounts = running.filter_map(|task| {
            let key = TaskRef { job: job.id, task: task.task };
            let usage = self.nodes.get(task.node)?.task_use(key)?.gpu?;
            let ran_ms = now.0.saturating_sub(task.started_at?.0).max(0) as u64;
            Some(GpuAccount::of_task(job, task, ran_ms, usage))
        });
        job.state.gpu.into_iter().chain(accounts).reduce(|sum, account| sum + account)
    }
}

/// GPUs of a node that answers; the readings of another one are old.
fn present_gpus(view: &NodeView) -> &[GpuInstance] {
    match view.status() {
        NodeStatus::Active | NodeStatus::Maintenance | NodeStatus::Error => {
            &view.node().spec.gpu_instances
        }
        NodeStatus::Pending | NodeStatus::Inactive => &[],
    }
}
