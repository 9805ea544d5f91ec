//! Configuration of the kubelet, containerd and the network plugins of the real node.

use std::path::Path;

use serde_json::{Value, json};

use super::super::certificates::files;
use super::super::control_plane::kubeconfig_in;
use super::super::options::Options;
use super::host_resources::HostResources;
use super::{NAME, folder, images};

/// `restrict_oom_score_adj`: containers often lack the right to change OOM scores.
pub(super) fn containerd(folder: &Path, plugins: &Path) -> String {
    // TOML and JSON quote strings the same way.
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

/// Pods get addresses on the bridge of the node, without a route to other networks.
pub(super) fn network(folder: &Path, host: &HostResources) -> String {
    let range = json!([{"subnet": host.subnet(), "rangeStart": host.first_of_pods()}]);
    let plugin = json!({
        "type": "bridge",
        "bridge": host.name(),
        "ipam": {"type": "host-local", "ranges": [range], "dataDir": folder.join("addresses")},
    });
    json!({"cniVersion": "0.4.0", "name": host.name(), "plugins": [plugin]}).to_string()
}

/// Domain of the names of Services.
const CLUSTER_DOMAIN: &str = "cluster.local";

/// Configuration of `CoreDNS`: names of Services and their pods, and no names of other networks.
pub(super) fn resolver(dir: &Path, host: &HostResources, health: u16) -> String {
    format!(
        "{CLUSTER_DOMAIN}:53 {{
    bind {address}
    errors
    health 127.0.0.1:{health}
    kubernetes {{
        kubeconfig \"{kubeconfig}\"
        ttl 0
    }}
}}
",
        address = host.address(),
        kubeconfig = kubeconfig_in(dir).display(),
    )
}

pub(super) fn kubelet(dir: &Path, host: &HostResources, health: u16, grace: u32) -> Value {
    let certificates = dir.join("certificates");
    let (certificate, key) = files(&certificates, "kubelet");
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": host.address(),
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
        "cgroupRoot": format!("/{}", host.name()),
        // Test machines have cgroup v1, swap, or run in a user namespace.
        "failCgroupV1": false,
        "failSwapOn": false,
        "featureGates": {"KubeletInUserNamespace": true},
        // A full disk must not evict pods or delete images: no registry can provide them again.
        "evictionHard": {
            "memory.available": "50Mi",
            "nodefs.available": "0%", "nodefs.inodesFree": "0%",
            "imagefs.available": "0%", "imagefs.inodesFree": "0%",
        },
        "imageGCHighThresholdPercent": 100,
        // Leaves the firewall of the machine unchanged.
        "makeIPTablesUtilChains": false,
        "clusterDNS": [host.address()],
        "clusterDomain": CLUSTER_DOMAIN,
        "resolvConf": "",
        "volumePluginDir": folder(dir).join("volume-plugins"),
        // Short intervals for fast tests.
        "nodeStatusUpdateFrequency": "300ms",
        "nodeLeaseDurationSeconds": grace.max(4),
        "syncFrequency": "1s",
    })
}

/// Options that the configuration file does not support.
pub(super) fn kubelet_options(dir: &Path, host: &HostResources, options: &Options) -> Vec<String> {
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
        format!("--node-ip={}", host.address()),
        format!("--node-labels={}", labels.join(",")),
    ]
}
