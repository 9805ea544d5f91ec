//! `agentaflow monitor`: the node monitor of a Kubernetes cluster.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agentaflow_gpu::{NoGpus, Simulated, SimulatedSpec, detect};
use agentaflow_kube_core::names;
use agentaflow_kube_monitor::{self as monitor, Opener, REFRESH, SOCKET, Settings};
use anyhow::Result;
use tokio_util::sync::CancellationToken;

use super::kubernetes;
use super::metrics_access::{DcgmNames, MetricsAccess};
use super::otlp_args::OtlpArgs;
use super::standalone::{self, termination_signal};
use crate::amount;
use crate::context::variable;
use crate::failure::usage;
use crate::logging::LogArgs;

const EXAMPLES: &str = "\
Examples:
  agentaflow monitor --node gpu-7
      Publish GPUNode, labels and annotations of node gpu-7 every 15 s, as the DaemonSet does
  agentaflow monitor --node gpu-7 --gpus simulated:8xA100 --kubeconfig ~/.kube/config --once
      Publish simulated GPUs once

Environment variables, overridden by options: NODE_NAME, KUBERNETES_NAMESPACE, MONITOR_INTERVAL,
GPU_UTILIZATION_GOAL, LOG_LEVEL.";

/// Run the node monitor: publish the GPUs of this Kubernetes node
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[expect(clippy::doc_markdown, reason = "these comments are the help text, which has no markup")]
pub(crate) struct Args {
    /// Name of this node [default: NODE_NAME, else the host name]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Namespace of the GPUNodes [default: KUBERNETES_NAMESPACE, else agentaflow]
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// Sampling interval, at most 60s [default: MONITOR_INTERVAL, else 15s]
    #[arg(long, value_name = "TIME", value_parser = amount::positive_duration)]
    interval: Option<Duration>,
    /// Target GPU utilization in percent [default: GPU_UTILIZATION_GOAL, else 80]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=100))]
    utilization_goal: Option<u32>,
    /// GPUs: auto, none, or simulated ones, such as simulated:8xA100
    #[arg(long, value_name = "GPUS", default_value = "auto", value_parser = gpus)]
    gpus: GpuChoice,
    /// Pod-resources socket of the kubelet
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    pod_resources: PathBuf,
    /// procfs of the host
    #[arg(long, value_name = "DIR", default_value = "/proc")]
    proc: PathBuf,
    /// Listen address for /healthz and /readyz; `none` disables it [default: port 8080 in a pod, else 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR:PORT", value_parser = kubernetes::listen)]
    health: Option<kubernetes::Listen>,
    /// Listen address for /metrics; `none` disables it [default: port 9090 in a pod, else 127.0.0.1:9090]
    #[arg(long, value_name = "ADDR:PORT", value_parser = kubernetes::listen)]
    metrics: Option<kubernetes::Listen>,
    #[command(flatten)]
    metrics_access: MetricsAccess,
    #[command(flatten)]
    dcgm: DcgmNames,
    /// Kubeconfig [default: KUBECONFIG, else the cluster of the pod]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Publish once and exit, without listening
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    otlp: OtlpArgs,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum GpuChoice {
    Auto,
    None,
    Simulated(SimulatedSpec),
}

pub(crate) fn run(args: &Args) -> Result<()> {
    args.log.start()?;
    let settings = settings(args)?;
    let stop = CancellationToken::new();
    standalone::runtime(1)?.block_on(async {
        let client = kubernetes::client(args.kubeconfig.as_deref()).await?;
        let monitor = monitor::run(client, settings, stop.clone());
        tokio::pin!(monitor);
        tokio::select! {
            ended = &mut monitor => return Ok(ended?),
            received = termination_signal() => received?,
        }
        stop.cancel();
        Ok(monitor.await?)
    })
}

fn settings(args: &Args) -> Result<Settings> {
    let node = args.node.clone().or_else(|| variable("NODE_NAME")).unwrap_or_else(host_name);
    let namespace = args.namespace.clone().or_else(|| variable("KUBERNETES_NAMESPACE"));
    let metrics = kubernetes::listen_at(args.metrics, 9090).filter(|_| !args.once);
    Ok(Settings {
        namespace: namespace.unwrap_or_else(|| names::NAMESPACE.to_owned()),
        interval: interval(args.interval, variable("MONITOR_INTERVAL").as_deref())?,
        refresh: REFRESH,
        goal: goal(args.utilization_goal, variable("GPU_UTILIZATION_GOAL").as_deref())?,
        gpus: opener(&args.gpus, &node)?,
        pod_resources: args.pod_resources.clone(),
        proc: args.proc.clone(),
        health: kubernetes::listen_at(args.health, 8080).filter(|_| !args.once),
        metrics,
        metrics_access: args.metrics_access.of_daemon(metrics)?,
        exporter: args.otlp.exporter("agentaflow-monitor")?,
        dcgm_names: args.dcgm.dcgm_names,
        once: args.once,
        node,
    })
}

fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    tracing::warn!(
        "neither --node nor NODE_NAME is set; using the host name `{name}`, which must be the node name of \
         the kubelet"
    );
    name
}

