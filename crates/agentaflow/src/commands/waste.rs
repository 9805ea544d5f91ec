//! `agentaflow waste`: allocated GPU time without use.

use agentaflow_api::billing::{SmallerRequest, WasteRow};
use agentaflow_api::{PAGE_MOST, Stamp};
use agentaflow_console::format::{self, dollars, money, one_line};
use anyhow::Result;

use crate::amount;
use crate::connect::{Connect, block_on};
use crate::list::{ListArgs, ListFormat, Listing};
use crate::listing::{cut_name, left, right};
use crate::output::{Column, WIDE};

const FORMULA: &str = "LOST = COST × (GPU HOURS − USED) / GPU HOURS; USED is the time in which kernels of the job ran. \
`-o wide` shows each calculation.";

/// Show allocated GPU time without use, its cost, and smaller requests
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Includes running jobs, and jobs that ended in the period. GPU time without readings is not included: \
jobs on Kubernetes, MIG slices, and agents that the server calls."
)]
pub(crate) struct Args {
    /// Group by
    #[arg(long, value_enum, default_value = "user")]
    by: By,
    /// Start of the period: an age (24h, 7d), a day (2026-11-01), or a timestamp (2026-11-01T00:00:00Z) [default: 30d]
    #[arg(long, value_name = "TIME", value_parser = amount::since)]
    since: Option<Stamp>,
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum By {
    /// Users
    User,
    /// Queues
    Queue,
    /// Jobs, with smaller requests that would have done
    Job,
}

impl By {
    fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Queue => "queue",
            Self::Job => "job",
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let client = args.connect.client()?;
    block_on(async {
        let listing = if args.by == By::Job { &JOBS } else { &GROUPS };
        let rows = async || -> Result<Vec<WasteRow>> {
            let call = client.get("/billing/waste").query("by", args.by.as_str());
            let call = call.maybe("from", args.since).query("limit", PAGE_MOST.to_string());
            Ok(call.json().await?)
        };
        args.list.show(listing, rows).await?;
        if args.list.output == ListFormat::Table {
            eprintln!("{FORMULA}");
        }
        Ok(())
    })
}

const EMPTY: &str = "No measured GPU time found.";

const GROUPS: Listing<WasteRow> =
    Listing { columns: &GROUP_COLUMNS, name: |row| row.key.clone(), empty: EMPTY };

const JOBS: Listing<WasteRow> =
    Listing { columns: &JOB_COLUMNS, name: |row| row.key.clone(), empty: EMPTY };

const GROUP_COLUMNS: [Column<WasteRow>; 9] = [
    left("KEY", 0, |row| row.key.clone()),
    right("JOBS", 1, |row| format::grouped(row.jobs)),
    GPU_HOURS,
    USED,
    GIB_HOURS,
    GIB_USED,
    COST,
    LOST,
    ARITHMETIC,
];

const JOB_COLUMNS: [Column<WasteRow>; 13] = [
    right("JOB", 0, |row| row.key.clone()),
    left("NAME", 1, |row: &WasteRow| cut_name(job_named(row))).plain(job_named),
    left("USER", 3, |row| row.user.clone().unwrap_or_default()),
    GPU_HOURS,
    USED,
    GIB_HOURS,
    GIB_USED,
    COST,
    LOST,
    left("WOULD HAVE DONE", 2, |row| row.smaller.as_ref().map(option).unwrap_or_default()),
    right("SAVED", 2, |row: &WasteRow| saved(row, money)).plain(|row| saved(row, dollars)),
    ARITHMETIC,
    left("REASON", WIDE, |row| {
        row.smaller.as_ref().map(|smaller| smaller.arithmetic.clone()).unwrap_or_default()
    }),
];

fn job_named(row: &WasteRow) -> String {
    one_line(row.name.as_deref().unwrap_or_default())
}

/// Option of `submit` for the request.
fn option(smaller: &SmallerRequest) -> String {
    match (smaller.gpu_count, smaller.gpu_fraction) {
        (Some(count), _) => format!("--gpus {count}"),
        (None, Some(share)) => format!("--fraction {share}"),
        (None, None) => String::new(),
    }
}

fn saved(row: &WasteRow, text: fn(agentaflow_api::Dollars) -> String) -> String {
    row.smaller.as_ref().map(|smaller| text(smaller.saved)).unwrap_or_default()
}

const GPU_HOURS: Column<WasteRow> =
    right("GPU HOURS", 0, |row: &WasteRow| format!("{:.2}", row.gpu_hours))
        .plain(|row| row.gpu_hours.to_string());
const USED: Column<WasteRow> =
    right("USED", 0, |row: &WasteRow| format!("{:.2}", row.gpu_hours_used))
        .plain(|row| row.gpu_hours_used.to_string());
const GIB_HOURS: Column<WasteRow> =
    right("GIB HOURS", 4, |row: &WasteRow| format!("{:.2}", row.gpu_memory_gb_hours))
        .plain(|row| row.gpu_memory_gb_hours.to_string());
const GIB_USED: Column<WasteRow> =
    right("GIB USED", 4, |row: &WasteRow| format!("{:.2}", row.gpu_memory_gb_hours_used))
        .plain(|row| row.gpu_memory_gb_hours_used.to_string());
const COST: Column<WasteRow> =
    right("COST", 1, |row: &WasteRow| money(row.cost)).plain(|row| dollars(row.cost));
const LOST: Column<WasteRow> =
    right("LOST", 0, |row: &WasteRow| money(row.lost)).plain(|row| dollars(row.lost));
const ARITHMETIC: Column<WasteRow> = left("ARITHMETIC", WIDE, |row| row.arithmetic.clone());
