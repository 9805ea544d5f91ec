//! Node labels and their known values.

use std::sync::LazyLock;

use super::{ACCELERATOR, GKE_ACCELERATOR, GKE_ACCELERATORS, GPUS, canonical_accelerator};
use agentaflow_units::nearest_within;

/// GKE's label with the MIG profile of all GPUs of a node.
pub const GKE_PARTITION: &str = "cloud.google.com/gke-gpu-partition-size";

/// Values of `accelerator` for discontinued GPUs, and AKS's value for any GPU.
const OLDER_ACCELERATORS: [&str; 4] =
    ["nvidia", "nvidia-tesla-p100", "nvidia-tesla-p4", "nvidia-tesla-k80"];

/// Labels that Kubernetes, clouds, Karpenter and NVIDIA set on nodes: prefix and suffixes.
const NODE_LABELS: &[(&str, &[&str])] = &[
    ("", &["accelerator"]),
    ("kubernetes.io/", &["arch", "hostname", "os"]),
    ("topology.kubernetes.io/", &["region", "zone"]),
    ("node.kubernetes.io/", &["instance-type", "lifecycle", "windows-build"]),
    ("beta.kubernetes.io/", &["arch", "instance-type", "os"]),
    ("failure-domain.beta.kubernetes.io/", &["region", "zone"]),
    ("agentaflow.gpu/", &["count", "enabled", "schedulable", "utilization-tier"]),
    (
        "cloud.google.com/",
        &[
            "compute-class",
            "gke-accelerator",
            "gke-accelerator-count",
            "gke-boot-disk",
            "gke-container-runtime",
            "gke-ephemeral-storage-local-ssd",
            "gke-gpu",
            "gke-gpu-driver-version",
            "gke-gpu-partition-size",
            "gke-gpu-sharing-strategy",
            "gke-local-nvme-ssd",
            "gke-max-shared-clients-per-gpu",
            "gke-nodepool",
            "gke-os-distribution",
            "gke-placement-group",
            "gke-preemptible",
            "gke-provisioning",
            "gke-queued",
            "gke-spot",
            "gke-tpu-accelerator",
            "gke-tpu-topology",
            "machine-family",
            "reservation-affinity",
            "reservation-name",
        ],
    ),
    (
        "eks.amazonaws.com/",
        &[
            "capacityType",
            "compute-type",
            "instance-category",
            "instance-cpu",
            "instance-cpu-manufacturer",
            "instance-ebs-bandwidth",
            "instance-encryption-in-transit-supported",
            "instance-family",
            "instance-generation",
            "instance-gpu-count",
            "instance-gpu-manufacturer",
            "instance-gpu-memory",
            "instance-gpu-name",
            "instance-hypervisor",
            "instance-local-nvme",
            "instance-memory",
            "instance-network-bandwidth",
            "instance-size",
            "nodeclass",
            "nodegroup",
            "nodegroup-image",
            "sourceLaunchTemplateId",
            "sourceLaunchTemplateVersion",
        ],
    ),
    (
        "karpenter.k8s.aws/",
        &[
            "capacity-reservation-id",
            "capacity-reservation-interruptible",
            "capacity-reservation-type",
            "ec2nodeclass",
            "instance-accelerator-count",
            "instance-accelerator-manufacturer",
            "instance-accelerator-name",
            "instance-capability-flex",
            "instance-category",
            "instance-cpu",
            "instance-cpu-manufacturer",
            "instance-cpu-sustained-clock-speed-mhz",
            "instance-ebs-bandwidth",
            "instance-encryption-in-transit-supported",
            "instance-family",
            "instance-generation",
            "instance-gpu-count",
            "instance-gpu-manufacturer",
            "instance-gpu-memory",
            "instance-gpu-name",
            "instance-hypervisor",
            "instance-local-nvme",
            "instance-memory",
            "instance-network-bandwidth",
            "instance-size",
            "instance-tenancy",
            "placement-group-id",
            "placement-group-partition",
        ],
    ),
    ("karpenter.sh/", &["capacity-type", "initialized", "nodepool", "registered"]),
    ("kubernetes.azure.com/", &["accelerator", "agentpool", "mode", "scalesetpriority"]),
    (
        "nvidia.com/",
        &[
            "cc.capable",
            "cuda.driver-version.full",
            "cuda.driver-version.major",
            "cuda.driver-version.minor",
            "cuda.driver-version.revision",
            "cuda.driver.major",
            "cuda.driver.minor",
            "cuda.driver.rev",
            "cuda.runtime-version.full",
            "cuda.runtime-version.major",
            "cuda.runtime-version.minor",
            "cuda.runtime.major",
            "cuda.runtime.minor",
            "device-plugin.config",
            "gfd.timestamp",
            "gpu",
            "gpu-driver-upgrade-state",
            "gpu.clique",
            "gpu.compute.major",
            "gpu.compute.minor",
            "gpu.count",
            "gpu.family",
            "gpu.imex-domain",
            "gpu.machine",
            "gpu.memory",
            "gpu.mode",
            "gpu.multiprocessors",
            "gpu.present",
            "gpu.product",
            "gpu.replicas",
            "gpu.sharing-strategy",
            "gpu.slices.ci",
            "gpu.slices.gi",
            "gpu.workload.config",
            "mig.capable",
            "mig.config",
            "mig.config.state",
            "mig.strategy",
            "mps.capable",
            "vgpu.config",
            "vgpu.present",
        ],
    ),
];

