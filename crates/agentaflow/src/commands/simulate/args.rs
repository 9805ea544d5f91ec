//! The arguments of `simulate`, and how their values are written.

use std::path::PathBuf;

use agentaflow_engine::{QueueOrder, Strategy};
use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser as _};

use crate::output::Format;

const EXAMPLES: &str = "\
Examples:
  agentaflow simulate --demo
      A small cluster under four strategies: the first thing to look at
  agentaflow simulate lab.yaml --strategy all --html report.html
      A scenario of your own under every strategy, with its curves as a page
  agentaflow simulate --trace jobs.csv --cluster 8x8:V100 --order fifo,least_service
      A public trace on 8 nodes of 8 GPUs, comparing two queue orders
  agentaflow simulate --synthetic --cluster 32x8 --hours 48 --load 1.2 --seed 7
      A made-up load; the same seed makes the same load
  agentaflow simulate --experiment fgd --nodes nodes.csv --pods pods.csv \\
      --seed 42 --inflate 1.3 --strategy fgd,bestfit,least_fragmented -o json
      The packing experiment of the ATC '23 paper on fragmentation

Exit codes: 0 done, 1 failed, 2 the command line or a file cannot be meant, 3 a file is missing.
docs/simulator.md explains the numbers, the file formats and the scenario language.";

/// Replay a workload in virtual time and compare strategies
///
/// The simulator feeds jobs to the same engine that schedules real GPUs, lets the clock jump from
/// event to event, and reports how well the cluster was used and how long people waited. Nothing
/// is executed and no GPU is needed.
///
/// Say what to simulate in one of five ways: a SCENARIO file, --trace, --synthetic,
/// --experiment or --demo.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
#[expect(clippy::doc_markdown, reason = "these comments are the help text, which has no markup")]
pub(crate) struct Args {
    /// Scenario file, YAML or JSON (docs/simulator.md has the language)
    #[arg(value_name = "SCENARIO")]
    pub(super) scenario: Option<PathBuf>,
    /// Job trace: ElasticFlow, Philly or Alibaba pods, told apart by its header
    #[arg(long, value_name = "FILE", help_heading = "What to simulate")]
    pub(super) trace: Option<PathBuf>,
    /// BuildOutput-up load; see --cluster, --hours, --load and --seed
    #[arg(long, help_heading = "What to simulate")]
    pub(super) synthetic: bool,
    /// Packing experiment: pods arrive one by one and never leave
    #[arg(long, value_enum, value_name = "NAME", help_heading = "What to simulate")]
    pub(super) experiment: Option<ExperimentName>,
    /// Small example, explained
    #[arg(long, help_heading = "What to simulate")]
    pub(super) demo: bool,

    /// Machines of a trace or experiment, as an Alibaba node list
    #[arg(long, value_name = "CSV", help_heading = "Input")]
    pub(super) nodes: Option<PathBuf>,
    /// Equal machines: NODESxGPUS, or NODESxGPUS:MODEL [default: 8x8 for a trace, 32x8 for --synthetic]
    #[arg(long, value_name = "SHAPE", help_heading = "Input")]
    pub(super) cluster: Option<Cluster>,
    /// Pods of the experiment, as an Alibaba pod list
    #[arg(long, value_name = "CSV", help_heading = "Input")]
    pub(super) pods: Option<PathBuf>,
    /// Order in which pods arrive: one pod name a line, repeats allowed
    #[arg(long, value_name = "TXT", help_heading = "Input")]
    pub(super) arrivals: Option<PathBuf>,
    /// Order in which equally good nodes are taken: lines of NODE,RANK
    #[arg(long, value_name = "CSV", help_heading = "Input")]
    pub(super) ranks: Option<PathBuf>,
    /// Seed of a made-up load [default: 42], or of the experiment's arrivals [default: file order]
    #[arg(long, value_name = "NUMBER", help_heading = "Input", allow_negative_numbers = true)]
    pub(super) seed: Option<u64>,
    /// With --experiment and --seed: demand that arrives, as a multiple of the capacity [default: 1.3]
    #[arg(long, value_name = "FACTOR", help_heading = "Input", allow_negative_numbers = true)]
    pub(super) inflate: Option<f64>,
    /// With --synthetic: hours during which jobs arrive [default: 24]
    #[arg(long, value_name = "HOURS", help_heading = "Input", allow_negative_numbers = true)]
    pub(super) hours: Option<f64>,
    /// With --synthetic: GPU time asked for, as a multiple of what there is [default: 0.9]
    #[arg(long, value_name = "FACTOR", help_heading = "Input", allow_negative_numbers = true)]
    pub(super) load: Option<f64>,

