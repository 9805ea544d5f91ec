//! Input of a simulation: read from files or generated.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;

use agentaflow_console::format::grouped;
use agentaflow_engine::{Node, Span};
use agentaflow_sim::experiment::{Arrivals, Experiment};
use agentaflow_sim::formats::{self, Format, TraceNode, TracePod, UniformCluster};
use agentaflow_sim::synthetic::{self, Synthetic};
use agentaflow_sim::{Load, SimError, scenario};
use anyhow::{Error, Result};

use super::args::{Args, Cluster};
use super::rules::InputKind;
use crate::failure::{bad_file, not_found, usage};

/// Demand of the published experiment as a multiple of the capacity.
const INFLATE: f64 = 1.3;

#[derive(Debug)]
pub(super) struct Subject {
    /// File name or generator.
    pub(super) title: String,
    /// One sentence about cluster and jobs, without a full stop.
    pub(super) about: String,
    pub(super) prepared: Prepared,
}

#[derive(Debug)]
pub(super) enum Prepared {
    Replay(Box<Load>),
    Experiment(Box<Experiment>),
}

impl Subject {
    pub(super) fn read(input: InputKind, args: &Args) -> Result<Self> {
        match (input, &args.scenario, &args.trace) {
            (InputKind::Scenario, Some(path), _) => {
                Ok(Self::replay(name(path), scenario_file(path)?))
            }
            (InputKind::Trace, _, Some(path)) => Ok(Self::replay(name(path), trace(path, args)?)),
            (InputKind::Synthetic, ..) => {
                let recipe = recipe(args);
                let load = recipe.load().map_err(sim_error)?;
                Ok(Self::replay(format!("synthetic load, seed {}", recipe.seed), load))
            }
            (InputKind::Experiment, ..) => experiment(args),
            _ => Ok(Self::replay("demo".to_owned(), synthetic::demo())),
        }
    }

    pub(super) fn arrivals(&self) -> usize {
        match &self.prepared {
            Prepared::Replay(load) => load.jobs.len(),
            Prepared::Experiment(experiment) => experiment.arrivals(),
        }
    }

    fn replay(title: String, load: Load) -> Self {
        let about = about(&load);
        Self { title, about, prepared: Prepared::Replay(Box::new(load)) }
    }
}

/// Maps an error of the simulator to the exit code of its class.
fn sim_error(error: SimError) -> Error {
    match error {
        SimError::Parameter { .. } => usage(error.to_string()),
        SimError::Read { path, source } if source.kind() == ErrorKind::NotFound => {
            not_found(format!("cannot read `{}`: no such file or directory", path.display()))
        }
        SimError::Read { path, source } => {
            Error::new(source).context(format!("cannot read `{}`", path.display()))
        }
        SimError::UnknownFormat { .. }
        | SimError::MissingColumn { .. }
        | SimError::Value { .. }
        | SimError::Empty { .. }
        | SimError::UnknownName { .. }
        | SimError::Scenario { .. }
        | SimError::ScenarioPart { .. } => bad_file(error.to_string()),
        other => other.into(),
    }
}

fn name(path: &Path) -> String {
    path.file_name()
        .map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// A CSV file is probably a trace: name the right option instead of a YAML error.
fn scenario_file(path: &Path) -> Result<Load> {
    let table = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("csv"));
    if table && path.is_file() {
        return Err(usage(format!(
            "`{path}` looks like a trace, not a scenario: use --trace {path}",
            path = path.display()
        )));
    }
    scenario::read(path).map_err(sim_error)
}

fn trace(path: &Path, args: &Args) -> Result<Load> {
    let format = formats::detect(path).map_err(sim_error)?;
    let hint = match format {
        Format::AlibabaNodes => "is a node list: use --nodes, and --trace for the pods",
        Format::Scenario => "is a scenario: omit --trace",
        Format::Arrivals => "is an arrival list: use --arrivals with --experiment fgd",
        Format::Ranks => "is a rank list: use --ranks with --experiment fgd",
        Format::AlibabaPods if args.nodes.is_none() => {
            "is a pod list, which requires --nodes NODES.csv"
        }
        Format::Elasticflow | Format::Philly if args.nodes.is_some() => {
            "has no node requirements: use --cluster 8x8:MODEL instead of --nodes"
        }
        Format::AlibabaPods | Format::Elasticflow | Format::Philly => {
            return formats::read_load(
                path,
                args.nodes.as_deref(),
                &uniform(args.cluster.as_ref()),
            )
            .map_err(sim_error);
        }
    };
    Err(usage(format!("`{}` {hint}", path.display())))
}

fn uniform(cluster: Option<&Cluster>) -> UniformCluster {
    let default = UniformCluster::default();
    match cluster {
        Some(cluster) => UniformCluster {
            nodes: cluster.nodes,
            gpus_per_node: cluster.gpus_per_node,
            model: cluster.model.clone().unwrap_or(default.model),
        },
        None => default,
    }
}

