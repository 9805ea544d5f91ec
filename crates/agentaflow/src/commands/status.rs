//! `agentaflow status`: how things stand, at a glance or for one job.

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

/// How many jobs are shown.
const SHOWN: usize = 10;

/// How many jobs with a place, and how many that wait, are counted.
const COUNTED: u64 = 10_000;

/// Show how nodes, GPUs and the queue are, or how one job is
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number or name of a job
    #[arg(value_name = "JOB", add = ArgValueCandidates::new(candidates::jobs))]
    job: Option<String>,
    /// How to print it
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: OneFormat,
    #[command(flatten)]
    connect: Connect,
}

/// The whole system.
#[derive(Debug, Serialize)]
pub(super) struct Glance {
    server: String,
    nodes: Vec<Node>,
    running: Vec<Job>,
    waiting: Vec<Job>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if let Some(name) = &args.job {
        let job = block_on(async { args.connect.backend().await?.job(name).await });
        let job = job.with_context(|| format!("cannot show job {name}"))?;
        args.output.print(&job, |job| Ok(about(job)))
    } else {
        let glance = block_on(async { glance(&args.connect.backend().await?).await })?;
        args.output.print(&glance, |glance| Ok(overview(glance)))
    }
}

pub(super) async fn glance(backend: &Backend) -> Result<Glance> {
    let with = |status| JobQuery { status, limit: Some(COUNTED), skip: None };
    let mut waiting = backend.jobs(&with(vec![JobStatus::Pending])).await?;
    // Whose turn comes first stands first: lists begin with the newest.
    waiting.sort_by_cached_key(|job| {
        let priority = job.spec.priority.unwrap_or(DEFAULT_PRIORITY);
        (Reverse(priority), job.created_at, job.id, job.handle())
    });
    Ok(Glance {
        server: backend.place(),
        nodes: backend.nodes().await?,
        running: backend.jobs(&with(vec![JobStatus::Running, JobStatus::Scheduled])).await?,
        waiting,
    })
}

pub(super) fn overview(glance: &Glance) -> String {
    let active: Vec<_> =
        glance.nodes.iter().filter(|node| node.status == NodeStatus::Active).collect();
    let gpus: u32 = active.iter().map(|node| node.spec.gpu_count).sum();
    let simulated = active.iter().any(|node| node.spec.simulated && node.spec.gpu_count > 0);
    let free: usize = active.iter().map(|node| listing::free_gpus(node)).sum();
    let memory = active.iter().map(|node| listing::free_gpu_memory(node)).sum();
    let notice = if simulated { " (SIMULATED: jobs get no device)" } else { "" };
    let mut text = format!(
        "Server  {}\nNodes   {} of {} active\nGPUs    {gpus}, {free} free; {} of GPU memory free{notice}\nJobs    {} with a place, {} waiting\n",
        glance.server,
        active.len(),
        glance.nodes.len(),
        format::memory(memory),
        counted(&glance.running),
        counted(&glance.waiting),
    );
    let mut add = |table: String| {
        text.push('\n');
        text.push_str(&table);
    };
    if !glance.nodes.is_empty() {
        add(output::table(NODES.columns, &glance.nodes, Some(output::width())));
    }
    let shown = shown(&glance.running, &glance.waiting);
    if !shown.is_empty() {
        add(output::table(JOBS.columns, &shown, Some(output::width())));
    }
    match glance.running.len() + glance.waiting.len() - shown.len() {
        0 => text,
        more => text + &format!("{more} more: `agentaflow get workloads` lists all\n"),
    }
}

/// The first of both: half of the room is for those that wait, if there are so many.
fn shown(running: &[Job], waiting: &[Job]) -> Vec<Job> {
    let kept = waiting.len().min(SHOWN / 2);
    running.iter().take(SHOWN - kept).chain(waiting).take(SHOWN).cloned().collect()
}

/// How many there are; of those that are counted no further, at least.
fn counted(jobs: &[Job]) -> String {
    let more = if jobs.len() as u64 >= COUNTED { "at least " } else { "" };
    format!("{more}{}", jobs.len())
}

/// Everything people ask about one job, one thing a line.
pub(super) fn about(job: &Job) -> String {
    let (handle, name) = (job.handle(), listing::short_job_name(job));
    // In a cluster a job is called by its name.
    let called = if handle == name { name } else { format!("{handle} {name}") };
    let mut lines = vec![("Job", called)];
    let mut add = |name, value: Option<String>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            lines.push((name, one_line(&value)));
        }
    };
    add("Status", Some(status_words(job)));
    add("Waits", job.wait_reason.clone().filter(|_| job.status == JobStatus::Pending));
    add("Error", job.error_message.clone());
    add("Exit code", job.exit_code.map(|code| code.to_string()));
    add("Nodes", Some(labels::job_nodes(job)));
    add("GPUs", Some(gpus(job)));
    add("Submitted", Some(format::ago(job.created_at)));
    add("Ran", job.duration_seconds.map(format::short_time));
    add("Tries", (job.attempt > 1).then(|| job.attempt.to_string()));
    add("Cost", Some(format::money(job.cost)));
    add("Output", job.output_data.as_ref().map(ToString::to_string));
    let line = |(name, value): &(&str, String)| format!("{name:<10} {value}\n");
    lines.iter().map(line).collect::<Vec<_>>().concat()
}

/// How many, and which where all are on one node: `2 (GPUs 0, 1)`.
fn gpus(job: &Job) -> String {
    let held = || job.tasks.iter().flat_map(|task| task.gpus.iter().cloned());
    let count = held().count();
    if count == 0 {
        return String::new();
    }
    let simulated = if job.simulated { ", SIMULATED: it gets no device" } else { "" };
    match job.tasks.as_slice() {
        [_] => format!("{count} ({}){simulated}", listing::gpus(&held().collect::<Vec<_>>())),
        _ => format!("{count}{simulated}"),
    }
}

fn status_words(job: &Job) -> String {
    let word = job.status.as_str();
    match &job.end_reason {
        // What the error says in words is not said again as a code.
        Some(reason)
            if job.status.is_final()
                && *reason != EndReason::Exited
                && job.error_message.is_none() =>
        {
            format!("{word} ({reason})")
        }
        _ if job.cancel_requested && !job.status.is_final() => format!("{word}, being stopped"),
        _ => word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_shown_beside_much_that_runs() {
        let jobs = |numbers: std::ops::Range<i64>| -> Vec<Job> {
            numbers.map(|id| Job { id, ..Job::default() }).collect()
        };
        let shown = |running: i64, waiting: i64| {
            let shown = shown(&jobs(0..running), &jobs(100..100 + waiting));
            (shown.iter().filter(|job| job.id < 100).count(), shown.len())
        };
        assert_eq!(
            [shown(3, 2), shown(20, 2), shown(20, 20), shown(2, 20)],
            [(3, 5), (8, 10), (5, 10), (2, 10)]
        );
    }
}
