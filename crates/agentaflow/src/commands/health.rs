//! `agentaflow health` and `agentaflow metrics`.

use agentaflow_api::node::{GpuInstance, GpuStatus, Health, Node, NodeStatus};
use agentaflow_console::format::counted;
use agentaflow_console::labels::{cordoned_gpus, gpu_number};
use agentaflow_kube_core::names;
use agentaflow_kube_core::settings::InvalidSetting;
use anyhow::Result;
use serde::Serialize;
use std::fmt::Write as _;
use std::process::ExitCode;

use crate::backend::Backend;
use crate::connect::{Connect, block_on};
use crate::list::OneFormat;
use crate::output;

/// Degrees Celsius of a warning and of a critical finding.
const WARNING_CELSIUS: f64 = 85.0;
const CRITICAL_CELSIUS: f64 = 95.0;

/// Check nodes and GPUs; exits with 1 on a critical finding
#[derive(Debug, clap::Args)]
pub(crate) struct HealthArgs {
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: OneFormat,
    #[command(flatten)]
    connect: Connect,
}

/// Print metrics in Prometheus text format
#[derive(Debug, clap::Args)]
pub(crate) struct MetricsArgs {
    #[command(flatten)]
    connect: Connect,
}

#[derive(Debug, Serialize)]
struct Report {
    healthy: bool,
    nodes: usize,
    gpus: usize,
    findings: Vec<Finding>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Finding {
    severity: &'static str,
    /// Name of the node, or of the `ConfigMap` with the settings.
    node: String,
    gpu: Option<String>,
    message: String,
}

pub(crate) fn health(args: &HealthArgs) -> Result<ExitCode> {
    let (nodes, settings) = block_on(async {
        let backend = args.connect.backend().await?;
        Ok((backend.nodes().await?, setting_findings(&backend).await))
    })?;
    let mut report = report(&nodes);
    report.findings.extend(settings);
    args.output.print(&report, |report| Ok(text(report)))?;
    Ok(if report.healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Settings that the scheduler of a cluster refuses.
async fn setting_findings(backend: &Backend) -> Vec<Finding> {
    let Backend::Cluster(cluster) = backend else { return Vec::new() };
    let refused = cluster.invalid_settings().await.unwrap_or_default();
    let finding = |setting: &InvalidSetting| Finding {
        severity: "warning",
        node: names::SCHEDULER_CONFIG.to_owned(),
        gpu: None,
        message: setting.to_string(),
    };
    refused.iter().map(finding).collect()
}

fn report(nodes: &[Node]) -> Report {
    let findings: Vec<_> = nodes.iter().flat_map(node_findings).collect();
    Report {
        healthy: findings.iter().all(|finding| finding.severity != "critical"),
        nodes: nodes.len(),
        gpus: nodes.iter().map(|node| node.spec.gpu_count as usize).sum(),
        findings,
    }
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    for Finding { severity, node, gpu, message } in &report.findings {
        let gpu = gpu.as_ref().map(|gpu| format!(" GPU {gpu}")).unwrap_or_default();
        let _ = writeln!(text, "{severity:<9} {node}{gpu}: {message}");
    }
    let (gpus, nodes) = (counted(report.gpus, "GPU"), counted(report.nodes, "node"));
    let summary = match (report.healthy, report.findings.len()) {
        (true, 0) => "healthy".to_owned(),
        (true, count) => format!("healthy, findings: {count}"),
        (false, _) => "unhealthy".to_owned(),
    };
    text + &format!("{gpus} on {nodes}: {summary}\n")
}

fn node_findings(node: &Node) -> Vec<Finding> {
    let name = node.spec.node_name.clone();
    let mut findings = Vec::new();
    let mut add = |severity, gpu: Option<String>, message: String| {
        findings.push(Finding { severity, node: name.clone(), gpu, message });
    };
    match node.status {
        NodeStatus::Inactive => add("critical", None, "no heartbeat".to_owned()),
        NodeStatus::Error => add("critical", None, "reports an error".to_owned()),
        NodeStatus::Maintenance => add("info", None, "cordoned".to_owned()),
        NodeStatus::Active if node.health_status == Health::Unhealthy => {
            add("critical", None, "unhealthy".to_owned());
        }
        NodeStatus::Active if node.health_status == Health::Unknown => {
            add("warning", None, "GPU health unknown: no recent report".to_owned());
        }
        NodeStatus::Active | NodeStatus::Pending => {}
    }
    let cordoned = cordoned_gpus(node);
    for (position, gpu) in node.spec.gpu_instances.iter().enumerate() {
        let index = gpu_number(position, gpu);
        for (severity, message) in gpu_findings(gpu) {
            add(severity, Some(index.clone()), message);
        }
        if cordoned.contains(&index) {
            add("info", Some(index), "cordoned".to_owned());
        }
    }
    findings
}

fn gpu_findings(gpu: &GpuInstance) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    match (gpu.status, &gpu.problem) {
        (Some(GpuStatus::Error), None) => found.push(("critical", "failed".to_owned())),
        (Some(GpuStatus::Error), Some(problem)) => {
            found.push(("critical", format!("failed: {problem}")));
        }
        (_, Some(problem)) => found.push(("warning", problem.clone())),
        (_, None) => {}
    }
    match gpu.temperature {
        Some(celsius) if celsius >= CRITICAL_CELSIUS => {
            found.push(("critical", format!("{celsius:.0} °C, limit {CRITICAL_CELSIUS:.0} °C")));
        }
        Some(celsius) if celsius >= WARNING_CELSIUS => {
            found.push(("warning", format!("{celsius:.0} °C")));
        }
        _ => {}
    }
    if let Some(errors) = gpu.ecc_errors.filter(|errors| *errors > 0) {
        found.push(("warning", format!("{errors} uncorrectable ECC errors")));
    }
    if !gpu.throttled.is_empty() {
        found.push(("warning", format!("throttled: {}", gpu.throttled.join(", "))));
    }
    found
}

pub(crate) fn metrics(args: &MetricsArgs) -> Result<()> {
    block_on(async {
        let text = match args.connect.backend().await? {
            Backend::Cluster(cluster) => cluster.metrics().await?,
            Backend::Server(server) => server.metrics().await?,
        };
        output::print(&text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(gpu: GpuInstance) -> Node {
        let mut node =
            Node { status: NodeStatus::Active, health_status: Health::Healthy, ..Node::default() };
        node.spec.node_name = "n".to_owned();
        node.spec.gpu_count = 1;
        node.spec.gpu_instances.push(gpu);
        node
    }

    #[test]
    fn only_critical_findings_are_unhealthy() {
        let gpu = |temperature: f64, status: GpuStatus| GpuInstance {
            temperature: Some(temperature),
            status: Some(status),
            ..GpuInstance::default()
        };
        let cases = [
            (gpu(50.0, GpuStatus::Busy), true, "1 GPU on 1 node: healthy\n"),
            (
                gpu(85.0, GpuStatus::Busy),
                true,
                "warning   n GPU 0: 85 °C\n1 GPU on 1 node: healthy, findings: 1\n",
            ),
            (
                gpu(95.0, GpuStatus::Busy),
                false,
                "critical  n GPU 0: 95 °C, limit 95 °C\n1 GPU on 1 node: unhealthy\n",
            ),
            (
                gpu(40.0, GpuStatus::Error),
                false,
                "critical  n GPU 0: failed\n1 GPU on 1 node: unhealthy\n",
            ),
            (
                GpuInstance {
                    problem: Some("XID 109; reset".into()),
                    ..gpu(40.0, GpuStatus::Error)
                },
                false,
                "critical  n GPU 0: failed: XID 109; reset\n1 GPU on 1 node: unhealthy\n",
            ),
            (
                GpuInstance {
                    problem: Some("XID 94; restart".into()),
                    ..gpu(40.0, GpuStatus::Busy)
                },
                true,
                "warning   n GPU 0: XID 94; restart\n1 GPU on 1 node: healthy, findings: 1\n",
            ),
        ];
        for (gpu, healthy, expected) in cases {
            let report = report(&[node(gpu)]);
            assert_eq!((report.healthy, text(&report).as_str()), (healthy, expected));
        }
    }
}
