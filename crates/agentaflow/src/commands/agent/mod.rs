//! `agentaflow agent`: makes this machine a node of a server.

mod args;
mod kubernetes;
mod settings;

use anyhow::Result;
use tokio_util::sync::CancellationToken;

pub(crate) use args::Args;

use super::standalone::{self, asked_to_stop};

pub(crate) fn run(args: &Args) -> Result<()> {
    args.log.start()?;
    let settings = settings::settings(args)?;
    if args.runtime.contains(&args::Way::Kubernetes) {
        return standalone::runtime(1)?.block_on(kubernetes::run(args, settings));
    }
    let stop = CancellationToken::new();
    standalone::runtime(1)?.block_on(async {
        let agent = agentaflow_agent::run(settings, stop.clone());
        tokio::pin!(agent);
        tokio::select! {
            ended = &mut agent => return Ok(ended?),
            asked = asked_to_stop() => asked?,
        }
        tracing::info!("stopping; jobs keep running and are adopted by the next agent");
        stop.cancel();
        Ok(agent.await?)
    })
}
