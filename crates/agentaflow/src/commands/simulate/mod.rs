//! `agentaflow simulate`: compares strategies on the same jobs in virtual time.

mod args;
mod demo;
mod notes;
mod progress;
mod report;
mod rules;
mod show;
mod spark;
mod subject;

use agentaflow_engine::{QueueOrder, Span, Strategy};
use agentaflow_sim::{Load, Options, Outcome, replay};
use anyhow::{Context as _, Result};

pub(crate) use args::Args;
use args::StrategyChoice;
use progress::Bar;
use rules::InputKind;
use subject::{Prepared, Subject};

use crate::output::{self, Format};

pub(crate) fn run(args: &Args) -> Result<()> {
    let input = rules::input_kind(args)?;
    if let Some(path) = &args.html {
        report::check(path)?;
    }
    let subject = Subject::read(input, args)?;
    let outcomes = outcomes(&subject, input, args)?;
    if let Some(path) = &args.html {
        report::write(path, &subject, &outcomes)?;
    }
    output::print(&render(&subject, input, args, &outcomes)?)
}

fn render(
    subject: &Subject,
    input: InputKind,
    args: &Args,
    outcomes: &[Outcome],
) -> Result<String> {
    let html = args.html.as_deref();
    match args.output {
        Format::Json => show::json(outcomes, args.curve),
        Format::Csv => Ok(show::csv(outcomes)),
        Format::Table if input == InputKind::Demo => Ok(demo::text(subject, outcomes, html)),
        Format::Table => Ok(show::text(subject, outcomes, Some(output::width()), html)),
        Format::Wide => Ok(show::text(subject, outcomes, None, html)),
    }
}

/// One outcome per order and strategy, in the order of the options.
fn outcomes(subject: &Subject, input: InputKind, args: &Args) -> Result<Vec<Outcome>> {
    let strategies = strategies(subject, input, args);
    let orders = orders(args);
    let bar = Bar::new(strategies.len() * orders.len());
    let mut outcomes = Vec::new();
    for order in orders {
        for strategy in &strategies {
            let mut run = bar.start_run(strategy.name(), outcomes.len(), subject.arrivals());
            let outcome = match &subject.prepared {
                Prepared::Replay(load) => {
                    replay(load, &options(load, *strategy, order, args), &mut run)
                }
                Prepared::Experiment(experiment) => experiment.run(*strategy, &mut run),
            };
            outcomes.push(outcome.with_context(|| format!("cannot simulate `{strategy}`"))?);
        }
    }
    bar.finish();
    Ok(outcomes)
}

fn options(load: &Load, strategy: Strategy, order: Option<QueueOrder>, args: &Args) -> Options {
    // `--until` counts from the first arrival.
    let first = load.jobs.iter().map(|job| job.at).min().unwrap_or_default();
    let mut options = Options::new(strategy);
    options.order = order;
    options.lint = args.check;
    options.resume = args.resume;
    options.replan = args.replan;
    options.until = args.until.map(|hours| first.after(Span((hours * 3_600_000.0) as u64)));
    options
}

/// Strategies of the options without duplicates, or defaults for the input.
fn strategies(subject: &Subject, input: InputKind, args: &Args) -> Vec<Strategy> {
    let requested = args.strategy.iter().flat_map(|choice| match choice {
        StrategyChoice::All => Strategy::ALL.to_vec(),
        StrategyChoice::One(strategy) => vec![*strategy],
    });
    let mut strategies = Vec::new();
    for strategy in requested {
        if !strategies.contains(&strategy) {
            strategies.push(strategy);
        }
    }
    if strategies.is_empty() { default_strategies(subject, input) } else { strategies }
}

fn default_strategies(subject: &Subject, input: InputKind) -> Vec<Strategy> {
    match (input, &subject.prepared) {
        (InputKind::Scenario, Prepared::Replay(load)) => vec![load.policy.strategy],
        (InputKind::Experiment, _) => {
            vec![Strategy::Fgd, Strategy::PaperBestFit, Strategy::LeastFragmented]
        }
        (InputKind::Demo, _) => vec![
            Strategy::LeastUtilized,
            Strategy::RoundRobin,
            Strategy::BestFit,
            Strategy::LeastFragmented,
        ],
        _ => vec![Strategy::LeastUtilized, Strategy::BestFit, Strategy::LeastFragmented],
    }
}

/// Orders to compare; `None` is the order of the input or strategy.
fn orders(args: &Args) -> Vec<Option<QueueOrder>> {
    let mut orders = Vec::new();
    for order in &args.order {
        if !orders.contains(&Some(*order)) {
            orders.push(Some(*order));
        }
    }
    if orders.is_empty() { vec![None] } else { orders }
}
