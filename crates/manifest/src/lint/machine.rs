//! Machine types as rules ask for them: the catalogue's, so that what is generated for a machine fits it here, too.

use std::sync::LazyLock;

use crate::catalogue::Catalogue;
use crate::cloud::Gpu;

/// What a machine type offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// How many GPUs it has at most.
    pub gpus: u32,
    /// The models that its GPUs may be, without their memory: `a100`. Some machines are sold with several.
    pub models: Vec<&'static str>,
    /// What of the CPUs is left for pods, in thousandths.
    pub cpu_milli: u64,
    /// What of the memory is left for pods, in MiB.
    pub memory_mib: u64,
}

/// Who knows machine types.
pub trait Machines {
    /// What is known about a machine type, by the name that clouds and `node.kubernetes.io/instance-type` use.
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

/// The machine types of the catalogue that comes with the program.
#[derive(Clone, Copy, Debug, Default)]
pub struct CommonMachines;

static BUILT_IN: LazyLock<Catalogue> = LazyLock::new(|| Catalogue::built_in().unwrap_or_default());

impl Machines for CommonMachines {
    fn machine(&self, name: &str) -> Option<Machine> {
        BUILT_IN.machine(name)
    }
}
