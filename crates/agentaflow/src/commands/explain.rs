//! `agentaflow explain` and `agentaflow what-if`: why a job waits, and what would happen to one.

use agentaflow_api::explain::Explanation;
use agentaflow_console::format::{money, one_line};
use anyhow::{Context as _, Result};

use crate::backend::Work;
use crate::candidates;
use crate::connect::{Connect, block_on};
use crate::job_args::JobArgs;
use crate::list::OneFormat;
use crate::listing::gpus;
use crate::output;
use clap_complete::engine::ArgValueCandidates;

/// Say why a job waits, when it will start, and what would start now
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number or name of the job
    #[arg(value_name = "JOB", add = ArgValueCandidates::new(candidates::jobs))]
    job: String,
    /// How to print it
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: OneFormat,
    #[command(flatten)]
    connect: Connect,
}

/// Say what would happen to a job, without handing it in
#[derive(Debug, clap::Args)]
pub(crate) struct WhatIfArgs {
    #[command(flatten)]
    job: JobArgs,
    /// How to print it
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: OneFormat,
    #[command(flatten)]
    connect: Connect,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let said = block_on(async { args.connect.backend().await?.explain(&args.job).await });
    show(&said.with_context(|| format!("cannot explain job {}", args.job))?, args.output)
}

pub(crate) fn what_if(args: &WhatIfArgs) -> Result<()> {
    let work = args.job.all()?;
    block_on(async {
        let backend = args.connect.backend().await?;
        for one in &work {
            let said = backend.try_out(one).await?;
            args.output.print(&said, |said| Ok(named(one, &work) + &words(said)))?;
        }
        Ok(())
    })
}

fn show(said: &Explanation, format: OneFormat) -> Result<()> {
    format.print(said, |said| Ok(words(said)))
}

/// A line that tells a piece of work from others that are spoken of with it; nothing where it is the only one.
pub(super) fn named(work: &Work, all: &[Work]) -> String {
    match (all, work.name()) {
        ([_, _, ..], Some(name)) => format!("{}:\n", one_line(name)),
        _ => String::new(),
    }
}

pub(super) fn words(said: &Explanation) -> String {
    let mut text = output::wrapped(&one_line(&said.summary), "", "");
    let mut add = |line: &str| text.push_str(&output::wrapped(&one_line(line), "  ", "    "));
    if let Some(detail) = said.detail.as_deref().filter(|detail| !said.summary.contains(*detail)) {
        add(detail);
    }
    if let Some(position) = said.position {
        add(&format!("place {position} of {}", said.waiting));
    }
    let told = said.summary.contains(&said.eta_text) || said.summary.contains("would start now");
    if !said.eta_text.is_empty() && !told {
        add(&said.eta_text);
    }
    if !said.would_start_now.is_empty() {
        add(&format!("would start now {}", said.would_start_now.join(", or ")));
    }
    for node in &said.closest {
        add(&format!("{}: {}", node.node_name, node.lacks));
    }
    for task in &said.placement {
        let simulated = if task.simulated { " (SIMULATED)" } else { "" };
        let gpus = if task.gpus.is_empty() { "no GPU".to_owned() } else { gpus(&task.gpus) };
        add(&format!("task {} on {}: {gpus}{simulated}", task.task, task.node_name));
    }
    if let Some(price) = said.price_per_hour.filter(|price| price.0 > 0) {
        let all = said.estimated_cost.map(|cost| format!(", {} in all", money(cost)));
        add(&format!("{} an hour{}", money(price), all.unwrap_or_default()));
    }
    text
}
