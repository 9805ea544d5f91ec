//! `agentaflow events`: what happened, and what happens.

use anyhow::{Context as _, Result};

use agentaflow_api::event::Event;
use futures_util::TryStreamExt as _;

use crate::candidates;
use crate::connect::{Connect, block_on};
use crate::list::{ListArgs, ListFormat};
use crate::listing::{self, EVENTS};
use crate::output;
use clap_complete::engine::ArgValueCandidates;

/// Show what happened to a job, or follow everything that happens
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number or name of the job; without one everything that happens from now on is shown
    #[arg(value_name = "JOB", add = ArgValueCandidates::new(candidates::jobs))]
    job: Option<String>,
    /// Go on as things happen, until the job is over if one is named
    #[arg(short, long)]
    follow: bool,
    /// How to print them; with --follow `json` prints one object a line
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "table")]
    output: ListFormat,
    #[command(flatten)]
    connect: Connect,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    block_on(async {
        let backend = args.connect.backend().await?;
        let mut after = None;
        if let Some(name) = &args.job {
            let events = backend.events(name).await;
            let events = events.with_context(|| format!("cannot read the events of job {name}"))?;
            after = events.last().map(|event| event.seq);
            if !args.follow {
                let list = ListArgs::with(args.output);
                return list.print(&EVENTS, &events);
            }
            events.iter().try_for_each(|event| show(event, args.output))?;
            if backend.job(name).await?.status.is_final() {
                return Ok(());
            }
        }
        let mut events = backend.happenings(args.job.as_deref(), after).await?;
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

/// Whether a job may be over with this; it may also be tried again.
fn may_be_last(event: &Event) -> bool {
    matches!(event.kind.as_str(), "Completed" | "Failed" | "Cancelled")
}

fn show(event: &Event, format: ListFormat) -> Result<()> {
    if format == ListFormat::Json {
        let line = serde_json::to_string(event).context("cannot write JSON")?;
        return output::print(&format!("{line}\n"));
    }
    let job = listing::event_job(event).map_or_else(String::new, |job| format!("job {job}  "));
    let (kind, message) = (&event.kind, listing::one_line(&event.message));
    output::print(&format!("{}  {kind:<12}  {job}{message}\n", event.at))
}
