//! The real node, used by one test at a time.

use std::path::PathBuf;
use std::process::Command;

use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

use super::device_plugin::DevicePlugin;
use crate::support::{OWNER, PodPlan, Share, wait_for};

/// Preloaded image; the node reaches no registry.
pub(super) const IMAGE: &str = "agentaflow-test/busybox:1";

/// Node name of `cargo xtask kube up --real-node`.
pub(super) const NAME: &str = "real";

/// Lock of the only real node; held from before the share is created until it is deleted.
pub(super) async fn lent() -> MutexGuard<'static, ()> {
    static LENT: Mutex<()> = Mutex::const_new(());
    LENT.lock().await
}

/// The node in a share, with fake GPUs.
pub(super) struct RealNode {
    pub(super) plugin: DevicePlugin,
    pub(super) devices: Vec<String>,
}

impl RealNode {
    /// With new GPUs.
    pub(super) async fn join(share: &Share, gpus: usize) -> Self {
        let devices: Vec<String> =
            (0..gpus).map(|index| format!("GPU-{}-{index}", share.id)).collect();
        Self::join_with(share, &devices).await
    }

    /// With these GPUs.
    pub(super) async fn join_with(share: &Share, devices: &[String]) -> Self {
        let patch = json!({"metadata": {"labels": {OWNER: share.id}}});
        share.patch_node(NAME, &patch).await;
        let sockets = folder().join("kubelet/device-plugins");
        let plugin = DevicePlugin::register(&sockets, &share.id, devices).await;
        let nodes = share.cluster_api::<Node>();
        wait_for("the kubelet tells of its GPUs", async || {
            let node = nodes.get(NAME).await.map_err(|error| error.to_string())?;
            let amounts = node.status.and_then(|status| status.allocatable).unwrap_or_default();
            let told = amounts.get("nvidia.com/gpu").map(|amount| amount.0.clone());
            let wanted = Some(devices.len().to_string());
            if told == wanted { Ok(()) } else { Err(format!("{told:?}")) }
        })
        .await;
        Self { plugin, devices: devices.to_vec() }
    }
}

pub(super) fn pod_resources() -> PathBuf {
    folder().join("kubelet/pod-resources/kubelet.sock")
}

/// A part of a script that blocks until `go_on`.
pub(super) const UNTIL_TOLD: &str = "until [ $told ]; do sleep 0.1; done";

/// Required first line of such a script.
pub(super) const LISTENS: &str = "trap 'exit 143' TERM; trap told=yes USR1";

/// Unblocks the script of a pod.
pub(super) async fn go_on(share: &Share, pod: &str) {
    let pid = container_pid(share, pod).await.to_string();
    let sent = Command::new("kill").args(["-s", "USR1", "--", &pid]).status();
    assert!(sent.expect("`kill` can be started").success(), "{pod} was not told");
}

/// Host process id of a container.
pub(super) async fn container_pid(share: &Share, pod: &str) -> u32 {
    let pod = share.in_phase(pod, "Running").await;
    let statuses = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
    let id = statuses.first().and_then(|status| status.container_id.clone()).unwrap_or_default();
    let id = id.strip_prefix("containerd://").expect("a container of containerd");
    let noted = container(id).join("init.pid");
    let pid = std::fs::read_to_string(&noted);
    let pid = pid.unwrap_or_else(|error| panic!("{}: {error}", noted.display()));
    pid.trim().parse().expect("a number")
}

/// State directory of a container.
fn container(id: &str) -> PathBuf {
    folder().join("containerd/state/io.containerd.runtime.v2.task/k8s.io").join(id)
}

fn folder() -> PathBuf {
    let folder = std::env::var_os("AGENTAFLOW_TEST_KUBELET").map(PathBuf::from);
    folder.expect("AGENTAFLOW_TEST_KUBELET names the folder of a real node")
}

/// A pod with a script that stops at once on SIGTERM.
pub(super) fn script(name: &str, script: &str) -> PodPlan {
    let container = json!({
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
    });
    PodPlan::new(name)
        .spec("containers", Value::Array(vec![container]))
        .spec("terminationGracePeriodSeconds", json!(1))
}
