//! `agentaflow health` and `agentaflow metrics`: how the GPUs are.

use agentaflow_api::client::user::JobQuery;
use agentaflow_api::job::{Job, JobStatus};
use agentaflow_api::node::{GpuInstance, GpuStatus, Health, Node, NodeStatus};
use agentaflow_console::format::counted;
use agentaflow_console::labels::{cordoned_gpus, gpu_number};
use agentaflow_metrics::Exposition;
use agentaflow_metrics::MetricType::{self, Gauge, Untyped};
use anyhow::Result;
use serde::Serialize;
use std::fmt::Write as _;
use std::process::ExitCode;

use crate::backend::Backend;
use crate::connect::{Connect, block_on};
use crate::list::OneFormat;
use crate::output;

/// Degrees from which a GPU is worth a word, and from which it is in danger.
const WARM: f64 = 85.0;
const HOT: f64 = 95.0;

/// Check nodes and GPUs: heat, errors, what is closed; ends with 1 when something is wrong
#[derive(Debug, clap::Args)]
pub(crate) struct HealthArgs {
    /// How to print it
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: OneFormat,
    #[command(flatten)]
    connect: Connect,
}

/// Print metrics as Prometheus reads them
#[derive(Debug, clap::Args)]
pub(crate) struct MetricsArgs {
    #[command(flatten)]
    connect: Connect,
}

/// How everything is.
#[derive(Debug, Serialize)]
struct Report {
    healthy: bool,
    nodes: usize,
    gpus: usize,
    findings: Vec<Finding>,
}

/// Something that is worth a word.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Finding {
    severity: &'static str,
    node: String,
    gpu: Option<String>,
    message: String,
}

pub(crate) fn health(args: &HealthArgs) -> Result<ExitCode> {
    let nodes = block_on(async { args.connect.backend().await?.nodes().await })?;
    let report = report(&nodes);
    args.output.print(&report, |report| Ok(text(report)))?;
    Ok(if report.healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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
    let verdict = match (report.healthy, report.findings.len()) {
        (true, 0) => "all well".to_owned(),
        (true, count) => format!("no danger, {count} worth a look"),
        (false, _) => "something is wrong".to_owned(),
    };
    text + &format!("{gpus} on {nodes}: {verdict}\n")
}

fn node_findings(node: &Node) -> Vec<Finding> {
    let name = node.spec.node_name.clone();
    let mut findings = Vec::new();
    let mut add = |severity, gpu: Option<String>, message: String| {
        findings.push(Finding { severity, node: name.clone(), gpu, message });
    };
    match node.status {
        NodeStatus::Inactive => add("critical", None, "is not heard of".to_owned()),
        NodeStatus::Error => add("critical", None, "says that something is wrong".to_owned()),
        NodeStatus::Maintenance => add("info", None, "is closed to new work".to_owned()),
        NodeStatus::Active if node.health_status == Health::Unhealthy => {
            add("critical", None, "is not healthy".to_owned());
        }
        NodeStatus::Active | NodeStatus::Pending => {}
    }
    let closed = cordoned_gpus(node);
    for (position, gpu) in node.spec.gpu_instances.iter().enumerate() {
        let index = gpu_number(position, gpu);
        for (severity, message) in gpu_findings(gpu) {
            add(severity, Some(index.clone()), message);
        }
        if closed.contains(&index) {
            add("info", Some(index), "is closed to new work".to_owned());
        }
    }
    findings
}

fn gpu_findings(gpu: &GpuInstance) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    if gpu.status == Some(GpuStatus::Error) {
        found.push(("critical", "does not work".to_owned()));
    }
    match gpu.temperature {
        Some(celsius) if celsius >= HOT => {
            found.push(("critical", format!("is at {celsius:.0} °C; {HOT:.0} °C is the limit")));
        }
        Some(celsius) if celsius >= WARM => {
            found.push(("warning", format!("is at {celsius:.0} °C")));
        }
        _ => {}
    }
    if let Some(errors) = gpu.ecc_errors.filter(|errors| *errors > 0) {
        found.push(("warning", format!("had {errors} memory errors that could not be corrected")));
    }
    if !gpu.throttled.is_empty() {
        found.push(("warning", format!("runs slower than it could: {}", gpu.throttled.join(", "))));
    }
    found
}

