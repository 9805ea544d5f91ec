//! `--runtime kubernetes`: offers a node of a cluster.

use agentaflow_agent::AgentSettings;
use agentaflow_kube_worker::{Settings, Worker};
use anyhow::{Context as _, Result};
use tokio_util::sync::CancellationToken;

use super::Args;
use crate::commands::standalone::termination_signal;
use crate::connect;
use crate::context::{Kubernetes, variable};
use crate::failure::usage;

/// Runs an agent until a termination signal, and restarts it when the resources of the node change.
pub(super) async fn run(args: &Args, mut settings: AgentSettings) -> Result<()> {
    let signal = termination_signal();
    tokio::pin!(signal);
    let worker = tokio::select! {
        worker = worker(args, &settings) => worker?,
        received = &mut signal => return received,
    };
    settings.remote_node = Some(worker.remote_node());
    settings.gpus = worker.gpus();
    loop {
        let stop = CancellationToken::new();
        let agent = agentaflow_agent::run(settings.clone(), stop.clone());
        tokio::pin!(agent);
        let terminated = tokio::select! {
            ended = &mut agent => return Ok(ended?),
            received = &mut signal => {
                received?;
                tracing::info!("stopping; jobs keep running and are adopted by the next agent");
                true
            }
            () = worker.changed() => false,
        };
        stop.cancel();
        agent.await?;
        if terminated {
            return Ok(());
        }
    }
}

async fn worker(args: &Args, settings: &AgentSettings) -> Result<Worker> {
    let node = args.node.clone().or_else(|| variable("NODE_NAME"));
    let node = node.ok_or_else(|| {
        usage("--runtime kubernetes requires a node: use --node NAME or set NODE_NAME")
    })?;
    // Fails only if a provider is already installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let target = Kubernetes {
        kubeconfig: args.kubeconfig.clone(),
        context: args.kube_context.clone(),
        ..Kubernetes::default()
    };
    let mut config = connect::config(&target).await?;
    // The worker has its own retry policies.
    config.default_retry = false;
    let namespace = args.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    let client =
        kube::Client::try_from(config).context("cannot create a client for the cluster")?;
    let worker = Worker::connect(Settings {
        client,
        cluster: args.kube_context.clone(),
        namespace,
        node,
        server: settings.server.clone(),
        state_dir: settings.state_dir.clone(),
        log_limit: settings.log_limit,
        lease: settings.heartbeat_interval * 2,
        trust_local_images: args.trust_local_images,
    });
    Ok(worker.await?)
}
