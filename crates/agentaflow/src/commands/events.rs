//! `agentaflow events`: what happened, and what happens.

use anyhow::{Context as _, Result};

use agentaflow_api::client::{Client, ClientError};
use agentaflow_api::event::Event;

use crate::connect::{Connect, block_on};
use crate::listing::{self, EVENTS};
use crate::output::{self, Format};

/// Show what happened to a job, or follow everything that happens
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of the job; without one everything that happens from now on is shown
    #[arg(value_name = "ID")]
    id: Option<i64>,
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
    let client = args.connect.client()?;
    block_on(async {
        let mut after = None;
        if let Some(id) = args.id {
            let events = all(&client, id).await;
            let events = events.with_context(|| format!("cannot read the events of job {id}"))?;
            after = events.last().map(|event| event.seq);
            if !args.follow {
                let none = "Nothing happened to it yet.";
                return output::print(&listing::listing(&EVENTS, &events, args.output, none)?);
            }
            events.iter().try_for_each(|event| show(event, args.output))?;
        }
        let mut events = client.events(after, args.id).await?;
        while let Some(event) = events.next().await? {
            if args.id.is_none_or(|id| event.job_id == Some(id)) {
                show(&event, args.output)?;
            }
        }
        Ok(())
    })
}

async fn all(client: &Client, job: i64) -> Result<Vec<Event>, ClientError> {
    let mut events: Vec<Event> = Vec::new();
    loop {
        let page = client.job_events(job, events.last().map_or(0, |event| event.seq)).await?;
        if page.is_empty() {
            return Ok(events);
        }
        events.extend(page);
    }
}

fn show(event: &Event, format: Format) -> Result<()> {
    if format == Format::Json {
        let line = serde_json::to_string(event).context("cannot write JSON")?;
        return output::print(&format!("{line}\n"));
    }
    let job = event.job_id.map_or_else(String::new, |id| format!("job {id}  "));
    let (kind, message) = (&event.kind, listing::one_line(&event.message));
    output::print(&format!("{}  {kind:<12}  {job}{message}\n", event.at))
}
