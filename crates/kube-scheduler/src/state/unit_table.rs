//! Jobs as units: watched job objects, the writes of their suspend fields, and their timers.
//!
//! A unit is a gang that exists before its pods. While the pods are not complete, the engine's workload is made of pod
//! templates (`Gang::held`); `units.rs` has the phases.

use agentaflow_backoff::BackoffPolicy;
use agentaflow_engine::{Span, Time, WorkloadId};
use agentaflow_kube_core::names;
use agentaflow_kube_core::slim::{JobObject, Pod};
use agentaflow_kube_core::unit::{self, UnitKind, UnitSpec};
use agentaflow_units::hash64;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::action::{Action, EventRecord, Key, ObjectRef, Urgency};
use super::key_of;
use super::membership::controller;
use super::parked::Parked;
use super::pod_entry::engine_time;
use crate::controller::EventType;

/// Time for the pods of a resumed job to exist and start; a job with many pods gets more.
const START_LIMIT: Span = Span(60_000);
const START_LIMIT_PER_POD: Span = Span(100);
/// Time after which a write without visible effect is repeated.
const WRITE_LIMIT: Span = Span(30_000);
/// Delays after pods that did not come.
const START_RETRIES: BackoffPolicy =
    BackoffPolicy::new(Duration::from_mins(1), Duration::from_mins(32));
/// Owners above a pod: Job, `JobSet`, `TrainJob`.
const MAX_LEVELS: usize = 4;

#[derive(Debug)]
pub(super) struct Unit {
    pub(super) kind: &'static UnitKind,
    pub(super) key: Key,
    uid: Arc<str>,
    /// Metadata and `spec.managedBy` only.
    pub(super) object: JobObject,
    pub(super) spec: UnitSpec,
    /// Pods were placed since the job was resumed.
    pub(super) started: bool,
    /// Not all pods of the job existed when it was last submitted.
    pub(super) lacks_pods: bool,
    /// Reason to suspend the job; none once it is suspended.
    pub(super) suspending: Option<String>,
    /// Written value of the suspend field that the watch has not reported, and the time of the next attempt.
    write: Option<(bool, Time)>,
    /// End of the time to start; only of a resumed job without placed pods.
    deadline: Option<Time>,
    /// Starts that failed in a row, and the time of the next attempt.
    failures: u32,
    pub(super) retry_at: Option<Time>,
    /// Reason for which the engine does not know the job.
    pub(super) parked: Option<Parked>,
}

