//! A fake API server: objects, their watch history, and its responses to actions.

use agentaflow_kube_core::names;
use agentaflow_kube_core::unit::{KINDS, UnitKind};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::state::{
    Action, ActionResult, Bind, BindResult, Change, CreationRejection, Key, Object, PodRef,
    RejectionKind,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Node,
    GpuNode,
    Queue,
    PodGroup,
    Budget,
    Workload,
    Pod,
    Claim,
    Volume,
    Class,
    Driver,
    Capacity,
    Namespace,
    Job,
    JobSet,
    TrainJob,
    WorkerSet,
    Priority,
}

impl Kind {
    pub(super) const ALL: [Self; 18] = [
        Self::Job,
        Self::JobSet,
        Self::TrainJob,
        Self::WorkerSet,
        Self::Priority,
        Self::Node,
        Self::GpuNode,
        Self::Queue,
        Self::PodGroup,
        Self::Budget,
        Self::Workload,
        Self::Pod,
        Self::Claim,
        Self::Volume,
        Self::Class,
        Self::Driver,
        Self::Capacity,
        Self::Namespace,
    ];

    fn of(kind: &UnitKind) -> Self {
        match kind.kind {
            "Job" => Self::Job,
            "TrainJob" => Self::TrainJob,
            _ => Self::JobSet,
        }
    }

    fn object(self, value: &Value) -> Object {
        match self {
            Self::Node => Object::Node(read(value)),
            Self::GpuNode => Object::GpuNode(read(value)),
            Self::Queue => Object::Queue(read(value)),
            Self::PodGroup => Object::PodGroup(read(value)),
            Self::Budget => Object::Budget(read(value)),
            Self::Workload => Object::Workload(read(value)),
            Self::Pod => Object::Pod(read(value)),
            Self::Claim => Object::Claim(read(value)),
            Self::Volume => Object::Volume(read(value)),
            Self::Class => Object::Class(read(value)),
            Self::Driver => Object::Driver(read(value)),
            Self::Capacity => Object::Capacity(read(value)),
            Self::Namespace => Object::Namespace(read(value)),
            Self::Job => Object::Job(&KINDS[0], read(value)),
            Self::JobSet => Object::Job(&KINDS[1], read(value)),
            Self::TrainJob => Object::Job(&KINDS[2], read(value)),
            Self::WorkerSet => Object::Job(&KINDS[7], read(value)),
            Self::Priority => Object::Priority(read(value)),
        }
    }
}

pub(super) fn read<T: DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).expect("an object of the API")
}

/// A watch event.
#[derive(Clone, Debug)]
pub(super) struct WatchEvent {
    pub(super) deleted: bool,
    pub(super) value: Value,
}

impl WatchEvent {
    pub(super) fn change(&self, kind: Kind) -> Change {
        let object = Box::new(kind.object(&self.value));
        if self.deleted { Change::Deleted(object) } else { Change::Applied(object) }
    }
}

pub(super) fn key(value: &Value) -> Key {
    let text = |field: &str| value["metadata"][field].as_str().unwrap_or_default();
    Key::new(text("namespace"), text("name"))
}

pub(super) fn uid(value: &Value) -> &str {
    value["metadata"]["uid"].as_str().unwrap_or_default()
}

#[derive(Default)]
pub(super) struct Server {
    pub(super) objects: BTreeMap<(Kind, Key), Value>,
    pub(super) history: BTreeMap<Kind, Vec<WatchEvent>>,
    /// Pods whose eviction is refused.
    pub(super) guarded: BTreeSet<Key>,
    /// Annotations of owners by uid.
    pub(super) owners: BTreeMap<String, Value>,
    /// The field of a workload's status that the installed schema lacks.
    pub(super) pruned: Option<&'static str>,
    /// Limit of pods that are not finished.
    pub(super) quota: Option<usize>,
    /// Workloads whose pods a policy denies.
    pub(super) denied: BTreeSet<String>,
    /// Pods with a finalizer of another controller.
    pub(super) finalized: BTreeSet<Key>,
    /// Number of workload status writes.
    pub(super) statuses: u32,
    version: u64,
    pub(super) seconds: u64,
}

