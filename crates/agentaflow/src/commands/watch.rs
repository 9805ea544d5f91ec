//! `agentaflow watch`: the status, again and again.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use anyhow::Result;

use super::status;
use crate::amount;
use crate::connect::{Connect, block_on};
use crate::output;

/// Show the status again and again; `top` shows more
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Time between two looks
    #[arg(long, value_name = "TIME", value_parser = amount::some_duration, default_value = "2s")]
    interval: Duration,
    /// End after so many looks
    #[arg(long, value_name = "NUMBER", value_parser = amount::some::<u64>)]
    count: Option<u64>,
    #[command(flatten)]
    connect: Connect,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    block_on(async {
        let backend = args.connect.backend().await?;
        let terminal = io::stdout().is_terminal();
        let mut looks = 0;
        loop {
            let text = status::overview(&status::glance(&backend).await?);
            if terminal {
                output::print_anew(&text)?;
            } else {
                output::print(&format!("{text}\n"))?;
            }
            looks += 1;
            if args.count.is_some_and(|count| looks >= count) {
                return Ok(());
            }
            tokio::time::sleep(args.interval).await;
        }
    })
}
