//! `agentaflow monitor`: publishes the GPUs of this Kubernetes node.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agentaflow_gpu::{NoGpus, Simulated, SimulatedSpec, detect};
use agentaflow_kube_core::names;
use agentaflow_kube_monitor::{self as monitor, Opener, REFRESH, SOCKET, Settings};
use anyhow::Result;
use tokio_util::sync::CancellationToken;

use super::kubernetes;
use super::standalone::{self, asked_to_stop};
use crate::amount;
use crate::context::variable;
use crate::failure::usage;
use crate::logging::LogArgs;

const EXAMPLES: &str = "\
Examples:
  agentaflow monitor --node gpu-7
      As the DaemonSet does it: GPUNode, labels and annotations of node gpu-7, every 15 s
  agentaflow monitor --node gpu-7 --gpus simulated:8xA100 --kubeconfig ~/.kube/config --once
      A pretended machine, once

Environment, where the command line does not say: NODE_NAME, KUBERNETES_NAMESPACE, MONITOR_INTERVAL,
GPU_UTILIZATION_GOAL, LOG_LEVEL.";

/// Publish the GPUs of this Kubernetes node: GPUNode, labels, annotations, metrics
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[expect(clippy::doc_markdown, reason = "these comments are the help text, which has no markup")]
pub(crate) struct Args {
    /// The node that this machine is [default: NODE_NAME, else the host's name]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Namespace of the GPUNodes [default: KUBERNETES_NAMESPACE, else agentaflow]
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// How often to look at the GPUs, at most 60s [default: MONITOR_INTERVAL, else 15s]
    #[arg(long, value_name = "TIME", value_parser = amount::some_duration)]
    interval: Option<Duration>,
    /// Percent of utilisation to aim at [default: GPU_UTILIZATION_GOAL, else 80]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=100))]
    utilization_goal: Option<u32>,
    /// Which GPUs: auto, none, or pretended ones such as simulated:8xA100
    #[arg(long, value_name = "GPUS", default_value = "auto", value_parser = gpus)]
    gpus: GpuChoice,
    /// The kubelet's socket, which tells who has which GPU
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    pod_resources: PathBuf,
    /// Where the host's processes are listed
    #[arg(long, value_name = "DIR", default_value = "/proc")]
    proc: PathBuf,
    /// Where to answer /healthz and /readyz
    #[arg(long, value_name = "ADDR:PORT", value_parser = amount::address, default_value = "0.0.0.0:8080")]
    health: SocketAddr,
    /// Where to answer /metrics
    #[arg(long, value_name = "ADDR:PORT", value_parser = amount::address, default_value = "0.0.0.0:9090")]
    metrics: SocketAddr,
    /// The cluster [default: KUBECONFIG, else the one that this runs in]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Publish once and end; opens no ports
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    log: LogArgs,
}

/// Where the GPUs come from.
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
            asked = asked_to_stop() => asked?,
        }
        stop.cancel();
        Ok(monitor.await?)
    })
}

fn settings(args: &Args) -> Result<Settings> {
    let node = args.node.clone().or_else(|| variable("NODE_NAME")).unwrap_or_else(host_name);
    let namespace = args.namespace.clone().or_else(|| variable("KUBERNETES_NAMESPACE"));
    Ok(Settings {
        namespace: namespace.unwrap_or_else(|| names::NAMESPACE.to_owned()),
        interval: interval(args.interval, variable("MONITOR_INTERVAL").as_deref())?,
        refresh: REFRESH,
        goal: goal(args.utilization_goal, variable("GPU_UTILIZATION_GOAL").as_deref())?,
        gpus: opener(&args.gpus, &node)?,
        pod_resources: args.pod_resources.clone(),
        proc: args.proc.clone(),
        health: (!args.once).then_some(args.health),
        metrics: (!args.once).then_some(args.metrics),
        once: args.once,
        node,
    })
}

fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    tracing::warn!(
        "neither --node nor NODE_NAME names the node: the host's name `{name}` is taken for it, which is only \
         right where the kubelet does the same"
    );
    name
}

/// The status is written at least once a minute, so it is looked at no less often.
fn interval(named: Option<Duration>, variable: Option<&str>) -> Result<Duration> {
    let interval = match (named, variable) {
        (Some(interval), _) => interval,
        (None, Some(text)) => amount::some_duration(text.trim())
            .map_err(|problem| usage(format!("MONITOR_INTERVAL: {problem}")))?,
        (None, None) => Duration::from_secs(15),
    };
    if interval > REFRESH {
        tracing::warn!("the interval is more than a minute; a minute is used");
    }
    Ok(interval.clamp(Duration::from_millis(100), REFRESH))
}

fn goal(named: Option<u32>, variable: Option<&str>) -> Result<u32> {
    let (None, Some(text)) = (named, variable) else { return Ok(named.unwrap_or(80)) };
    let number = text.trim().trim_end_matches('%').parse().ok();
    number.filter(|goal| (1..=100).contains(goal)).ok_or_else(|| {
        usage(format!("GPU_UTILIZATION_GOAL: `{text}` is not a percentage between 1 and 100"))
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

/// The same pretended GPUs for the same node, others for another.
fn opener(choice: &GpuChoice, node: &str) -> Result<Opener> {
    Ok(match choice {
        GpuChoice::Auto => Arc::new(detect),
        GpuChoice::None => Arc::new(|| Ok(Box::new(NoGpus))),
        GpuChoice::Simulated(spec) => {
            let spec = SimulatedSpec { seed: standalone::seed(node), ..spec.clone() };
            Simulated::new(&spec)?;
            Arc::new(move || Ok(Box::new(Simulated::new(&spec)?)))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_found_pretended_or_none() {
        assert_eq!(gpus("auto"), Ok(GpuChoice::Auto));
        assert_eq!(gpus("none"), Ok(GpuChoice::None));
        let Ok(GpuChoice::Simulated(spec)) = gpus("simulated:4xH100") else { panic!() };
        assert_eq!((spec.count, &*spec.model), (4, "H100"));
        for (text, expected) in [
            ("simulated:999xA100", "between 1 and 64"),
            ("simulated:2xZX81", "is not known"),
            ("real", "use auto"),
        ] {
            let problem = gpus(text).unwrap_err();
            assert!(problem.contains(expected), "{text}: {problem}");
        }
    }

    #[test]
    fn the_interval_and_the_goal_come_from_the_command_line_the_environment_or_the_documents() {
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
