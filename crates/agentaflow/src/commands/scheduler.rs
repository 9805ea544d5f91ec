//! `agentaflow scheduler`: the GPU scheduler of a Kubernetes cluster.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use agentaflow_dashboard::Dashboard;
use agentaflow_kube_metrics as custom_metrics;
use agentaflow_kube_scheduler::state::{Settings, SettingsError, node_selector, percent, strategy};
use agentaflow_kube_scheduler::{LeaseTimes, Options, Replica};
use agentaflow_kube_serve::{CertificateSource, ServeError};
use agentaflow_kube_web as web;
use agentaflow_kube_webhook as webhook;
use anyhow::{Context as _, Result};
use tokio_util::sync::CancellationToken;

use super::kubernetes;
use super::metrics_access::MetricsAccess;
use super::otlp_args::OtlpArgs;
use super::standalone::{self, termination_signal};
use crate::amount;
use crate::context::variable;
use crate::failure::usage;
use crate::logging::LogArgs;

const EXAMPLES: &str = "\
Examples:
  agentaflow scheduler
      In a pod, with the service account of deploy/kubernetes
  agentaflow scheduler --kubeconfig ~/.kube/config --webhook off
      Outside of the cluster; pods must set schedulerName themselves
  agentaflow scheduler --node-selector pool=gpu --strategy best_fit
      Selected nodes only, with the best-fit strategy

Environment variables, overridden by options: KUBERNETES_NAMESPACE, SCHEDULING_STRATEGY, SCHEDULING_INTERVAL,
GPU_UTILIZATION_GOAL, POD_NAME, LOG_LEVEL. Key `strategy` of the ConfigMap changes the strategy at run time.
Of several replicas one is the leader.";

