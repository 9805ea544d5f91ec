//! Phases of jobs as units.
//!
//! *Queued*: the job is suspended, and the engine's workload is made of its pod templates. *Held*: the engine placed the
//! templates; the job is resumed, and the places wait for its pods. *Started*: all pods exist and are bound to these
//! places; from here the gang is like any other. A held job whose pods do not come in time is suspended again and backs
//! off; a job that is preempted or whose gang restarts is suspended instead of evicting its pods, and keeps its age. Every
//! phase follows from the job and its pods, so that a restart of the scheduler is an ordinary start; only backoffs and turns
//! begin again.

use agentaflow_engine::{Event, Placement, Request, WorkloadId};
use agentaflow_kube_core::names;
use agentaflow_kube_core::slim::{JobObject, Pod};
use agentaflow_kube_core::unit::UnitKind;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::action::Key;
use super::gang_table::{Gang, set_roles};
use super::membership::Membership;
use super::parked::Parked;
use super::pod_entry::PodEntry;
use super::turns::namespace_of;
use super::unit_pods::UnitPods;
use super::unit_table::{PodUnit, Unit, UnitTable, unit_id};
use super::work_queue::WorkItem;
use super::{ClusterState, key_of};
use crate::controller::EventType;

impl ClusterState {
    /// The driver watches a kind of jobs.
    pub fn watch_jobs(&mut self, kind: &'static UnitKind) {
        self.units.watch(kind);
    }

    pub(super) fn job_applied(&mut self, kind: &'static UnitKind, object: JobObject) {
        let id = unit_id(kind, &key_of(&object.metadata));
        let is_active = |units: &UnitTable| units.get(&id).is_some_and(|unit| !unit.spec.ended);
        let was_active = is_active(&self.units);
        let (root, waiting) = self.units.record(kind, object, &self.settings.scheduler_name);
        self.work.push_pods(waiting);
        // Traits and requests may have changed.
        let pending = self.gangs.members(&root).filter(|key| self.pods.is_pending(key));
        self.work.push_pods(pending.cloned());
        if was_active && !is_active(&self.units) {
            self.quota_freed(namespace_of(&id));
            self.pass_turn_on(namespace_of(&id));
        }
        self.work.push(WorkItem::SyncGang(root));
    }

    pub(super) fn job_deleted(&mut self, kind: &'static UnitKind, meta: &ObjectMeta) {
        let id = unit_id(kind, &key_of(meta));
        let root = self.units.root_of(id.clone());
        self.end_hold(&id);
        self.units.remove(&id);
        if root != id {
            self.work.push(WorkItem::SyncGang(root));
        }
        self.forget_turn_of(&id);
        self.quota_freed(namespace_of(&id));
        self.pass_turn_on(namespace_of(&id));
        let pending = self.gangs.members(&id).filter(|key| self.pods.is_pending(key));
        self.work.push_pods(pending.cloned());
    }

    /// Enqueues every unit: namespaces, volumes or queues changed.
    pub(super) fn requeue_units(&mut self) {
        for id in self.units.roots() {
            self.work.push(WorkItem::SyncGang(id.clone()));
        }
    }

    /// Enqueues units whose time is over.
    pub(super) fn requeue_due_units(&mut self) {
        for id in self.units.take_due(self.engine.now()) {
            self.work.push(WorkItem::SyncGang(id));
        }
    }

    /// Parks a pod whose job the watch has not reported: the pod may belong to a unit.
    pub(super) fn park_until_job_is_reported(&mut self, key: &Key, pod: &Pod) -> bool {
        let PodUnit::Unreported(uid) = self.units.of_pod(pod) else { return false };
        let uid = uid.to_owned();
        self.units.wait_for_owner(&uid, key);
        self.detach_pod(key);
        self.set_parked(key, Parked::ReadingOwner);
        true
    }

    /// Makes the engine's workload agree with a job. Returns false if the pods of the job are a gang like any other.
    pub(super) fn sync_unit(&mut self, id: &WorkloadId) -> bool {
        let is_template = self.sync_phase(id);
        if self.units.get(id).is_some() {
            self.pass_turn_on(namespace_of(id));
        }
        is_template
    }

