//! `agentaflow explain` and `agentaflow what-if`: pending reasons and forecasts.

use agentaflow_api::explain::Explanation;
use agentaflow_console::format::{money, one_line};
use anyhow::{Context as _, Result};

use crate::backend::Submission;
use crate::candidates;
use crate::connect::{Connect, block_on};
use crate::job_args::JobArgs;
use crate::list::OneFormat;
use crate::listing::gpus;
use crate::output;
use clap_complete::engine::ArgValueCandidates;

/// Explain a job: pending reason, expected start, alternatives
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Job number or name
    #[arg(value_name = "JOB", add = ArgValueCandidates::new(candidates::jobs))]
    job: String,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: OneFormat,
    #[command(flatten)]
    connect: Connect,
}

/// Forecast a job without submitting it
#[derive(Debug, clap::Args)]
pub(crate) struct WhatIfArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: OneFormat,
    #[command(flatten)]
    connect: Connect,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let explanation = block_on(async { args.connect.backend().await?.explain(&args.job).await });
    let explanation = explanation.with_context(|| format!("cannot explain job {}", args.job))?;
    args.output.print(&explanation, |explanation| Ok(render(explanation)))
}

pub(crate) fn what_if(args: &WhatIfArgs) -> Result<()> {
    let submissions = args.job.submissions()?;
    block_on(async {
        let backend = args.connect.backend().await?;
        for one in &submissions {
            let forecast = backend.what_if(one).await?;
            args.output
                .print(&forecast, |forecast| Ok(named(one, &submissions) + &render(forecast)))?;
        }
        Ok(())
    })
}

/// Heading with the name of a job, if there are several jobs.
pub(super) fn named(submission: &Submission, all: &[Submission]) -> String {
    match (all, submission.name()) {
        ([_, _, ..], Some(name)) => format!("{}:\n", one_line(name)),
        _ => String::new(),
    }
}

pub(super) fn render(explanation: &Explanation) -> String {
    let mut text = output::wrapped(&one_line(&explanation.summary), "", "");
    let mut add = |line: &str| text.push_str(&output::wrapped(&one_line(line), "  ", "    "));
    if let Some(detail) = explanation.detail.as_deref() {
        add(detail);
    }
    if let Some(position) = explanation.position {
        add(&agentaflow_explain::position(position, explanation.waiting));
    }
    if !explanation.eta_text.is_empty() {
        add(&explanation.eta_text);
    }
    if let Some(line) =
        agentaflow_explain::alternatives(explanation.would_start_now.iter().cloned())
    {
        add(&line);
    }
    for node in &explanation.closest {
        add(&format!("{}: {}", node.node_name, node.lacks));
    }
    for task in &explanation.placement {
        let simulated = if task.simulated { " (SIMULATED)" } else { "" };
        let gpus = if task.gpus.is_empty() { "no GPU".to_owned() } else { gpus(&task.gpus) };
        add(&format!("task {} on {}: {gpus}{simulated}", task.task, task.node_name));
    }
    if let Some(price) = explanation.price_per_hour.filter(|price| price.0 > 0) {
        let all = explanation.estimated_cost.map(|cost| format!(", {} in total", money(cost)));
        add(&format!("{} per hour{}", money(price), all.unwrap_or_default()));
    }
    text
}
