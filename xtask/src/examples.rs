//! `cargo xtask examples`: the files in `examples/k8s` that the documented installation names, made from `deploy`.

use std::fs;

use anyhow::{Context, Result};
use serde_json::json;

use crate::generated::{Chore, Files};
use crate::{crds, repo};

pub(crate) const HELP: &str = "\
Write the files of the documented installation, examples/k8s, from deploy.

Usage: cargo xtask examples [--check]

Options:
  --check     Change nothing; end with 1 when a file is not what deploy says
  -h, --help  Show this text

examples/k8s/Dockerfile and examples/k8s/pytorch-training-workload.yaml are written by hand.";

pub(crate) const CHORE: Chore = Chore { name: "examples", source: "deploy", make };

const FOLDER: &str = "examples/k8s";

/// What each step of the installation applies: the beginnings of the names of files, in their order.
const INSTALLED: [(&str, &[&str]); 5] = [
    ("rbac.yaml", &RIGHTS),
    ("scheduler.yaml", &["deploy/kubernetes/3", "deploy/kubernetes/4"]),
    ("monitor-daemonset.yaml", &["deploy/kubernetes/5"]),
    ("scheduler-deployment.yaml", &[crds::FOLDER, "deploy/kubernetes/"]),
    ("prometheus-servicemonitor.yaml", &["deploy/prometheus/monitors.yaml"]),
];

/// Everything but what runs. The namespace is there already, but without the label that lets the monitor in.
const RIGHTS: [&str; 4] =
    [crds::FOLDER, "deploy/kubernetes/0", "deploy/kubernetes/1", "deploy/kubernetes/2"];

const DASHBOARD: &str = "deploy/grafana/dashboard.json";

fn make() -> Result<Files> {
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

/// Documents of one file.
fn joined(parts: &[String]) -> String {
    format!("{}{}", made_from("deploy"), parts.join("---\n"))
}

fn made_from(source: &str) -> String {
    format!("# Made from {source} by `cargo xtask examples`: change it there.\n")
}

/// Grafana's sidecar takes dashboards from every `ConfigMap` with the label `grafana_dashboard`.
fn dashboard_yaml(dashboard: &str) -> String {
    let indented = dashboard.trim_end().replace('\n', "\n    ");
    let head = made_from(DASHBOARD);
    format!(
        "{head}apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {MAP}\n  namespace: agentaflow\n  labels:\n    \
         app.kubernetes.io/part-of: agentaflow\n    grafana_dashboard: \"1\"\ndata:\n  {KEY}: |\n    {indented}\n"
    )
}

/// The same object as JSON, for which `kubectl apply` needs the dashboard inside of a `ConfigMap` too.
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
    fn everything_is_what_its_steps_are_together() {
        let files = make().unwrap();
        let documents = |name: &str| -> BTreeSet<String> {
            let text = &files[&format!("{FOLDER}/{name}")];
            let text = text.strip_prefix(&made_from("deploy")).unwrap();
            text.split("---\n").map(str::to_owned).collect()
        };
        let steps = ["rbac.yaml", "scheduler.yaml", "monitor-daemonset.yaml"];
        let together: BTreeSet<String> = steps.into_iter().flat_map(documents).collect();
        assert_eq!(documents("scheduler-deployment.yaml"), together);
        assert_eq!(steps.map(|step| documents(step).len()).iter().sum::<usize>(), together.len());
    }

    #[test]
    fn a_dashboard_keeps_every_line_in_both_forms() {
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

    /// Names of metrics in a text, as the text format of Prometheus writes them.
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
    fn the_dashboard_shows_every_metric_and_none_that_is_not_there() {
        let sources =
            ["crates/kube/src/scheduler/metrics.rs", "crates/kube/src/monitor/metrics.rs"];
        let code: String = sources
            .map(|file| read(file).unwrap())
            .map(|code| code.split("#[cfg(test)]").next().unwrap_or_default().to_owned())
            .concat();
        assert_eq!(metrics(&read(DASHBOARD).unwrap(), ' '), metrics(&code, '"'));
    }
}
