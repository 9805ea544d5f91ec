//! What can change in the cluster.

use agentaflow_kube_core::slim::{
    CsiNode, DisruptionBudget, GpuNode, Namespace, NativePodGroup, Node, PersistentVolume,
    PersistentVolumeClaim, Pod, PodGroup, PriorityClass, Queue, StorageCapacity, StorageClass,
    StorageDriver, Workload,
};

/// Something changed in the cluster.
#[derive(Clone, Debug)]
pub enum Change {
    /// An object is there, new or changed.
    Applied(Box<Object>),
    /// An object is gone.
    Deleted(Box<Object>),
}

/// What is watched.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "always boxed, in `Change`")]
pub enum Object {
    /// A pod.
    Pod(Pod),
    /// A node.
    Node(Node),
    /// A node's GPUs.
    GpuNode(GpuNode),
    /// A workload.
    Workload(Workload),
    /// A queue.
    Queue(Queue),
    /// A claim.
    Claim(PersistentVolumeClaim),
    /// A volume.
    Volume(PersistentVolume),
    /// A storage class.
    Class(StorageClass),
    /// The storage drivers of a node.
    CsiNode(CsiNode),
    /// A storage driver.
    Driver(StorageDriver),
    /// What a storage driver has left.
    Capacity(StorageCapacity),
    /// A namespace.
    Namespace(Namespace),
    /// A priority class.
    Priority(PriorityClass),
    /// A disruption budget.
    Budget(DisruptionBudget),
    /// A pod group of the scheduler plugins.
    PodGroup(PodGroup),
    /// A pod group of Kubernetes itself.
    NativeGroup(NativePodGroup),
}
