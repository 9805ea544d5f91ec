//! Measures of GPU fragmentation.
//!
//! A node with eight devices that are each 30 % free has much idle GPU that almost no request can use. The
//! measures quantify this for a given **demand**: the distinct request shapes and their frequencies. A
//! placement with the smallest loss keeps the cluster usable for later requests.
//!
//! * [`Fgd`] is the published measure (Weng et al., "Beware of Fragmentation: Scheduling
//!   GPU-Sharing Workloads with Fragmentation Gradient Descent", USENIX ATC '23), exact to the last
//!   integer.
//! * [`Value`] is this project's own measure; `docs/research/fragmentation.md` has the numbers.
//!
//! Both compute `score(node, request)`: higher is better, equal scores are ties. A score depends on one node
//! only, so callers may cache it until that node changes. The caller checks that the request fits.
//!
//! Open `worth.rs` first: it contains the common part of both measures.

mod fgd;
mod node_measure;
mod random;
mod ranks;
mod selfplay;
#[cfg(test)]
mod tests;
mod usable;
mod value;

pub(crate) use fgd::Fgd;
pub(crate) use value::{Value, ValueOptions};

/// Dense index of a GPU model; the caller owns the names.
pub(crate) type ModelId = u16;

/// Thousandths of one device.
pub(crate) const DEVICE: i32 = 1000;

/// Request shape of the demand, with its number of occurrences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DemandClass {
    /// CPU of one task, in thousandths of a core.
    pub(crate) cpu: i64,
    /// Share of each GPU, `1..=1000`; zero for a CPU-only task.
    pub(crate) milli: i32,
    /// Number of GPUs; zero for a CPU-only task.
    pub(crate) gpus: u16,
    /// Models the task may use, sorted; empty means any.
    pub(crate) models: Vec<ModelId>,
    /// Number of requests of the shape.
    pub(crate) count: u64,
}

impl DemandClass {
    pub(crate) fn wants_gpu(&self) -> bool {
        self.milli > 0 && self.gpus > 0
    }

    pub(crate) fn accepts(&self, model: ModelId) -> bool {
        self.models.is_empty() || self.models.binary_search(&model).is_ok()
    }

    /// GPU thousandths of one request.
    pub(crate) fn total_milli(&self) -> i64 {
        i64::from(self.milli) * i64::from(self.gpus)
    }
}

/// Equal nodes of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeShape {
    /// The model of the nodes' GPUs.
    pub(crate) model: ModelId,
    pub(crate) gpus: u16,
    /// CPU of one node, in thousandths of a core.
    pub(crate) cpu: i64,
    pub(crate) count: u32,
}

/// Free capacity of one node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeView<'a> {
    /// The model of the node's GPUs.
    pub(crate) model: ModelId,
    /// CPU left, in thousandths of a core; may be negative when over-committed.
    pub(crate) cpu: i64,
    /// Thousandths left on each device; zero or less on one that is full or over-committed.
    pub(crate) left: &'a [i32],
}

/// Allocation of a request on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GpuAllocation {
    /// No GPU.
    Nothing,
    /// This many thousandths of one device.
    Share(i32),
    /// This many untouched devices.
    Whole(u16),
}
