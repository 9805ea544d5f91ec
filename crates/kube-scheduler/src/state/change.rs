//! Watch events.

use agentaflow_kube_core::slim::{
    CsiNode, DisruptionBudget, GpuNode, JobObject, Namespace, NativePodGroup, Node,
    PersistentVolume, PersistentVolumeClaim, Pod, PodGroup, PriorityClass, Queue, ResourceQuota,
    StorageCapacity, StorageClass, StorageDriver, Workload,
};
use agentaflow_kube_core::unit::UnitKind;

#[derive(Clone, Debug)]
pub enum Change {
    /// Created or updated.
    Applied(Box<Object>),
    Deleted(Box<Object>),
}

/// A watched object.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "always boxed, in `Change`")]
pub enum Object {
    Pod(Pod),
    Node(Node),
    GpuNode(GpuNode),
    Workload(Workload),
    Queue(Queue),
    Claim(PersistentVolumeClaim),
    Volume(PersistentVolume),
    Class(StorageClass),
    CsiNode(CsiNode),
    Driver(StorageDriver),
    Capacity(StorageCapacity),
    Namespace(Namespace),
    Priority(PriorityClass),
    Budget(DisruptionBudget),
    Quota(ResourceQuota),
    /// Pod group of the scheduler plugins.
    PodGroup(PodGroup),
    /// Pod group of Kubernetes itself.
    NativeGroup(NativePodGroup),
    Job(&'static UnitKind, JobObject),
}
