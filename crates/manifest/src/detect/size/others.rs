//! Alternatives to the globally cheapest GPUs: a cloud offers only some types, and whole machines.

use super::gpu::{self, GpuType, NamedGpus};
use super::memory::MemoryNeed;
use super::{Sizing, on};

/// Basis for choosing again.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Alternatives {
    /// The text names the type: alternatives are not allowed.
    None,
    /// Any type with as much memory will do.
    AtLeast,
    /// Computed from numbers.
    Computed(Box<(MemoryNeed, NamedGpus)>),
}

impl Sizing {
    /// Sizing for every sufficient GPU type, with a fixed count if given. Empty if the text allows no choice.
    pub(crate) fn on_others(&self, gpus: Option<u32>) -> Vec<Self> {
        match &self.others {
            Alternatives::None => Vec::new(),
            Alternatives::AtLeast => {
                GpuType::ALL.into_iter().filter_map(|gpu| self.at_least(gpu)).collect()
            }
            Alternatives::Computed(by) => {
                let (need, wish) = by.as_ref();
                let wish = NamedGpus { count: gpus.or(wish.count), ..*wish };
                let told = self.reasons.iter().skip(1);
                let choices = gpu::fitting(need, wish).map(|choice| on(need, choice));
                let others = Alternatives::Computed(by.clone());
                choices
                    .map(|mut sizing| {
                        sizing.reasons.extend(told.clone().cloned());
                        Self { others: others.clone(), ..sizing }
                    })
                    .collect()
            }
        }
    }

    /// True if the type was computed: another type that is cheaper in a cloud is equally good.
    pub(crate) fn is_one_of_many(&self) -> bool {
        matches!(self.others, Alternatives::Computed(_))
    }

    fn at_least(&self, gpu: GpuType) -> Option<Self> {
        let joined = self.gpu_count == 1 || gpu.is_linked();
        if gpu.memory_mib() < self.gpu_memory_mib || !joined {
            return None;
        }
        let mut other = self.clone();
        if let Some(first) = other.reasons.first_mut() {
            *first = format!("{first}; {} has as much memory", gpu.name());
        }
        other.gpu_type = gpu;
        Some(other)
    }
}
