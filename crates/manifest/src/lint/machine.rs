//! The few facts about machines and labels that rules need. One place, so that a fuller catalogue can take over:
//! [`Machines`] is what rules ask.

/// What a machine type offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// How many GPUs it has.
    pub gpus: u32,
    /// The model of its GPUs, in small letters: `a100`.
    pub model: String,
    /// CPUs in all, in thousandths.
    pub cpu_milli: u64,
    /// Memory in all, in MiB.
    pub memory_mib: u64,
    /// What of the CPUs is left for pods, in thousandths.
    pub allocatable_cpu_milli: u64,
    /// What of the memory is left for pods, in MiB.
    pub allocatable_memory_mib: u64,
}

/// Who knows machine types.
pub trait Machines {
    /// What is known about a machine type, by the name that clouds and `node.kubernetes.io/instance-type` use.
    fn machine(&self, name: &str) -> Option<Machine>;
}

/// The machine types that are known without a catalogue.
#[derive(Clone, Copy, Debug, Default)]
pub struct CommonMachines;

/// Name, GPUs, model, vCPUs, GiB of memory.
const COMMON: &[(&str, u32, &str, u64, u64)] = &[
    ("g4dn.xlarge", 1, "t4", 4, 16),
    ("g4dn.2xlarge", 1, "t4", 8, 32),
    ("g4dn.4xlarge", 1, "t4", 16, 64),
    ("g4dn.8xlarge", 1, "t4", 32, 128),
    ("g4dn.12xlarge", 4, "t4", 48, 192),
    ("g4dn.16xlarge", 1, "t4", 64, 256),
    ("g5.xlarge", 1, "a10g", 4, 16),
    ("g5.2xlarge", 1, "a10g", 8, 32),
    ("g5.4xlarge", 1, "a10g", 16, 64),
    ("g5.8xlarge", 1, "a10g", 32, 128),
    ("g5.12xlarge", 4, "a10g", 48, 192),
    ("g5.16xlarge", 1, "a10g", 64, 256),
    ("g5.24xlarge", 4, "a10g", 96, 384),
    ("g5.48xlarge", 8, "a10g", 192, 768),
    ("g6.xlarge", 1, "l4", 4, 16),
    ("g6.2xlarge", 1, "l4", 8, 32),
    ("g6.12xlarge", 4, "l4", 48, 192),
    ("g6.48xlarge", 8, "l4", 192, 768),
    ("g6e.xlarge", 1, "l40s", 4, 32),
    ("g6e.48xlarge", 8, "l40s", 192, 1536),
    ("p3.2xlarge", 1, "v100", 8, 61),
    ("p3.8xlarge", 4, "v100", 32, 244),
    ("p3.16xlarge", 8, "v100", 64, 488),
    ("p3dn.24xlarge", 8, "v100", 96, 768),
    ("p4d.24xlarge", 8, "a100", 96, 1152),
    ("p4de.24xlarge", 8, "a100", 96, 1152),
    ("p5.48xlarge", 8, "h100", 192, 2048),
    ("p5en.48xlarge", 8, "h200", 192, 2048),
    ("a2-highgpu-1g", 1, "a100", 12, 85),
    ("a2-highgpu-2g", 2, "a100", 24, 170),
    ("a2-highgpu-4g", 4, "a100", 48, 340),
    ("a2-highgpu-8g", 8, "a100", 96, 680),
    ("a2-megagpu-16g", 16, "a100", 96, 1360),
    ("a2-ultragpu-1g", 1, "a100", 12, 170),
    ("a2-ultragpu-8g", 8, "a100", 96, 1360),
    ("a3-highgpu-8g", 8, "h100", 208, 1872),
    ("g2-standard-4", 1, "l4", 4, 16),
    ("g2-standard-8", 1, "l4", 8, 32),
    ("g2-standard-96", 8, "l4", 96, 384),
    ("Standard_NC6s_v3", 1, "v100", 6, 112),
    ("Standard_NC24ads_A100_v4", 1, "a100", 24, 220),
    ("Standard_NC96ads_A100_v4", 4, "a100", 96, 880),
    ("Standard_ND96asr_v4", 8, "a100", 96, 900),
    ("Standard_ND96isr_H100_v5", 8, "h100", 96, 1900),
];