/// The unit of a pod.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PodUnit<'a> {
    None,
    /// The watch has not reported the owner with this uid.
    Unreported(&'a str),
    Of(&'a WorkloadId),
}

#[derive(Debug, Default)]
pub(super) struct UnitTable {
    units: BTreeMap<WorkloadId, Unit>,
    by_uid: BTreeMap<Arc<str>, WorkloadId>,
    /// Objects by the uid of their controller.
    children: BTreeMap<String, BTreeSet<WorkloadId>>,
    /// Watched kinds.
    watched: BTreeSet<&'static str>,
    /// Pods by the uid of an owner that the watch has not reported.
    waiting: BTreeMap<String, BTreeSet<Key>>,
    timers: BTreeSet<(Time, WorkloadId)>,
}

impl UnitTable {
    pub(super) fn watch(&mut self, kind: &'static UnitKind) {
        self.watched.insert(kind.kind);
    }

    pub(super) fn get(&self, id: &WorkloadId) -> Option<&Unit> {
        self.units.get(id)
    }

    pub(super) fn get_mut(&mut self, id: &WorkloadId) -> Option<&mut Unit> {
        self.units.get_mut(id)
    }

    /// A job that is not part of another one.
    pub(super) fn root(&self, id: &WorkloadId) -> Option<&Unit> {
        self.units.get(id).filter(|unit| self.watched_owner(unit).is_none())
    }

    /// Ids of all jobs with pods of this scheduler that are not part of another one.
    pub(super) fn roots(&self) -> impl Iterator<Item = &WorkloadId> {
        let has_pods =
            |unit: &Unit| !unit.spec.sets.is_empty() || unit.kind.pods == unit::Pods::OfChild;
        let units = self.units.iter().filter(move |(_, unit)| has_pods(unit));
        units.filter(|(_, unit)| self.watched_owner(unit).is_none()).map(|(id, _)| id)
    }

    /// Ids of jobs with this namespace and name, of any kind.
    pub(super) fn named(&self, key: &Key) -> impl Iterator<Item = &WorkloadId> {
        let ids = unit::KINDS.iter().map(|kind| unit_id(kind, key));
        ids.filter_map(|id| self.units.get_key_value(&id)).map(|(id, _)| id)
    }

    /// Records a job; returns the job that it is a part of, or itself, and the pods that waited for it.
    pub(super) fn record(
        &mut self,
        kind: &'static UnitKind,
        mut object: JobObject,
        scheduler: &str,
    ) -> (WorkloadId, BTreeSet<Key>) {
        let key = key_of(&object.metadata);
        let id = unit_id(kind, &key);
        let uid: Arc<str> = object.metadata.uid.as_deref().unwrap_or_default().into();
        let mut spec = unit::read(kind, &object);
        // Most jobs of a cluster may belong to other schedulers.
        spec.sets.retain(|set| set.template.spec.scheduler_name.as_deref() == Some(scheduler));
        let managed_by = object.spec.get("managedBy").cloned();
        object.spec = managed_by.map(|name| serde_json::json!({ "managedBy": name })).into();
        object.status = serde_json::Value::Null;
        if self.units.get(&id).is_some_and(|old| old.uid != uid) {
            self.remove(&id);
        }
        if let Some(owner) = owner_of(&object) {
            self.children.entry(owner.uid.clone()).or_default().insert(id.clone());
        }
        self.by_uid.insert(uid.clone(), id.clone());
        let waiting = self.waiting.remove(&*uid).unwrap_or_default();
        match self.units.get_mut(&id) {
            Some(unit) => unit.update(object, spec),
            None => drop(self.units.insert(id.clone(), Unit::new(kind, key, uid, object, spec))),
        }
        (self.root_of(id), waiting)
    }

    pub(super) fn remove(&mut self, id: &WorkloadId) -> Option<Unit> {
        let unit = self.units.remove(id)?;
        self.by_uid.remove(&unit.uid);
        if let Some(owner) = owner_of(&unit.object)
            && let Some(children) = self.children.get_mut(&owner.uid)
        {
            children.remove(id);
            if children.is_empty() {
                self.children.remove(&owner.uid);
            }
        }
        Some(unit)
    }

    /// Pod sets of a job, or of the job that its controller creates.
    pub(super) fn spec(&self, unit: &Unit) -> UnitSpec {
        let mut spec = unit.spec.clone();
        if unit.kind.pods == unit::Pods::OfChild {
            let children = self.children.get(&*unit.uid).into_iter().flatten();
            for child in children.filter_map(|id| self.units.get(id)) {
                spec.sets.extend(child.spec.sets.iter().cloned());
                spec.exception = spec.exception.or_else(|| child.spec.exception.clone());
            }
        }
        spec
    }

    /// The job that a pod belongs to: the topmost of its owners.
    pub(super) fn of_pod<'a>(&'a self, pod: &'a Pod) -> PodUnit<'a> {
        let (mut found, mut next) = (PodUnit::None, controller(pod));
        for _ in 0..MAX_LEVELS {
            let Some(owner) = next.filter(|owner| self.is_watched(owner)) else { break };
            let Some(id) = self.by_uid.get(&*owner.uid) else {
                return PodUnit::Unreported(&owner.uid);
            };
            found = PodUnit::Of(id);
            next = self.units.get(id).and_then(|unit| owner_of(&unit.object));
        }
        found
    }

    /// Group of a `LeaderWorkerSet` that a pod belongs to, and its number of pods.
    pub(super) fn worker_group(&self, pod: &Pod) -> Option<(WorkloadId, u32)> {
        let labels = pod.metadata.labels.as_ref()?;
        let (set, index) = (labels.get(names::GROUP_SET)?, labels.get(names::GROUP_INDEX)?);
        let key = Key::new(pod.metadata.namespace.as_deref().unwrap_or_default(), set);
        let units = self.named(&key).filter_map(|id| Some((id, self.units.get(id)?)));
        let mut sizes = units.filter(|(_, unit)| unit.spec.exception.is_none());
        let (id, size) = sizes.find_map(|(id, unit)| Some((id, unit.spec.group_size?)))?;
        (size > 1).then(|| (format!("{id}/{index}").into(), size))
    }

    pub(super) fn root_of(&self, mut id: WorkloadId) -> WorkloadId {
        for _ in 0..MAX_LEVELS {
            let owner = self.units.get(&id).and_then(|unit| self.watched_owner(unit));
            let Some(above) = owner.and_then(|owner| self.by_uid.get(&*owner.uid)) else { break };
            id = above.clone();
        }
        id
    }

    fn watched_owner<'a>(&self, unit: &'a Unit) -> Option<&'a OwnerReference> {
        owner_of(&unit.object).filter(|owner| self.is_watched(owner))
    }

    fn is_watched(&self, owner: &OwnerReference) -> bool {
        let kind = unit::of_owner(&owner.api_version, &owner.kind);
        kind.is_some_and(|kind| self.watched.contains(kind.kind))
    }

    pub(super) fn wait_for_owner(&mut self, uid: &str, pod: &Key) {
        self.waiting.entry(uid.to_owned()).or_default().insert(pod.clone());
    }

    /// The write of the pending reason, unless the job has it.
    pub(super) fn write_reason(
        &mut self,
        id: &WorkloadId,
        reason: &Arc<str>,
        priority: i32,
    ) -> Option<Action> {
        let unit = self.units.get_mut(id).filter(|unit| unit.spec.suspended)?;
        let annotations = unit.object.metadata.annotations.get_or_insert_default();
        if annotations.get(names::UNIT_REASON).is_some_and(|known| **known == **reason) {
            return None;
        }
        let known = annotations.insert(names::UNIT_REASON.to_owned(), reason.to_string());
        let urgency = Urgency::new(known.is_some(), priority);
        let (kind, key, uid) = (unit.kind, unit.key.clone(), unit.uid.clone());
        Some(Action::WriteReason { kind, unit: key, uid, reason: reason.clone(), urgency })
    }

    /// The write of the suspend field, unless the job has the value or the write is in flight.
    pub(super) fn write_suspend(
        &mut self,
        id: &WorkloadId,
        suspend: bool,
        now: Time,
    ) -> Option<Action> {
        let unit = self.units.get_mut(id)?;
        if unit.spec.suspended == suspend || unit.write.is_some_and(|(_, until)| now < until) {
            return None;
        }
        let until = now.after(WRITE_LIMIT);
        unit.write = Some((suspend, until));
        self.timers.insert((until, id.clone()));
        let (kind, key, uid) = (unit.kind, unit.key.clone(), unit.uid.clone());
        Some(Action::Suspend { kind, unit: key, uid, suspend })
    }

    /// Forgets a write that has no visible effect after its time.
    pub(super) fn expire_write(&mut self, id: &WorkloadId, now: Time) {
        let Some(unit) = self.units.get_mut(id) else { return };
        if unit.write.is_some_and(|(_, until)| until <= now) {
            unit.write = None;
            unit.suspending.take_if(|_| unit.spec.suspended);
        }
    }

    /// Ends a write that the API server refused.
    pub(super) fn write_refused(&mut self, id: &WorkloadId, uid: &str) -> bool {
        let Some(unit) = self.units.get_mut(id).filter(|unit| *unit.uid == *uid) else {
            return false;
        };
        unit.write = None;
        true
    }

    /// Starts the time in which a resumed job has to start; returns true if it is over.
    pub(super) fn is_late(&mut self, id: &WorkloadId, pods: u32, now: Time) -> bool {
        let Some(unit) = self.units.get_mut(id) else { return false };
        if unit.spec.suspended {
            unit.deadline = None;
            return false;
        }
        let limit = Span(START_LIMIT.0 + START_LIMIT_PER_POD.0 * u64::from(pods));
        let deadline = *unit.deadline.get_or_insert(now.after(limit));
        self.timers.insert((deadline, id.clone()));
        deadline <= now
    }

    /// Begins the time of a late job again.
    pub(super) fn restart_deadline(&mut self, id: &WorkloadId, pods: u32, now: Time) {
        if let Some(unit) = self.units.get_mut(id) {
            unit.deadline = None;
        }
        self.is_late(id, pods, now);
    }

    /// All pods of a job exist: its next start is the first again.
    pub(super) fn record_all_pods(&mut self, id: &WorkloadId) {
        if let Some(unit) = self.units.get_mut(id) {
            unit.lacks_pods = false;
            unit.deadline = None;
            unit.failures = 0;
        }
    }

    /// Delays the next start of a job; each failure doubles the delay.
    pub(super) fn back_off(&mut self, id: &WorkloadId, now: Time) {
        let Some(unit) = self.units.get_mut(id) else { return };
        let delay = spread(START_RETRIES.delay(unit.failures), &unit.uid, unit.failures);
        unit.failures += 1;
        let until = now.after(delay);
        unit.retry_at = Some(until);
        self.timers.insert((until, id.clone()));
    }

    /// A job of a namespace, except one, that is resumed and lacks pods: it holds the turn.
    pub(super) fn awaiting_pods(
        &self,
        namespace: &str,
        except: Option<&WorkloadId>,
    ) -> Option<&Unit> {
        let from = WorkloadId::from(format!("{namespace}/"));
        let units = self.units.range(from..);
        let mut units = units.take_while(|(_, unit)| *unit.key.namespace == *namespace);
        units.find(|(id, unit)| Some(*id) != except && unit.awaits_pods()).map(|(_, unit)| unit)
    }

    /// Ends the backoff of a job; returns true if there was one.
    pub(super) fn end_backoff(&mut self, id: &WorkloadId, now: Time) -> bool {
        let unit = self.units.get_mut(id);
        let waits = unit.filter(|unit| unit.retry_at.is_some_and(|at| at > now));
        waits.map(|unit| unit.retry_at = None).is_some()
    }

    /// Jobs with a timer that is over.
    pub(super) fn take_due(&mut self, now: Time) -> Vec<WorkloadId> {
        let mut due = Vec::new();
        while self.timers.first().is_some_and(|(time, _)| *time <= now) {
            due.extend(self.timers.pop_first().map(|(_, id)| id));
        }
        due
    }

    pub(super) fn next_wake(&self) -> Option<Time> {
        self.timers.first().map(|(time, _)| *time)
    }
}

