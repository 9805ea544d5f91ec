//! `agentaflow events`: what happened, and what happens.

use anyhow::{Context as _, Result};

use agentaflow_api::event::Event;
use futures_util::TryStreamExt as _;

use crate::connect::{Connect, block_on};
use crate::listing::{self, EVENTS};
use crate::output::{self, Format};

/// Show what happened to a job, or follow everything that happens
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number or name of the job; without one everything that happens from now on is shown
    #[arg(value_name = "JOB")]
    job: Option<String>,
    /// Go on as things happen
    #[arg(short, long)]
    follow: bool,
    /// How to print them; with --follow `json` prints one object a line
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "table")]
    output: Format,
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
                let none = "Nothing happened to it yet.";
                return output::print(&listing::listing(&EVENTS, &events, args.output, none)?);
            }
            events.iter().try_for_each(|event| show(event, args.output))?;
        }
        let mut events = backend.happenings(args.job.as_deref(), after).await?;
        while let Some(event) = events.try_next().await? {
            show(&event, args.output)?;
        }
        Ok(())
    })
}

fn show(event: &Event, format: Format) -> Result<()> {
    if format == Format::Json {
        let line = serde_json::to_string(event).context("cannot write JSON")?;
        return output::print(&format!("{line}\n"));
    }
    let job = listing::event_job(event).map_or_else(String::new, |job| format!("job {job}  "));
    let (kind, message) = (&event.kind, listing::one_line(&event.message));
    output::print(&format!("{}  {kind:<12}  {job}{message}\n", event.at))
}