/// Beginnings of labels that NVIDIA's operator and feature discovery complete with parts, engines and profiles.
const COMPLETED: [&str; 5] = [
    "nvidia.com/gpu.deploy.",
    "nvidia.com/gpu.engines.",
    "nvidia.com/gpu-operator.",
    "nvidia.com/mig-",
    "nvidia.com/vgpu.host-",
];

/// Prefixes with a complete list of labels. GKE's prefix is absent: Google adds labels every month.
const GUARDED: [&str; 4] =
    ["eks.amazonaws.com/", "karpenter.k8s.aws/", "karpenter.sh/", "nvidia.com/"];

/// Most edits for a suggested label: some valid labels differ by few characters.
const SLIP: usize = 2;

static WHOLE_LABELS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let whole = |(begin, ends): &(&str, &[&str])| {
        ends.iter().map(|end| format!("{begin}{end}")).collect::<Vec<_>>()
    };
    NODE_LABELS.iter().flat_map(whole).collect()
});

fn node_labels() -> impl Iterator<Item = &'static str> {
    WHOLE_LABELS.iter().map(String::as_str)
}

/// True for node labels of Kubernetes, the clouds and NVIDIA.
pub fn is_known_label(key: &str) -> bool {
    const OTHERS: [&str; 4] =
        ["kubernetes.io/", "topology.kubernetes.io/", "kubernetes.azure.com/", "agentaflow.gpu/"];
    let begins = |prefix: &&str| key.starts_with(*prefix);
    node_labels().any(|known| known == key)
        || OTHERS.iter().any(begins)
        || COMPLETED.iter().any(begins)
}

/// True for an unknown label under a prefix with a complete list.
pub fn is_unknown_label(key: &str) -> bool {
    !is_known_label(key) && GUARDED.iter().any(|prefix| key.starts_with(prefix))
}

/// Suggestion for an unknown label: a typing error, or a Kubernetes label under another prefix such as
/// `node.kubernetes.io/arch`.
pub fn suggest_label(key: &str) -> Option<&'static str> {
    let slip = || nearest_within(key, node_labels(), SLIP).filter(|_| key.len() > 6);
    let elsewhere = || {
        let (domain, name) =
            key.split_once('/').filter(|(domain, _)| domain.ends_with(".kubernetes.io"))?;
        let own = ["kubernetes.io/", "topology.kubernetes.io/", "node.kubernetes.io/"];
        let named = |known: &&str| {
            known.split_once('/').is_some_and(|(_, other)| other == name)
                && own.iter().any(|prefix| known.starts_with(prefix))
        };
        node_labels().find(named).filter(|_| domain != "beta.kubernetes.io")
    };
    if is_known_label(key) { None } else { elsewhere().or_else(slip) }
}

/// Known values of a model label; none for other labels.
pub fn accelerators(label: &str) -> Option<Vec<&'static str>> {
    match label {
        ACCELERATOR => {
            let models = GPUS.iter().map(|gpu| gpu.accelerator);
            Some(OLDER_ACCELERATORS.into_iter().chain(models).collect())
        }
        GKE_ACCELERATOR => Some(GKE_ACCELERATORS.to_vec()),
        _ => None,
    }
}

/// Canonical value for another spelling of a model.
pub fn suggest_accelerator(label: &str, value: &str) -> Option<&'static str> {
    let meant = canonical_accelerator(value)?;
    accelerators(label)?.contains(&meant).then_some(meant)
}
