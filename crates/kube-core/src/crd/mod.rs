//! Custom resources as Rust types, from which `deploy/crds` is generated.

mod node;
mod queue;
mod schema;
#[cfg(test)]
mod tests;
mod workload;

pub use node::{
    GpuDevice, GpuNode, GpuNodePhase, GpuNodeSpec, GpuNodeStatus, GpuStatus, MONITOR_TIMEOUT,
};
pub use queue::{GpuQueue, GpuQueueSpec, GpuQueueStatus, QueueAmounts};
pub use schema::definitions;
pub use workload::{
    BackOff, ContainerOverride, GpuRequirements, GpuWorkload, GpuWorkloadSpec, GpuWorkloadStatus,
    PodTemplate, ResourceOverride, TaskOverride, TopologyMode, WorkloadPhase, WorkloadTopology,
};