impl Server {
    pub(super) fn get(&self, kind: Kind, key: &Key) -> Option<&Value> {
        self.objects.get(&(kind, key.clone()))
    }

    pub(super) fn all(&self, kind: Kind) -> impl Iterator<Item = &Value> {
        self.objects.iter().filter(move |((found, _), _)| *found == kind).map(|(_, value)| value)
    }

    /// Creates an object, or replaces it.
    pub(super) fn put(&mut self, kind: Kind, mut value: Value) {
        self.version += 1;
        let key = key(&value);
        let old = self.get(kind, &key).map(|old| old["metadata"].clone());
        let meta = &mut value["metadata"];
        let old = old.unwrap_or_else(|| {
            let time = jiff::Timestamp::from_second(self.seconds as i64).expect("a time");
            json!({"uid": format!("u{}", self.version), "creationTimestamp": time.to_string(),
                "generation": 0})
        });
        for field in ["uid", "creationTimestamp", "deletionTimestamp"] {
            if meta[field].is_null() {
                meta[field] = old[field].clone();
            }
        }
        if meta["generation"].is_null() {
            meta["generation"] = json!(old["generation"].as_u64().unwrap_or(0) + 1);
        }
        meta["resourceVersion"] = json!(self.version.to_string());
        self.history
            .entry(kind)
            .or_default()
            .push(WatchEvent { deleted: false, value: value.clone() });
        self.objects.insert((kind, key), value);
    }

    /// Changes an existing object.
    pub(super) fn change(&mut self, kind: Kind, key: &Key, change: impl FnOnce(&mut Value)) {
        if let Some(mut value) = self.get(kind, key).cloned() {
            change(&mut value);
            self.put(kind, value);
        }
    }

    pub(super) fn remove(&mut self, kind: Kind, key: &Key) {
        if let Some(value) = self.objects.remove(&(kind, key.clone())) {
            self.history.entry(kind).or_default().push(WatchEvent { deleted: true, value });
        }
    }

    fn pod(&self, pod: &PodRef) -> Option<&Value> {
        self.get(Kind::Pod, &pod.key).filter(|found| uid(found) == &*pod.uid)
    }

    /// Executes an action.
    pub(super) fn carry_out(&mut self, act: &Action) -> Option<ActionResult> {
        match act {
            Action::Bind(bind) => {
                let (pod, plan) = (bind.pod.clone(), bind.plan);
                Some(ActionResult::Bind { pod, plan, result: self.bind(bind) })
            }
            Action::Evict { pod, .. } if self.guarded.contains(&pod.key) => {
                Some(ActionResult::EvictionFailed { pod: pod.clone(), message: "never".to_owned() })
            }
            Action::Evict { pod, .. } | Action::Delete { pod, .. } => {
                self.delete(pod);
                None
            }
            Action::DeleteOrphan { pod, node } => {
                let there = self.get(Kind::Node, &Key::new("", node)).is_some();
                if !there && self.pod(pod).is_some() {
                    self.remove(Kind::Pod, &pod.key);
                }
                None
            }
            Action::Nominate { pod, node } => {
                if self.pod(pod).is_some() {
                    self.change(Kind::Pod, &pod.key, |value| {
                        value["status"]["nominatedNodeName"] = json!(node.as_deref());
                    });
                }
                None
            }
            Action::WriteCondition { pod, condition: why } => {
                let waits = self.pod(pod).is_some_and(|found| found["spec"]["nodeName"].is_null());
                if waits {
                    self.change(Kind::Pod, &pod.key, |value| {
                        value["status"]["conditions"] = json!([{"type": "PodScheduled",
                            "status": "False", "reason": why.reason, "message": &*why.message}]);
                    });
                }
                None
            }
            Action::LookUpOwner(owner) => {
                let actions = self.owners.get(&*owner.uid).cloned().unwrap_or_else(|| json!({}));
                let annotations = serde_json::from_value(actions).expect("annotations");
                Some(ActionResult::Owner {
                    namespace: owner.namespace.clone(),
                    uid: owner.uid.clone(),
                    annotations: Some(annotations),
                })
            }
            Action::Create { workload, name, body } => Some(self.create(workload, name, body)),
            Action::WriteStatus { workload, uid, status, .. } => {
                self.statuses += 1;
                let mut status = serde_json::to_value(status).expect("a status");
                if let (Some(field), Some(fields)) = (self.pruned, status.as_object_mut()) {
                    fields.remove(field);
                }
                self.change_workload(workload, uid, |value| value["status"] = status);
                None
            }
            Action::RemoveFinalizer { workload, uid, .. } => {
                self.remove_finalizer(workload, uid);
                None
            }
            Action::WriteNodeConditions { node, conditions, .. } => {
                let conditions = serde_json::to_value(conditions).expect("conditions");
                let key = Key::new("", &node.name);
                self.change(Kind::GpuNode, &key, |value| {
                    value["status"]["conditions"] = conditions;
                });
                None
            }
            Action::WriteReason { kind, unit, reason, .. } => {
                let kind = Kind::of(kind);
                self.change(kind, unit, |value| {
                    value["metadata"]["annotations"][names::UNIT_REASON] = json!(&**reason);
                });
                None
            }
            Action::Suspend { kind, unit, uid, suspend } => self.suspend(kind, unit, uid, *suspend),
            Action::DeleteWorkload { workload, .. } => {
                self.delete_workload(workload);
                None
            }
            Action::CreateService { .. }
            | Action::WriteQueueStatus { .. }
            | Action::RecordEvent(_) => None,
        }
    }

