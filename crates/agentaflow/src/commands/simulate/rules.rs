//! Which options go together. Every refusal says what to do.

use anyhow::Result;

use super::args::Args;
use crate::failure::usage;

/// What is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Scenario,
    Trace,
    Synthetic,
    Experiment,
    Demo,
}

impl Kind {
    /// As it is written on the command line.
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

/// An option that makes sense with some kinds only.
struct Rule {
    option: &'static str,
    given: fn(&Args) -> bool,
    kinds: &'static [Kind],
}

const REPLAYS: &[Kind] = &[Kind::Scenario, Kind::Trace, Kind::Synthetic, Kind::Demo];

const RULES: [Rule; 14] = [
    Rule {
        option: "--nodes",
        given: |args| args.nodes.is_some(),
        kinds: &[Kind::Trace, Kind::Experiment],
    },
    Rule {
        option: "--cluster",
        given: |args| args.cluster.is_some(),
        kinds: &[Kind::Trace, Kind::Synthetic],
    },
    Rule { option: "--pods", given: |args| args.pods.is_some(), kinds: &[Kind::Experiment] },
    Rule {
        option: "--arrivals",
        given: |args| args.arrivals.is_some(),
        kinds: &[Kind::Experiment],
    },
    Rule { option: "--ranks", given: |args| args.ranks.is_some(), kinds: &[Kind::Experiment] },
    Rule { option: "--inflate", given: |args| args.inflate.is_some(), kinds: &[Kind::Experiment] },
    Rule {
        option: "--seed",
        given: |args| args.seed.is_some(),
        kinds: &[Kind::Synthetic, Kind::Experiment],
    },
    Rule { option: "--hours", given: |args| args.hours.is_some(), kinds: &[Kind::Synthetic] },
    Rule { option: "--load", given: |args| args.load.is_some(), kinds: &[Kind::Synthetic] },
    Rule { option: "--order", given: |args| !args.order.is_empty(), kinds: REPLAYS },
    Rule { option: "--resume", given: |args| args.resume, kinds: REPLAYS },
    Rule { option: "--replan", given: |args| args.replan, kinds: REPLAYS },
    Rule { option: "--until", given: |args| args.until.is_some(), kinds: REPLAYS },
    Rule { option: "--check", given: |args| args.check, kinds: REPLAYS },
];

/// What is to be simulated, after a look at whether the options belong together.
pub(super) fn kind(args: &Args) -> Result<Kind> {
    let kind = the_one(&given(args))?;
    for rule in RULES.iter().filter(|rule| (rule.given)(args)) {
        if !rule.kinds.contains(&kind) {
            let kinds: Vec<_> = rule.kinds.iter().map(|kind| kind.option()).collect();
            return Err(usage(format!(
                "{} goes with {}, not with {}: leave one of the two out",
                rule.option,
                either(&kinds),
                kind.option(),
            )));
        }
    }
    pairs(args, kind)?;
    Ok(kind)
}

fn given(args: &Args) -> Vec<Kind> {
    let given = [
        (args.scenario.is_some(), Kind::Scenario),
        (args.trace.is_some(), Kind::Trace),
        (args.synthetic, Kind::Synthetic),
        (args.experiment.is_some(), Kind::Experiment),
        (args.demo, Kind::Demo),
    ];
    given.into_iter().filter(|(given, _)| *given).map(|(_, kind)| kind).collect()
}

fn the_one(kinds: &[Kind]) -> Result<Kind> {
    match kinds {
        [kind] => Ok(*kind),
        [] => Err(usage(
            "nothing to simulate: give a SCENARIO file, --trace FILE, --synthetic or --experiment fgd, \
             or --demo to see an example",
        )),
        [first, second, ..] => Err(usage(format!(
            "{} and {} both say what to simulate: keep one of them",
            first.option(),
            second.option(),
        ))),
    }
}

/// Options of one kind that need or exclude each other.
fn pairs(args: &Args, kind: Kind) -> Result<()> {
    let refused = if kind == Kind::Experiment && args.nodes.is_none() {
        "--experiment needs its machines: add --nodes NODES.csv"
    } else if kind == Kind::Experiment && args.pods.is_none() {
        "--experiment needs its pods: add --pods PODS.csv"
    } else if args.arrivals.is_some() && args.seed.is_some() {
        "--arrivals and --seed both choose the order of arrival: keep one of them"
    } else if args.inflate.is_some() && args.seed.is_none() {
        "--inflate draws pods at random: add --seed NUMBER to say how"
    } else if args.nodes.is_some() && args.cluster.is_some() {
        "--nodes and --cluster both describe the machines: keep one of them"
    } else if args.curve && args.output != crate::output::Format::Json {
        "--curve adds to JSON only: add -o json, or use --html FILE to see the curves"
    } else if args.until.is_some_and(|hours| !hours.is_finite() || hours <= 0.0) {
        "--until takes a number of hours above zero, such as --until 12"
    } else {
        return Ok(());
    };
    Err(usage(refused))
}

fn either(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [most @ .., last] => format!("{} or {last}", most.join(", ")),
    }
}
