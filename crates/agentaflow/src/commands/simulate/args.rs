//! Options of `simulate`.

use std::path::PathBuf;

use agentaflow_engine::{QueueOrder, Strategy};
use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser as _};

use crate::output::Format;

const EXAMPLES: &str = "\
Examples:
  agentaflow simulate --demo
      A small cluster with four strategies; start here
  agentaflow simulate lab.yaml --strategy all --html report.html
      Your own scenario with all strategies, and an HTML report
  agentaflow simulate --trace jobs.csv --cluster 8x8:V100 --order fifo,least_service
      A public trace on 8 nodes with 8 GPUs each, with two queue orders
  agentaflow simulate --synthetic --cluster 32x8 --hours 48 --load 1.2 --seed 7
      A synthetic load, reproducible by its seed
  agentaflow simulate --experiment fgd --nodes nodes.csv --pods pods.csv \\
      --seed 42 --inflate 1.3 --strategy fgd,bestfit,least_fragmented -o json
      The packing experiment of the ATC '23 paper on fragmentation

Exit codes: 0 success, 1 failure, 2 invalid command line or file, 3 file not found.
docs/simulator.md explains the metrics, the file formats and the scenario language.";

/// Replay a workload in virtual time and compare strategies
///
/// The simulator drives the engine of the real schedulers with a virtual clock, and reports
/// utilization and waiting times. No job is executed and no GPU is needed.
///
/// The input is one of: a SCENARIO file, --trace, --synthetic, --experiment or --demo.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
#[expect(clippy::doc_markdown, reason = "these comments are the help text, which has no markup")]
pub(crate) struct Args {
    /// Scenario file in YAML or JSON; see docs/simulator.md
    #[arg(value_name = "SCENARIO")]
    pub(super) scenario: Option<PathBuf>,
    /// Job trace: ElasticFlow, Philly or Alibaba pods, detected by its header
    #[arg(long, value_name = "FILE", help_heading = "Input")]
    pub(super) trace: Option<PathBuf>,
    /// Synthetic load; see --cluster, --hours, --load and --seed
    #[arg(long, help_heading = "Input")]
    pub(super) synthetic: bool,
    /// Packing experiment: pods arrive one by one and never leave
    #[arg(long, value_enum, value_name = "NAME", help_heading = "Input")]
    pub(super) experiment: Option<ExperimentName>,
    /// Small example with explanations
    #[arg(long, help_heading = "Input")]
    pub(super) demo: bool,

    /// Nodes of a trace or experiment, as an Alibaba node list
    #[arg(long, value_name = "CSV", help_heading = "Input")]
    pub(super) nodes: Option<PathBuf>,
    /// Uniform nodes: NODESxGPUS or NODESxGPUS:MODEL [default: 8x8 for a trace, 32x8 for --synthetic]
    #[arg(long, value_name = "SHAPE", help_heading = "Input")]
    pub(super) cluster: Option<Cluster>,
    /// Pods of the experiment, as an Alibaba pod list
    #[arg(long, value_name = "CSV", help_heading = "Input")]
    pub(super) pods: Option<PathBuf>,
    /// Arrival order of pods: one pod name per line, repeatable
    #[arg(long, value_name = "TXT", help_heading = "Input")]
    pub(super) arrivals: Option<PathBuf>,
    /// Tie-breaking order of nodes: lines of NODE,RANK
    #[arg(long, value_name = "CSV", help_heading = "Input")]
    pub(super) ranks: Option<PathBuf>,
    /// Seed of the synthetic load [default: 42], or of the arrivals of an experiment [default: file order]
    #[arg(long, value_name = "NUMBER", help_heading = "Input", allow_negative_numbers = true)]
    pub(super) seed: Option<u64>,
    /// With --experiment and --seed: total demand as a multiple of the capacity [default: 1.3]
    #[arg(long, value_name = "FACTOR", help_heading = "Input", allow_negative_numbers = true)]
    pub(super) inflate: Option<f64>,
    /// With --synthetic: hours of arrivals [default: 24]
    #[arg(long, value_name = "HOURS", help_heading = "Input", allow_negative_numbers = true)]
    pub(super) hours: Option<f64>,
    /// With --synthetic: requested GPU time as a multiple of the capacity [default: 0.9]
    #[arg(long, value_name = "FACTOR", help_heading = "Input", allow_negative_numbers = true)]
    pub(super) load: Option<f64>,

    /// Strategies to compare, comma-separated, or `all`
    #[arg(short, long, value_name = "NAME,…", value_delimiter = ',', value_parser = strategies(), help_heading = "Simulation")]
    pub(super) strategy: Vec<StrategyChoice>,
    /// Queue orders to compare, comma-separated
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = orders(), help_heading = "Simulation")]
    pub(super) order: Vec<QueueOrder>,
    /// Resume preempted jobs instead of restarting them
    #[arg(long, help_heading = "Simulation")]
    pub(super) resume: bool,
    /// Replan all running jobs at every event, with free preemption: SRSF with --order least_service,
    /// SRTF with --order shortest
    #[arg(long, help_heading = "Simulation")]
    pub(super) replan: bool,
    /// Stop after this many virtual hours
    #[arg(long, value_name = "HOURS", help_heading = "Simulation", allow_negative_numbers = true)]
    pub(super) until: Option<f64>,
    /// Check all invariants after every decision; slow
    #[arg(long, help_heading = "Simulation")]
    pub(super) check: bool,

    /// Output format
    #[arg(
        short,
        long,
        value_enum,
        value_name = "FORMAT",
        default_value = "table",
        help_heading = "Output"
    )]
    pub(super) output: Format,
    /// Write the curves over time as a self-contained HTML page
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(super) html: Option<PathBuf>,
    /// With -o json: add the curve over time to each object
    #[arg(long, help_heading = "Output")]
    pub(super) curve: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ExperimentName {
    /// Weng et al., "Beware of Fragmentation", USENIX ATC '23
    Fgd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StrategyChoice {
    All,
    One(Strategy),
}

/// Uniform nodes of `--cluster`.
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
            _ => Err("use NODESxGPUS or NODESxGPUS:MODEL, such as 8x8 or 4x8:H100".to_owned()),
        }
    }
}

/// Parser of strategy names; clap suggests near misses.
fn strategies() -> impl clap::builder::TypedValueParser<Value = StrategyChoice> {
    let all = PossibleValue::new("all").help("All strategies");
    let names = Strategy::ALL
        .iter()
        .map(|strategy| PossibleValue::new(strategy.name()).help(strategy.description()));
    PossibleValuesParser::new(names.chain([all])).map(|name| match name.parse() {
        Ok(strategy) => StrategyChoice::One(strategy),
        Err(_) => StrategyChoice::All,
    })
}

/// Parser of queue orders; clap suggests near misses.
fn orders() -> impl clap::builder::TypedValueParser<Value = QueueOrder> {
    let names = QueueOrder::ALL
        .iter()
        .map(|(name, order)| PossibleValue::new(name).help(order_help(*order)));
    PossibleValuesParser::new(names).map(|name| {
        let known = QueueOrder::ALL.iter().find(|(known, _)| *known == name);
        known.map_or(QueueOrder::FairShare, |(_, order)| *order)
    })
}

fn order_help(order: QueueOrder) -> &'static str {
    match order {
        QueueOrder::FairShare => "Queue with the smallest share first, then priority with ageing",
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
    fn a_cluster_is_nodes_by_gpus() {
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
