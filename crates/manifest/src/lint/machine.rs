//! Machine types for rules, from the same catalogue that `generate` uses.

use std::sync::LazyLock;

use crate::catalogue::Catalogue;
use crate::cloud::Gpu;

/// Resources of a machine type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    pub gpus: u32,
    /// GPU models without memory size: `a100`. Some machines exist with several.
    pub models: Vec<&'static str>,
    /// Allocatable, in thousandths of cores.
    pub cpu_milli: u64,
    /// Allocatable, in MiB.
    pub memory_mib: u64,
}

/// Source of machine types.
pub trait Machines {
    /// Machine type by the name in `node.kubernetes.io/instance-type`.
    fn machine(&self, name: &str) -> Option<Machine>;
}

impl Machines for Catalogue {
    fn machine(&self, name: &str) -> Option<Machine> {
        let all = self.instances().iter().filter(|known| known.name.eq_ignore_ascii_case(name));
        let all: Vec<_> = all.collect();
        let left = all.iter().map(|known| known.allocatable());
        let mut models: Vec<_> =
            all.iter().filter_map(|known| known.model()).map(Gpu::family).collect();
        models.dedup();
        Some(Machine {
            gpus: all.iter().map(|known| known.gpus).max()?,
            models,
            cpu_milli: left.clone().map(|(cpu, _)| cpu).max()?,
            memory_mib: left.map(|(_, memory)| memory).max()?,
        })
    }
}

/// Machine types of the built-in catalogue.
#[derive(Clone, Copy, Debug, Default)]
pub struct CommonMachines;

static BUILT_IN: LazyLock<Catalogue> = LazyLock::new(|| Catalogue::built_in().unwrap_or_default());

impl Machines for CommonMachines {
    fn machine(&self, name: &str) -> Option<Machine> {
        BUILT_IN.machine(name)
    }
}
