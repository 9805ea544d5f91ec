//! `agentaflow simulate`: the same jobs under several strategies, in virtual time.

mod args;
mod demo;
mod notes;
mod progress;
mod report;
mod rules;
mod show;
mod spark;
mod subject;
mod waiting;

use agentaflow_engine::{QueueOrder, Span, Strategy};
use agentaflow_sim::{Load, Options, Outcome, replay};
use anyhow::{Context as _, Result};

pub(crate) use args::Args;
use args::StrategyChoice;
use progress::Bar;
use rules::Kind;
use subject::{Prepared, Subject};

use crate::output::{self, Format};

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let kind = rules::kind(args)?;
    if let Some(path) = &args.html {
        report::check(path)?;
    }
    let subject = Subject::read(kind, args)?;
    let outcomes = outcomes(&subject, kind, args)?;
    if let Some(path) = &args.html {
        report::write(path, &subject, &outcomes)?;
    }
    output::print(&printed(&subject, kind, args, &outcomes)?)
}

fn printed(subject: &Subject, kind: Kind, args: &Args, outcomes: &[Outcome]) -> Result<String> {
    let html = args.html.as_deref();
    match args.output {
        Format::Json => show::json(outcomes, args.curve),
        Format::Csv => Ok(show::csv(outcomes)),
        Format::Table if kind == Kind::Demo => Ok(demo::text(subject, outcomes, html)),
        Format::Table => Ok(show::text(subject, outcomes, Some(output::width()), html)),
        Format::Wide => Ok(show::text(subject, outcomes, None, html)),
    }
}

/// One outcome for each strategy and order, in the order in which they were asked for.
fn outcomes(subject: &Subject, kind: Kind, args: &Args) -> Result<Vec<Outcome>> {
    let strategies = strategies(subject, kind, args);
    let orders = orders(args);
    let bar = Bar::new(strategies.len() * orders.len());
    let mut outcomes = Vec::new();
    for order in orders {
        for strategy in &strategies {
            let mut run = bar.begin(strategy.name(), outcomes.len(), subject.arrivals());
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
    // A trace may begin at any time; people count from the first arrival.
    let first = load.jobs.iter().map(|job| job.at).min().unwrap_or_default();
    let mut options = Options::new(strategy);
    options.order = order;
    options.lint = args.check;
    options.resume = args.resume;
    options.replan = args.replan;
    options.until = args.until.map(|hours| first.after(Span((hours * 3_600_000.0) as u64)));
    options
}

/// What was asked for, each once; without a wish, those that make sense for the input.
fn strategies(subject: &Subject, kind: Kind, args: &Args) -> Vec<Strategy> {
    let asked = args.strategy.iter().flat_map(|choice| match choice {
        StrategyChoice::All => Strategy::ALL.map(|(_, strategy)| strategy).to_vec(),
        StrategyChoice::One(strategy) => vec![*strategy],
    });
    let mut strategies = Vec::new();
    for strategy in asked {
        if !strategies.contains(&strategy) {
            strategies.push(strategy);
        }
    }
    if strategies.is_empty() { usual(subject, kind) } else { strategies }
}

fn usual(subject: &Subject, kind: Kind) -> Vec<Strategy> {
    match (kind, &subject.prepared) {
        (Kind::Scenario, Prepared::Replay(load)) => vec![load.policy.strategy],
        (Kind::Experiment, _) => {
            vec![Strategy::Fgd, Strategy::PaperBestFit, Strategy::LeastFragmented]
        }
        (Kind::Demo, _) => vec![
            Strategy::LeastUtilized,
            Strategy::RoundRobin,
            Strategy::BestFit,
            Strategy::LeastFragmented,
        ],
        _ => vec![Strategy::LeastUtilized, Strategy::BestFit, Strategy::LeastFragmented],
    }
}

/// The orders to compare; none stands for the one that the input or the strategy asks for.
fn orders(args: &Args) -> Vec<Option<QueueOrder>> {
    let mut orders = Vec::new();
    for order in &args.order {
        if !orders.contains(&Some(*order)) {
            orders.push(Some(*order));
        }
    }
    if orders.is_empty() { vec![None] } else { orders }
}
