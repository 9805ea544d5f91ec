//! `cargo xtask bench-kube`: measures the scheduler on a Kubernetes control plane.

use std::process::{Command, ExitCode};

use anyhow::Context as _;

use crate::{CommandError, kube, repo};

pub(crate) const HELP: &str = "\
Benchmark the Kubernetes scheduler: pods bound per second compared with kube-scheduler and with
plain binding calls, memory, and the time to a pending reason for 10,000 pending pods.

Usage: cargo xtask bench-kube

Builds the program with the profile of images, starts a control plane with 1,000 nodes of 8
GPUs, prints Markdown tables and stops the control plane. On two cores the benchmark takes 15
minutes, and the build takes the same.";

/// Folder of the control plane.
const DIR: &str = "target/kube-bench";

pub(crate) fn run(rest: &[String]) -> Result<ExitCode, CommandError> {
    crate::no_arguments("bench-kube", rest)?;
    if !bench(&["--no-run"]).status().context("cannot start cargo")?.success() {
        return Ok(ExitCode::FAILURE);
    }
    let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let dir = repo::root().join(DIR).display().to_string();
    let up = owned(&["up", "--nodes", "1000", "--gpus", "8", "--no-scheduler", "--dir", &dir]);
    kube::run(&up)?;
    let measured = measure(&dir);
    kube::run(&owned(&["down", "--dir", &dir]))?;
    measured
}

fn measure(dir: &str) -> Result<ExitCode, CommandError> {
    let (kubeconfig, folder) = kube::kubeconfig_and_programs(dir.as_ref())?;
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

/// With the profile of images.
fn bench(more: &[&str]) -> Command {
    let words = ["bench", "--profile", "dist", "--package", "agentaflow", "--bench", "kube"];
    repo::cargo(&[&words, more].concat())
}
