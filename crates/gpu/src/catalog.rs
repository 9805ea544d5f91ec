//! GPU models under the names of clouds, drivers and users.

/// Label of Karpenter on AWS: the model, without its memory.
pub const KARPENTER_GPU_NAME: &str = "karpenter.k8s.aws/instance-gpu-name";

/// GKE's label with the model.
pub const GKE_ACCELERATOR: &str = "cloud.google.com/gke-accelerator";

/// Values of [`GKE_ACCELERATOR`].
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

/// GPU model. A model with two memory sizes has two entries; the plain name (`a100`) accepts both.
#[derive(Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Name in flags: `a100`, `a100-80`.
    pub name: &'static str,
    /// Display name: `A100 40 GB`.
    pub title: &'static str,
    pub memory_gib: u32,
    /// Value of the common node label `accelerator`, and of `cloud.google.com/gke-accelerator` on GKE.
    pub accelerator: &'static str,
    /// Values of `nvidia.com/gpu.product`, which NVIDIA's feature discovery writes.
    pub products: &'static [&'static str],
    /// Value of `karpenter.k8s.aws/instance-gpu-name`.
    pub karpenter: &'static str,
}

/// All known models, small ones first.
#[rustfmt::skip] // One row for each model.
pub static GPUS: [Gpu; 14] = [
    gpu("t4", "T4 16 GB", 16, "nvidia-tesla-t4", &["Tesla-T4"], "t4"),
    gpu("v100", "V100 16 GB", 16, "nvidia-tesla-v100", &["Tesla-V100-SXM2-16GB", "Tesla-V100-PCIE-16GB"], "v100"),
    gpu("v100-32", "V100 32 GB", 32, "nvidia-tesla-v100-32gb", &["Tesla-V100-SXM2-32GB", "Tesla-V100-SXM3-32GB", "Tesla-V100-PCIE-32GB"], "v100"),
    gpu("a10", "A10 24 GB", 24, "nvidia-a10", &["NVIDIA-A10"], "a10"),
    gpu("a10g", "A10G 24 GB", 24, "nvidia-a10g", &["NVIDIA-A10G"], "a10g"),
    gpu("a30", "A30 24 GB", 24, "nvidia-a30", &["NVIDIA-A30"], "a30"),
    gpu("l4", "L4 24 GB", 24, "nvidia-l4", &["NVIDIA-L4"], "l4"),
    gpu("l40s", "L40S 48 GB", 48, "nvidia-l40s", &["NVIDIA-L40S"], "l40s"),
    gpu("a100", "A100 40 GB", 40, "nvidia-tesla-a100", &["NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-PCIE-40GB"], "a100"),
    gpu("a100-80", "A100 80 GB", 80, "nvidia-a100-80gb", &["NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-80GB-PCIe"], "a100"),
    gpu("h100", "H100 80 GB", 80, "nvidia-h100-80gb", &["NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-PCIe"], "h100"),
    gpu("h100-94", "H100 94 GB", 94, "nvidia-h100-94gb", &["NVIDIA-H100-NVL"], "h100"),
    gpu("h200", "H200 141 GB", 141, "nvidia-h200-141gb", &["NVIDIA-H200"], "h200"),
    gpu("b200", "B200 180 GB", 180, "nvidia-b200", &["NVIDIA-B200"], "b200"),
];

/// Model by any common spelling: `a100`, `A100-40`, `a100-80gb`, `nvidia-tesla-a100`, `NVIDIA A100`.
pub fn gpu_named(text: &str) -> Option<&'static Gpu> {
    let wanted = plain(text);
    GPUS.iter().find(|gpu| {
        let products = gpu.products.iter().any(|product| plain(product) == wanted);
        products || plain(gpu.name) == wanted || plain(gpu.title) == wanted
    })
}

/// Canonical value of the label `accelerator` for another spelling of a known model.
pub fn canonical_accelerator(value: &str) -> Option<&'static str> {
    gpu_named(value).map(|gpu| gpu.accelerator)
}

impl Gpu {
    /// The model without its memory: `a100` of `a100-80`.
    pub fn family(&self) -> &'static str {
        self.name.split_once('-').map_or(self.name, |(family, _)| family)
    }

    /// True if a request for this model accepts `other`: the plain name accepts every size.
    pub fn takes(&self, other: &Self) -> bool {
        self == other || (self.name == self.family() && self.family() == other.family())
    }

    /// Models that satisfy a request for this one.
    pub fn served_by(&'static self) -> impl Iterator<Item = &'static Self> {
        GPUS.iter().filter(|other| self.takes(other))
    }

    /// Default limits of a job per GPU: cores and GiB of memory. GPUs with more memory than a V100 get more.
    pub fn preset(&self) -> (u32, u32) {
        if self.memory_gib > 16 { (16, 32) } else { (8, 16) }
    }

    /// Default GiB of `/dev/shm` per GPU.
    pub fn shm_gib(&self) -> u32 {
        if self.memory_gib > 16 { 4 } else { 2 }
    }
}

/// Lower case, without vendor, product line, separators and unit, and without the size that a plain name implies.
fn plain(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let words = lower.split(|c: char| !c.is_ascii_alphanumeric());
    let words = words.filter(|word| !["", "nvidia", "tesla", "gpu"].contains(word));
    let words: String = words.collect();
    let words = words.strip_suffix("gb").unwrap_or(&words);
    let sizes = [("a100", "40"), ("v100", "16"), ("h100", "80"), ("h200", "141"), ("b200", "180")];
    let default = sizes.iter().find(|(model, size)| words.strip_prefix(model) == Some(size));
    default.map_or(words, |(model, _)| model).to_owned()
}

const fn gpu(
    name: &'static str,
    title: &'static str,
    memory_gib: u32,
    accelerator: &'static str,
    products: &'static [&'static str],
    karpenter: &'static str,
) -> Gpu {
    Gpu { name, title, memory_gib, accelerator, products, karpenter }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_known_by_all_its_spellings() {
        for (text, name) in [
            ("a100", Some("a100")),
            ("A100-40", Some("a100")),
            ("a100-80gb", Some("a100-80")),
            ("nvidia-a100", Some("a100")),
            ("nvidia-tesla-a100", Some("a100")),
            ("NVIDIA A100", Some("a100")),
            ("NVIDIA-A100-SXM4-80GB", Some("a100-80")),
            ("nvidia-h200-141gb", Some("h200")),
            ("nvidia-b200", Some("b200")),
            ("Tesla-T4", Some("t4")),
            ("v100_32", Some("v100-32")),
            ("nvidia-gpu", None),
            ("nvidia", None),
            ("", None),
            ("a1000", None),
        ] {
            assert_eq!(gpu_named(text).map(|gpu| gpu.name), name, "{text}");
        }
        for gpu in &GPUS {
            for spelling in [gpu.name, gpu.title, gpu.accelerator] {
                assert_eq!(gpu_named(spelling), Some(gpu), "{spelling}");
            }
        }
        assert_eq!(canonical_accelerator("nvidia-a100"), Some("nvidia-tesla-a100"));
    }

    #[test]
    fn a_plain_name_accepts_every_size() {
        let names = |text| gpu_named(text).map(|gpu| gpu.served_by().map(|gpu| gpu.name).collect());
        assert_eq!(names("a100"), Some(vec!["a100", "a100-80"]));
        assert_eq!(names("a100-80"), Some(vec!["a100-80"]));
        assert_eq!(names("l4"), Some(vec!["l4"]));
        assert_eq!(names("a10"), Some(vec!["a10"]));
    }
}
