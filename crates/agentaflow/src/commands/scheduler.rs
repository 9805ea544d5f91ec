//! `agentaflow scheduler`: places the GPU work of a Kubernetes cluster.

use std::path::PathBuf;
use std::time::Duration;

use agentaflow_kube_scheduler::state::{Settings, SettingsError, node_selector, percent, strategy};
use agentaflow_kube_scheduler::{self as scheduler, Options};
use agentaflow_kube_webhook::{self as webhook, Certificates};
use anyhow::{Context as _, Result};
use tokio_util::sync::CancellationToken;

use super::kubernetes;
use super::standalone::{self, asked_to_stop};
use crate::amount;
use crate::context::variable;
use crate::failure::usage;
use crate::logging::LogArgs;

const EXAMPLES: &str = "\
Examples:
  agentaflow scheduler
      In a pod, with the service account of deploy/kubernetes
  agentaflow scheduler --kubeconfig ~/.kube/config --webhook off
      From outside; pods must name the scheduler themselves
  agentaflow scheduler --node-selector pool=gpu --strategy best_fit
      Only some nodes, and the tightest fit first

Environment, where the command line does not say: KUBERNETES_NAMESPACE, SCHEDULING_STRATEGY, SCHEDULING_INTERVAL,
GPU_UTILIZATION_GOAL, POD_NAME, LOG_LEVEL. The strategy can be changed while it runs: key `strategy` of the ConfigMap.
Several replicas may run; one leads.";

/// Place the GPU work of a Kubernetes cluster
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[expect(clippy::doc_markdown, reason = "these comments are the help text, which has no markup")]
pub(crate) struct Args {
    /// The cluster [default: the pod's own, else KUBECONFIG, else ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Namespace of the product: lease, settings, GPUNode objects [default: KUBERNETES_NAMESPACE, else agentaflow]
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// Pods with this schedulerName are placed
    #[arg(long, value_name = "NAME", default_value = agentaflow_kube_core::names::SCHEDULER_NAME)]
    scheduler_name: String,
    /// Only nodes with these labels, such as `pool=gpu,zone!=c`
    #[arg(long, value_name = "SELECTOR", value_parser = selector)]
    node_selector: Option<agentaflow_engine::labels::NodeTerm>,
    /// How GPUs are chosen for workloads that do not say [default: SCHEDULING_STRATEGY, else least_utilized]
    #[arg(long, value_name = "NAME")]
    strategy: Option<String>,
    /// The longest time between two passes; changes are acted on at once [default: SCHEDULING_INTERVAL, else 5s]
    #[arg(long, value_name = "TIME", value_parser = amount::some_duration)]
    interval: Option<Duration>,
    /// Shared placements avoid GPUs busier than this percentage [default: GPU_UTILIZATION_GOAL, else 80]
    #[arg(long, value_name = "PERCENT")]
    utilization_goal: Option<String>,
    /// ConfigMap with settings that can be changed at run time
    #[arg(long, value_name = "NAME", default_value = "agentaflow-scheduler-config")]
    config_map: String,
    /// Lease by which one of several replicas leads
    #[arg(long, value_name = "NAME", default_value = "agentaflow-gpu-scheduler")]
    lease_name: String,
    /// Name of this replica [default: POD_NAME, else host name and process]
    #[arg(long, value_name = "NAME")]
    identity: Option<String>,

    /// Where to answer /healthz, /readyz and /explain/NAMESPACE/NAME; `none` for nowhere
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:8080", value_parser = kubernetes::listen, help_heading = "Listening")]
    http: kubernetes::Listen,
    /// Where to answer /metrics; `none` for nowhere
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:9090", value_parser = kubernetes::listen, help_heading = "Listening")]
    metrics: kubernetes::Listen,

    /// Where admission answers the API server; `off` for nowhere
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:9443", value_parser = kubernetes::listen, help_heading = "Admission")]
    webhook: kubernetes::Listen,
    /// How an API server outside of the cluster's network reaches it, such as https://10.0.0.5:9443; the webhook
    /// configurations are then made here
    #[arg(long, value_name = "URL", help_heading = "Admission")]
    webhook_url: Option<String>,
    /// PEM file of the certificate that somebody else keeps up to date [default: one of our own making]
    #[arg(long, value_name = "FILE", requires = "webhook_key", help_heading = "Admission")]
    webhook_cert: Option<PathBuf>,
    /// PEM file of its key
    #[arg(long, value_name = "FILE", requires = "webhook_cert", help_heading = "Admission")]
    webhook_key: Option<PathBuf>,
    /// PEM file of what the API server is told to trust
    #[arg(long, value_name = "FILE", requires = "webhook_cert", help_heading = "Admission")]
    webhook_ca: Option<PathBuf>,

