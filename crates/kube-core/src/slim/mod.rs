//! Reduced types of watched objects.
//!
//! A full pod takes several kilobytes, mostly managed fields, environment and probes. These types drop unused fields
//! while decoding, so that a large cluster fits into little memory. An absent, null or unknown field never fails a
//! watch.

mod group;
mod job;
mod meta;
mod node;
mod owner;
mod pod;
mod rules;
mod secret;
mod storage;
mod tight;
mod workload;

pub use group::{NativePodGroup, PodGroup, PodGroupSpec};
pub use job::JobObject;
pub use node::{Node, NodeCondition, NodeSpec, NodeStatus};
pub use owner::Owner;
pub use pod::{
    Container, ContainerState, ContainerStatus, InlineCsi, InlineDisk, Pod, PodCondition, PodSpec,
    PodStatus, SchedulingGroup, Terminated, Volume, Waiting,
};
pub use rules::{
    ConfigMap, DisruptionBudget, DisruptionBudgetSpec, DisruptionBudgetStatus, Namespace,
    PriorityClass, ResourceQuota, ResourceQuotaSpec, ResourceQuotaStatus,
};
pub use secret::Secret;
pub use storage::{
    Csi, CsiDriver, CsiNode, CsiNodeSpec, PersistentVolume, PersistentVolumeClaim,
    PersistentVolumeClaimSpec, PersistentVolumeSpec, Phase, StorageCapacity, StorageClass,
    StorageDriver, StorageDriverSpec,
};
pub use workload::{Decoded, GpuNode, Queue, Workload};

/// Implements the client's resource trait for a kind.
macro_rules! resource {
    ($type:ty, $group:literal, $version:literal, $kind:literal, $plural:literal, $scope:ident) => {
        impl kube::Resource for $type {
            type DynamicType = ();
            type Scope = k8s_openapi::$scope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                $kind.into()
            }

            fn group((): &()) -> std::borrow::Cow<'_, str> {
                $group.into()
            }

            fn version((): &()) -> std::borrow::Cow<'_, str> {
                $version.into()
            }

            fn plural((): &()) -> std::borrow::Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &self.metadata
            }

            fn meta_mut(
                &mut self,
            ) -> &mut k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

pub(crate) use resource;