/// Run the GPU scheduler of a Kubernetes cluster
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[expect(clippy::doc_markdown, reason = "these comments are the help text, which has no markup")]
pub(crate) struct Args {
    /// Kubeconfig [default: the cluster of the pod, else KUBECONFIG, else ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Namespace of the lease, the ConfigMap and GPUNodes [default: KUBERNETES_NAMESPACE, else agentaflow]
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// schedulerName of the pods to schedule
    #[arg(long, value_name = "NAME", default_value = agentaflow_kube_core::names::SCHEDULER_NAME)]
    scheduler_name: String,
    /// Restrict to nodes with these labels, such as `pool=gpu,zone!=c`
    #[arg(long, value_name = "SELECTOR", value_parser = selector)]
    node_selector: Option<agentaflow_engine::labels::NodeTerm>,
    /// Default strategy [default: SCHEDULING_STRATEGY, else least_utilized]
    #[arg(long, value_name = "NAME")]
    strategy: Option<String>,
    /// Maximum time between scheduling passes; a change starts one at once [default: SCHEDULING_INTERVAL, else 5s]
    #[arg(long, value_name = "TIME", value_parser = amount::positive_duration)]
    interval: Option<Duration>,
    /// GPU utilization in percent above which no task shares the GPU [default: GPU_UTILIZATION_GOAL, else 80]
    #[arg(long, value_name = "PERCENT")]
    utilization_goal: Option<String>,
    /// Time without a report after which the monitor of a node is lost; monitors report at least once a minute
    #[arg(long, value_name = "TIME", default_value = "3m", value_parser = amount::positive_duration)]
    monitor_timeout: Duration,
    /// ConfigMap with settings that apply at run time
    #[arg(long, value_name = "NAME", default_value = "agentaflow-scheduler-config")]
    config_map: String,
    /// Lease for leader election
    #[arg(long, value_name = "NAME", default_value = "agentaflow-gpu-scheduler")]
    lease_name: String,
    /// Age of the last renewal at which another replica takes over; whole seconds
    #[arg(long, value_name = "TIME", default_value = "6s", value_parser = amount::positive_duration, help_heading = "Leader election")]
    lease_duration: Duration,
    /// Age of the last renewal at which the leader stops writing; at least 1.5 s less than the lease duration
    #[arg(long, value_name = "TIME", default_value = "4s", value_parser = amount::positive_duration, help_heading = "Leader election")]
    renew_deadline: Duration,
    /// Interval of renewals, and of checks by the other replicas; at most half of the renew deadline
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = amount::positive_duration, help_heading = "Leader election")]
    retry_period: Duration,
    /// Identity of this replica [default: POD_NAME, else host name and process id]
    #[arg(long, value_name = "NAME")]
    identity: Option<String>,

    /// Listen address for /healthz, /readyz and /explain/NAMESPACE/NAME; `none` disables it [default: port 8080 in a pod,
    /// else 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR:PORT", value_parser = kubernetes::listen, help_heading = "Endpoints")]
    http: Option<kubernetes::Listen>,
    /// Listen address for /metrics; `none` disables it [default: port 9090 in a pod, else 127.0.0.1:9090]
    #[arg(long, value_name = "ADDR:PORT", value_parser = kubernetes::listen, help_heading = "Endpoints")]
    metrics: Option<kubernetes::Listen>,
    #[command(flatten)]
    metrics_access: MetricsAccess,

    /// Listen address of the admission webhook; `off` disables it [default: port 9443 in a pod or with --webhook-url, else
    /// 127.0.0.1:9443]
    #[arg(long, value_name = "ADDR:PORT", value_parser = kubernetes::listen, help_heading = "Admission")]
    webhook: Option<kubernetes::Listen>,
    /// Webhook URL for an API server outside of the cluster network, such as https://10.0.0.5:9443; the scheduler then
    /// creates the webhook configurations
    #[arg(long, value_name = "URL", help_heading = "Admission")]
    webhook_url: Option<String>,
    /// Certificate file in PEM, reloaded on change [default: self-signed]
    #[arg(long, value_name = "FILE", requires = "webhook_key", help_heading = "Admission")]
    webhook_cert: Option<PathBuf>,
    /// Private key file in PEM
    #[arg(long, value_name = "FILE", requires = "webhook_cert", help_heading = "Admission")]
    webhook_key: Option<PathBuf>,
    /// CA bundle file in PEM for the webhook configurations
    #[arg(long, value_name = "FILE", requires = "webhook_cert", help_heading = "Admission")]
    webhook_ca: Option<PathBuf>,

    /// Listen address of the custom metrics API, for HorizontalPodAutoscalers; `none` disables it [default: port 9444 in a
    /// pod, else none]
    #[arg(long, value_name = "ADDR:PORT", value_parser = kubernetes::listen, help_heading = "Endpoints")]
    custom_metrics: Option<kubernetes::Listen>,

    /// Listen address of the dashboard, over HTTPS; `none` disables it [default: port 8443 in a pod, else none]
    #[arg(long, value_name = "ADDR:PORT", value_parser = kubernetes::listen, help_heading = "Endpoints")]
    dashboard: Option<kubernetes::Listen>,

    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    otlp: OtlpArgs,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    args.log.start()?;
    let options = options(args)?;
    let stop = CancellationToken::new();
    standalone::runtime(2)?.block_on(async {
        let cluster = kubernetes::config(args.kubeconfig.as_deref()).await?;
        let client = kubernetes::client_of(cluster.clone())?;
        let admission = webhook_options(args, &options.namespace);
        let replica = Replica::new(options, client.clone());
        let dashboard = dashboard_address(args).map(|listen| web::Options {
            listen,
            certificate: admission.certificate(),
            cluster,
            reader: replica.reader(),
            dashboard: Dashboard::embedded(),
        });
        let ports = ports(args, admission, dashboard, client, stop.clone());
        let scheduler = replica.run(stop.clone());
        tokio::pin!(ports, scheduler);
        tokio::select! {
            ended = &mut scheduler => return Ok(ended?),
            ended = &mut ports => return ended,
            received = termination_signal() => received?,
        }
        tracing::info!("stopping; releasing the lease");
        stop.cancel();
        // Requests in flight are completed.
        let (scheduler, ports) = tokio::join!(scheduler, ports);
        scheduler?;
        ports
    })
}

/// Serves the HTTPS ports that are not disabled until `stop`.
async fn ports(
    args: &Args,
    admission: webhook::Options,
    dashboard: Option<web::Options>,
    client: kube::Client,
    stop: CancellationToken,
) -> Result<()> {
    let metrics = kubernetes::listen_in_pod(args.custom_metrics, custom_metrics::PORT);
    let metrics = metrics.map(|listen| {
        let options = custom_metrics::Options { listen, certificate: admission.certificate() };
        custom_metrics::serve(options, client.clone(), stop.clone())
    });
    let dashboard = dashboard.map(|options| web::serve(options, client.clone(), stop.clone()));
    let admission = webhook_address(args).map(|_| webhook::serve(admission, client, stop.clone()));
    tokio::try_join!(
        until_stop(admission, &stop),
        until_stop(metrics, &stop),
        until_stop(dashboard, &stop),
    )?;
    Ok(())
}