    /// Strategies to compare, separated by commas, or `all`
    #[arg(short, long, value_name = "NAME,…", value_delimiter = ',', value_parser = strategies(), help_heading = "How to simulate")]
    pub(super) strategy: Vec<StrategyChoice>,
    /// Who is served first; several, separated by commas, are compared
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = orders(), help_heading = "How to simulate")]
    pub(super) order: Vec<QueueOrder>,
    /// Let preempted work go on where it was stopped instead of starting again
    #[arg(long, help_heading = "How to simulate")]
    pub(super) resume: bool,
    /// Plan all running work anew at every event, as if stopping cost nothing: with --order
    /// least_service the literature's SRSF, with shortest its SRTF
    #[arg(long, help_heading = "How to simulate")]
    pub(super) replan: bool,
    /// Stop after so many virtual hours
    #[arg(
        long,
        value_name = "HOURS",
        help_heading = "How to simulate",
        allow_negative_numbers = true
    )]
    pub(super) until: Option<f64>,
    /// Check every invariant after every decision; slow
    #[arg(long, help_heading = "How to simulate")]
    pub(super) check: bool,

    /// How to print the numbers
    #[arg(
        short,
        long,
        value_enum,
        value_name = "FORMAT",
        default_value = "table",
        help_heading = "Output"
    )]
    pub(super) output: Format,
    /// Write the curves over time as one self-contained page
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(super) html: Option<PathBuf>,
    /// With -o json: add the curve over time to each object
    #[arg(long, help_heading = "Output")]
    pub(super) curve: bool,
}

/// A packing experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ExperimentName {
    /// Weng et al., "Beware of Fragmentation", USENIX ATC '23
    Fgd,
}

/// A strategy, or all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StrategyChoice {
    All,
    One(Strategy),
}

/// Equal machines, as `--cluster` says them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cluster {
    pub(super) nodes: u32,
    pub(super) gpus_per_node: u32,
    pub(super) model: Option<String>,
}

impl std::str::FromStr for Cluster {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (shape, model) = match text.split_once(':') {
            Some((shape, model)) => (shape, Some(model.trim().to_owned())),
            None => (text, None),
        };
        let numbers = shape.split_once(['x', 'X', '×']);
        let parsed = numbers.and_then(|(nodes, gpus)| {
            Some((nodes.trim().parse().ok()?, gpus.trim().parse().ok()?))
        });
        match parsed {
            Some((nodes, gpus_per_node))
                if nodes > 0 && gpus_per_node > 0 && model.as_deref() != Some("") =>
            {
                Ok(Self { nodes, gpus_per_node, model })
            }
            _ => {
                Err("write it as NODESxGPUS or NODESxGPUS:MODEL, such as 8x8 or 4x8:H100"
                    .to_owned())
            }
        }
    }
}

/// Accepts the names of strategies; close misses get a hint.
fn strategies() -> impl clap::builder::TypedValueParser<Value = StrategyChoice> {
    let all = PossibleValue::new("all").help("Every one of these");
    let names = Strategy::ALL
        .iter()
        .map(|(name, strategy)| PossibleValue::new(name).help(meaning(*strategy)));
    PossibleValuesParser::new(names.chain([all])).map(|name| match name.parse() {
        Ok(strategy) => StrategyChoice::One(strategy),
        Err(_) => StrategyChoice::All,
    })
}

fn meaning(strategy: Strategy) -> &'static str {
    match strategy {
        Strategy::LeastUtilized => "The least busy GPU, then the least allocated",
        Strategy::BestFit => "The GPU with the tightest memory that fits",
        Strategy::Priority => "GPUs as least_utilized, work strictly by priority",
        Strategy::RoundRobin => "The next GPU after the last one given out",
        Strategy::LeastFragmented => "Where the work to expect loses the least",
        Strategy::Cheapest => "The cheapest node",
        Strategy::Pack => "The fullest node, keeping NVLink groups together",
        Strategy::Fgd => "Fragmentation gradient descent as published at ATC '23",
        Strategy::PaperBestFit => "The best-fit baseline of the same paper",
    }
}

/// Accepts the names of queue orders; close misses get a hint.
fn orders() -> impl clap::builder::TypedValueParser<Value = QueueOrder> {
    let names =
        QueueOrder::ALL.iter().map(|(name, order)| PossibleValue::new(name).help(turn(*order)));
    PossibleValuesParser::new(names).map(|name| {
        let known = QueueOrder::ALL.iter().find(|(known, _)| *known == name);
        known.map_or(QueueOrder::FairShare, |(_, order)| *order)
    })
}

fn turn(order: QueueOrder) -> &'static str {
    match order {
        QueueOrder::FairShare => {
            "The queue with the smallest share first, then priority with ageing"
        }
        QueueOrder::Priority => "Strictly by priority, then oldest",
        QueueOrder::Fifo => "Oldest first",
        QueueOrder::Shortest => "Shortest expected run first",
        QueueOrder::LeastService => "Least expected GPU time first",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_written_as_nodes_by_gpus() {
        let cluster = |nodes, gpus_per_node, model: Option<&str>| Cluster {
            nodes,
            gpus_per_node,
            model: model.map(String::from),
        };
        assert_eq!("8x4".parse(), Ok(cluster(8, 4, None)));
        assert_eq!("2x8:NVIDIA H100".parse(), Ok(cluster(2, 8, Some("NVIDIA H100"))));
        for wrong in ["8", "0x8", "8x0", "8x8:", "axb", "-1x8"] {
            assert!(wrong.parse::<Cluster>().is_err(), "{wrong}");
        }
    }
}
