//! `agentaflow agent`: offers this machine as a node of a server.

mod args;
mod kubernetes;
mod settings;

use anyhow::Result;
use tokio_util::sync::CancellationToken;

pub(crate) use args::Args;

use super::standalone::{self, termination_signal};

pub(crate) fn run(args: &Args) -> Result<()> {
    args.log.start()?;
    let settings = settings::settings(args)?;
    if args.runtime.contains(&args::RuntimeName::Kubernetes) {
        return standalone::runtime(1)?.block_on(kubernetes::run(args, settings));
    }
    let stop = CancellationToken::new();
    standalone::runtime(1)?.block_on(async {
        args.otlp.push_gpu_metrics("agentaflow-agent", settings.metrics.clone(), stop.clone())?;
        let agent = agentaflow_agent::run(settings, stop.clone());
        tokio::pin!(agent);
        tokio::select! {
            ended = &mut agent => return Ok(ended?),
            received = termination_signal() => received?,
        }
        tracing::info!("stopping; jobs keep running and are adopted by the next agent");
        stop.cancel();
        Ok(agent.await?)
    })
}
