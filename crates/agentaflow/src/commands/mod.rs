//! The commands, one module each.

mod simulate;

use anyhow::Result;

/// What to do.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Simulate(Box<simulate::Args>),
}

impl Command {
    pub(crate) fn run(self) -> Result<()> {
        match self {
            Self::Simulate(args) => simulate::run(&args),
        }
    }
}