impl Unit {
    fn new(
        kind: &'static UnitKind,
        key: Key,
        uid: Arc<str>,
        object: JobObject,
        spec: UnitSpec,
    ) -> Self {
        Self {
            kind,
            key,
            uid,
            object,
            spec,
            started: false,
            lacks_pods: true,
            suspending: None,
            write: None,
            deadline: None,
            failures: 0,
            retry_at: None,
            parked: None,
        }
    }

    fn update(&mut self, object: JobObject, spec: UnitSpec) {
        if self.write.is_some_and(|(written, _)| written == spec.suspended) {
            self.write = None;
        }
        if spec.suspended {
            self.started = false;
            self.deadline = None;
            // A write in flight may resume the job after all.
            if !self.is_resuming() {
                self.suspending = None;
            }
        }
        self.object = object;
        self.spec = spec;
    }

    fn is_resuming(&self) -> bool {
        matches!(self.write, Some((false, _)))
    }

    /// Requests the suspension of a job that is resumed or about to be.
    pub(super) fn request_suspension(&mut self, why: String) {
        self.suspending = Some(why).filter(|_| !self.spec.suspended || self.is_resuming());
    }

    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// Records that pods of the job are placed.
    pub(super) fn record_start(&mut self) {
        self.started = !self.spec.suspended;
        self.deadline = None;
        self.retry_at = None;
    }

