//! What the kubelet, containerd and the network plugins of the real node are told.

use std::path::Path;

use serde_json::{Value, json};

use super::super::certificates::files;
use super::super::options::Options;
use super::ground::Ground;
use super::{NAME, folder, images};

/// containerd works here without the right to protect its containers from the lack of memory.
pub(super) fn containerd(folder: &Path, plugins: &Path) -> String {
    // A TOML string is written as a JSON string is.
    let quoted = |path: &Path| Value::from(path.display().to_string()).to_string();
    format!(
        r#"version = 2
root = {root}
state = {state}
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
  address = {socket}
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = {plugins}
    conf_dir = {network}
"#,
        root = quoted(&folder.join("containerd/root")),
        state = quoted(&folder.join("containerd/state")),
        socket = quoted(&folder.join("containerd.sock")),
        pause = images::PAUSE,
        plugins = quoted(plugins),
        network = quoted(&folder.join("network")),
    )
}

/// Pods get addresses on the node's bridge, with no way out.
pub(super) fn network(folder: &Path, ground: &Ground) -> String {
    let range = json!([{"subnet": ground.subnet(), "rangeStart": ground.first_of_pods()}]);
    let plugin = json!({
        "type": "bridge",
        "bridge": ground.name(),
        "ipam": {"type": "host-local", "ranges": [range], "dataDir": folder.join("addresses")},
    });
    json!({"cniVersion": "0.4.0", "name": ground.name(), "plugins": [plugin]}).to_string()
}

/// A kubelet's settings; those of a machine are often different, but for what stands here there is a reason.
pub(super) fn kubelet(dir: &Path, ground: &Ground, health: u16, grace: u32) -> Value {
    let certificates = dir.join("certificates");
    let (certificate, key) = files(&certificates, "kubelet");
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": ground.address(),
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": health,
        "tlsCertFile": certificate,
        "tlsPrivateKeyFile": key,
        "authentication": {
            "anonymous": {"enabled": false},
            "x509": {"clientCAFile": files(&certificates, "ca").0},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint":
            format!("unix://{}", folder(dir).join("containerd.sock").display()),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}", ground.name()),
        // The machine may be one that Kubernetes would not choose, and not all of it is given to us.
        "failCgroupV1": false,
        "failSwapOn": false,
        "featureGates": {"KubeletInUserNamespace": true},
        // It is nobody's business here how full the disk is, and images that cannot be fetched again must stay.
        "evictionHard": {
            "memory.available": "50Mi",
            "nodefs.available": "0%", "nodefs.inodesFree": "0%",
            "imagefs.available": "0%", "imagefs.inodesFree": "0%",
        },
        "imageGCHighThresholdPercent": 100,
        // Rules of the machine's firewall are left alone.
        "makeIPTablesUtilChains": false,
        // Nobody answers there: names are not needed, and without this every pod is warned of the lack.
        "clusterDNS": ["192.0.2.53"],
        "resolvConf": "",
        "volumePluginDir": folder(dir).join("volume-plugins"),
        // Tests shall not wait.
        "nodeStatusUpdateFrequency": "1s",
        "nodeLeaseDurationSeconds": grace.max(4),
        "syncFrequency": "1s",
    })
}

/// What can only be said on the command line.
pub(super) fn kubelet_options(dir: &Path, ground: &Ground, options: &Options) -> Vec<String> {
    let labels = [
        ("nvidia.com/gpu.product", options.model.clone()),
        ("nvidia.com/gpu.memory", options.memory.to_string()),
    ];
    let labels: Vec<String> =
        labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    vec![
        format!("--config={}", folder(dir).join("kubelet.json").display()),
        format!("--kubeconfig={}", dir.join("node.kubeconfig").display()),
        format!("--hostname-override={NAME}"),
        format!("--node-ip={}", ground.address()),
        format!("--node-labels={}", labels.join(",")),
    ]
}