pub(crate) fn metrics(args: &MetricsArgs) -> Result<()> {
    block_on(async {
        let text = match args.connect.backend().await? {
            Backend::Cluster(cluster) => cluster.metrics().await?,
            server @ Backend::Server(_) => {
                let waits = vec![JobStatus::Pending, JobStatus::Scheduled, JobStatus::Running];
                let query = JobQuery { status: waits, limit: Some(1000), skip: None };
                exposition(&server.nodes().await?, &server.jobs(&query).await?)
            }
        };
        output::print(&text)
    })
}

/// The documented metrics, from what a server tells of its nodes and jobs.
fn exposition(nodes: &[Node], jobs: &[Job]) -> String {
    let live: Vec<_> = nodes.iter().filter(|node| node.status == NodeStatus::Active).collect();
    let gpus = || live.iter().flat_map(|node| &node.spec.gpu_instances);
    let free = gpus().filter(|gpu| gpu.status == Some(GpuStatus::Available)).count();
    let readings: Vec<f64> = gpus().filter_map(|gpu| gpu.utilization).collect();
    let mean = readings.iter().sum::<f64>() / readings.len().max(1) as f64;
    let total: u32 = live.iter().map(|node| node.spec.gpu_count).sum();
    let number = |status| jobs.iter().filter(|job| job.status == status).count() as f64;
    let mut text = Exposition::default();
    let values: [(&str, MetricType, &str, f64); 6] = [
        ("agentaflow_gpu_total", Untyped, "GPUs of all active nodes.", f64::from(total)),
        ("agentaflow_gpu_available", Gauge, "Unused GPUs.", free as f64),
        ("agentaflow_gpu_utilization", Gauge, "Mean utilization in percent.", mean),
        ("agentaflow_workloads_pending", Gauge, "Pending jobs.", number(JobStatus::Pending)),
        (
            "agentaflow_workloads_scheduled",
            Gauge,
            "Placed jobs that do not run yet.",
            number(JobStatus::Scheduled),
        ),
        ("agentaflow_workloads_running", Gauge, "Running jobs.", number(JobStatus::Running)),
    ];
    for (name, kind, help, value) in values {
        text.value(name, kind, help, value);
    }
    text.into_text()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(gpu: GpuInstance) -> Node {
        let mut node = Node { status: NodeStatus::Active, ..Node::default() };
        node.spec.node_name = "n".to_owned();
        node.spec.gpu_count = 1;
        node.spec.gpu_instances.push(gpu);
        node
    }

    #[test]
    fn heat_and_errors_are_told_and_only_danger_is_a_failure() {
        let gpu = |temperature: f64, status: GpuStatus| GpuInstance {
            temperature: Some(temperature),
            status: Some(status),
            ..GpuInstance::default()
        };
        let cases = [
            (gpu(50.0, GpuStatus::Busy), true, "1 GPU on 1 node: all well\n"),
            (
                gpu(85.0, GpuStatus::Busy),
                true,
                "warning   n GPU 0: is at 85 °C\n1 GPU on 1 node: no danger, 1 worth a look\n",
            ),
            (
                gpu(95.0, GpuStatus::Busy),
                false,
                "critical  n GPU 0: is at 95 °C; 95 °C is the limit\n1 GPU on 1 node: something is wrong\n",
            ),
            (
                gpu(40.0, GpuStatus::Error),
                false,
                "critical  n GPU 0: does not work\n1 GPU on 1 node: something is wrong\n",
            ),
        ];
        for (gpu, healthy, expected) in cases {
            let report = report(&[node(gpu)]);
            assert_eq!((report.healthy, text(&report).as_str()), (healthy, expected));
        }
    }

    #[test]
    fn the_documented_metrics_are_there() {
        let gpu = GpuInstance { status: Some(GpuStatus::Available), ..GpuInstance::default() };
        let job = |status| Job { status, ..Job::default() };
        let text = exposition(&[node(gpu)], &[job(JobStatus::Pending), job(JobStatus::Scheduled)]);
        assert!(
            text.contains("# TYPE agentaflow_gpu_total untyped\nagentaflow_gpu_total 1\n"),
            "{text}"
        );
        assert!(text.contains("agentaflow_workloads_pending 1\n"), "{text}");
        assert!(text.contains("agentaflow_workloads_running 0\n"), "{text}");
    }
}
