//! The node monitor with a real kubelet.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use agentaflow_gpu::{Device, DeviceProcess, GpuError, GpuSource, Host, Sample};
use agentaflow_kube_monitor::{REFRESH, Settings};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::real::{NAME, RealNode, container_pid, lent, pod_resources, script};
use crate::PROGRAM;
use crate::promtool;
use crate::skip::skip;
use crate::support::{Cluster, PodPlan, Program, Share, free_port, get, wait_for};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes node"]
async fn the_monitor_annotates_pods_with_their_allocated_gpus() {
    let _lent = lent().await;
    let share = Share::new().await;
    share.apply_file("deploy/crds").await;
    let _monitor = start_monitor(&share);
    let devices = published(&share).await;
    let _node = RealNode::join_with(&share, &devices).await;
    share.create_pod(&gpu_pod("train")).await;
    let reported = share
        .wait_pod("train", "annotated", |pod| {
            pod.metadata.annotations.as_ref()?.get("agentaflow.gpu/allocated-devices").cloned()
        })
        .await;
    let mut wanted = devices.clone();
    wanted.sort();
    // The preferred devices of the plugin, seen by the container.
    assert_eq!(Some(&reported), wanted.last());
    wait_for("the container tells its GPU", async || {
        let log = share.log("train").await;
        if log == format!("{reported}\n") { Ok(()) } else { Err(log) }
    })
    .await;
    wait_for("the GPUNode tells who has which GPU", async || {
        let status = gpu_node(&share).await["status"]["gpuStatus"].clone();
        let holder = format!("{}/train", share.namespace);
        let mut gpus = status.as_array().into_iter().flatten();
        let busy = gpus.any(|gpu| gpu["id"] == reported && gpu["currentWorkload"] == holder);
        if busy { Ok(()) } else { Err(status.to_string()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes node"]
async fn a_gpu_process_is_attributed_to_its_pod() {
    let _lent = lent().await;
    let share = Share::new().await;
    share.apply_file("deploy/crds").await;
    let _node = RealNode::join(&share, 2).await;
    for name in ["mine", "other"] {
        share.create_pod(&gpu_pod(name)).await;
    }
    let (mine, other) = (container_pid(&share, "mine").await, container_pid(&share, "other").await);
    assert_ne!(mine, other);
    // The test process, which belongs to no pod.
    let host = std::process::id();
    let processes = [(mine, 100), (other, 20), (host, 3)];
    let port = free_port();
    let stop = CancellationToken::new();
    let _guard = stop.clone().drop_guard();
    let settings = Settings {
        node: NAME.to_owned(),
        namespace: share.namespace.clone(),
        interval: Duration::from_millis(300),
        refresh: REFRESH,
        goal: 80,
        gpus: Arc::new(move || Ok(Box::new(OneGpu(processes.to_vec())))),
        pod_resources: pod_resources(),
        proc: "/proc".into(),
        health: None,
        metrics: Some(([127, 0, 0, 1], port).into()),
        metrics_access: agentaflow_metrics::Access::Open,
        exporter: None,
        dcgm_names: true,
        once: false,
    };
    let client = Cluster::client_of(&share.cluster.kubeconfig).await;
    tokio::spawn(agentaflow_kube_monitor::run(client, settings, stop));
    let mib = |amount: u64| amount * 1024 * 1024;
    let wanted = [("mine".to_owned(), mib(100)), ("other".to_owned(), mib(20))];
    wait_for("the usage of each pod is reported", async || {
        let text = get(port, "/metrics").map(|answer| answer.body).unwrap_or_default();
        let reported: Vec<(String, u64)> = text.lines().filter_map(memory_of_pod).collect();
        if reported == wanted { Ok(()) } else { Err(format!("{reported:?} in:\n{text}")) }
    })
    .await;
    let text = get(port, "/metrics").expect("a response").body;
    let Some(problems) = promtool::problems(&text) else {
        skip!("needs promtool; `sudo apt-get install prometheus` installs it");
    };
    assert!(problems.is_empty(), "{problems:#?}");
}

/// Pod and bytes of a metric line.
fn memory_of_pod(line: &str) -> Option<(String, u64)> {
    let rest = line.strip_prefix("agentaflow_pod_gpu_memory_bytes{")?;
    let (labels, amount) = rest.split_once("} ")?;
    let pod = labels.split(',').find_map(|label| label.strip_prefix("pod="))?;
    let amount: f64 = amount.parse().ok()?;
    Some((pod.trim_matches('"').to_owned(), amount as u64))
}

/// A fake GPU with processes, in place of NVML.
struct OneGpu(Vec<(u32, u64)>);

impl GpuSource for OneGpu {
    fn host(&self) -> Host {
        Host { driver: Some("580.1".into()), cuda: None, source: "nvml" }
    }

    fn devices(&self) -> Result<Vec<Device>, GpuError> {
        let name = "NVIDIA A100".to_owned();
        Ok(vec![Device { uuid: "GPU-0".to_owned(), name, memory: 40_960, ..Device::default() }])
    }

    fn sample(&self) -> Result<Vec<Sample>, GpuError> {
        Ok(vec![Sample {
            uuid: "GPU-0".to_owned(),
            utilization: Some(10),
            memory_used: Some(123),
            temperature: Some(40),
            ..Sample::default()
        }])
    }

    fn processes(&self) -> Result<Vec<DeviceProcess>, GpuError> {
        let process = |(pid, memory): &(u32, u64)| DeviceProcess {
            uuid: "GPU-0".to_owned(),
            pid: *pid,
            memory: *memory,
        };
        Ok(self.0.iter().map(process).collect())
    }
}

/// Prints its GPU and keeps running.
fn gpu_pod(name: &str) -> PodPlan {
    script(name, "echo $NVIDIA_VISIBLE_DEVICES; sleep 300").gpus(1)
}

fn start_monitor(share: &Share) -> Program {
    let mut command = Command::new(PROGRAM);
    command.args(["monitor", "--gpus", "simulated:3xA100"]);
    // As in the DaemonSet.
    command.env("NODE_NAME", NAME).env("KUBERNETES_NAMESPACE", &share.namespace);
    command.env("MONITOR_INTERVAL", "300ms");
    command.arg("--kubeconfig").arg(&share.cluster.kubeconfig);
    command.arg("--pod-resources").arg(pod_resources());
    for option in ["--health", "--metrics"] {
        command.args([option, &format!("127.0.0.1:{}", free_port())]);
    }
    Program::start(command, &share.file("monitor.log"))
}

async fn gpu_node(share: &Share) -> Value {
    let path = format!("/apis/agentaflow.io/v1/namespaces/{}/gpunodes/{NAME}", share.namespace);
    let answer = share.request("GET", &path, None).await;
    if answer.status == 200 { answer.json() } else { Value::Null }
}

/// GPU ids that the monitor publishes.
async fn published(share: &Share) -> Vec<String> {
    wait_for("the monitor tells of its GPUs", async || {
        let devices = gpu_node(share).await["spec"]["gpuDevices"].clone();
        let ids = devices.as_array().into_iter().flatten();
        let ids: Vec<String> =
            ids.filter_map(|gpu| gpu["id"].as_str().map(str::to_owned)).collect();
        if ids.is_empty() { Err("none") } else { Ok(ids) }
    })
    .await
}