    fn suspend(
        &mut self,
        kind: &'static UnitKind,
        unit: &Key,
        uid: &Arc<str>,
        suspend: bool,
    ) -> Option<ActionResult> {
        if self.guarded.contains(unit) {
            let (unit, uid, message) = (unit.clone(), uid.clone(), "never".to_owned());
            return Some(ActionResult::SuspendRefused { kind, unit, uid, message });
        }
        let kind = Kind::of(kind);
        if self.get(kind, unit).is_some_and(|found| self::uid(found) == &**uid) {
            self.change(kind, unit, |value| {
                value["spec"]["suspend"] = json!(suspend);
                if let Some(all) = value["metadata"]["annotations"].as_object_mut()
                    && !suspend
                {
                    all.remove(names::UNIT_REASON);
                }
            });
        }
        None
    }

    fn bind(&mut self, bind: &Bind) -> BindResult {
        let Some(found) = self.pod(&bind.pod) else { return BindResult::Gone };
        if !found["metadata"]["deletionTimestamp"].is_null() {
            return BindResult::Gone;
        }
        match found["spec"]["nodeName"].as_str() {
            Some(node) if *node == *bind.node => return BindResult::Bound,
            Some(node) => return BindResult::BoundToOther(node.into()),
            None => {}
        }
        if let Err(why) = self.bind_claims(bind) {
            return BindResult::Refused(why);
        }
        self.change(Kind::Pod, &bind.pod.key, |value| {
            value["spec"]["nodeName"] = json!(&*bind.node);
            for (name, text) in &bind.annotations {
                value["metadata"]["annotations"][name] = json!(text);
            }
            for (name, text) in &bind.labels {
                value["metadata"]["labels"][name] = json!(text);
            }
        });
        BindResult::Bound
    }

