//! `agentaflow events`: past and new events.

use agentaflow_console::format::one_line;
use anyhow::{Context as _, Result};

use agentaflow_api::event::Event;
use futures_util::TryStreamExt as _;

use crate::candidates;
use crate::connect::{Connect, block_on};
use crate::list::{ListArgs, ListFormat, Listing};
use crate::listing::{EVENTS, event_job, left, right};
use crate::output::{self, Column};
use clap_complete::engine::ArgValueCandidates;

/// Show the events of a job, or recent events of all jobs
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Job number or name [default: recent events of all jobs]
    #[arg(value_name = "JOB", add = ArgValueCandidates::new(candidates::jobs))]
    job: Option<String>,
    /// Follow new events; with JOB until the job finishes
    #[arg(short, long)]
    follow: bool,
    /// Output format; with --follow, `json` prints one object per line
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "table")]
    output: ListFormat,
    #[command(flatten)]
    connect: Connect,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    block_on(async {
        let backend = args.connect.backend().await?;
        let mut after = None;
        if !args.follow || args.job.is_some() {
            let events = match &args.job {
                Some(name) => backend
                    .events(name)
                    .await
                    .with_context(|| format!("cannot read the events of job {name}"))?,
                None => backend.past_events().await?,
            };
            after = events.last().map(|event| event.seq);
            if !args.follow {
                let listing = if args.job.is_some() { &EVENTS } else { &ALL };
                return ListArgs::with(args.output).print(listing, &events);
            }
            events.iter().try_for_each(|event| show(event, args.output))?;
        }
        if let Some(name) = &args.job {
            if backend.job(name).await?.status.is_final() {
                return Ok(());
            }
        } else {
            eprintln!("Waiting for events; press Ctrl-C to stop");
        }
        let mut events = backend.follow_events(args.job.as_deref(), after).await?;
        while let Some(event) = events.try_next().await? {
            show(&event, args.output)?;
            let Some(name) = args.job.as_ref().filter(|_| may_be_last(&event)) else { continue };
            if backend.job(name).await?.status.is_final() {
                return Ok(());
            }
        }
        Ok(())
    })
}

/// Events of several jobs; the job column is always shown.
const ALL: Listing<Event> =
    Listing { columns: &ALL_COLUMNS, name: |event| event.seq.to_string(), empty: EVENTS.empty };

const ALL_COLUMNS: [Column<Event>; 5] = [
    left("TIME", 0, |event| event.at.to_string()),
    left("EVENT", 0, |event| event.kind.to_string()),
    right("JOB", 0, |event| event_job(event).unwrap_or_default()),
    left("NODE", 1, |event| event.node_id.clone().unwrap_or_default()),
    left("MESSAGE", 0, |event| one_line(&event.message)),
];

/// The job may be finished after this event, unless it is retried.
fn may_be_last(event: &Event) -> bool {
    event.kind.ends_job()
}

fn show(event: &Event, format: ListFormat) -> Result<()> {
    if format == ListFormat::Json {
        let line = serde_json::to_string(event).context("cannot write JSON")?;
        return output::print(&format!("{line}\n"));
    }
    let job = event_job(event).map_or_else(String::new, |job| format!("job {job}  "));
    let (kind, message) = (&event.kind, one_line(&event.message));
    output::print(&format!("{}  {kind:<12}  {job}{message}\n", event.at))
}
