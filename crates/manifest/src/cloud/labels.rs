//! Labels of nodes, and which values of them somebody sets.

use super::{ACCELERATOR, GPUS, canonical_accelerator};

/// GKE's label with the model.
pub const GKE_ACCELERATOR: &str = "cloud.google.com/gke-accelerator";

/// GKE's label with the MIG profile that all GPUs of a node are cut into.
pub const GKE_PARTITION: &str = "cloud.google.com/gke-gpu-partition-size";

/// Values of `accelerator` for GPUs that are no longer sold, and AKS's for any GPU.
const OLDER_ACCELERATORS: [&str; 4] =
    ["nvidia", "nvidia-tesla-p100", "nvidia-tesla-p4", "nvidia-tesla-k80"];

/// Values of `cloud.google.com/gke-accelerator`.
pub const GKE_ACCELERATORS: &[&str] = &[
    "nvidia-tesla-k80",
    "nvidia-tesla-p4",
    "nvidia-tesla-p100",
    "nvidia-tesla-t4",
    "nvidia-tesla-v100",
    "nvidia-tesla-a100",
    "nvidia-a100-80gb",
    "nvidia-l4",
    "nvidia-h100-80gb",
    "nvidia-h100-mega-80gb",
    "nvidia-h200-141gb",
    "nvidia-b200",
    "nvidia-gb200",
    "nvidia-gb300",
    "nvidia-rtx-pro-6000",
];

/// Labels that clouds, Karpenter and NVIDIA put on nodes. A label below one of their prefixes that is not here is
/// nobody's.
pub const NODE_LABELS: &[&str] = &[
    "accelerator",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "cloud.google.com/gke-accelerator",
    "cloud.google.com/gke-accelerator-count",
    "cloud.google.com/gke-gpu-partition-size",
    "cloud.google.com/gke-gpu-sharing-strategy",
    "cloud.google.com/gke-max-shared-clients-per-gpu",
    "cloud.google.com/gke-nodepool",
    "cloud.google.com/gke-provisioning",
    "cloud.google.com/gke-spot",
    "cloud.google.com/machine-family",
    "eks.amazonaws.com/capacityType",
    "eks.amazonaws.com/instance-gpu-count",
    "eks.amazonaws.com/instance-gpu-name",
    "eks.amazonaws.com/nodegroup",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "karpenter.k8s.aws/instance-category",
    "karpenter.k8s.aws/instance-cpu",
    "karpenter.k8s.aws/instance-family",
    "karpenter.k8s.aws/instance-generation",
    "karpenter.k8s.aws/instance-gpu-count",
    "karpenter.k8s.aws/instance-gpu-manufacturer",
    "karpenter.k8s.aws/instance-gpu-memory",
    "karpenter.k8s.aws/instance-gpu-name",
    "karpenter.k8s.aws/instance-local-nvme",
    "karpenter.k8s.aws/instance-memory",
    "karpenter.k8s.aws/instance-size",
    "karpenter.sh/capacity-type",
    "karpenter.sh/initialized",
    "karpenter.sh/nodepool",
    "karpenter.sh/registered",
    "kubernetes.azure.com/accelerator",
    "kubernetes.azure.com/agentpool",
    "kubernetes.azure.com/mode",
    "kubernetes.azure.com/scalesetpriority",
    "node.kubernetes.io/instance-type",
    "node.kubernetes.io/lifecycle",
    "nvidia.com/cuda.driver.major",
    "nvidia.com/cuda.driver-version.major",
    "nvidia.com/cuda.runtime.major",
    "nvidia.com/cuda.runtime-version.major",
    "nvidia.com/gpu",
    "nvidia.com/gpu.compute.major",
    "nvidia.com/gpu.compute.minor",
    "nvidia.com/gpu.count",
    "nvidia.com/gpu.family",
    "nvidia.com/gpu.machine",
    "nvidia.com/gpu.memory",
    "nvidia.com/gpu.present",
    "nvidia.com/gpu.product",
    "nvidia.com/gpu.replicas",
    "nvidia.com/gpu.sharing-strategy",
    "nvidia.com/mig.capable",
    "nvidia.com/mig.config",
    "nvidia.com/mig.strategy",
];

/// The prefixes of [`NODE_LABELS`] below which nobody else makes up labels, and which have a few labels only.
pub const GUARDED: &[&str] = &[
    "cloud.google.com/gke-",
    "karpenter.k8s.aws/",
    "karpenter.sh/",
    "nvidia.com/",
    "node.kubernetes.io/",
    "eks.amazonaws.com/",
];

/// Labels of nodes that a selector may name without being a mistake: those of the clouds, of NVIDIA and of Kubernetes.
pub fn known_label(key: &str) -> bool {
    const OTHERS: [&str; 4] =
        ["kubernetes.io/", "topology.kubernetes.io/", "kubernetes.azure.com/", "agentaflow.gpu/"];
    NODE_LABELS.contains(&key) || OTHERS.iter().any(|prefix| key.starts_with(prefix))
}

/// The values that the label with the model may have; none if it is another label.
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

/// The value that was meant where a model is spelt in another way.
pub fn accelerator_meant(label: &str, value: &str) -> Option<&'static str> {
    let meant = canonical_accelerator(value)?;
    accelerators(label)?.contains(&meant).then_some(meant)
}
