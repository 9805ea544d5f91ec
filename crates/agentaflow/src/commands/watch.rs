//! `agentaflow watch`: refreshes the overview.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use anyhow::Result;

use super::status;
use crate::amount;
use crate::connect::{Connect, block_on};
use crate::output;

/// Refresh the status overview; see also `top`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Refresh interval
    #[arg(long, value_name = "TIME", value_parser = amount::positive_duration, default_value = "2s")]
    interval: Duration,
    /// Exit after N refreshes
    #[arg(long, value_name = "N", value_parser = amount::positive::<u64>)]
    count: Option<u64>,
    #[command(flatten)]
    connect: Connect,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    block_on(async {
        let backend = args.connect.backend().await?;
        let terminal = io::stdout().is_terminal();
        let mut refreshes = 0;
        loop {
            let text = status::overview_text(&status::overview(&backend).await?);
            if terminal {
                output::redraw(&text)?;
            } else {
                output::print(&format!("{text}\n"))?;
            }
            refreshes += 1;
            if args.count.is_some_and(|count| refreshes >= count) {
                return Ok(());
            }
            tokio::time::sleep(args.interval).await;
        }
    })
}
