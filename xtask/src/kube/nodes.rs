//! GPU nodes simulated by KWOK.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::options::Options;

/// Nodes per call of kubectl, which throttles larger calls.
const BATCH: usize = 250;

/// Concurrent calls of kubectl.
const CONCURRENCY: usize = 4;

const ZONES: [&str; 3] = ["a", "b", "c"];

/// Longest time until new nodes are ready: a constant part and a part per node.
const READY_TIMEOUT: Duration = Duration::from_mins(3);
const READY_TIMEOUT_PER_NODE: Duration = Duration::from_millis(200);

/// Creates missing nodes and waits until they are ready; returns the number of new nodes.
pub(super) fn ensure(kubectl: &(impl Fn() -> Command + Sync), options: &Options) -> Result<usize> {
    let existing: BTreeSet<String> =
        nodes(kubectl)?.iter().map(|node| name(node).to_owned()).collect();
    let missing: Vec<Value> = (0..options.nodes)
        .filter(|index| !existing.contains(&format!("{}-{index}", options.prefix)))
        .map(|index| node(options, index))
        .collect();
    let batches: Vec<&[Value]> = missing.chunks(BATCH).collect();
    for group in batches.chunks(CONCURRENCY) {
        thread::scope(|scope| {
            let calls: Vec<_> =
                group.iter().map(|batch| scope.spawn(|| create(kubectl(), batch))).collect();
            calls.into_iter().try_for_each(|call| call.join().expect("`create` does not panic"))
        })?;
    }
    let started = Instant::now();
    let timeout = READY_TIMEOUT + READY_TIMEOUT_PER_NODE * options.nodes;
    while !missing.is_empty() && nodes(kubectl)?.iter().any(|node| !is_usable(node)) {
        if started.elapsed() > timeout {
            bail!("nodes are not ready: {}", summary(kubectl)?);
        }
        thread::sleep(Duration::from_millis(300));
    }
    Ok(missing.len())
}

/// `10, 10 ready, 80 GPUs`.
pub(super) fn summary(kubectl: &impl Fn() -> Command) -> Result<String> {
    let nodes = nodes(kubectl)?;
    let ready = nodes.iter().filter(|node| is_usable(node)).count();
    let gpus: u64 = nodes.iter().map(gpus).sum();
    Ok(format!("{}, {ready} ready, {gpus} GPUs", nodes.len()))
}

/// True if the node exists and accepts pods.
pub(super) fn is_usable_named(kubectl: &impl Fn() -> Command, wanted: &str) -> Result<bool> {
    Ok(nodes(kubectl)?.iter().any(|node| name(node) == wanted && is_usable(node)))
}

fn node(options: &Options, index: u32) -> Value {
    let name = format!("{}-{index}", options.prefix);
    let gpus = options.gpus.to_string();
    let amounts = json!({
        "cpu": "64",
        "memory": "512Gi",
        "ephemeral-storage": "1Ti",
        "pods": options.pods.to_string(),
        "nvidia.com/gpu": gpus,
    });
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "nvidia.com/gpu.count": gpus,
                "nvidia.com/gpu.memory": options.memory.to_string(),
                "nvidia.com/gpu.product": options.model,
                "topology.kubernetes.io/region": "local",
                "topology.kubernetes.io/zone": ZONES[index as usize % ZONES.len()],
            },
        },
        "status": {"allocatable": amounts, "capacity": amounts},
    })
}

fn create(mut kubectl: Command, nodes: &[Value]) -> Result<()> {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": nodes});
    kubectl.args(["create", "--validate=false", "--filename=-"]);
    kubectl.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = kubectl.spawn().context("cannot start kubectl")?;
    let mut stdin = child.stdin.take().context("kubectl has no input")?;
    stdin.write_all(list.to_string().as_bytes())?;
    drop(stdin);
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("cannot create nodes: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

fn nodes(kubectl: &impl Fn() -> Command) -> Result<Vec<Value>> {
    let output = kubectl().args(["get", "nodes", "--output=json"]).output();
    let output = output.context("cannot start kubectl")?;
    if !output.status.success() {
        bail!("cannot list nodes: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let mut list: Value = serde_json::from_slice(&output.stdout)?;
    match list["items"].take() {
        Value::Array(nodes) => Ok(nodes),
        _ => bail!("unexpected output of `kubectl get nodes`"),
    }
}

fn name(node: &Value) -> &str {
    node["metadata"]["name"].as_str().unwrap_or_default()
}

/// Ready, and without a taint of the node lifecycle. Cordoned nodes count as usable.
fn is_usable(node: &Value) -> bool {
    let each = |list: &Value| list.as_array().cloned().unwrap_or_default();
    let is_ready = each(&node["status"]["conditions"])
        .iter()
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
    let is_lifecycle_taint = |taint: &Value| {
        let key = taint["key"].as_str().unwrap_or_default();
        key.starts_with("node.kubernetes.io/") && key != "node.kubernetes.io/unschedulable"
    };
    is_ready && !each(&node["spec"]["taints"]).iter().any(is_lifecycle_taint)
}

fn gpus(node: &Value) -> u64 {
    let count = node["status"]["allocatable"]["nvidia.com/gpu"].as_str();
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_usable_when_ready_and_without_a_lifecycle_taint() {
        let node = |ready: &str, taint: &str| {
            json!({
                "spec": {"taints": [{"key": taint}]},
                "status": {"conditions": [{"type": "Ready", "status": ready}]},
            })
        };
        assert!(is_usable(&node("True", "nvidia.com/gpu")));
        assert!(is_usable(&node("True", "node.kubernetes.io/unschedulable")));
        assert!(!is_usable(&node("True", "node.kubernetes.io/not-ready")));
        assert!(!is_usable(&node("Unknown", "nvidia.com/gpu")));
    }
}