/// Waits for `stop` in place of a port that is disabled.
async fn until_stop(
    port: Option<impl Future<Output = Result<(), ServeError>>>,
    stop: &CancellationToken,
) -> Result<(), ServeError> {
    if let Some(port) = port {
        return port.await;
    }
    stop.cancelled().await;
    Ok(())
}

fn webhook_options(args: &Args, namespace: &str) -> webhook::Options {
    let files = args.webhook_cert.clone().zip(args.webhook_key.clone());
    let certificates = files.map_or(CertificateSource::SelfMade, |(certificate, key)| {
        CertificateSource::Files { certificate, key, authority: args.webhook_ca.clone() }
    });
    let default = webhook::Options::default();
    webhook::Options {
        listen: webhook_address(args).unwrap_or(default.listen),
        namespace: namespace.to_owned(),
        certificates,
        url: args.webhook_url.clone(),
        scheduler_name: args.scheduler_name.clone(),
        ..default
    }
}

fn options(args: &Args) -> Result<Options> {
    let mut settings = Settings::new(&args.scheduler_name);
    settings.node_selector.clone_from(&args.node_selector);
    settings.admission = webhook_address(args).is_some();
    settings.monitor_timeout = args.monitor_timeout;
    let name = args.strategy.clone().or_else(|| variable("SCHEDULING_STRATEGY"));
    if let Some(name) = name {
        settings.policy.strategy =
            strategy(&name).map_err(setting_error("--strategy or SCHEDULING_STRATEGY"))?;
    }
    let goal = args.utilization_goal.clone().or_else(|| variable("GPU_UTILIZATION_GOAL"));
    let goal = percent(goal.as_deref().unwrap_or("80"));
    settings.policy.utilization_goal =
        Some(goal.map_err(setting_error("--utilization-goal or GPU_UTILIZATION_GOAL"))?);
    let interval = match (args.interval, variable("SCHEDULING_INTERVAL")) {
        (Some(interval), _) => interval,
        (None, Some(text)) => amount::positive_duration(&text)
            .map_err(|error| usage(format!("SCHEDULING_INTERVAL: {error}")))?,
        (None, None) => Duration::from_secs(5),
    };
    let lease_times = LeaseTimes::new(args.lease_duration, args.renew_deadline, args.retry_period)
        .map_err(|error| {
            usage(format!("--lease-duration, --renew-deadline, --retry-period: {error}"))
        })?;
    let metrics = kubernetes::listen_at(args.metrics, 9090);
    let identity = args.identity.clone().or_else(|| variable("POD_NAME"));
    Ok(Options {
        namespace: kubernetes::namespace(args.namespace.as_deref()),
        settings,
        lease: args.lease_name.clone(),
        lease_times,
        config: args.config_map.clone(),
        identity: identity.map_or_else(own_name, Ok)?,
        health: kubernetes::listen_at(args.http, 8080),
        metrics,
        metrics_access: args.metrics_access.of_daemon(metrics)?,
        traces: args.otlp.collector()?,
        own_address: kubernetes::own_address(),
        dashboard: dashboard_address(args),
        interval,
        certificate: args.webhook_cert.clone(),
    })
}

fn dashboard_address(args: &Args) -> Option<SocketAddr> {
    kubernetes::listen_in_pod(args.dashboard, web::PORT)
}

/// An API server that gets a URL of the webhook is on another machine.
fn webhook_address(args: &Args) -> Option<SocketAddr> {
    let far = args.webhook_url.is_some().then(|| (Ipv4Addr::UNSPECIFIED, webhook::PORT).into());
    let given = args.webhook.or_else(|| far.map(|address| kubernetes::Listen(Some(address))));
    kubernetes::listen_at(given, webhook::PORT)
}

fn own_name() -> Result<String> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname");
    let host = host.context("cannot read the host name; use --identity")?;
    Ok(format!("{}-{}", host.trim(), std::process::id()))
}

fn selector(text: &str) -> Result<agentaflow_engine::labels::NodeTerm, String> {
    node_selector(text).map_err(|error| error.to_string())
}

fn setting_error(setting: &'static str) -> impl Fn(SettingsError) -> anyhow::Error {
    move |error| usage(format!("{setting}: {error}"))
}
