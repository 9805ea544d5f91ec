//! `cargo xtask bench-kube`: measures the scheduler on a real control plane.

use std::process::{Command, ExitCode};

use anyhow::Context as _;

use crate::{Failure, kube, repo};

pub(crate) const HELP: &str = "\
Measure the scheduler on Kubernetes: pods bound a second beside kube-scheduler and beside plain
binding calls, memory, and the time to a reason with 10,000 waiting pods.

Usage: cargo xtask bench-kube

Builds the program as images have it, starts a control plane of its own with 1,000 nodes of 8
GPUs, prints Markdown tables and stops everything. It takes a quarter of an hour on two cores, and
the build as long.";

/// Where the control plane of the benchmark lives.
const DIR: &str = "target/kube-bench";

pub(crate) fn run(rest: &[String]) -> Result<ExitCode, Failure> {
    crate::no_arguments("bench-kube", rest)?;
    if !bench(&["--no-run"]).status().context("cannot start cargo")?.success() {
        return Ok(ExitCode::FAILURE);
    }
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let dir = repo::root().join(DIR).display().to_string();
    let up = words(&["up", "--nodes", "1000", "--gpus", "8", "--no-scheduler", "--dir", &dir]);
    kube::run(&up)?;
    let measured = measure(&dir);
    kube::run(&words(&["down", "--dir", &dir]))?;
    measured
}

fn measure(dir: &str) -> Result<ExitCode, Failure> {
    let (kubeconfig, folder) = kube::places(dir.as_ref())?;
    let mut kubectl = Command::new(folder.join("kubectl"));
    kubectl.arg("--kubeconfig").arg(&kubeconfig).args(["apply", "-f", "deploy/crds"]);
    for file in ["00-namespace", "20-rbac-scheduler"] {
        kubectl.arg("-f").arg(format!("deploy/kubernetes/{file}.yaml"));
    }
    let applied = kubectl.current_dir(repo::root()).status().context("cannot start kubectl")?;
    if !applied.success() {
        return Ok(ExitCode::FAILURE);
    }
    let mut bench = bench(&[]);
    bench.env("AGENTAFLOW_BENCH_KUBE", kubeconfig).env("AGENTAFLOW_TEST_KUBE_BIN", folder);
    let status = bench.status().context("cannot start cargo")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// With link-time optimisation, as images have it.
fn bench(more: &[&str]) -> Command {
    let words = ["bench", "--profile", "dist", "--package", "agentaflow", "--bench", "kube"];
    repo::cargo(&[&words, more].concat())
}