    #[command(flatten)]
    log: LogArgs,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    args.log.start()?;
    let options = options(args)?;
    let stop = CancellationToken::new();
    standalone::runtime(2)?.block_on(async {
        let client = kubernetes::client(args.kubeconfig.as_deref()).await?;
        let namespace = options.namespace.clone();
        let admission = admission(args, namespace, client.clone(), stop.clone());
        let scheduler = scheduler::run(options, client, stop.clone());
        tokio::pin!(admission, scheduler);
        tokio::select! {
            ended = &mut scheduler => return Ok(ended?),
            ended = &mut admission => return ended,
            asked = asked_to_stop() => asked?,
        }
        tracing::info!("stopping; the lease is given back");
        stop.cancel();
        // Questions of the API server that were begun are answered, too.
        let (scheduler, admission) = tokio::join!(scheduler, admission);
        scheduler?;
        admission
    })
}

/// Answers the API server's questions until `stop`, if it is to answer any.
async fn admission(
    args: &Args,
    namespace: String,
    client: kube::Client,
    stop: CancellationToken,
) -> Result<()> {
    let Some(listen) = args.webhook.0 else {
        stop.cancelled().await;
        return Ok(());
    };
    let files = args.webhook_cert.clone().zip(args.webhook_key.clone());
    let certificates = files.map_or(Certificates::SelfMade, |(certificate, key)| {
        Certificates::Files { certificate, key, authority: args.webhook_ca.clone() }
    });
    let settings = webhook::Options {
        listen,
        namespace,
        certificates,
        url: args.webhook_url.clone(),
        scheduler_name: args.scheduler_name.clone(),
        ..webhook::Options::default()
    };
    webhook::serve(settings, client, stop.clone()).await?;
    stop.cancelled().await;
    Ok(())
}

fn options(args: &Args) -> Result<Options> {
    let mut settings = Settings::new(&args.scheduler_name);
    settings.node_selector.clone_from(&args.node_selector);
    settings.admission = args.webhook.0.is_some();
    let name = args.strategy.clone().or_else(|| variable("SCHEDULING_STRATEGY"));
    if let Some(name) = name {
        settings.policy.strategy =
            strategy(&name).map_err(said("--strategy or SCHEDULING_STRATEGY"))?;
    }
    let goal = args.utilization_goal.clone().or_else(|| variable("GPU_UTILIZATION_GOAL"));
    let goal = percent(goal.as_deref().unwrap_or("80"));
    settings.policy.utilization_goal =
        Some(goal.map_err(said("--utilization-goal or GPU_UTILIZATION_GOAL"))?);
    let interval = match (args.interval, variable("SCHEDULING_INTERVAL")) {
        (Some(interval), _) => interval,
        (None, Some(text)) => amount::some_duration(&text)
            .map_err(|why| usage(format!("SCHEDULING_INTERVAL: {why}")))?,
        (None, None) => Duration::from_secs(5),
    };
    let identity = args.identity.clone().or_else(|| variable("POD_NAME"));
    Ok(Options {
        namespace: kubernetes::namespace(args.namespace.as_deref()),
        settings,
        lease: args.lease_name.clone(),
        config: args.config_map.clone(),
        identity: identity.map_or_else(own_name, Ok)?,
        health: args.http.0,
        metrics: args.metrics.0,
        interval,
    })
}

fn own_name() -> Result<String> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname");
    let host = host.context("cannot read this machine's name; give --identity")?;
    Ok(format!("{}-{}", host.trim(), std::process::id()))
}

fn selector(text: &str) -> Result<agentaflow_engine::labels::NodeTerm, String> {
    node_selector(text).map_err(|error| error.to_string())
}

fn said(what: &'static str) -> impl Fn(SettingsError) -> anyhow::Error {
    move |error| usage(format!("{what}: {error}"))
}
