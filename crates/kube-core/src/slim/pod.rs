//! Pod fields that scheduling reads.

use k8s_openapi::api::core::v1::{
    Affinity, ContainerPort, PodSchedulingGate, ResourceRequirements, ResourceStatus, Toleration,
    TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Metadata without managed fields.
    #[serde(deserialize_with = "super::meta::slim")]
    pub metadata: ObjectMeta,
    pub spec: PodSpec,
    pub status: PodStatus,
}

super::resource!(Pod, "", "v1", "Pod", "pods", NamespaceResourceScope);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    pub node_name: Option<String>,
    pub scheduler_name: Option<String>,
    pub node_selector: Option<BTreeMap<String, String>>,
    /// Node and pod (anti-)affinity.
    pub affinity: Option<Affinity>,
    #[serde(deserialize_with = "super::tight::list")]
    pub tolerations: Option<Vec<Toleration>>,
    pub topology_spread_constraints: Option<Vec<TopologySpreadConstraint>>,
    #[serde(deserialize_with = "super::tight::all")]
    pub containers: Vec<Container>,
    /// Init containers and sidecars.
    #[serde(deserialize_with = "super::tight::list")]
    pub init_containers: Option<Vec<Container>>,
    /// Overhead of the sandbox.
    pub overhead: Option<BTreeMap<String, Quantity>>,
    /// Resources of the pod as a whole.
    pub resources: Option<ResourceRequirements>,
    #[serde(deserialize_with = "super::tight::volumes")]
    pub volumes: Option<Vec<Volume>>,
    pub scheduling_gates: Option<Vec<PodSchedulingGate>>,
    /// Claims of dynamic resource allocation. Only their number is read: the scheduler does not support them.
    pub resource_claims: Option<Vec<serde_json::Value>>,
    /// Native pod group.
    pub scheduling_group: Option<SchedulingGroup>,
    /// Reference to the native group in Kubernetes 1.35.
    pub workload_ref: Option<serde_json::Value>,
    /// Value of the priority class.
    pub priority: Option<i32>,
    pub priority_class_name: Option<String>,
    /// `Never`, or `PreemptLowerPriority`.
    pub preemption_policy: Option<String>,
    pub restart_policy: Option<String>,
    pub termination_grace_period_seconds: Option<i64>,
    pub host_network: Option<bool>,
    pub host_users: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    pub name: String,
    pub resources: Option<ResourceRequirements>,
    #[serde(deserialize_with = "super::tight::list")]
    pub ports: Option<Vec<ContainerPort>>,
    /// `Always` on an init container makes it a sidecar.
    pub restart_policy: Option<String>,
    /// Rules for certain exit codes.
    #[serde(deserialize_with = "super::tight::list")]
    pub restart_policy_rules: Option<Vec<RestartRule>>,
}

/// Restart rule of a container.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RestartRule {
    /// `Restart`, or `RestartAllContainers`.
    pub action: String,
}

/// Volume from a claim, or with other constraints on scheduling.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Volume {
    pub name: String,
    pub persistent_volume_claim:
        Option<k8s_openapi::api::core::v1::PersistentVolumeClaimVolumeSource>,
    /// Claim created for this pod, named `<pod>-<volume>`; only its presence is read.
    pub ephemeral: Option<serde::de::IgnoredAny>,
    /// Volume of a CSI driver with the lifetime of the pod.
    pub csi: Option<InlineCsi>,
    pub iscsi: Option<Box<InlineDisk>>,
    pub rbd: Option<Box<InlineDisk>>,
    pub gce_persistent_disk: Option<Box<InlineDisk>>,
    pub aws_elastic_block_store: Option<Box<InlineDisk>>,
}

impl Volume {
    /// True if the volume constrains the node.
    pub(super) fn binds(&self) -> bool {
        self.persistent_volume_claim.is_some()
            || self.ephemeral.is_some()
            || self.csi.is_some()
            || self.iscsi.is_some()
            || self.rbd.is_some()
            || self.gce_persistent_disk.is_some()
            || self.aws_elastic_block_store.is_some()
    }
}

/// Disk without a claim: identity, regardless of its kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InlineDisk {
    pub read_only: Option<bool>,
    /// Qualified name of an iSCSI target (`iqn`).
    pub iqn: Option<String>,
    /// Monitors of a Ceph cluster.
    pub monitors: Option<Vec<String>>,
    /// Pool of a Ceph image.
    pub pool: Option<String>,
    /// Ceph image.
    pub image: Option<String>,
    /// Persistent disk of Google Cloud.
    pub pd_name: Option<String>,
    /// EBS volume of AWS.
    #[serde(rename = "volumeID")]
    pub volume_id: Option<String>,
}

/// Volume of a CSI driver with the lifetime of the pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct InlineCsi {
    pub driver: String,
}

/// The native group of a pod (Kubernetes 1.36).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SchedulingGroup {
    pub pod_group_name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed`.
    pub phase: Option<String>,
    /// Reason of the phase, such as `Evicted` or `UnexpectedAdmissionError`.
    pub reason: Option<String>,
    pub message: Option<String>,
    /// Node on which pods are preempted for this one.
    pub nominated_node_name: Option<String>,
    /// Actual pod-level resources, which differ from the request during a resize.
    pub resources: Option<Box<ResourceRequirements>>,
    /// Allocated pod-level resources.
    pub allocated_resources: Option<BTreeMap<String, Quantity>>,
    /// Acknowledged by the kubelet.
    pub start_time: Option<Time>,
    #[serde(deserialize_with = "super::tight::list")]
    pub conditions: Option<Vec<PodCondition>>,
    #[serde(deserialize_with = "super::tight::list")]
    pub container_statuses: Option<Vec<ContainerStatus>>,
    #[serde(deserialize_with = "super::tight::list")]
    pub init_container_statuses: Option<Vec<ContainerStatus>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodCondition {
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    pub reason: Option<String>,
    pub message: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    pub name: String,
    pub ready: bool,
    pub state: Option<ContainerState>,
    /// Actual resources, which differ from the request during a resize.
    pub resources: Option<ResourceRequirements>,
    /// Resources allocated by the kubelet.
    pub allocated_resources: Option<BTreeMap<String, Quantity>>,
    /// Devices allocated by the kubelet.
    pub allocated_resources_status: Option<Vec<ResourceStatus>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerState {
    pub waiting: Option<Waiting>,
    pub terminated: Option<Terminated>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Waiting {
    /// Reason, such as `ImagePullBackOff`.
    pub reason: Option<String>,
    pub message: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Terminated {
    pub exit_code: i32,
    pub signal: Option<i32>,
    /// Reason, such as `OOMKilled`.
    pub reason: Option<String>,
    pub message: Option<String>,
    pub finished_at: Option<Time>,
}
