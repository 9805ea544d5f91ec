//! `agentaflow cost`: usage and cost.

use std::collections::BTreeMap;

use agentaflow_api::billing::UsageRow;
use agentaflow_api::client::user::JobQuery;
use agentaflow_api::ids::MicroUsd;
use agentaflow_api::job::{Job, JobStatus};
use agentaflow_api::{Dollars, Stamp};
use agentaflow_console::format::{self, counted, dollars, money, one_line};
use agentaflow_console::labels::job_name;
use anyhow::Result;

use crate::amount;
use crate::backend::Backend;
use crate::connect::{Connect, block_on};
use crate::list::{ListArgs, Listing};
use crate::listing::{cut_name, left, right};
use crate::output::Column;

/// Jobs read to find the names of unnamed jobs.
const MAX_JOBS: u64 = 100_000;

/// Show usage and cost
#[derive(Debug, clap::Args)]
#[command(
    after_help = "On Kubernetes, deleted workloads are not included. A server keeps a ledger, which includes \
a job when it ends."
)]
pub(crate) struct Args {
    /// Group by
    #[arg(long, value_enum, default_value = "day")]
    by: GroupBy,
    /// Start of the period: an age (24h, 7d), a day (2026-11-01), or a timestamp (2026-11-01T00:00:00Z)
    #[arg(long, value_name = "TIME", value_parser = amount::since)]
    since: Option<Stamp>,
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum GroupBy {
    /// Days (UTC)
    Day,
    /// Users; namespaces on Kubernetes
    User,
    /// Queues
    Queue,
    /// Nodes
    Node,
    /// Jobs
    Job,
}

impl GroupBy {
    fn as_str(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::User => "user",
            Self::Queue => "queue",
            Self::Node => "node",
            Self::Job => "job",
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    block_on(async {
        let backend = args.connect.backend().await?;
        let listing = match (&backend, args.by) {
            (Backend::Server(_), GroupBy::Job) => &JOBS,
            _ => &USAGE,
        };
        args.list.show(listing, async || usage(&backend, args).await).await?;
        if matches!(backend, Backend::Server(_)) {
            let status = vec![JobStatus::Running];
            let running = JobQuery { status, limit: Some(MAX_JOBS), skip: None };
            let running = backend.jobs(&running).await?;
            if let Some(note) = running_note(&running) {
                eprintln!("{note}");
            }
        }
        Ok(())
    })
}

/// Note about running jobs, which the ledger does not include yet.
fn running_note(running: &[Job]) -> Option<String> {
    let cost = running.iter().map(|job| job.cost.0).sum();
    let count = counted(running.len(), "job");
    (!running.is_empty())
        .then(|| format!("Not included: {count} still running, {} so far", money(Dollars(cost))))
}

async fn usage(backend: &Backend, args: &Args) -> Result<Vec<UsageRow>> {
    if let Backend::Server(client) = backend {
        let call = client.get("/billing/usage").query("by", args.by.as_str());
        let mut rows: Vec<UsageRow> = call.maybe("from", args.since).json().await?;
        if matches!(args.by, GroupBy::Node) {
            // The ledger has node ids; show names.
            let nodes = backend.nodes().await?;
            for row in &mut rows {
                if let Some(node) = nodes.iter().find(|node| node.node_id == row.key) {
                    row.key.clone_from(&node.spec.node_name);
                }
            }
        }
        if matches!(args.by, GroupBy::Job) && rows.iter().any(|row| row.name.is_none()) {
            name_jobs(backend, &mut rows).await?;
        }
        return Ok(rows);
    }
    let jobs = backend.jobs(&JobQuery::default()).await?;
    // As in a ledger, a job counts at its end, and a running job counts now.
    let ran = |job: &&Job| {
        let end = job.completed_at.unwrap_or_else(Stamp::now);
        job.started_at.is_some() && args.since.is_none_or(|since| end >= since)
    };
    Ok(summed(jobs.iter().filter(ran), args.by))
}

/// Fills in the image or command of unnamed jobs.
async fn name_jobs(backend: &Backend, rows: &mut [UsageRow]) -> Result<()> {
    let query = JobQuery { limit: Some(MAX_JOBS), ..JobQuery::default() };
    let jobs = backend.jobs(&query).await?;
    let names: BTreeMap<String, String> =
        jobs.iter().map(|job| (job.handle(), job_name(job))).collect();
    for row in rows.iter_mut().filter(|row| row.name.is_none()) {
        row.name = names.get(&row.key).cloned().filter(|name| !name.is_empty());
    }
    Ok(())
}

fn summed<'a>(jobs: impl Iterator<Item = &'a Job>, by: GroupBy) -> Vec<UsageRow> {
    let mut rows: BTreeMap<String, UsageRow> = BTreeMap::new();
    for job in jobs {
        let key = key(job, by);
        let row =
            rows.entry(key.clone()).or_insert_with(|| UsageRow { key, ..UsageRow::default() });
        let hours = job.duration_seconds.unwrap_or(0.0) / 3600.0;
        let gpus = job.tasks.iter().map(|task| task.gpus.len()).sum::<usize>();
        let gpus = if gpus == 0 { job.spec.gpu_count.unwrap_or(0) as usize } else { gpus };
        row.jobs += 1;
        row.gpu_hours += hours * gpus as f64;
        row.cpu_hours += hours * job.spec.cpu_cores_required.unwrap_or_default().0 as f64 / 1000.0;
        row.memory_gb_hours += hours * job.spec.memory_required.unwrap_or(0) as f64 / 1024.0;
        row.cost = Dollars(row.cost.0.saturating_add(job.cost.0));
        row.micros = MicroUsd(row.cost.0);
    }
    rows.into_values().collect()
}

fn key(job: &Job, by: GroupBy) -> String {
    match by {
        GroupBy::Day => job.created_at.to_string().chars().take(10).collect(),
        GroupBy::User => job.k8s_namespace.clone().unwrap_or_else(|| job.user_id.to_string()),
        GroupBy::Queue => job.spec.queue.clone().unwrap_or_else(|| "-".to_owned()),
        GroupBy::Node => {
            let node = job.tasks.first().map(|task| task.node_name.clone());
            node.unwrap_or_else(|| "-".to_owned())
        }
        GroupBy::Job => job.handle(),
    }
}

const USAGE: Listing<UsageRow> =
    Listing { columns: &USAGE_COLUMNS, name: |row| row.key.clone(), empty: "No usage found." };

/// Rows of single jobs, with number and name.
const JOBS: Listing<UsageRow> =
    Listing { columns: &JOBS_COLUMNS, name: |row| row.key.clone(), empty: USAGE.empty };

const USAGE_COLUMNS: [Column<UsageRow>; 6] = [
    left("KEY", 0, |row| row.key.clone()),
    right("JOBS", 1, |row| format::grouped(row.jobs)),
    GPU_HOURS,
    CPU_HOURS,
    GIB_HOURS,
    COST,
];

const JOBS_COLUMNS: [Column<UsageRow>; 6] = [
    right("JOB", 0, |row| row.key.clone()),
    left("NAME", 1, |row: &UsageRow| cut_name(job_named(row))).plain(job_named),
    GPU_HOURS,
    CPU_HOURS,
    GIB_HOURS,
    COST,
];

fn job_named(row: &UsageRow) -> String {
    one_line(row.name.as_deref().unwrap_or_default())
}

const GPU_HOURS: Column<UsageRow> =
    right("GPU HOURS", 0, |row: &UsageRow| format!("{:.2}", row.gpu_hours))
        .plain(|row| row.gpu_hours.to_string());
const CPU_HOURS: Column<UsageRow> =
    right("CPU HOURS", 2, |row: &UsageRow| format!("{:.2}", row.cpu_hours))
        .plain(|row| row.cpu_hours.to_string());
const GIB_HOURS: Column<UsageRow> =
    right("GIB HOURS", 3, |row: &UsageRow| format!("{:.2}", row.memory_gb_hours))
        .plain(|row| row.memory_gb_hours.to_string());
const COST: Column<UsageRow> =
    right("COST", 0, |row: &UsageRow| money(row.cost)).plain(|row| dollars(row.cost));