impl Machines for CommonMachines {
    fn machine(&self, name: &str) -> Option<Machine> {
        let known = COMMON.iter().find(|known| known.0.eq_ignore_ascii_case(name))?;
        let &(_, gpus, model, cpus, gibibytes) = known;
        let (cpu_milli, memory_mib) = (cpus * 1000, gibibytes * 1024);
        Some(Machine {
            gpus,
            model: model.to_owned(),
            cpu_milli,
            memory_mib,
            allocatable_cpu_milli: cpu_milli - reserved_cpu_milli(cpus),
            allocatable_memory_mib: memory_mib - reserved_memory_mib(memory_mib),
        })
    }
}

/// What the node keeps for itself of its CPUs, in thousandths: 6 % of the first, 1 % of the second, 0.5 % of the next
/// two and 0.25 % of the others, as the managed services do it.
fn reserved_cpu_milli(cpus: u64) -> u64 {
    let part = |from: u64, to: u64, ten_thousandths: u64| {
        cpus.clamp(from, to).saturating_sub(from) * ten_thousandths / 10
    };
    part(0, 1, 600) + part(1, 2, 100) + part(2, 4, 50) + part(4, u64::MAX, 25)
}

/// What the node keeps for itself of its memory, in MiB. Services differ: this is the least of them, so that nothing is
/// refused that fits somewhere. A twentieth goes to firmware and kernel, the rest to kubelet and eviction.
fn reserved_memory_mib(memory: u64) -> u64 {
    let kernel = (memory / 50).min(4096);
    let kubelet = 255 + 11 * if memory < 32 * 1024 { 29 } else { 58 };
    kernel + kubelet + 100
}

/// Values of `cloud.google.com/gke-accelerator`.
pub(super) const GKE_ACCELERATORS: &[&str] = &[
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

/// Values of the label `accelerator` that somebody sets: by hand after the manuals, or AKS.
pub(super) const ACCELERATORS: &[&str] = &[
    "nvidia",
    "nvidia-tesla-v100",
    "nvidia-tesla-a100",
    "nvidia-tesla-t4",
    "nvidia-tesla-p100",
    "nvidia-tesla-k80",
    "nvidia-tesla-h100",
    "nvidia-tesla-h200",
    "nvidia-tesla-l4",
];

/// Labels that clouds, Karpenter and NVIDIA put on nodes. A label below one of their prefixes that is not here is
/// nobody's.
pub(super) const LABELS: &[&str] = &[
    "accelerator",
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
    "karpenter.sh/nodepool",
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

/// The prefixes of [`LABELS`] below which nobody else makes up labels, and which have a few labels only.
pub(super) const GUARDED: &[&str] = &[
    "cloud.google.com/gke-",
    "karpenter.k8s.aws/",
    "karpenter.sh/",
    "nvidia.com/",
    "node.kubernetes.io/",
    "eks.amazonaws.com/",
];

/// MIG profiles of A100, A30, H100, H200, B200 as the device plugin names their resources.
pub(super) const MIG_PROFILES: &[&str] = &[
    "1g.5gb",
    "1g.5gb.me",
    "1g.6gb",
    "1g.6gb.me",
    "1g.10gb",
    "1g.10gb.me",
    "1g.12gb",
    "1g.12gb.me",
    "1g.18gb",
    "1g.18gb.me",
    "1g.20gb",
    "1g.23gb",
    "1g.23gb.me",
    "1g.24gb",
    "1g.35gb",
    "1g.45gb",
    "2g.10gb",
    "2g.12gb",
    "2g.12gb.me",
    "2g.20gb",
    "2g.24gb",
    "2g.35gb",
    "2g.45gb",
    "3g.20gb",
    "3g.40gb",
    "3g.47gb",
    "3g.48gb",
    "3g.71gb",
    "3g.90gb",
    "4g.20gb",
    "4g.24gb",
    "4g.40gb",
    "4g.47gb",
    "4g.48gb",
    "4g.71gb",
    "4g.90gb",
    "7g.40gb",
    "7g.80gb",
    "7g.94gb",
    "7g.96gb",
    "7g.141gb",
    "7g.180gb",
];
