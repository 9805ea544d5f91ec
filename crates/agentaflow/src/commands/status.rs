//! `agentaflow status`: overview, or status of one job.

use std::cmp::Reverse;

use agentaflow_api::client::user::JobQuery;
use agentaflow_api::end::EndReason;
use agentaflow_api::job::{Job, JobStatus};
use agentaflow_api::node::{Node, NodeStatus};
use agentaflow_console::format::{self, one_line};
use agentaflow_console::labels;
use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::backend::Backend;
use crate::candidates;
use crate::connect::{Connect, block_on};
use crate::list::OneFormat;
use crate::listing::{self, DEFAULT_PRIORITY, JOBS, NODES};
use crate::output;
use clap_complete::engine::ArgValueCandidates;

/// Jobs in the overview.
const SHOWN_JOBS: usize = 10;

/// Limit of counted running and of counted pending jobs.
const MAX_COUNTED: u64 = 10_000;

/// Show an overview of nodes, GPUs and jobs, or the status of one job
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Job number or name
    #[arg(value_name = "JOB", add = ArgValueCandidates::new(candidates::jobs))]
    job: Option<String>,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: OneFormat,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Debug, Serialize)]
pub(super) struct Overview {
    server: String,
    nodes: Vec<Node>,
    running: Vec<Job>,
    pending: Vec<Job>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if let Some(name) = &args.job {
        let job = block_on(async { args.connect.backend().await?.job(name).await });
        let job = job.with_context(|| format!("cannot show job {name}"))?;
        args.output.print(&job, |job| Ok(details(job)))
    } else {
        let data = block_on(async { overview(&args.connect.backend().await?).await })?;
        args.output.print(&data, |data| Ok(overview_text(data)))
    }
}

pub(super) async fn overview(backend: &Backend) -> Result<Overview> {
    let with = |status| JobQuery { status, limit: Some(MAX_COUNTED), skip: None };
    let mut pending = backend.jobs(&with(vec![JobStatus::Pending])).await?;
    // Queue order; the API lists the newest first.
    pending.sort_by_cached_key(|job| {
        let priority = job.spec.priority.unwrap_or(DEFAULT_PRIORITY);
        (Reverse(priority), job.created_at, job.id, job.handle())
    });
    Ok(Overview {
        server: backend.address(),
        nodes: backend.nodes().await?,
        running: backend.jobs(&with(vec![JobStatus::Running, JobStatus::Scheduled])).await?,
        pending,
    })
}

pub(super) fn overview_text(data: &Overview) -> String {
    let active: Vec<_> =
        data.nodes.iter().filter(|node| node.status == NodeStatus::Active).collect();
    let gpus: u32 = active.iter().map(|node| node.spec.gpu_count).sum();
    let simulated = active.iter().any(|node| node.spec.simulated && node.spec.gpu_count > 0);
    let free: usize = active.iter().map(|node| listing::free_gpus(node)).sum();
    let memory = active.iter().map(|node| listing::free_gpu_memory(node)).sum();
    let notice = if simulated { " (SIMULATED: jobs get no device)" } else { "" };
    let mut text = format!(
        "Server  {}\nNodes   {}/{} active\nGPUs    {gpus}, {free} free; {} of GPU memory free{notice}\nJobs    {} running, {} pending\n",
        data.server,
        active.len(),
        data.nodes.len(),
        format::memory(memory),
        counted(&data.running),
        counted(&data.pending),
    );
    let mut add = |table: String| {
        text.push('\n');
        text.push_str(&table);
    };
    if !data.nodes.is_empty() {
        add(output::table(NODES.columns, &data.nodes, Some(output::width())));
    }
    let shown = shown(&data.running, &data.pending);
    if !shown.is_empty() {
        add(output::table(JOBS.columns, &shown, Some(output::width())));
    }
    match data.running.len() + data.pending.len() - shown.len() {
        0 => text,
        more => text + &format!("{more} more; run `agentaflow get workloads` to list all\n"),
    }
}

/// Up to half of the rows are pending jobs.
fn shown(running: &[Job], pending: &[Job]) -> Vec<Job> {
    let kept = pending.len().min(SHOWN_JOBS / 2);
    running.iter().take(SHOWN_JOBS - kept).chain(pending).take(SHOWN_JOBS).cloned().collect()
}

/// The number of jobs; a lower bound at the limit.
fn counted(jobs: &[Job]) -> String {
    let more = if jobs.len() as u64 >= MAX_COUNTED { "at least " } else { "" };
    format!("{more}{}", jobs.len())
}

/// The status of a job, one field per line.
pub(super) fn details(job: &Job) -> String {
    let (handle, name) = (job.handle(), listing::short_job_name(job));
    // In a cluster the handle of a job is its name.
    let title = if handle == name { name } else { format!("{handle} {name}") };
    let mut lines = vec![("Job", title)];
    let mut add = |name, value: Option<String>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            lines.push((name, one_line(&value)));
        }
    };
    add("Status", Some(status_text(job)));
    add("Reason", job.wait_reason.clone().filter(|_| job.status == JobStatus::Pending));
    add("Error", job.error_message.clone());
    add("Exit code", job.exit_code.map(|code| code.to_string()));
    add("Nodes", Some(labels::job_nodes(job)));
    add("GPUs", Some(gpus(job)));
    add("Submitted", Some(format::ago(job.created_at)));
    add("Run time", job.duration_seconds.map(format::short_time));
    add("Attempt", (job.attempt > 1).then(|| job.attempt.to_string()));
    add("Cost", Some(format::money(job.cost)));
    add("Output", job.output_data.as_ref().map(ToString::to_string));
    let line = |(name, value): &(&str, String)| format!("{name:<11} {value}\n");
    lines.iter().map(line).collect::<Vec<_>>().concat()
}

/// Number of GPUs, and their names if all are on one node: `2 (GPUs 0, 1)`.
fn gpus(job: &Job) -> String {
    let allocated = || job.tasks.iter().flat_map(|task| task.gpus.iter().cloned());
    let count = allocated().count();
    if count == 0 {
        return String::new();
    }
    let simulated = if job.simulated { ", SIMULATED: no device" } else { "" };
    match job.tasks.as_slice() {
        [_] => format!("{count} ({}){simulated}", listing::gpus(&allocated().collect::<Vec<_>>())),
        _ => format!("{count}{simulated}"),
    }
}

fn status_text(job: &Job) -> String {
    let word = job.status.as_str();
    match &job.end_reason {
        // The error message replaces the code.
        Some(reason)
            if job.status.is_final()
                && *reason != EndReason::Exited
                && job.error_message.is_none() =>
        {
            format!("{word} ({reason})")
        }
        _ if job.cancel_requested && !job.status.is_final() => format!("{word}, cancelling"),
        _ => word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentaflow_api::JobId;

    #[test]
    fn pending_jobs_are_shown_beside_many_running_jobs() {
        let jobs = |numbers: std::ops::Range<i64>| -> Vec<Job> {
            numbers.map(|id| Job { id: JobId(id), ..Job::default() }).collect()
        };
        let shown = |running: i64, waiting: i64| {
            let shown = shown(&jobs(0..running), &jobs(100..100 + waiting));
            (shown.iter().filter(|job| job.id < JobId(100)).count(), shown.len())
        };
        assert_eq!(
            [shown(3, 2), shown(20, 2), shown(20, 20), shown(2, 20)],
            [(3, 5), (8, 10), (5, 10), (2, 10)]
        );
    }
}
