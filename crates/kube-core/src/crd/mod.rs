//! Custom resources as Rust types, from which `deploy/crds` is generated.

mod node;
mod queue;
mod schema;
#[cfg(test)]
mod tests;
mod workload;

pub use node::{GpuDevice, GpuNode, GpuNodePhase, GpuNodeSpec, GpuNodeStatus, GpuStatus};
pub use queue::{GpuQueue, GpuQueueSpec, GpuQueueStatus, QueueAmounts};
pub use schema::definitions;
pub use workload::{
    BackOff, GpuRequirements, GpuWorkload, GpuWorkloadSpec, GpuWorkloadStatus, PodTemplate,
    TopologyMode, WorkloadPhase, WorkloadTopology,
};
