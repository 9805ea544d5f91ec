//! Valid combinations of options.

use anyhow::Result;

use super::args::Args;
use crate::failure::usage;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InputKind {
    Scenario,
    Trace,
    Synthetic,
    Experiment,
    Demo,
}

impl InputKind {
    fn option(self) -> &'static str {
        match self {
            Self::Scenario => "a SCENARIO file",
            Self::Trace => "--trace",
            Self::Synthetic => "--synthetic",
            Self::Experiment => "--experiment",
            Self::Demo => "--demo",
        }
    }
}

/// An option that is valid only with some inputs.
struct Rule {
    option: &'static str,
    given: fn(&Args) -> bool,
    inputs: &'static [InputKind],
}

const REPLAYS: &[InputKind] =
    &[InputKind::Scenario, InputKind::Trace, InputKind::Synthetic, InputKind::Demo];

const RULES: [Rule; 14] = [
    Rule {
        option: "--nodes",
        given: |args| args.nodes.is_some(),
        inputs: &[InputKind::Trace, InputKind::Experiment],
    },
    Rule {
        option: "--cluster",
        given: |args| args.cluster.is_some(),
        inputs: &[InputKind::Trace, InputKind::Synthetic],
    },
    Rule { option: "--pods", given: |args| args.pods.is_some(), inputs: &[InputKind::Experiment] },
    Rule {
        option: "--arrivals",
        given: |args| args.arrivals.is_some(),
        inputs: &[InputKind::Experiment],
    },
    Rule {
        option: "--ranks",
        given: |args| args.ranks.is_some(),
        inputs: &[InputKind::Experiment],
    },
    Rule {
        option: "--inflate",
        given: |args| args.inflate.is_some(),
        inputs: &[InputKind::Experiment],
    },
    Rule {
        option: "--seed",
        given: |args| args.seed.is_some(),
        inputs: &[InputKind::Synthetic, InputKind::Experiment],
    },
    Rule { option: "--hours", given: |args| args.hours.is_some(), inputs: &[InputKind::Synthetic] },
    Rule { option: "--load", given: |args| args.load.is_some(), inputs: &[InputKind::Synthetic] },
    Rule { option: "--order", given: |args| !args.order.is_empty(), inputs: REPLAYS },
    Rule { option: "--resume", given: |args| args.resume, inputs: REPLAYS },
    Rule { option: "--replan", given: |args| args.replan, inputs: REPLAYS },
    Rule { option: "--until", given: |args| args.until.is_some(), inputs: REPLAYS },
    Rule { option: "--check", given: |args| args.check, inputs: REPLAYS },
];

/// The input; fails on invalid combinations of options.
pub(super) fn input_kind(args: &Args) -> Result<InputKind> {
    let input = single_input(&given_inputs(args))?;
    for rule in RULES.iter().filter(|rule| (rule.given)(args)) {
        if !rule.inputs.contains(&input) {
            let inputs: Vec<_> = rule.inputs.iter().map(|input| input.option()).collect();
            return Err(usage(format!(
                "{} requires {}, and cannot be combined with {}",
                rule.option,
                either(&inputs),
                input.option(),
            )));
        }
    }
    check_pairs(args, input)?;
    Ok(input)
}

fn given_inputs(args: &Args) -> Vec<InputKind> {
    let given = [
        (args.scenario.is_some(), InputKind::Scenario),
        (args.trace.is_some(), InputKind::Trace),
        (args.synthetic, InputKind::Synthetic),
        (args.experiment.is_some(), InputKind::Experiment),
        (args.demo, InputKind::Demo),
    ];
    given.into_iter().filter(|(given, _)| *given).map(|(_, input)| input).collect()
}

fn single_input(inputs: &[InputKind]) -> Result<InputKind> {
    match inputs {
        [input] => Ok(*input),
        [] => Err(usage(
            "missing input: use a SCENARIO file, --trace FILE, --synthetic, --experiment fgd or --demo",
        )),
        [first, second, ..] => {
            Err(usage(format!("{} cannot be combined with {}", first.option(), second.option())))
        }
    }
}

/// Options that require or exclude each other.
fn check_pairs(args: &Args, input: InputKind) -> Result<()> {
    let message = if input == InputKind::Experiment && args.nodes.is_none() {
        "--experiment requires --nodes NODES.csv"
    } else if input == InputKind::Experiment && args.pods.is_none() {
        "--experiment requires --pods PODS.csv"
    } else if args.arrivals.is_some() && args.seed.is_some() {
        "--arrivals cannot be combined with --seed"
    } else if args.inflate.is_some() && args.seed.is_none() {
        "--inflate requires --seed NUMBER"
    } else if args.nodes.is_some() && args.cluster.is_some() {
        "--nodes cannot be combined with --cluster"
    } else if args.curve && args.output != crate::output::Format::Json {
        "--curve requires -o json; use --html FILE to plot the curves"
    } else if args.until.is_some_and(|hours| !hours.is_finite() || hours <= 0.0) {
        "--until requires a number of hours above 0, such as --until 12"
    } else {
        return Ok(());
    };
    Err(usage(message))
}

fn either(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [most @ .., last] => format!("{} or {last}", most.join(", ")),
    }
}
