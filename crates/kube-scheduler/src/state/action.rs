//! What the world wants done, and what came of it. Acts are complete: nothing is left to choose.

use agentaflow_kube_core::crd::{GpuQueueStatus, GpuWorkloadStatus};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The name of a namespaced object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

impl Key {
    /// A name from its parts.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// One pod, not another of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodRef {
    /// Its name.
    pub key: Key,
    /// Which one of that name.
    pub uid: Arc<str>,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Bind a pod to a node.
    Bind(Box<Bind>),
    /// Stop a pod for another, within its disruption budgets.
    Evict {
        /// The pod.
        pod: PodRef,
        /// For whom, as a sentence.
        why: String,
    },
    /// Delete a pod.
    Delete {
        /// The pod.
        pod: PodRef,
        /// Seconds to stop; its own when absent.
        grace: Option<u32>,
    },
    /// Delete a pod whose node is gone, if it is.
    DeleteOrphan {
        /// The pod.
        pod: PodRef,
        /// Its node.
        node: Arc<str>,
    },
    /// Say on which node others are being stopped for a pod, or that this is over.
    Nominate {
        /// The pod.
        pod: PodRef,
        /// The node.
        node: Option<Arc<str>>,
    },
    /// Say why a pod is not placed.
    Explain {
        /// The pod.
        pod: PodRef,
        /// PendingCondition.
        why: PendingCondition,
    },
    /// Read the annotations of a pod's owner, and of the owner's owners.
    LookUp(Owner),
    /// Make a pod of a workload.
    Create {
        /// The workload.
        workload: Key,
        /// The pod's name.
        name: String,
        /// The pod.
        body: Box<Value>,
    },
    /// Write the status of a workload.
    Status {
        /// The workload.
        workload: Key,
        /// Which one of that name.
        uid: Arc<str>,
        /// The status.
        status: Box<GpuWorkloadStatus>,
    },
    /// Write the status of a queue.
    QueueStatus {
        /// The queue.
        queue: Arc<str>,
        /// The status.
        status: Box<GpuQueueStatus>,
    },
    /// Add or remove our finalizer.
    Finalizer {
        /// The workload.
        workload: Key,
        /// Which one of that name.
        uid: Arc<str>,
        /// Which version of it: what another changes meanwhile is not undone.
        version: String,
        /// Add it, or remove it.
        add: bool,
        /// All finalizers that it has.
        present: Vec<String>,
    },
    /// Tell people.
    RecordEvent(EventRecord),
}

/// A pod, its node and what is written with the binding.
#[derive(Clone, Debug, PartialEq)]
pub struct Bind {
    /// The pod.
    pub pod: PodRef,
    /// The node.
    pub node: Arc<str>,
    /// Annotations that travel with the binding.
    pub annotations: BTreeMap<String, String>,
    /// Labels that travel with the binding.
    pub labels: BTreeMap<String, String>,
    /// Claims that must be bound first.
    pub claims: Vec<(Key, ClaimAction)>,
    /// Which plan this belongs to: answers to older ones are void.
    pub plan: u64,
}

/// How a claim gets its volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimAction {
    /// A provisioner makes one for this node: the pod's own, or that of another pod of the same claim.
    Provision(Arc<str>),
    /// This volume becomes the claim's.
    Volume(String),
}

/// The owner of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// Its API version.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: String,
    /// Which one of that name.
    pub uid: Arc<str>,
}

/// Something to tell people: an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRecord {
    /// ObjectRef what.
    pub about: ObjectRef,
    /// Something is not as it should be.
    pub warning: bool,
    /// One word.
    pub reason: &'static str,
    /// One sentence.
    pub message: String,
}

/// What a note is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectRef {
    /// `Pod`, `GPUWorkload`, …
    pub kind: &'static str,
    /// Its name.
    pub key: Key,
    /// Which one of that name.
    pub uid: Arc<str>,
}

/// What came of an act.
#[derive(Clone, Debug, PartialEq)]
pub enum ActionResult {
    /// A binding was carried out, or was not.
    Bind {
        /// The pod.
        pod: PodRef,
        /// Which plan it belonged to.
        plan: u64,
        /// What came of it.
        result: BindResult,
    },
    /// What the owners of a pod say.
    Owner {
        /// Its namespace.
        namespace: Arc<str>,
        /// The owner.
        uid: Arc<str>,
        /// Annotations of ours; the nearest owner's win. None when there was no answer.
        annotations: Option<BTreeMap<String, String>>,
    },
    /// A pod of a workload was made, or the API server refused it.
    Created {
        /// The workload.
        workload: Key,
        /// The pod's name.
        name: String,
        /// PendingCondition not.
        refused: Option<String>,
    },
    /// An eviction was refused for good, or the pod is gone.
    EvictionFailed {
        /// The pod.
        pod: PodRef,
        /// PendingCondition.
        why: String,
    },
}

/// What came of a binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindResult {
    /// It is bound.
    Bound,
    /// Somebody bound it to this node.
    Elsewhere(Arc<str>),
    /// The pod is gone, or being deleted.
    Gone,
    /// It could not be bound.
    Refused(String),
}

/// PendingCondition a pod is not placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingCondition {
    /// One word; `Unschedulable` only where more nodes would help.
    pub reason: &'static str,
    /// One sentence.
    pub message: Arc<str>,
    /// The pod says already that it is not placed, for another reason perhaps.
    pub again: bool,
}