    /// A pod without a node is removed at once; any other becomes terminating.
    pub(super) fn delete(&mut self, pod: &PodRef) {
        let Some(found) = self.pod(pod) else { return };
        let over = matches!(found["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        let stays = self.finalized.contains(&pod.key);
        if !stays && (found["spec"]["nodeName"].is_null() || over) {
            self.remove(Kind::Pod, &pod.key);
        } else if found["metadata"]["deletionTimestamp"].is_null() {
            let time = jiff::Timestamp::from_second(self.seconds as i64).expect("a time");
            self.change(Kind::Pod, &pod.key, |value| {
                value["metadata"]["deletionTimestamp"] = json!(time.to_string());
            });
        }
    }

    /// The quota admits no further pod.
    pub(super) fn is_full(&self) -> bool {
        let counts = |pod: &&Value| {
            let over = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
            // A pod without a node has no time to terminate.
            let ends = !pod["metadata"]["deletionTimestamp"].is_null();
            !over && (!ends || !pod["spec"]["nodeName"].is_null())
        };
        let used = self.all(Kind::Pod).filter(counts).count();
        self.quota.is_some_and(|quota| used >= quota)
    }

    fn create(&mut self, workload: &Key, name: &str, body: &Value) -> ActionResult {
        let mut value = body.clone();
        value["metadata"]["namespace"] = json!(&*workload.namespace);
        // Admission knows the value of a class.
        let class = value["spec"]["priorityClassName"].as_str();
        let made = |name| self.get(Kind::Priority, &Key::new("", name))?["value"].as_i64();
        let installed = |name: &str| {
            let number = name.strip_prefix(names::PRIORITY_CLASS_PREFIX)?.parse().ok()?;
            Some(i64::from(names::priority_class_value(number)))
        };
        let priority = class.and_then(|name| made(name).or_else(|| installed(name))).unwrap_or(0);
        value["spec"]["priority"] = json!(priority);
        let owner = &value["metadata"]["ownerReferences"][0]["uid"];
        let exists = self
            .get(Kind::Workload, workload)
            .is_some_and(|found| found["metadata"]["uid"] == *owner);
        let rejection = match self.get(Kind::Pod, &key(&value)) {
            // The garbage collector removes a pod without its owner.
            None if !exists => None,
            None if self.denied.contains(&*workload.name) => {
                let message = "denied by a policy".to_owned();
                Some(CreationRejection { kind: RejectionKind::Other, message })
            }
            None if self.is_full() => {
                let message = "exceeded quota".to_owned();
                Some(CreationRejection { kind: RejectionKind::QuotaExceeded, message })
            }
            None => {
                self.put(Kind::Pod, value);
                None
            }
            Some(found) => {
                let owner = |value: &Value| value["metadata"]["ownerReferences"][0]["uid"].clone();
                let message = "in the way".to_owned();
                (owner(found) != owner(&value))
                    .then_some(CreationRejection { kind: RejectionKind::Other, message })
            }
        };
        ActionResult::Created { workload: workload.clone(), name: name.to_owned(), rejection }
    }

    fn change_workload(&mut self, key: &Key, uid: &str, change: impl FnOnce(&mut Value)) {
        if self.get(Kind::Workload, key).is_some_and(|found| self::uid(found) == uid) {
            self.change(Kind::Workload, key, change);
        }
    }

    fn remove_finalizer(&mut self, key: &Key, uid: &str) {
        self.change_workload(key, uid, |value| value["metadata"]["finalizers"] = json!([]));
        let gone = self.get(Kind::Workload, key).is_some_and(|found| {
            let left =
                found["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty());
            !left && !found["metadata"]["deletionTimestamp"].is_null()
        });
        if gone {
            self.remove_workload(key);
        }
    }

    /// Removes a workload; the garbage collector deletes its pods.
    fn remove_workload(&mut self, key: &Key) {
        let Some(workload) = self.get(Kind::Workload, key).map(|found| uid(found).to_owned())
        else {
            return;
        };
        self.remove(Kind::Workload, key);
        let owned = |pod: &&Value| pod["metadata"]["ownerReferences"][0]["uid"] == *workload;
        let reference = |pod: &Value| PodRef { key: self::key(pod), uid: uid(pod).into() };
        let pods: Vec<PodRef> = self.all(Kind::Pod).filter(owned).map(reference).collect();
        for pod in pods {
            self.delete(&pod);
        }
    }

    /// Deletes a workload; finalizers delay the removal.
    pub(super) fn delete_workload(&mut self, key: &Key) {
        let Some(found) = self.get(Kind::Workload, key) else { return };
        let kept = found["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty());
        if !kept {
            self.remove_workload(key);
            return;
        }
        let time = jiff::Timestamp::from_second(self.seconds as i64).expect("a time");
        self.change(Kind::Workload, key, |value| {
            value["metadata"]["deletionTimestamp"] = json!(time.to_string());
        });
    }
}
