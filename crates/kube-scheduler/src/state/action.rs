//! Actions for the executor and their results. An action is complete: the executor chooses nothing.

use agentaflow_kube_core::crd::{GpuQueueStatus, GpuWorkloadStatus};
use agentaflow_kube_core::unit::UnitKind;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::Value;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::controller::EventType;

/// Namespace and name of an object; the namespace is empty for cluster-scoped objects.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl Key {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// One pod; the UID distinguishes it from later pods of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodRef {
    pub key: Key,
    pub uid: Arc<str>,
}

/// A write, or a read whose result the state needs.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Bind(Box<Bind>),
    /// Evict a victim within its disruption budgets.
    Evict {
        pod: PodRef,
        /// Text for the log.
        reason: String,
    },
    Delete {
        pod: PodRef,
        /// Grace period in seconds; the pod's own if absent.
        grace: Option<u32>,
    },
    /// Delete a pod if its node does not exist.
    DeleteOrphan {
        pod: PodRef,
        node: Arc<str>,
    },
    /// Set or clear `status.nominatedNodeName`.
    Nominate {
        pod: PodRef,
        node: Option<Arc<str>>,
    },
    /// Write the condition `PodScheduled=False`.
    WriteCondition {
        pod: PodRef,
        condition: PendingCondition,
    },
    /// Read the annotations of a pod's owner and of the owner's owners.
    LookUpOwner(Owner),
    /// Create a pod of a `GPUWorkload`.
    Create {
        workload: Key,
        name: String,
        body: Box<Value>,
    },
    /// Create the headless Service of a gang, unless it exists.
    CreateService {
        workload: Key,
        body: Box<Value>,
    },
    /// Delete a workload that finished a while ago.
    DeleteWorkload {
        workload: Key,
        uid: Arc<str>,
    },
    WriteStatus {
        workload: Key,
        uid: Arc<str>,
        status: Box<GpuWorkloadStatus>,
        urgency: Urgency,
    },
    WriteQueueStatus {
        queue: Arc<str>,
        status: Box<GpuQueueStatus>,
    },
    /// Replace the conditions of a `GPUNode`, unless its monitor reports again.
    WriteNodeConditions {
        node: Key,
        /// Resource version that was read.
        version: String,
        conditions: Vec<Condition>,
    },
    /// Remove the finalizer of earlier versions.
    RemoveFinalizer {
        workload: Key,
        uid: Arc<str>,
        /// Resource version that was read: concurrent changes of finalizers are not undone.
        version: String,
        /// All finalizers of that version.
        present: Vec<String>,
    },
    RecordEvent(EventRecord),
    /// Write the pending reason of a suspended job as an annotation.
    WriteReason {
        kind: &'static UnitKind,
        unit: Key,
        uid: Arc<str>,
        reason: Arc<str>,
        urgency: Urgency,
    },
    /// Suspend or resume a job; a resumed job has no pending reason.
    Suspend {
        kind: &'static UnitKind,
        unit: Key,
        uid: Arc<str>,
        suspend: bool,
    },
}

/// Binding with all writes that accompany it.
#[derive(Clone, Debug, PartialEq)]
pub struct Bind {
    pub pod: PodRef,
    pub node: Arc<str>,
    pub annotations: BTreeMap<String, String>,
    pub labels: BTreeMap<String, String>,
    /// Claims to bind before the pod.
    pub claims: Vec<(Key, ClaimAction)>,
    /// Number of the placement: results of older placements are void.
    pub plan: u64,
}

/// The way by which a claim gets its volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimAction {
    /// A provisioner creates a volume for this node: the pod's own, or that of another pod of the same claim.
    Provision(Arc<str>),
    /// This volume is bound to the claim.
    Volume(String),
}

/// The owner of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    pub api_version: String,
    pub kind: String,
    pub namespace: Arc<str>,
    pub name: String,
    pub uid: Arc<str>,
}

/// A Kubernetes Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRecord {
    pub object: ObjectRef,
    pub event_type: EventType,
    /// In `CamelCase`.
    pub reason: &'static str,
    pub message: String,
}

/// The object of an Event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectRef {
    /// `Pod`, `GPUWorkload`, `GPUNode`, `ConfigMap`, or a kind of jobs.
    pub kind: &'static str,
    pub key: Key,
    pub uid: Arc<str>,
}

/// Result of an [`Action`].
#[derive(Clone, Debug, PartialEq)]
pub enum ActionResult {
    Bind {
        pod: PodRef,
        plan: u64,
        result: BindResult,
    },
    Owner {
        namespace: Arc<str>,
        uid: Arc<str>,
        /// Annotations of the product, the nearest owner's first; none if the API server did not answer.
        annotations: Option<BTreeMap<String, String>>,
    },
    Created {
        workload: Key,
        name: String,
        rejection: Option<CreationRejection>,
    },
    /// The API server refused to suspend or resume a job.
    SuspendRefused {
        kind: &'static UnitKind,
        unit: Key,
        uid: Arc<str>,
        message: String,
    },
    /// The API server refused an eviction for good.
    EvictionFailed {
        pod: PodRef,
        message: String,
    },
}

/// Rejection of a pod by the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreationRejection {
    pub kind: RejectionKind,
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectionKind {
    /// The namespace has used up a `ResourceQuota`.
    QuotaExceeded,
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindResult {
    Bound,
    /// Another client bound the pod to this node.
    BoundToOther(Arc<str>),
    /// The pod is deleted or being deleted.
    Gone,
    Refused(String),
}

/// The condition `PodScheduled=False`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingCondition {
    /// `Unschedulable` only if more nodes would help: autoscalers add nodes for that reason.
    pub reason: &'static str,
    pub message: Arc<str>,
    /// The condition is false already: its transition time stays.
    pub already_false: bool,
    /// Value of the pod's priority class; conditions of high priorities are written first.
    pub priority: i32,
}

/// Order of status writes of all kinds: a new state of an object before new details of a state that the object shows, then
/// high priorities first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Urgency {
    pub is_detail: bool,
    pub priority: Reverse<i32>,
}

impl Urgency {
    /// After all writes about workloads.
    pub const LAST: Self = Self { is_detail: true, priority: Reverse(i32::MIN) };

    /// `priority` is the value of the workload's priority class.
    pub fn new(is_detail: bool, priority: i32) -> Self {
        Self { is_detail, priority: Reverse(priority) }
    }
}
