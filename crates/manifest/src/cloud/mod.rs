//! Labels and taints of GPU nodes in each cloud.

mod labels;

use serde::{Deserialize, Serialize};

pub use agentaflow_gpu::catalog::{
    GKE_ACCELERATOR, GKE_ACCELERATORS, GPUS, Gpu, KARPENTER_GPU_NAME, canonical_accelerator,
    gpu_named,
};
pub use labels::{
    GKE_PARTITION, accelerators, is_known_label, is_unknown_label, suggest_accelerator,
    suggest_label,
};

/// The resource that counts whole GPUs, or time slices of them.
pub const GPU_RESOURCE: &str = "nvidia.com/gpu";
/// Key of the common taint of GPU nodes; its value varies.
pub const GPU_TAINT: &str = "nvidia.com/gpu";
/// Label set by administrators, and by AKS to `nvidia`.
pub const ACCELERATOR: &str = "accelerator";
/// Label with the machine's type, on every cloud.
pub const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";
/// Label of NVIDIA's feature discovery: the model.
pub const PRODUCT: &str = "nvidia.com/gpu.product";
/// Label of NVIDIA's feature discovery: MiB of each GPU.
pub const GPU_MEMORY: &str = "nvidia.com/gpu.memory";
/// Label of Karpenter on AWS: MiB of each GPU.
pub const KARPENTER_GPU_MEMORY: &str = "karpenter.k8s.aws/instance-gpu-memory";
/// Label of NVIDIA's feature discovery.
pub const GPU_PRESENT: &str = "nvidia.com/gpu.present";

/// Convention of node labels.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum Cloud {
    /// Nodes labelled by an administrator: `accelerator=nvidia-tesla-a100`
    #[default]
    Generic,
    /// Amazon EKS with managed node groups
    Eks,
    /// Amazon EKS with Karpenter
    Karpenter,
    /// Google GKE
    Gke,
    /// Azure AKS
    Aks,
    /// Any cluster with NVIDIA's GPU feature discovery
    Nvidia,
}

/// A label and its value.
pub type Label = (&'static str, &'static str);

/// Label and taint of spot nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    pub label: Label,
    pub taint: Label,
    /// The cloud sets the taint itself; otherwise the creator of the node pool may set it.
    pub tainted: bool,
}

impl Cloud {
    pub const ALL: [Self; 6] =
        [Self::Generic, Self::Eks, Self::Karpenter, Self::Gke, Self::Aks, Self::Nvidia];

    /// Name in flags.
    pub fn name(self) -> &'static str {
        match self {
            Self::Generic => "generic",
            Self::Eks => "eks",
            Self::Karpenter => "karpenter",
            Self::Gke => "gke",
            Self::Aks => "aks",
            Self::Nvidia => "nvidia",
        }
    }

    /// Cloud of the instance types; none if nodes may come from any cloud.
    pub fn instances(self) -> Option<Self> {
        match self {
            Self::Eks | Self::Karpenter => Some(Self::Eks),
            Self::Gke | Self::Aks => Some(self),
            Self::Generic | Self::Nvidia => None,
        }
    }

    /// The label with the name of a pool of nodes.
    pub fn pool_label(self) -> Option<&'static str> {
        match self {
            Self::Eks => Some("eks.amazonaws.com/nodegroup"),
            Self::Karpenter => Some("karpenter.sh/nodepool"),
            Self::Gke => Some("cloud.google.com/gke-nodepool"),
            Self::Aks => Some("kubernetes.azure.com/agentpool"),
            Self::Generic | Self::Nvidia => None,
        }
    }

    /// Label with the model name, and its values for a model, for preferences.
    pub fn model_label(self, gpu: &'static Gpu) -> (&'static str, Vec<&'static str>) {
        match self {
            Self::Gke => (GKE_ACCELERATOR, vec![gpu.accelerator]),
            Self::Karpenter => (KARPENTER_GPU_NAME, vec![gpu.karpenter]),
            Self::Nvidia | Self::Eks | Self::Aks => {
                (PRODUCT, gpu.served_by().flat_map(|gpu| gpu.products).copied().collect())
            }
            Self::Generic => (ACCELERATOR, vec![gpu.accelerator]),
        }
    }

    /// Label that distinguishes the sizes of a model if [`Self::model_label`] does not.
    pub fn size_label(self, gpu: &Gpu) -> Option<(&'static str, String)> {
        let mib = || (u64::from(gpu.memory_gib) << 10).to_string();
        (self == Self::Karpenter).then(|| (KARPENTER_GPU_MEMORY, mib()))
    }

    /// Label of every GPU node, regardless of its model.
    pub fn any_gpu(self) -> Option<Label> {
        match self {
            Self::Aks => Some((ACCELERATOR, "nvidia")),
            Self::Nvidia => Some((GPU_PRESENT, "true")),
            Self::Generic | Self::Eks | Self::Karpenter | Self::Gke => None,
        }
    }

    /// Common taint of GPU nodes besides [`GPU_TAINT`].
    pub fn extra_taint(self) -> Option<Label> {
        (self == Self::Aks).then_some(("sku", "gpu"))
    }

    pub fn spot(self) -> Spot {
        let spot = |label, taint, tainted| Spot { label, taint, tainted };
        let both = |label, tainted| spot(label, label, tainted);
        match self {
            Self::Generic | Self::Nvidia => {
                spot(("node.kubernetes.io/lifecycle", "spot"), ("spot", "true"), true)
            }
            Self::Eks => spot(("eks.amazonaws.com/capacityType", "SPOT"), ("spot", "true"), false),
            Self::Karpenter => both(("karpenter.sh/capacity-type", "spot"), false),
            Self::Gke => both(("cloud.google.com/gke-spot", "true"), true),
            Self::Aks => both(("kubernetes.azure.com/scalesetpriority", "spot"), true),
        }
    }
}
