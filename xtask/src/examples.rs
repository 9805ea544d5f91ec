//! `cargo xtask examples`: the installation files in `examples/k8s`, generated from `deploy`.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};
use serde_json::json;

use crate::generate::{Files, Generator};
use crate::{crds, grafana, repo};

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

fn generate() -> Result<Files> {
    let all = repo::files()?;
    let mut files = Files::new();
    for (name, sources) in INSTALLED {
        let from =
            sources.iter().flat_map(|start| all.iter().filter(move |file| file.starts_with(start)));
        let parts = from.map(|file| read(file)).collect::<Result<Vec<String>>>()?;
        files.insert(format!("{FOLDER}/{name}"), joined(&parts));
    }
    let dashboards = dashboards(&all)?;
    files.insert(format!("{FOLDER}/grafana-dashboard.yaml"), dashboards_yaml(&dashboards));
    files.insert(format!("{FOLDER}/grafana-dashboard.json"), dashboards_json(&dashboards)?);
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

/// Dashboards by their key in the `ConfigMap`.
type Dashboards = BTreeMap<String, String>;

fn dashboards(all: &[String]) -> Result<Dashboards> {
    let files = all.iter().filter_map(|file| {
        let name = file.strip_prefix(grafana::FOLDER)?.strip_prefix('/')?;
        Some((file, format!("agentaflow-{name}")))
    });
    files.map(|(file, key)| Ok((key, read(file)?))).collect()
}

/// Grafana's sidecar loads dashboards from every `ConfigMap` with the label `grafana_dashboard`.
fn dashboards_yaml(dashboards: &Dashboards) -> String {
    let head = header(grafana::FOLDER);
    let data = dashboards.iter().map(|(key, text)| {
        let indented = text.trim_end().replace('\n', "\n    ");
        format!("  {key}: |\n    {indented}\n")
    });
    format!(
        "{head}apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {MAP}\n  namespace: agentaflow\n  labels:\n    \
         app.kubernetes.io/part-of: agentaflow\n    grafana_dashboard: \"1\"\ndata:\n{}",
        data.collect::<String>()
    )
}

/// The same `ConfigMap` as JSON, for `kubectl apply`.
fn dashboards_json(dashboards: &Dashboards) -> Result<String> {
    let map = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": MAP,
            "namespace": "agentaflow",
            "labels": {"app.kubernetes.io/part-of": "agentaflow", "grafana_dashboard": "1"},
        },
        "data": dashboards,
    });
    Ok(serde_json::to_string_pretty(&map)? + "\n")
}

const MAP: &str = "agentaflow-grafana-dashboard";

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
    fn both_forms_of_the_dashboards_keep_every_line() {
        let text = |title: &str| format!("{{\n  \"title\": \"{title}\"\n}}\n");
        let all: Dashboards =
            [("a.json".to_owned(), text("x")), ("b.json".to_owned(), text("y"))].into();
        let yaml = dashboards_yaml(&all);
        let (_, blocks) = yaml.split_once("data:\n  a.json: |\n").unwrap();
        let (a, b) = blocks.split_once("  b.json: |\n").unwrap();
        for (block, title) in [(a, "x"), (b, "y")] {
            let lines = block.lines().map(|line| line.strip_prefix("    ").unwrap());
            assert_eq!(lines.collect::<Vec<_>>().join("\n") + "\n", text(title));
        }
        let json: serde_json::Value =
            serde_json::from_str(&dashboards_json(&all).unwrap()).unwrap();
        assert_eq!(json["data"], serde_json::to_value(&all).unwrap());
    }
}
