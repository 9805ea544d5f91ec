//! Pods: what scheduling reads of them.

use k8s_openapi::api::core::v1::{
    Affinity, ContainerPort, PodSchedulingGate, ResourceRequirements, ResourceStatus, Toleration,
    TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::Deserialize;
use std::collections::BTreeMap;

/// A pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Metadata without managed fields.
    #[serde(deserialize_with = "super::meta::slim")]
    pub metadata: ObjectMeta,
    /// What it asks for.
    pub spec: PodSpec,
    /// How it is.
    pub status: PodStatus,
}

super::resource!(Pod, "", "v1", "Pod", "pods", NamespaceResourceScope);

/// What a pod asks for.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// The node that it is bound to.
    pub node_name: Option<String>,
    /// Who is to place it.
    pub scheduler_name: Option<String>,
    /// Labels that its node must carry.
    pub node_selector: Option<BTreeMap<String, String>>,
    /// Node and pod (anti-)affinity.
    pub affinity: Option<Affinity>,
    /// Taints that it does not mind.
    #[serde(deserialize_with = "super::tight::list")]
    pub tolerations: Option<Vec<Toleration>>,
    /// How it is spread over domains.
    pub topology_spread_constraints: Option<Vec<TopologySpreadConstraint>>,
    /// Its containers.
    #[serde(deserialize_with = "super::tight::all")]
    pub containers: Vec<Container>,
    /// Containers that run before, or beside, the others.
    #[serde(deserialize_with = "super::tight::list")]
    pub init_containers: Option<Vec<Container>>,
    /// What the sandbox itself takes.
    pub overhead: Option<BTreeMap<String, Quantity>>,
    /// Resources of the pod as a whole.
    pub resources: Option<ResourceRequirements>,
    /// Its volumes.
    #[serde(deserialize_with = "super::tight::volumes")]
    pub volumes: Option<Vec<Volume>>,
    /// What must be removed before it may be placed.
    pub scheduling_gates: Option<Vec<PodSchedulingGate>>,
    /// Claims of dynamic resource allocation: their mere number matters, we do not carry them out.
    pub resource_claims: Option<Vec<serde_json::Value>>,
    /// Its native group.
    pub scheduling_group: Option<SchedulingGroup>,
    /// The native group of Kubernetes 1.35.
    pub workload_ref: Option<serde_json::Value>,
    /// The value of its priority class.
    pub priority: Option<i32>,
    /// Its priority class.
    pub priority_class_name: Option<String>,
    /// `Never`, or `PreemptLowerPriority`.
    pub preemption_policy: Option<String>,
    /// What happens when a container ends.
    pub restart_policy: Option<String>,
    /// How long it may take to stop.
    pub termination_grace_period_seconds: Option<i64>,
    /// Its ports are the host's.
    pub host_network: Option<bool>,
    /// Whether its users are the host's.
    pub host_users: Option<bool>,
}

/// A container's resources and ports.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Its name.
    pub name: String,
    /// What it asks for.
    pub resources: Option<ResourceRequirements>,
    /// Its ports.
    #[serde(deserialize_with = "super::tight::list")]
    pub ports: Option<Vec<ContainerPort>>,
    /// `Always` on an init container makes it a sidecar.
    pub restart_policy: Option<String>,
    /// What happens when it ends with certain codes.
    #[serde(deserialize_with = "super::tight::list")]
    pub restart_policy_rules: Option<Vec<RestartRule>>,
}

/// What happens when a container ends in a certain way.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RestartRule {
    /// `Restart`, or `RestartAllContainers`.
    pub action: String,
}