/// At most [`REFRESH`], since the status is written at that interval.
fn interval(option: Option<Duration>, variable: Option<&str>) -> Result<Duration> {
    let interval = match (option, variable) {
        (Some(interval), _) => interval,
        (None, Some(text)) => amount::positive_duration(text.trim())
            .map_err(|problem| usage(format!("MONITOR_INTERVAL: {problem}")))?,
        (None, None) => Duration::from_secs(15),
    };
    if interval > REFRESH {
        tracing::warn!("interval exceeds 60s; using 60s");
    }
    Ok(interval.clamp(Duration::from_millis(100), REFRESH))
}

fn goal(option: Option<u32>, variable: Option<&str>) -> Result<u32> {
    let (None, Some(text)) = (option, variable) else { return Ok(option.unwrap_or(80)) };
    let number = text.trim().trim_end_matches('%').parse().ok();
    number.filter(|goal| (1..=100).contains(goal)).ok_or_else(|| {
        usage(format!("GPU_UTILIZATION_GOAL: `{text}` is not a percentage from 1 to 100"))
    })
}

fn gpus(text: &str) -> Result<GpuChoice, String> {
    let simulated = |spec: &str| {
        let spec: SimulatedSpec = spec.parse().map_err(|error| format!("{error}"))?;
        Simulated::new(&spec).map_err(|error| error.to_string())?;
        Ok(GpuChoice::Simulated(spec))
    };
    match text.split_once(':') {
        None if text == "auto" => Ok(GpuChoice::Auto),
        None if text == "none" => Ok(GpuChoice::None),
        None if text == "simulated" => simulated("8xNVIDIA A100"),
        Some(("simulated", spec)) => simulated(spec),
        _ => Err("use auto, none, or simulated:NUMBERxMODEL, such as simulated:8xA100".to_owned()),
    }
}

/// Simulated GPUs differ between nodes and stay the same on each.
fn opener(choice: &GpuChoice, node: &str) -> Result<Opener> {
    Ok(match choice {
        GpuChoice::Auto => Arc::new(detect),
        GpuChoice::None => Arc::new(|| Ok(Box::new(NoGpus))),
        GpuChoice::Simulated(spec) => {
            let spec =
                SimulatedSpec { seed: agentaflow_units::hash64(node.as_bytes()), ..spec.clone() };
            Simulated::new(&spec)?;
            Arc::new(move || Ok(Box::new(Simulated::new(&spec)?)))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_detected_simulated_or_none() {
        assert_eq!(gpus("auto"), Ok(GpuChoice::Auto));
        assert_eq!(gpus("none"), Ok(GpuChoice::None));
        let Ok(GpuChoice::Simulated(spec)) = gpus("simulated:4xH100") else { panic!() };
        assert_eq!((spec.count, &*spec.model), (4, "H100"));
        for (text, expected) in [
            ("simulated:999xA100", "1 to 64"),
            ("simulated:2xZX81", "unknown GPU model"),
            ("real", "use auto"),
        ] {
            let problem = gpus(text).unwrap_err();
            assert!(problem.contains(expected), "{text}: {problem}");
        }
    }

    #[test]
    fn options_take_precedence_over_the_environment_and_defaults() {
        let seconds = Duration::from_secs;
        assert_eq!(interval(None, None).unwrap(), seconds(15));
        assert_eq!(interval(None, Some("1m0s")).unwrap(), seconds(60));
        assert_eq!(interval(Some(seconds(5)), Some("30s")).unwrap(), seconds(5));
        assert_eq!(interval(None, Some("1h")).unwrap(), REFRESH);
        assert!(interval(None, Some("soon")).unwrap_err().to_string().contains("MONITOR_INTERVAL"));
        assert_eq!(goal(None, None).unwrap(), 80);
        assert_eq!(goal(None, Some("90")).unwrap(), 90);
        assert_eq!(goal(Some(70), Some("90")).unwrap(), 70);
        for wrong in ["0", "101", "much"] {
            assert!(goal(None, Some(wrong)).is_err(), "{wrong}");
        }
    }
}