    /// Words for users.
    pub(super) fn name(&self) -> String {
        format!("{} {}", self.kind.kind, self.key.name)
    }

    /// Resumed, or about to be, and not all its pods exist.
    fn awaits_pods(&self) -> bool {
        let starts = self.is_resuming() || (self.deadline.is_some() && self.lacks_pods);
        starts && !self.started && self.is_active()
    }

    /// Suspended, or about to be: its controller stops its pods.
    pub(super) fn is_suspending(&self) -> bool {
        self.suspending.is_some() || (self.spec.suspended && !self.is_resuming())
    }

    pub(super) fn created(&self) -> Option<Time> {
        let created = self.object.metadata.creation_timestamp.as_ref();
        created.map(|time| engine_time(time.0))
    }

    /// The job may be submitted: it is neither finished, deleted nor held back by its user.
    pub(super) fn is_active(&self) -> bool {
        let annotations = self.object.metadata.annotations.as_ref();
        let hold = annotations.and_then(|all| all.get(names::UNIT_HOLD));
        !self.spec.ended
            && self.object.metadata.deletion_timestamp.is_none()
            && hold.is_none_or(|value| value.trim() != "true")
    }

    /// The controller of the job replaces a lost pod.
    pub(super) fn replaces_pods(&self) -> bool {
        self.is_active()
            && !self.spec.suspended
            && self.suspending.is_none()
            && self.spec.sets.iter().all(|set| set.replaces_failed)
    }

    pub(super) fn event(
        &self,
        event_type: EventType,
        reason: &'static str,
        message: String,
    ) -> Action {
        let object =
            ObjectRef { kind: self.kind.kind, key: self.key.clone(), uid: self.uid.clone() };
        Action::RecordEvent(EventRecord { object, event_type, reason, message })
    }
}

/// A delay and up to half of it more. Jobs that failed together do not try again together.
fn spread(delay: Duration, uid: &str, failures: u32) -> Span {
    let hash = hash64(format!("{uid}/{failures}").as_bytes());
    let millis = delay.as_millis() as u64;
    Span(millis + hash % (millis / 2 + 1))
}

/// Engine id of a job.
pub(super) fn unit_id(kind: &UnitKind, key: &Key) -> WorkloadId {
    format!("{}/{}/{}", key.namespace, kind.word(), key.name).into()
}

/// The controller of a job.
fn owner_of(object: &JobObject) -> Option<&OwnerReference> {
    let owners = object.metadata.owner_references.iter().flatten();
    owners.into_iter().find(|owner| owner.controller == Some(true))
}
