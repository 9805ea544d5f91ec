//! `cargo xtask examples`: the installation files in `examples/k8s`, generated from `deploy`.

use std::fs;

use anyhow::{Context, Result};
use serde_json::json;

use crate::generate::{Files, Generator};
use crate::{crds, repo};

pub(crate) const HELP: &str = "\
Generate examples/k8s, the files of the documented installation, from deploy.

Usage: cargo xtask examples [--check]

Options:
  --check     Write nothing; exit with 1 if a file does not match deploy
  -h, --help  Show this text

examples/k8s/Dockerfile and examples/k8s/pytorch-training-workload.yaml are written by hand.";

pub(crate) const GENERATOR: Generator = Generator { name: "examples", source: "deploy", generate };

const FOLDER: &str = "examples/k8s";

/// Each file of the installation, and the prefixes of its source files in order.
const INSTALLED: [(&str, &[&str]); 5] = [
    ("rbac.yaml", &RIGHTS),
    ("scheduler.yaml", &["deploy/kubernetes/3", "deploy/kubernetes/4"]),
    ("monitor-daemonset.yaml", &["deploy/kubernetes/5"]),
    ("scheduler-deployment.yaml", &[crds::FOLDER, "deploy/kubernetes/"]),
    ("prometheus-servicemonitor.yaml", &["deploy/prometheus/monitors.yaml"]),
];

/// Everything except workloads. The namespace already exists at that step, but without the label that admits the
/// monitor's privileged pods.
const RIGHTS: [&str; 4] =
    [crds::FOLDER, "deploy/kubernetes/0", "deploy/kubernetes/1", "deploy/kubernetes/2"];

const DASHBOARD: &str = "deploy/grafana/dashboard.json";

fn generate() -> Result<Files> {
    let all = repo::files()?;
    let mut files = Files::new();
    for (name, sources) in INSTALLED {
        let from =
            sources.iter().flat_map(|start| all.iter().filter(move |file| file.starts_with(start)));
        let parts = from.map(|file| read(file)).collect::<Result<Vec<String>>>()?;
        files.insert(format!("{FOLDER}/{name}"), joined(&parts));
    }
    let dashboard = read(DASHBOARD)?;
    files.insert(format!("{FOLDER}/grafana-dashboard.yaml"), dashboard_yaml(&dashboard));
    files.insert(format!("{FOLDER}/grafana-dashboard.json"), dashboard_json(&dashboard)?);
    Ok(files)
}

fn read(file: &str) -> Result<String> {
    fs::read_to_string(repo::root().join(file)).with_context(|| format!("cannot read `{file}`"))
}

fn joined(parts: &[String]) -> String {
    format!("{}{}", header("deploy"), parts.join("---\n"))
}

fn header(source: &str) -> String {
    format!("# Generated from {source} by `cargo xtask examples`; edit the source.\n")
}

/// Grafana's sidecar loads dashboards from every `ConfigMap` with the label `grafana_dashboard`.
fn dashboard_yaml(dashboard: &str) -> String {
    let indented = dashboard.trim_end().replace('\n', "\n    ");
    let head = header(DASHBOARD);
    format!(
        "{head}apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {MAP}\n  namespace: agentaflow\n  labels:\n    \
         app.kubernetes.io/part-of: agentaflow\n    grafana_dashboard: \"1\"\ndata:\n  {KEY}: |\n    {indented}\n"
    )
}

/// The same `ConfigMap` as JSON, for `kubectl apply`.
fn dashboard_json(dashboard: &str) -> Result<String> {
    let map = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": MAP,
            "namespace": "agentaflow",
            "labels": {"app.kubernetes.io/part-of": "agentaflow", "grafana_dashboard": "1"},
        },
        "data": {KEY: dashboard},
    });
    Ok(serde_json::to_string_pretty(&map)? + "\n")
}

const MAP: &str = "agentaflow-grafana-dashboard";

const KEY: &str = "agentaflow.json";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_complete_file_is_the_union_of_its_steps() {
        let files = generate().unwrap();
        let documents = |name: &str| -> BTreeSet<String> {
            let text = &files[&format!("{FOLDER}/{name}")];
            let text = text.strip_prefix(&header("deploy")).unwrap();
            text.split("---\n").map(str::to_owned).collect()
        };
        let steps = ["rbac.yaml", "scheduler.yaml", "monitor-daemonset.yaml"];
        let together: BTreeSet<String> = steps.into_iter().flat_map(documents).collect();
        assert_eq!(documents("scheduler-deployment.yaml"), together);
        assert_eq!(steps.map(|step| documents(step).len()).iter().sum::<usize>(), together.len());
    }

    #[test]
    fn both_forms_of_the_dashboard_keep_every_line() {
        let dashboard = "{\n  \"title\": \"x\"\n}\n";
        let yaml = dashboard_yaml(dashboard);
        let (_, block) = yaml.split_once("agentaflow.json: |\n").unwrap();
        let lines: Vec<&str> =
            block.lines().map(|line| line.strip_prefix("    ").unwrap()).collect();
        assert_eq!(lines.join("\n") + "\n", dashboard);
        let json: serde_json::Value =
            serde_json::from_str(&dashboard_json(dashboard).unwrap()).unwrap();
        assert_eq!(json["data"]["agentaflow.json"], dashboard);
    }

    /// Metric names in a text, without the suffixes of histograms and counters.
    fn metrics(text: &str, before: char) -> BTreeSet<String> {
        let is_part = |c: char| c.is_ascii_lowercase() || c == '_';
        let words = text.match_indices("agentaflow_").filter(|(at, _)| {
            let found = text[..*at].chars().next_back().unwrap_or(' ');
            !is_part(found) && (before == ' ' || found == before)
        });
        words
            .map(|(at, _)| {
                let name: String = text[at..].chars().take_while(|c| is_part(*c)).collect();
                let endings = ["_bucket", "_sum", "_count", "_total"];
                let bare = endings.iter().find_map(|ending| name.strip_suffix(ending));
                bare.map(str::to_owned).unwrap_or(name)
            })
            .collect()
    }

    #[test]
    fn the_dashboard_shows_every_metric_and_no_other() {
        let is_source = |file: &&String| {
            file.starts_with("crates/")
                && file.ends_with("/metrics.rs")
                && !file.contains("/tests/")
                || file.starts_with("crates/metrics/src/")
        };
        let sources = repo::files().unwrap();
        let code: Vec<String> = sources
            .iter()
            .filter(is_source)
            .map(|file| read(file).unwrap())
            .map(|code| code.split("#[cfg(test)]").next().unwrap_or_default().to_owned())
            .collect();
        let code = code.concat();
        assert_eq!(metrics(&read(DASHBOARD).unwrap(), ' '), metrics(&code, '"'));
    }
}