/// A volume that comes from a claim, or one that scheduling must know for other reasons.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// The claim that it comes from.
    pub persistent_volume_claim:
        Option<k8s_openapi::api::core::v1::PersistentVolumeClaimVolumeSource>,
    /// A claim made for this pod; only its presence matters, the claim is named `<pod>-<volume>`.
    pub ephemeral: Option<serde::de::IgnoredAny>,
    /// A volume of a CSI driver that lives and dies with the pod.
    pub csi: Option<InlineCsi>,
    /// A disk that may not be mounted twice on a node.
    pub iscsi: Option<Box<InlineDisk>>,
    /// A disk that may not be mounted twice on a node.
    pub rbd: Option<Box<InlineDisk>>,
    /// A disk that may not be mounted twice on a node.
    pub gce_persistent_disk: Option<Box<InlineDisk>>,
    /// A disk that may not be mounted twice on a node.
    pub aws_elastic_block_store: Option<Box<InlineDisk>>,
}

impl Volume {
    /// Whether it has a say in where its pod can run.
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

/// A disk that a pod names without a claim: what tells it from others, whatever its kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InlineDisk {
    /// It is only read.
    pub read_only: Option<bool>,
    /// The name of an iSCSI target.
    pub iqn: Option<String>,
    /// The monitors of a Ceph cluster.
    pub monitors: Option<Vec<String>>,
    /// The pool of a Ceph image.
    pub pool: Option<String>,
    /// A Ceph image.
    pub image: Option<String>,
    /// A disk of Google's.
    pub pd_name: Option<String>,
    /// A disk of Amazon's.
    #[serde(rename = "volumeID")]
    pub volume_id: Option<String>,
}

/// A volume of a CSI driver that lives and dies with the pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct InlineCsi {
    /// The driver.
    pub driver: String,
}

/// The native group of a pod (Kubernetes 1.36).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SchedulingGroup {
    /// The group's name.
    pub pod_group_name: Option<String>,
}

/// How a pod is.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed`.
    pub phase: Option<String>,
    /// A word about the phase, such as `Evicted` or `UnexpectedAdmissionError`.
    pub reason: Option<String>,
    /// A sentence about it.
    pub message: Option<String>,
    /// The node that others are being stopped on for it.
    pub nominated_node_name: Option<String>,
    /// What it has as a whole, while that may differ from what it asks for.
    pub resources: Option<Box<ResourceRequirements>>,
    /// What it was promised as a whole.
    pub allocated_resources: Option<BTreeMap<String, Quantity>>,
    /// When the kubelet saw it.
    pub start_time: Option<Time>,
    /// Conditions.
    #[serde(deserialize_with = "super::tight::list")]
    pub conditions: Option<Vec<PodCondition>>,
    /// Its containers.
    #[serde(deserialize_with = "super::tight::list")]
    pub container_statuses: Option<Vec<ContainerStatus>>,
    /// Its init containers.
    #[serde(deserialize_with = "super::tight::list")]
    pub init_container_statuses: Option<Vec<ContainerStatus>>,
}

/// A condition of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodCondition {
    /// Its name.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False`, `Unknown`.
    pub status: String,
    /// One word.
    pub reason: Option<String>,
    /// One sentence.
    pub message: Option<String>,
}

/// How a container is.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// Its name.
    pub name: String,
    /// Whether it is ready.
    pub ready: bool,
    /// What it does.
    pub state: Option<ContainerState>,
    /// What it has now, which differs from what it asks for while it is being resized.
    pub resources: Option<ResourceRequirements>,
    /// What the kubelet has set aside for it.
    pub allocated_resources: Option<BTreeMap<String, Quantity>>,
    /// The devices that the kubelet gave it.
    pub allocated_resources_status: Option<Vec<ResourceStatus>>,
}

/// What a container does.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerState {
    /// It waits.
    pub waiting: Option<Waiting>,
    /// It ended.
    pub terminated: Option<Terminated>,
}

/// Why a container does not run yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Waiting {
    /// One word, such as `ImagePullBackOff`.
    pub reason: Option<String>,
    /// One sentence.
    pub message: Option<String>,
}

/// How a container ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Terminated {
    /// Its exit code.
    pub exit_code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// One word, such as `OOMKilled`.
    pub reason: Option<String>,
    /// One sentence.
    pub message: Option<String>,
    /// When.
    pub finished_at: Option<Time>,
}
