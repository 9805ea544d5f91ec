//! Nodes with GPUs that KWOK plays.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::options::Options;

/// What one call of kubectl creates: it slows itself down after this many.
const AT_ONCE: usize = 250;

/// Calls of kubectl side by side.
const WORKERS: usize = 4;

const ZONES: [&str; 3] = ["a", "b", "c"];

/// How long new nodes may take to be ready: all of them, and each of them.
const PATIENCE: Duration = Duration::from_mins(3);
const PATIENCE_EACH: Duration = Duration::from_millis(200);

/// Makes the nodes that are missing and waits until they are ready; gives their number.
pub(super) fn ensure(kubectl: &(impl Fn() -> Command + Sync), options: &Options) -> Result<usize> {
    let there: BTreeSet<String> =
        nodes(kubectl)?.iter().map(|node| name(node).to_owned()).collect();
    let missing: Vec<Value> = (0..options.nodes)
        .filter(|index| !there.contains(&format!("{}-{index}", options.prefix)))
        .map(|index| node(options, index))
        .collect();
    let bundles: Vec<&[Value]> = missing.chunks(AT_ONCE).collect();
    for group in bundles.chunks(WORKERS) {
        thread::scope(|scope| {
            let calls: Vec<_> =
                group.iter().map(|bundle| scope.spawn(|| create(kubectl(), bundle))).collect();
            calls.into_iter().try_for_each(|call| call.join().expect("it does not panic"))
        })?;
    }
    let (started, patience) = (Instant::now(), PATIENCE + PATIENCE_EACH * options.nodes);
    while !missing.is_empty() && nodes(kubectl)?.iter().any(|node| !is_usable(node)) {
        if started.elapsed() > patience {
            bail!("some nodes are not ready: {}", summary(kubectl)?);
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

/// True when there is a node of this name, and pods can be placed on it.
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
        bail!("no nodes could be made: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

fn nodes(kubectl: &impl Fn() -> Command) -> Result<Vec<Value>> {
    let output = kubectl().args(["get", "nodes", "--output=json"]).output();
    let output = output.context("cannot start kubectl")?;
    if !output.status.success() {
        bail!("the nodes cannot be listed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let mut list: Value = serde_json::from_slice(&output.stdout)?;
    match list["items"].take() {
        Value::Array(nodes) => Ok(nodes),
        _ => bail!("kubectl does not list nodes"),
    }
}

fn name(node: &Value) -> &str {
    node["metadata"]["name"].as_str().unwrap_or_default()
}

/// Ready, and nothing keeps pods away any more.
fn is_usable(node: &Value) -> bool {
    let each = |list: &Value| list.as_array().cloned().unwrap_or_default();
    let is_ready = each(&node["status"]["conditions"])
        .iter()
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
    let keeps_away = |taint: &Value| {
        let key = taint["key"].as_str().unwrap_or_default();
        key.starts_with("node.kubernetes.io/") && key != "node.kubernetes.io/unschedulable"
    };
    is_ready && !each(&node["spec"]["taints"]).iter().any(keeps_away)
}

fn gpus(node: &Value) -> u64 {
    let count = node["status"]["allocatable"]["nvidia.com/gpu"].as_str();
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_usable_when_it_is_ready_and_carries_no_taint_for_its_state() {
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
