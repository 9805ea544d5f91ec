//! Jobs with times: the `ElasticFlow` clusters of Microsoft, and Philly as published with Muri.

use std::path::Path;

use agentaflow_engine::{GpuRequest, Request, Span, Time, Workload};

use super::alibaba::{LATEST, UniqueNames, millis};
use super::table::{Layout, Table};
use crate::{Job, SimError};

/// Limit of GPUs per job.
const MAX_GPUS: u64 = 100_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceJob {
    pub name: String,
    pub at: Time,
    pub duration: Span,
    pub gpus: u32,
}

const ELASTICFLOW: Layout = Layout {
    format: "ElasticFlow",
    rows: "jobs",
    header: "job_id,submission_time,duration,num_gpu",
};

const PHILLY: Layout = Layout {
    format: "Philly",
    rows: "jobs",
    header: "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration",
};

/// Times are seconds.
pub fn read_elasticflow(path: &Path) -> Result<Vec<TraceJob>, SimError> {
    read(path, &ELASTICFLOW, "submission_time", 1.0)
}

/// Times are milliseconds.
pub fn read_philly(path: &Path) -> Result<Vec<TraceJob>, SimError> {
    read(path, &PHILLY, "submit_time", 0.001)
}

/// `unit`: the file's unit of time in seconds.
fn read(
    path: &Path,
    layout: &'static Layout,
    at: &'static str,
    unit: f64,
) -> Result<Vec<TraceJob>, SimError> {
    let table = Table::read(path, layout)?;
    let name = table.column(&["job_id"])?;
    let (at, duration) = (table.column(&[at])?, table.column(&["duration"])?);
    let gpus = table.column(&["num_gpu"])?;
    let mut once = UniqueNames::default();
    let mut jobs = Vec::new();
    for row in table.rows() {
        jobs.push(TraceJob {
            name: once.name(row, name)?,
            at: Time(millis(row.decimal(at, LATEST)? * unit)),
            duration: Span(millis(row.decimal(duration, LATEST)? * unit)),
            gpus: match row.whole(gpus, MAX_GPUS)? as u32 {
                0 => return Err(row.wrong(gpus, "must be at least 1")),
                gpus => gpus,
            },
        });
    }
    Ok(jobs)
}

impl TraceJob {
    /// The job on nodes with this number of GPUs. A job that exceeds one node becomes a gang of equal tasks,
    /// as large as possible.
    pub fn job(&self, gpus_per_node: u32) -> Job {
        let each =
            if self.gpus > gpus_per_node { divisor(self.gpus, gpus_per_node) } else { self.gpus };
        let request = Request { gpu: GpuRequest::Whole(each), ..Request::default() };
        let mut workload = Workload::new(self.name.as_str(), request);
        workload.tasks = self.gpus / each;
        workload.estimate = Some(self.duration);
        Job { at: self.at, workload, duration: self.duration }
    }
}

/// The largest divisor of `whole` up to `limit`.
fn divisor(whole: u32, limit: u32) -> u32 {
    (1..=limit.max(1)).rev().find(|part| whole.is_multiple_of(*part)).unwrap_or(1)
}