    fn sync_phase(&mut self, id: &WorkloadId) -> bool {
        self.units.expire_write(id, self.engine.now());
        let Some(unit) = self.units.root(id) else { return false };
        let gang = self.gangs.get(id);
        let runs = gang.is_some_and(|gang| {
            gang.held.is_none() && (gang.placed || gang.stopping || gang.tearing_down)
        });
        let (started, suspending) = (unit.started, unit.suspending.is_some());
        if suspending {
            self.write_suspend(id, true);
        }
        if runs {
            if let Some(unit) = self.units.get_mut(id).filter(|unit| !unit.is_suspending()) {
                unit.record_start();
            }
            return false;
        }
        if started || suspending {
            return suspending;
        }
        if let Some(gang) = self.group_of_job(id) {
            self.sync_group_job(id, &gang);
            return false;
        }
        let pods = self.demand_of_unit(id);
        let Some(pods) = self.report_parked_unit(id, pods) else {
            self.end_hold(id);
            return self.units.get(id).is_some_and(|unit| unit.parked.is_some());
        };
        let have = self.gangs.members(id).count() as u32 + self.placed_detached(id);
        if let Some(unit) = self.units.get_mut(id) {
            unit.lacks_pods = have < pods.count;
        }
        if have >= pods.count {
            self.start_held_pods(id);
        } else {
            self.submit_templates(id, &pods);
        }
        if !self.units.is_late(id, pods.count, self.engine.now()) {
            return have < pods.count;
        }
        // Pods of the job that are not members of its gang may run, on nodes that this scheduler does not manage.
        if self.pods.iter().any(|(_, entry)| entry.has_run() && self.is_in_unit(entry, id)) {
            self.end_hold(id);
            self.units.get_mut(id).into_iter().for_each(Unit::record_start);
            return false;
        }
        self.suspend_after_timeout(id, have, pods.count);
        true
    }

    fn is_in_unit(&self, entry: &PodEntry, id: &WorkloadId) -> bool {
        entry.pod.as_deref().is_some_and(|pod| self.units.of_pod(pod) == PodUnit::Of(id))
    }

    /// The pods to submit; none if the job is not active or backs off.
    fn demand_of_unit(&mut self, id: &WorkloadId) -> Result<Option<UnitPods>, Parked> {
        let Some(unit) = self.units.get(id).filter(|unit| unit.is_active()) else {
            return Ok(None);
        };
        let lookup = self.lookup();
        if let Some(why) = lookup.unit_exception(unit) {
            return Err(Parked::NotAUnit(why));
        }
        let pods = lookup.unit_pods(id)?;
        if unit.retry_at.is_some_and(|until| until > self.engine.now()) {
            return Err(Parked::StartBackoff { failures: unit.failures() });
        }
        self.job_turn(id)?;
        Ok(pods)
    }

    /// Records the reason for which the engine cannot know a job, with an Event when the reason changes.
    pub(super) fn report_parked_unit(
        &mut self,
        id: &WorkloadId,
        pods: Result<Option<UnitPods>, Parked>,
    ) -> Option<UnitPods> {
        let unit = self.units.get_mut(id)?;
        let (pods, parked) = match pods {
            Ok(pods) => (pods, None),
            Err(reason) => (None, Some(reason)),
        };
        let new = parked.as_ref().filter(|reason| unit.parked.as_ref() != Some(reason));
        let message = new.map(Parked::message);
        unit.parked = parked;
        if let Some(message) = message {
            let text = message.to_string();
            self.actions.push(unit.event(EventType::Warning, names::FAILED_SCHEDULING, text));
            self.write_unit_reason(id, &message);
        }
        pods
    }

    /// Submits the pod templates of a job whose pods are not complete.
    fn submit_templates(&mut self, id: &WorkloadId, pods: &UnitPods) {
        let requests = match self.template_requests(id, pods) {
            Ok(requests) => requests,
            Err(reason) => {
                self.report_parked_unit(id, Err(reason));
                return self.end_hold(id);
            }
        };
        let Some(first) = requests.first().cloned() else { return self.end_hold(id) };
        let new = || Gang::new(pods.count, pods.traits.clone());
        let gang = self.gangs.get_or_insert(id, new);
        let same = gang.held.is_some()
            && gang.submitted
            && gang.submitted_requests == requests
            && gang.traits == pods.traits;
        if same {
            return;
        }
        let mut workload = pods.traits.workload(id.clone(), 1, first);
        set_roles(&mut workload, &requests);
        gang.held = Some(BTreeMap::new());
        gang.min_members = pods.count;
        gang.traits = pods.traits.clone();
        gang.submitted_requests = requests;
        gang.gated = false;
        if std::mem::take(&mut gang.submitted) {
            self.engine.send(Event::Cancelled(id.clone()));
        }
        match self.engine.try_send(Event::Submitted(Box::new(workload))) {
            Ok(()) => {
                if let Some(gang) = self.gangs.get_mut(id) {
                    gang.submitted = true;
                }
            }
            Err(why) => {
                self.report_parked_unit(id, Err(Parked::Rejected(why)));
                self.end_hold(id);
            }
        }
    }

    /// Requests of all pods of a unit; none if the workload is not a unit.
    pub(super) fn unit_requests(&self, id: &WorkloadId) -> Vec<Arc<Request>> {
        let pods = self.lookup().unit_pods(id).ok().flatten();
        pods.and_then(|pods| self.template_requests(id, &pods).ok()).unwrap_or_default()
    }