fn recipe(args: &Args) -> Synthetic {
    let mut recipe = Synthetic::default();
    recipe.seed = args.seed.unwrap_or(recipe.seed);
    recipe.hours = args.hours.unwrap_or(recipe.hours);
    recipe.load = args.load.unwrap_or(recipe.load);
    if let Some(cluster) = &args.cluster {
        recipe.nodes = cluster.nodes;
        recipe.gpus_per_node = cluster.gpus_per_node;
        if let Some(model) = &cluster.model {
            recipe.models = vec![model.clone()];
        }
    }
    recipe
}

fn experiment(args: &Args) -> Result<Subject> {
    let (Some(nodes), Some(pods)) = (&args.nodes, &args.pods) else {
        return Err(usage("--experiment requires --nodes and --pods"));
    };
    let title = format!("packing experiment on {}", name(pods));
    let (nodes, pods) = (
        formats::read_alibaba_nodes(nodes).map_err(sim_error)?,
        formats::read_alibaba_pods(pods).map_err(sim_error)?,
    );
    let arrivals = arrivals(args, &pods)?;
    let ranks = args.ranks.as_deref().map(formats::read_ranks).transpose().map_err(sim_error)?;
    let prepared = Experiment::new(&nodes, &pods, &arrivals, ranks.as_ref()).map_err(sim_error)?;
    Ok(Subject {
        title,
        about: packing(&nodes, pods.len(), &arrivals),
        prepared: Prepared::Experiment(Box::new(prepared)),
    })
}

fn arrivals(args: &Args, pods: &[TracePod]) -> Result<Arrivals> {
    Ok(match (&args.arrivals, args.seed) {
        (Some(path), _) => {
            Arrivals::Named(formats::read_arrivals_of(path, pods).map_err(sim_error)?)
        }
        (None, Some(seed)) => Arrivals::Seeded { seed, inflate: args.inflate.unwrap_or(INFLATE) },
        (None, None) => Arrivals::FileOrder,
    })
}

fn packing(nodes: &[TraceNode], pods: usize, arrivals: &Arrivals) -> String {
    let gpus: u64 = nodes.iter().map(|node| u64::from(node.gpus)).sum();
    let how = match arrivals {
        Arrivals::FileOrder => "in file order".to_owned(),
        Arrivals::Named(names) => {
            format!("as {} arrivals in the given order", grouped(names.len() as u64))
        }
        Arrivals::Seeded { seed, inflate } => {
            format!("drawn with seed {seed} up to {:.0} % of the GPUs", inflate * 100.0)
        }
    };
    format!(
        "{} with {}: {} of a trace {} {how} and never {}",
        several(nodes.len() as u64, "node"),
        several(gpus, "GPU"),
        several(pods as u64, "pod"),
        arrive(pods),
        if pods == 1 { "leaves" } else { "leave" },
    )
}

fn about(load: &Load) -> String {
    let gpus: usize = load.nodes.iter().map(|node| node.gpus.len()).sum();
    let first = load.jobs.iter().map(|job| job.at).min().unwrap_or_default();
    let last = load.jobs.iter().map(|job| job.at).max().unwrap_or_default();
    format!(
        "{} with {}{}: {} {} over {}",
        several(load.nodes.len() as u64, "node"),
        several(gpus as u64, "GPU"),
        models(&load.nodes),
        several(load.jobs.len() as u64, "job"),
        arrive(load.jobs.len()),
        virtual_time(last.since(first)),
    )
}

fn virtual_time(span: Span) -> String {
    let hours = span.0 as f64 / 3_600_000.0;
    match hours {
        ..1.0 => format!("{:.0} virtual minutes", hours * 60.0),
        1.0..10.0 => format!("{hours:.1} virtual hours"),
        _ => format!("{} virtual hours", grouped(hours.round() as u64)),
    }
}

/// GPU models in parentheses, if there are at most four.
fn models(nodes: &[Node]) -> String {
    let gpus = nodes.iter().flat_map(|node| &node.gpus);
    let models: BTreeSet<_> = gpus.map(|gpu| short_model(gpu.model.as_str())).collect();
    let models: Vec<_> = models.into_iter().collect();
    if (1..=4).contains(&models.len()) {
        format!(" ({})", models.join(", "))
    } else {
        String::new()
    }
}

/// Short model name: `A100` of `NVIDIA A100-SXM4-40GB`.
pub(super) fn short_model(model: &str) -> &str {
    let letter_then_digit = |word: &&str| {
        word.starts_with(|first: char| first.is_ascii_alphabetic())
            && word.contains(|c: char| c.is_ascii_digit())
    };
    model.split([' ', '-', '_']).find(letter_then_digit).unwrap_or(model)
}

fn arrive(number: usize) -> &'static str {
    if number == 1 { "arrives" } else { "arrive" }
}

fn several(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(number), if number == 1 { "" } else { "s" })
}
