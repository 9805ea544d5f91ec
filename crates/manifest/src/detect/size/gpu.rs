//! GPU types with their memory, and the cheapest ones for a given memory.

use serde::Serialize;

use super::memory::{MemoryNeed, Precision};
use super::price::cost;
use crate::cloud::{Gpu, gpu_named};

/// GPU type of a sizing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum GpuType {
    /// NVIDIA T4, 16 GB.
    #[serde(rename = "t4")]
    T4,
    /// NVIDIA L4, 24 GB.
    #[serde(rename = "l4")]
    L4,
    /// NVIDIA A10G, 24 GB.
    #[serde(rename = "a10g")]
    A10g,
    /// NVIDIA L40S, 48 GB.
    #[serde(rename = "l40s")]
    L40s,
    /// NVIDIA Tesla V100, 16 GB.
    #[serde(rename = "v100")]
    V100,
    /// NVIDIA Tesla V100, 32 GB.
    #[serde(rename = "v100-32gb")]
    V100Large,
    /// NVIDIA A100, 40 GB.
    #[serde(rename = "a100")]
    A100,
    /// NVIDIA A100, 80 GB.
    #[serde(rename = "a100-80gb")]
    A100Large,
    /// NVIDIA H100, 80 GB.
    #[serde(rename = "h100")]
    H100,
    /// NVIDIA H200, 141 GB.
    #[serde(rename = "h200")]
    H200,
}

/// Maximum number of GPUs of a sizing.
pub(in crate::detect) const MOST: u32 = 1024;
/// Maximum number of GPUs of one machine.
pub(super) const PER_NODE: u32 = 8;

impl GpuType {
    /// Types without fast links first, then by age.
    pub const ALL: [Self; 10] = [
        Self::T4,
        Self::L4,
        Self::A10g,
        Self::L40s,
        Self::V100,
        Self::V100Large,
        Self::A100,
        Self::A100Large,
        Self::H100,
        Self::H200,
    ];

    /// Name in output and in flags of `generate`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::T4 => "t4",
            Self::L4 => "l4",
            Self::A10g => "a10g",
            Self::L40s => "l40s",
            Self::V100 => "v100",
            Self::V100Large => "v100-32gb",
            Self::A100 => "a100",
            Self::A100Large => "a100-80gb",
            Self::H100 => "h100",
            Self::H200 => "h200",
        }
    }

    /// Memory reported by the driver, in MiB.
    pub const fn memory_mib(self) -> u64 {
        match self {
            Self::T4 => 15_360,
            Self::L4 => 23_034,
            Self::A10g => 23_028,
            Self::L40s => 46_068,
            Self::V100 => 16_384,
            Self::V100Large => 32_768,
            Self::A100 => 40_960,
            Self::A100Large => 81_920,
            Self::H100 => 81_559,
            Self::H200 => 143_771,
        }
    }

    /// The type of this name, in lower case.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|gpu| gpu.name() == name)
    }

    /// `t4` and `l4` have other meanings, too.
    pub(in crate::detect) const fn is_short_name(self) -> bool {
        matches!(self, Self::T4 | Self::L4)
    }

    /// Variants of the same chip, smallest memory first.
    const fn variants(self) -> &'static [Self] {
        match self {
            Self::V100 => &[Self::V100, Self::V100Large],
            Self::A100 => &[Self::A100, Self::A100Large],
            _ => &[],
        }
    }

    /// Variant of the same chip with at least this memory.
    pub(in crate::detect) fn with_memory(self, mib: u64) -> Option<Self> {
        self.variants().iter().copied().find(|gpu| gpu.memory_mib() >= mib)
    }

    /// Entry of the cloud table.
    pub(super) fn model(self) -> Option<&'static Gpu> {
        gpu_named(self.name())
    }

    /// True if several GPUs have links fast enough to share one step.
    pub(super) const fn is_linked(self) -> bool {
        !matches!(self, Self::T4 | Self::L4 | Self::A10g | Self::L40s)
    }

    /// True if it supports this precision.
    pub(super) const fn computes(self, precision: Precision) -> bool {
        match precision {
            Precision::Brain | Precision::Float4 => {
                !matches!(self, Self::T4 | Self::V100 | Self::V100Large)
            }
            Precision::Float8 => matches!(self, Self::L4 | Self::L40s | Self::H100 | Self::H200),
            _ => true,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) gpu: GpuType,
    pub(super) count: u32,
    /// False if the text names GPUs that are too few or too small.
    pub(super) fits: bool,
}