    /// Requests by task; pods that are finished or placed apart need none.
    fn template_requests(
        &self,
        id: &WorkloadId,
        pods: &UnitPods,
    ) -> Result<Vec<Arc<Request>>, Parked> {
        let lookup = self.lookup();
        let (min_members, traits) = (pods.count, pods.traits.clone());
        let membership =
            Membership { id: id.clone(), workload: None, detached_from: None, min_members, traits };
        let mut requests = Vec::new();
        for (count, template) in &pods.sets {
            let mut asked = lookup.request(template, &membership)?;
            self.volumes.request_volumes(&mut asked);
            let request = Arc::new(asked.request);
            requests.extend(std::iter::repeat_n(request, *count as usize));
        }
        requests.truncate((pods.count - self.placed_detached(id).min(pods.count)) as usize);
        Ok(requests)
    }

    /// Keeps a place for a pod that does not exist yet; resumes the job when all its places are kept.
    pub(super) fn hold_place(&mut self, placement: Placement) {
        let id = placement.workload.clone();
        let Some(gang) = self.gangs.get_mut(&id) else { return };
        let Some(held) = &mut gang.held else { return };
        held.insert(placement.task, placement);
        if held.len() < gang.submitted_requests.len() {
            return;
        }
        if let Err(reason) = self.job_turn(&id) {
            self.report_parked_unit(&id, Err(reason));
            self.end_hold(&id);
            return;
        }
        let Some(gang) = self.gangs.get_mut(&id) else { return };
        let Some(held) = &gang.held else { return };
        gang.reason = None;
        let nodes: BTreeSet<&str> = held.values().map(|place| place.node.as_str()).collect();
        let message = format!("Resumed: places for {} pods on {} nodes", held.len(), nodes.len());
        if self.write_suspend(&id, false) {
            self.record_workload_event(&id, EventType::Normal, "Admitted", message);
        }
        self.work.push(WorkItem::SyncGang(id));
    }

    /// All pods exist: binds them to the places kept for them, or submits them as a gang if they differ from their templates
    /// or a node is gone.
    fn start_held_pods(&mut self, id: &WorkloadId) {
        let Some(gang) = self.gangs.get_mut(id) else { return };
        let Some(held) = gang.held.take() else { return };
        let tasks = self.match_places(id, &held);
        let Some(gang) = self.gangs.get_mut(id) else { return };
        let Some(tasks) = tasks else {
            // Submitted again as pods, in this pass.
            gang.submitted_requests.clear();
            return;
        };
        gang.members = tasks;
        for (task, key) in &gang.members {
            self.pods.set_task(key, *task);
        }
        // Templates have no disruption budgets.
        let budgets = self.evictions.budgets_of(gang.members.values(), &self.pods);
        self.engine.send(Event::WorkloadBudgetsUpdated { workload: id.clone(), budgets });
        for placement in held.into_values() {
            self.place_pod(placement);
        }
    }

    /// Members by the task whose place they take.
    fn match_places(
        &self,
        id: &WorkloadId,
        held: &BTreeMap<u32, Placement>,
    ) -> Option<BTreeMap<u32, Key>> {
        let gang = self.gangs.get(id)?;
        let exists = |place: &Placement| self.nodes.exists(place.node.as_str());
        if held.len() != gang.members.len() || !held.values().all(exists) {
            return None;
        }
        let mut free: Vec<(&Arc<Request>, Vec<u32>)> = Vec::new();
        for task in held.keys() {
            let request = gang.submitted_requests.get(*task as usize)?;
            match free.iter_mut().find(|(known, _)| Arc::ptr_eq(known, request)) {
                Some((_, tasks)) => tasks.push(*task),
                None => free.push((request, vec![*task])),
            }
        }
        let mut tasks = BTreeMap::new();
        for key in gang.members.values() {
            let request = self.pods.get(key)?.request.as_ref()?;
            let fits = |(template, tasks): &&mut (&Arc<Request>, Vec<u32>)| {
                !tasks.is_empty() && fits_place_of(request, template)
            };
            let (_, numbers) = free.iter_mut().find(fits)?;
            tasks.insert(numbers.remove(0), key.clone());
        }
        Some(tasks)
    }

    /// The pods of a started unit may differ from their templates in labels: the engine learns them when all are bound.
    pub(super) fn refresh_unit_requests(&mut self, id: &WorkloadId) {
        let Some(gang) = self.gangs.get(id).filter(|_| self.units.root(id).is_some()) else {
            return;
        };
        let differs = |(task, key): (&u32, &Key)| {
            let request = self.pods.get(key).and_then(|entry| entry.request.as_ref());
            let submitted = gang.submitted_requests.get(*task as usize);
            submitted.is_some_and(|submitted| request != Some(submitted))
        };
        if !gang.members.values().all(|key| self.pods.is_bound(key)) {
            return;
        }
        if gang.members.iter().any(differs) {
            self.work.push(WorkItem::Readopt(id.clone()));
        }
        self.units.record_all_pods(id);
        self.forget_turn_of(id);
    }

