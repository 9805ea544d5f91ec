//! Metrics of `up`, `server` and `agent` on their own ports.

use std::path::Path;

use crate::harness::{Cluster, SOON, eventually, free_port};
use crate::http::Connection;
use crate::prometheus::Prometheus;
use crate::promtool;
use crate::skip::skip;

/// Response to a scrape of a port on loopback.
fn scrape(port: u16, token: Option<&str>) -> (u16, String) {
    let opened = Connection::open(port, token);
    let answer = opened.and_then(|mut connection| connection.call("GET", "/metrics", None));
    let answer = answer.expect("a response");
    (answer.status, answer.body)
}

fn series<'a>(text: &'a str, prefix: &str) -> Vec<&'a str> {
    text.lines().filter(|line| line.starts_with(prefix)).collect()
}

#[test]
fn up_counts_each_gpu_once_and_follows_jobs() {
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    let cluster = Cluster::up(&["--metrics-listen", &listen, "--dcgm-names"]);
    let url = format!("http://{listen}/metrics");
    eventually("the summary", SOON, || cluster.server.output().contains(&url).then_some(()));
    let ran = cluster.run(&["run", "--gpus", "1", "--", "true"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let text = eventually("the counters", SOON, || {
        let text = scrape(port, None).1;
        let done = text.contains("agentaflow_jobs_ended_total{status=\"completed\"} 1\n");
        done.then_some(text)
    });
    for line in [
        "agentaflow_gpu_total 2",
        "agentaflow_gpu_available 2",
        "agentaflow_nodes{status=\"active\"} 1",
        "agentaflow_workloads_running 0",
        "agentaflow_decisions_total{outcome=\"placed\",reason=\"\"} 1",
        "agentaflow_queue_wait_seconds_count 1",
    ] {
        assert!(text.lines().any(|written| written == line), "`{line}` is not in\n{text}");
    }
    // One series for each device, from the agent only.
    for name in ["agentaflow_device_utilization{", "agentaflow_gpu_temperature_celsius{"] {
        assert_eq!(series(&text, name).len(), 2, "{name}");
    }
    let node = series(&text, "agentaflow_agent_connected{")[0].split('"').nth(1).unwrap();
    for name in ["DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_GPU_TEMP"] {
        let found = series(&text, &format!("{name}{{"));
        assert_eq!(found.len(), 2, "{name}");
        assert!(found[0].contains(&format!("kubernetes_node=\"{node}\"")), "{}", found[0]);
    }
    let Some(problems) = promtool::problems(&text) else {
        skip!("needs promtool; `sudo apt-get install prometheus` installs it");
    };
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn a_running_job_has_series_of_its_own_until_it_ends() {
    let port = free_port();
    let cluster = Cluster::up(&["--metrics-listen", &format!("127.0.0.1:{port}")]);
    let submitted = cluster.run(&["submit", "--gpus", "1", "--", "sleep", "1000"]);
    assert_eq!(submitted.code, Some(0), "{}", submitted.err);
    let energy = "agentaflow_job_gpu_energy_joules_total{";
    let found = eventually("energy of the job", SOON, || {
        let text = scrape(port, None).1;
        series(&text, energy).first().map(|line| (*line).to_owned())
    });
    assert!(found.contains("job_id=\"1\",task=\"0\",gpu=\"SIM-"), "{found}");
    assert_eq!(cluster.run(&["cancel", "1"]).code, Some(0));
    eventually("the series end", SOON, || {
        series(&scrape(port, None).1, energy).is_empty().then_some(())
    });
}

#[test]
fn beyond_loopback_a_scrape_needs_the_read_token() {
    let port = free_port();
    let listen = format!("0.0.0.0:{port}");
    let closed = Cluster::up(&["--metrics-listen", &listen]);
    assert_eq!(scrape(port, None).0, 401);
    drop(closed);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "read-me\n").unwrap();
    let file = file.display().to_string();
    let mut cluster =
        Cluster::server(&["--metrics-listen", &listen, "--metrics-token-file", &file]);
    assert_eq!(scrape(port, None).0, 401);
    assert_eq!(scrape(port, Some("wrong")).0, 401);
    let (status, text) = scrape(port, Some("read-me"));
    assert_eq!(status, 200, "{text}");
    assert!(text.contains("agentaflow_gpu_total 0\n"), "{text}");
    assert!(!cluster.server.output().contains("read-me"), "the token is logged");
    let agent = free_port();
    let at = format!("127.0.0.1:{agent}");
    cluster.agent("worker", &["--health-listen", &at, "--dcgm-names"]);
    cluster.wait_for_nodes(1);
    let (status, text) = scrape(agent, None);
    assert_eq!(status, 200, "{text}");
    assert_eq!(series(&text, "agentaflow_device_utilization{").len(), 2, "{text}");
    assert!(series(&text, "agentaflow_gpu_total").is_empty(), "totals come from the server");
    let Some(problems) = promtool::problems(&text) else {
        skip!("needs promtool; `sudo apt-get install prometheus` installs it");
    };
    assert!(problems.is_empty(), "{problems:#?}");
}

/// Expressions of the dashboard in the public repository of `dcgm-exporter`, with its variables filled in.
const DCGM_DASHBOARD: [&str; 10] = [
    r#"DCGM_FI_DEV_GPU_TEMP{instance=~".*", gpu=~".*"}"#,
    r#"avg(DCGM_FI_DEV_GPU_TEMP{instance=~".*", gpu=~".*"})"#,
    r#"DCGM_FI_DEV_POWER_USAGE{instance=~".*", gpu=~".*"}"#,
    r#"sum(DCGM_FI_DEV_POWER_USAGE{instance=~".*", gpu=~".*"})"#,
    r#"DCGM_FI_DEV_SM_CLOCK{instance=~".*", gpu=~".*"} * 1000000"#,
    r#"DCGM_FI_DEV_GPU_UTIL{instance=~".*", gpu=~".*"}"#,
    r#"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{instance=~".*", gpu=~".*"}"#,
    r#"DCGM_FI_DEV_FB_USED{instance=~".*", gpu=~".*"}"#,
    // The label of its legends, before and after it was renamed, and the utilization of its earlier versions.
    r#"DCGM_FI_DEV_FB_USED{Hostname=~".+", hostname=~".+"}"#,
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
];

#[test]
fn prometheus_scrapes_up_and_evaluates_rules_and_dashboards() {
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    let cluster = Cluster::up(&["--metrics-listen", &listen, "--dcgm-names"]);
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/prometheus/rules.yaml");
    let targets = [("agentaflow", port)];
    let Some(prometheus) = Prometheus::start(free_port(), &targets, &rules) else {
        skip!("needs Prometheus; `sudo apt-get install prometheus` installs it");
    };
    let submitted = cluster.run(&["submit", "--gpus", "1", "--", "sleep", "1000"]);
    assert_eq!(submitted.code, Some(0), "{}", submitted.err);
    let nodes = prometheus.eventually("agentaflow_agent_connected == 1");
    let node = nodes[0]["metric"]["node"].as_str().expect("a label").to_owned();
    for name in ["DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_GPU_TEMP"] {
        let found = prometheus.eventually(&format!("{name}{{kubernetes_node=\"{node}\"}}"));
        assert_eq!(found.len(), 2, "{name}");
    }
    for expression in DCGM_DASHBOARD {
        prometheus.eventually(expression);
    }
    let busy = prometheus.eventually("agentaflow_gpu_total - agentaflow_gpu_available == 1");
    assert_eq!(busy.len(), 1, "GPUs are counted once: {busy:?}");
    prometheus.eventually("rate(agentaflow_job_gpu_energy_joules_total{job_id=\"1\"}[10s]) > 0");
    prometheus.eventually("agentaflow:gpu_allocation:ratio == 0.5");
    prometheus.eventually("agentaflow:node_gpu_power_watts:sum > 0");
    assert!(prometheus.query("ALERTS{alertstate=\"firing\"}").is_empty());
}