/// GPUs that a text names.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct NamedGpus {
    pub(super) gpu: Option<GpuType>,
    /// Requires the memory of that variant.
    pub(super) exact: bool,
    pub(super) count: Option<u32>,
}

impl NamedGpus {
    fn takes(self, candidate: GpuType) -> bool {
        let variant = |gpu: GpuType| !self.exact && gpu.variants().contains(&candidate);
        self.gpu.is_none_or(|gpu| gpu == candidate || variant(gpu))
    }
}

/// Cheapest GPUs with enough memory, on one machine before several: work that spans machines waits for the network,
/// and few workloads can. A type or count named in the text is kept.
pub(super) fn choose(need: &MemoryNeed, wish: NamedGpus) -> Choice {
    let rank = |choice: &Choice| (choice.count > PER_NODE, cost(choice.gpu, choice.count));
    // At equal cost the more common type comes first.
    let best = fitting(need, wish).min_by_key(rank);
    let (gpu, count) = (wish.gpu.unwrap_or(GpuType::H200), wish.count.unwrap_or(MOST));
    best.unwrap_or(Choice { gpu, count, fits: false })
}

/// Every sufficient type with its smallest count.
pub(super) fn fitting(need: &MemoryNeed, wish: NamedGpus) -> impl Iterator<Item = Choice> {
    let named = wish.gpu.is_some();
    let suits = move |gpu: &GpuType| wish.takes(*gpu) && (named || gpu.computes(need.precision));
    GpuType::ALL.into_iter().filter(suits).filter_map(move |gpu| {
        let holds =
            |count: &u32| allowed(gpu, *count, need.training, named) && need.fits(gpu, *count);
        counts(wish.count).find(holds).map(|count| Choice { gpu, count, fits: true })
    })
}

/// GPUs for a memory size named in the text: one GPU before several, fewest machines, then cheapest. A type or count
/// named in the text is kept.
pub(super) fn holding(mib: u64, wish: NamedGpus) -> Choice {
    let types = || GpuType::ALL.into_iter().filter(move |gpu| wish.takes(*gpu));
    // A card is sold with a little more than the driver shows.
    let whole = |gpu: &GpuType| {
        let slack = if wish.gpu.is_some() { gpu.memory_mib() / 10 } else { 0 };
        gpu.memory_mib() + slack >= mib
    };
    let count = wish.count.unwrap_or(1);
    if let Some(gpu) = types().filter(whole).min_by_key(|gpu| cost(*gpu, count)) {
        return Choice { gpu, count, fits: true };
    }
    let together = types().filter_map(|gpu| {
        let holds = |count: &u32| {
            allowed(gpu, *count, true, wish.gpu.is_some())
                && gpu.memory_mib().saturating_mul(u64::from(*count)) >= mib
        };
        counts(wish.count).find(holds).map(|count| Choice { gpu, count, fits: true })
    });
    let rank = |choice: &Choice| (choice.count.div_ceil(PER_NODE), cost(choice.gpu, choice.count));
    let largest = types().next_back().unwrap_or(GpuType::H200);
    let none = Choice { gpu: largest, count: wish.count.unwrap_or(MOST), fits: false };
    together.min_by_key(rank).unwrap_or(none)
}

fn counts(asked: Option<u32>) -> impl Iterator<Item = u32> {
    let free =
        (0..).map(|power| 1 << power).take_while(move |count| asked.is_none() && *count <= MOST);
    asked.into_iter().chain(free)
}

/// GPUs without fast links do not train together, and only GPUs with much memory go over several machines.
fn allowed(gpu: GpuType, count: u32, training: bool, named: bool) -> bool {
    let joined = count == 1 || gpu.is_linked() || !training && count <= 4;
    let spread = count <= PER_NODE || gpu.memory_mib() > 80_000;
    named || joined && spread
}
