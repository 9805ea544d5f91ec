//! `agentaflow cost`: what was used and what it cost.

use std::collections::BTreeMap;

use agentaflow_api::billing::UsageRow;
use agentaflow_api::client::user::JobQuery;
use agentaflow_api::job::{Job, JobStatus};
use agentaflow_api::{Dollars, Stamp};
use agentaflow_console::format::{self, counted, dollars, money, one_line};
use agentaflow_console::labels::job_name;
use anyhow::Result;

use crate::amount;
use crate::backend::Backend;
use crate::connect::{Connect, block_on};
use crate::list::{Kind, ListArgs};
use crate::listing::{cut_name, left, right};
use crate::output::Column;

/// Jobs that are looked through for what a job without a name is called.
const LOOKED_THROUGH: u64 = 100_000;

/// Show what was used and what it cost
#[derive(Debug, clap::Args)]
#[command(
    after_help = "On Kubernetes the cost is that of the workloads that still exist: a workload that was \
deleted is no longer known. A server keeps a ledger, in which jobs \
are counted when they end."
)]
pub(crate) struct Args {
    /// What to sum up by
    #[arg(long, value_enum, default_value = "day")]
    by: By,
    /// From this time on: how long ago (24h, 7d), a day (2026-11-01), or a time (2026-11-01T00:00:00Z)
    #[arg(long, value_name = "TIME", value_parser = amount::since)]
    since: Option<Stamp>,
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum By {
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

impl By {
    fn word(self) -> &'static str {
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
        let kind = match (&backend, args.by) {
            (Backend::Server(_), By::Job) => &JOBS,
            _ => &USAGE,
        };
        args.list.show(kind, async || usage(&backend, args).await).await?;
        if matches!(backend, Backend::Server(_)) {
            let status = vec![JobStatus::Running];
            let running = JobQuery { status, limit: Some(LOOKED_THROUGH), skip: None };
            let running = backend.jobs(&running).await?;
            if let Some(note) = not_yet_booked(&running) {
                eprintln!("{note}");
            }
        }
        Ok(())
    })
}

/// What a ledger does not know: it is written when jobs end.
fn not_yet_booked(running: &[Job]) -> Option<String> {
    let cost = running.iter().map(|job| job.cost.0).sum();
    let count = counted(running.len(), "job");
    let verb = if running.len() == 1 { "runs and is" } else { "run and are" };
    (!running.is_empty())
        .then(|| format!("{count} {verb} not counted yet: {} so far", money(Dollars(cost))))
}

async fn usage(backend: &Backend, args: &Args) -> Result<Vec<UsageRow>> {
    if let Backend::Server(client) = backend {
        let call = client.get("/billing/usage").query("by", args.by.word());
        let mut rows: Vec<UsageRow> = call.maybe("from", args.since).json().await?;
        if matches!(args.by, By::Node) {
            // The ledger knows nodes by what never changes, people by their names.
            let nodes = backend.nodes().await?;
            for row in &mut rows {
                if let Some(node) = nodes.iter().find(|node| node.node_id == row.key) {
                    row.key.clone_from(&node.spec.node_name);
                }
            }
        }
        if matches!(args.by, By::Job) && rows.iter().any(|row| row.name.is_none()) {
            name_jobs(backend, &mut rows).await?;
        }
        return Ok(rows);
    }
    let jobs = backend.jobs(&JobQuery::default()).await?;
    // As in a ledger: what ran counts when it ends, and what runs counts now.
    let ran = |job: &&Job| {
        let end = job.completed_at.unwrap_or_else(Stamp::now);
        job.started_at.is_some() && args.since.is_none_or(|since| end >= since)
    };
    Ok(summed(jobs.iter().filter(ran), args.by))
}

/// Calls jobs that nobody gave a name what other lists call them.
async fn name_jobs(backend: &Backend, rows: &mut [UsageRow]) -> Result<()> {
    let query = JobQuery { limit: Some(LOOKED_THROUGH), ..JobQuery::default() };
    let jobs = backend.jobs(&query).await?;
    let names: BTreeMap<String, String> =
        jobs.iter().map(|job| (job.handle(), job_name(job))).collect();
    for row in rows.iter_mut().filter(|row| row.name.is_none()) {
        row.name = names.get(&row.key).cloned().filter(|name| !name.is_empty());
    }
    Ok(())
}

fn summed<'a>(jobs: impl Iterator<Item = &'a Job>, by: By) -> Vec<UsageRow> {
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
        row.micros = row.micros.saturating_add(job.cost.0);
        row.cost = Dollars(row.micros);
    }
    rows.into_values().collect()
}

fn key(job: &Job, by: By) -> String {
    match by {
        By::Day => job.created_at.to_string().chars().take(10).collect(),
        By::User => job.k8s_namespace.clone().unwrap_or_else(|| job.user_id.to_string()),
        By::Queue => job.spec.queue.clone().unwrap_or_else(|| "-".to_owned()),
        By::Node => {
            let node = job.tasks.first().map(|task| task.node_name.clone());
            node.unwrap_or_else(|| "-".to_owned())
        }
        By::Job => job.handle(),
    }
}

const USAGE: Kind<UsageRow> =
    Kind { columns: &USAGE_COLUMNS, name: |row| row.key.clone(), none: "Nothing was used." };

/// Jobs have numbers and names, and each is one.
const JOBS: Kind<UsageRow> =
    Kind { columns: &JOBS_COLUMNS, name: |row| row.key.clone(), none: USAGE.none };

const USAGE_COLUMNS: [Column<UsageRow>; 6] = [
    left("FOR", 0, |row| row.key.clone()),
    right("JOBS", 1, |row| format::grouped(row.jobs)),
    GPU_HOURS,
    CPU_HOURS,
    GIB_HOURS,
    COST,
];

const JOBS_COLUMNS: [Column<UsageRow>; 6] = [
    right("FOR", 0, |row| row.key.clone()),
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