    /// A resumed job did not start in time: its places are released, and it is suspended again.
    fn suspend_after_timeout(&mut self, id: &WorkloadId, have: u32, need: u32) {
        let now = self.engine.now();
        let message = if have < need {
            self.units.back_off(id, now);
            self.turns.record_missing_pods(id);
            format!("{have} of {need} pods exist; suspended again. See the events of the job")
        } else {
            "Its pods found no room; suspended again".to_owned()
        };
        self.withdraw_pending(id);
        let Some(unit) = self.units.get_mut(id) else { return };
        unit.request_suspension(message.clone());
        self.actions.push(unit.event(EventType::Warning, "NotStarted", message));
        self.write_suspend(id, true);
    }

    /// Ends a workload that is made of templates. Its pods, if any, stay members.
    fn end_hold(&mut self, id: &WorkloadId) {
        if self.gangs.get(id).is_some_and(|gang| gang.held.is_some()) {
            self.withdraw_pending(id);
        }
    }

    pub(super) fn withdraw_pending(&mut self, id: &WorkloadId) {
        let Some(gang) = self.gangs.get_mut(id).filter(|gang| !gang.placed) else { return };
        gang.held = None;
        gang.submitted_requests.clear();
        gang.reason = None;
        if std::mem::take(&mut gang.submitted) {
            self.engine.send(Event::Cancelled(id.clone()));
        }
        if self.gangs.members(id).next().is_none() {
            self.gangs.remove(id);
        }
    }

    /// Suspends a unit, which stops its pods, and releases places kept for it; returns false if the workload is not a unit.
    pub(super) fn suspend_unit(&mut self, id: &WorkloadId, why: &str) -> bool {
        if self.units.root(id).is_none() {
            return false;
        }
        self.end_hold(id);
        if let Some(unit) = self.units.get_mut(id) {
            unit.request_suspension(why.to_owned());
            self.write_suspend(id, true);
        }
        self.work.push(WorkItem::SyncGang(id.clone()));
        true
    }

    /// The API server refused a write of a suspend field.
    pub(super) fn suspend_refused(
        &mut self,
        kind: &'static UnitKind,
        key: &Key,
        uid: &str,
        message: String,
    ) {
        let id = unit_id(kind, key);
        if !self.units.write_refused(&id, uid) {
            return;
        }
        self.units.back_off(&id, self.engine.now());
        let Some(unit) = self.units.get_mut(&id) else { return };
        self.actions.push(unit.event(EventType::Warning, "SuspendFailed", message));
        if let Some(why) = unit.suspending.take()
            && self.gangs.get(&id).is_some_and(|gang| gang.stopping || gang.tearing_down)
        {
            let members: Vec<Key> = self.gangs.members(&id).cloned().collect();
            self.evict_pods(&members, &why);
        }
        self.work.push(WorkItem::SyncGang(id));
    }

    /// Writes the pending reason of a suspended job: its Event expires.
    pub(super) fn write_unit_reason(&mut self, id: &WorkloadId, reason: &Arc<str>) {
        let priority = self.unit_priority(id);
        self.actions.extend(self.units.write_reason(id, reason, priority));
    }

    /// Value of the priority class of a job's pods.
    fn unit_priority(&self, id: &WorkloadId) -> i32 {
        let gang = self.gangs.get(id).map(|gang| gang.traits.priority);
        let templates = || Some(self.lookup().unit_pods(id).ok()??.traits.priority);
        gang.or_else(templates).map_or(0, |priority| priority.0)
    }

    pub(super) fn write_suspend(&mut self, id: &WorkloadId, suspend: bool) -> bool {
        let write = self.units.write_suspend(id, suspend, self.engine.now());
        let written = write.is_some();
        self.actions.extend(write);
        written
    }

    /// The reason for which the engine does not know a job.
    pub(super) fn parked_unit(&self, key: &Key) -> Option<&Parked> {
        self.units.named(key).find_map(|id| self.units.get(id)?.parked.as_ref())
    }
}

/// True if a pod may take a place found for its template. The API server adds labels and tolerations to pods.
pub(super) fn fits_place_of(pod: &Request, template: &Request) -> bool {
    let mut bare = pod.clone();
    bare.labels.clone_from(&template.labels);
    let tolerates = template.tolerations.iter().all(|one| bare.tolerations.contains(one));
    bare.tolerations.clone_from(&template.tolerations);
    tolerates && bare == *template
}
