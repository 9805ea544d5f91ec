//! The expressions of the Grafana dashboards on a live Prometheus, which scrapes `up`, a scheduler and a monitor.

use std::fmt::Write as _;
use std::process::Command;

use tokio::task::block_in_place;

use crate::PROGRAM;
use crate::grafana::{DASHBOARDS, Query, Source};
use crate::harness::Cluster;
use crate::prometheus::Prometheus;
use crate::promtool;
use crate::skip::skip;
use crate::support::{NodePlan, Program, Scheduler, Share, free_port, get, repository};

/// Name of the scrape job with the series of a source; `up` has the series of a server and of an agent.
fn job(source: Source) -> &'static str {
    match source {
        Source::Server | Source::Agent => "up",
        Source::Scheduler => "scheduler",
        Source::Monitor => "monitor",
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn every_expression_of_the_dashboards_has_samples_of_each_of_its_sources() {
    let share = Share::new().await;
    let node = share.node("a", &NodePlan::gpus(2)).await;
    let scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    scheduler.leads().await;
    let metrics = free_port();
    let _monitor = monitor(&share, &node, metrics);
    scheduler.counts("agentaflow_gpu_total", 2.0).await;
    share.create_pod(&share.one_gpu("runs")).await;
    share.bound("runs").await;
    share.create_pod(&share.one_gpu("waits").gpus(8)).await;
    block_in_place(|| {
        let listen = free_port();
        let up = Cluster::up(&["--metrics-listen", &format!("127.0.0.1:{listen}")]);
        let submitted = up.run(&["submit", "--gpus", "1", "--", "sleep", "1000"]);
        assert_eq!(submitted.code, Some(0), "{}", submitted.err);
        let waits = up.run(&["submit", "--gpus", "2", "--", "true"]);
        assert_eq!(waits.code, Some(0), "{}", waits.err);
        let text = get(metrics, "/metrics").expect("a response").body;
        assert_eq!(promtool::problems(&text).unwrap_or_default(), Vec::<String>::new());
        let targets = [("up", listen), ("scheduler", scheduler.metrics), ("monitor", metrics)];
        let rules = repository().join("deploy/prometheus/rules.yaml");
        let Some(prometheus) = Prometheus::start(free_port(), &targets, &rules) else {
            skip!("needs Prometheus; `sudo apt-get install prometheus` installs it");
        };
        for query in DASHBOARDS.iter().flat_map(|dashboard| dashboard.queries()) {
            check(&prometheus, query);
        }
    });
}

/// Evaluates an expression; an invalid one is a failure, and so is one without samples.
fn check(prometheus: &Prometheus, query: &Query) {
    let expression = query.expression.replace("$node", ".+").replace("$__rate_interval", "10s");
    if query.may_be_empty {
        prometheus.query(&expression);
        return;
    }
    for source in query.sources {
        prometheus.eventually(&of_job(&expression, job(*source)));
    }
}

/// Restricts each metric of an expression to a scrape job.
fn of_job(expression: &str, job: &str) -> String {
    let mut text = String::new();
    let mut rest = expression;
    while let Some(at) = rest.find("agentaflow_") {
        let name = |c: char| c.is_ascii_lowercase() || c == '_';
        let end = rest[at..].find(|c| !name(c)).map_or(rest.len(), |length| at + length);
        text.push_str(&rest[..end]);
        rest = &rest[end..];
        match rest.strip_prefix('{') {
            Some(after) => {
                let _ = write!(text, "{{job=\"{job}\",");
                rest = after;
            }
            None => {
                let _ = write!(text, "{{job=\"{job}\"}}");
            }
        }
    }
    text + rest
}

/// A monitor with two simulated GPUs.
fn monitor(share: &Share, node: &str, metrics: u16) -> Program {
    let mut command = Command::new(PROGRAM);
    command.args(["monitor", "--node", node, "--gpus", "simulated:2xA100", "--health", "none"]);
    command.args(["--metrics", &format!("127.0.0.1:{metrics}"), "--interval", "500ms"]);
    command.args(["--namespace", &share.namespace, "--dcgm-names"]);
    command.arg("--kubeconfig").arg(&share.cluster.kubeconfig);
    command.arg("--pod-resources").arg(share.file("no-kubelet.sock"));
    Program::start(command, &share.file("monitor.log"))
}

#[test]
fn each_metric_of_an_expression_gets_the_job() {
    let expression = "sum(rate(agentaflow_a_total[1h])) / agentaflow_b{c=\"d\"} and agentaflow_e";
    let expected = "sum(rate(agentaflow_a_total{job=\"up\"}[1h])) / agentaflow_b{job=\"up\",c=\"d\"} \
                    and agentaflow_e{job=\"up\"}";
    assert_eq!(of_job(expression, "up"), expected);
}
