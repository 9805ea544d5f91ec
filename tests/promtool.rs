//! `promtool` and Prometheus, for tests of metrics and rules.

use std::io::Write as _;
use std::process::{Command, Stdio};

/// Problems that `promtool check metrics` finds; none without the program. Documented names, and names of
/// `dcgm-exporter`, are exempt.
pub(crate) fn problems(metrics: &str) -> Option<Vec<String>> {
    let started = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = started.ok()?;
    let mut input = child.stdin.take().expect("its input");
    input.write_all(metrics.as_bytes()).expect("it reads");
    drop(input);
    let done = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
    let documented =
        |line: &&str| line.starts_with("agentaflow_gpu_total") || line.starts_with("DCGM_FI_");
    let found = stderr.lines().filter(|line| !documented(line));
    Some(found.map(str::to_owned).collect())
}
