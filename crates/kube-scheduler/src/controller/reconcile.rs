//! One reconciliation of a workload.

use agentaflow_kube_core::crd::{GpuWorkloadSpec, GpuWorkloadStatus, WorkloadPhase};
use agentaflow_kube_core::gpu_workload::{Identity, service};
use agentaflow_kube_core::names;
use agentaflow_kube_core::slim::{self, Pod};
use jiff::Timestamp;

use super::assignment::{Assignment, assignment};
use super::condition::{self, ConditionUpdate, ConditionWriter, CreationBlocker};
use super::task_table::{self, TaskTable};
use super::{DeletePod, EventType, Reconciled, SchedulerView, WorkloadEvent, lifecycle};

/// Compares a workload with its pods; returns the writes that bring them closer.
///
/// No pod is created while pods of a deleted workload of the same name exist. A pod that the API server rejects is reported through
/// [`SchedulerView::rejected`].
pub fn reconcile(
    workload: &slim::Workload,
    pods: &[&Pod],
    view: &SchedulerView,
    scheduler_name: &str,
    now: Timestamp,
) -> Reconciled {
    let uid = workload.metadata.uid.as_deref().unwrap_or_default();
    let (pods, others): (Vec<&Pod>, Vec<&Pod>) =
        pods.iter().copied().partition(|pod| owned(pod, uid));
    let predecessors = others.into_iter().filter(|pod| is_of_namesake(pod)).count();
    let old = &workload.status;
    let look = Reconciler { workload, old, pods, predecessors, view, scheduler_name, now };
    if workload.metadata.deletion_timestamp.is_some() {
        return look.clean_up();
    }
    let mut done = look.decide();
    done.delete.retain(|pod| !look.is_deletion_requested(pod));
    done
}

/// Input of one reconciliation.
pub(super) struct Reconciler<'a> {
    pub(super) workload: &'a slim::Workload,
    pub(super) old: &'a GpuWorkloadStatus,
    pub(super) pods: Vec<&'a Pod>,
    /// Pods of a deleted workload of the same name that the garbage collector has not removed.
    pub(super) predecessors: usize,
    pub(super) view: &'a SchedulerView,
    pub(super) scheduler_name: &'a str,
    pub(super) now: Timestamp,
}

impl Reconciler<'_> {
    fn decide(&self) -> Reconciled {
        let checked = match &self.workload.spec.0 {
            Err(message) => Err(format!("Cannot read the spec: {message}")),
            Ok(spec) => agentaflow_kube_core::gpu_workload::check(spec)
                .map(|()| spec.as_ref())
                .map_err(|bad| bad.to_string()),
        };
        let over = matches!(self.old.phase, Some(WorkloadPhase::Succeeded | WorkloadPhase::Failed));
        match checked {
            Ok(spec) if over => self.reconcile_finished(spec),
            Err(_) if over => self.nothing(),
            Ok(spec) if self.is_completed_by_hand() => self.complete(spec),
            Ok(spec) if spec.suspend => self.suspend(spec),
            Ok(spec) => self.carry_on(spec),
            Err(message) => self.invalid(&message),
        }
    }

    /// Returns true if the deletion of the pod was already requested.
    fn is_deletion_requested(&self, pod: &DeletePod) -> bool {
        self.view.deleting.contains(&pod.name)
    }

    /// Deletes all pods of a workload that another finalizer keeps.
    fn clean_up(&self) -> Reconciled {
        let mut done = self.nothing();
        let pods = self.pods.iter().filter_map(|pod| task_table::delete(pod, "WorkloadDeleted"));
        done.delete.extend(pods.filter(|pod| !self.is_deletion_requested(pod)));
        if !done.delete.is_empty() {
            let message = format!("Deleting {}.", count_pods(done.delete.len()));
            done.events.push(event(EventType::Normal, "Stopping", message));
        }
        done
    }

    /// A finished workload stays finished; pods that run or are superseded are deleted.
    fn reconcile_finished(&self, spec: &GpuWorkloadSpec) -> Reconciled {
        let table = TaskTable::new(&self.pods, spec, self.old, self.now);
        let succeeded = self.old.phase == Some(WorkloadPhase::Succeeded);
        let expiry = lifecycle::expiry(spec, self.old);
        Reconciled {
            delete: table.remains(succeeded),
            expired: expiry.is_some_and(|expiry| expiry <= self.now),
            wake: expiry.filter(|expiry| *expiry > self.now),
            ..self.nothing()
        }
    }

    /// Deletes the pods of a suspended workload and creates none.
    fn suspend(&self, spec: &GpuWorkloadSpec) -> Reconciled {
        let table = TaskTable::new(&self.pods, spec, self.old, self.now);
        if table.failed || table.succeeded() {
            return self.finish(spec, &table);
        }
        let mut status = self.fresh();
        status.retries = table.spent;
        status.completed_tasks = table.completed();
        status.phase = Some(WorkloadPhase::Pending);
        status.assigned_node = None;
        status.assigned_gpu = None;
        status.price_per_hour = None;
        let message = "Suspended: set spec.suspend to false to continue.";
        let mut writer = self.condition_writer(&mut status);
        let update = |status| ConditionUpdate::new(status, condition::SUSPENDED, message);
        writer.set(condition::SUSPENDED, update("True"));
        for kind in [condition::SCHEDULABLE, condition::ASSIGNED, condition::READY] {
            writer.set(kind, update("False"));
        }
        status.message = Some(message.to_owned());
        let was = condition::find(&self.old.conditions, condition::SUSPENDED);
        let is_new = was.is_none_or(|condition| condition.status != "True");
        let suspended = || event(EventType::Normal, condition::SUSPENDED, message.to_owned());
        let mut delete = table.leftovers();
        delete.extend(table.live("Suspended"));
        let events = is_new.then(suspended).into_iter().collect();
        Reconciled { delete, events, ..self.done(status) }
    }

    /// An invalid spec creates no pods; running pods stay.
    fn invalid(&self, message: &str) -> Reconciled {
        let mut status = self.fresh();
        let reason = condition::INVALID_SPEC;
        let mut writer = self.condition_writer(&mut status);
        writer.set(condition::SCHEDULABLE, ConditionUpdate::new("False", reason, message));
        writer.set_if_absent(condition::ASSIGNED, condition::assigned(&Assignment::default()));
        writer.set_if_absent(
            condition::READY,
            ConditionUpdate::new("False", "Pending", "Waiting for a valid spec."),
        );
        status.phase.get_or_insert_default();
        status.message = message_of(&status, condition::SCHEDULABLE);
        let events = self.warning(reason, message).into_iter().collect();
        Reconciled { events, ..self.done(status) }
    }

    fn carry_on(&self, spec: &GpuWorkloadSpec) -> Reconciled {
        let table = TaskTable::new(&self.pods, spec, self.old, self.now);
        if table.failed || table.succeeded() {
            return self.finish(spec, &table);
        }
        let mut status = self.fresh();
        status.retries = table.spent;
        status.completed_tasks = table.completed();
        self.resume(&mut status);
        let creation = self.create_missing_pods(spec, &table, &mut status);
        let assigned = assignment(&table.slots, self.view, spec.gpu_requirements.gpu_count > 0);
        self.describe(&table, &assigned, creation.blocker.as_ref(), &mut status);
        let mut events = creation.events;
        let phase = status.phase.unwrap_or_default();
        events.extend(lifecycle::progress(self.old.phase, phase, assigned.nodes.as_deref()));
        let mut delete = table.leftovers();
        // Once for each change of the spec: admission may have given the pods another class.
        if self.old.observed_generation != self.workload.metadata.generation {
            delete.extend(table.of_other_priority(spec));
        }
        if creation.gives_back {
            delete.extend(table.unbound());
        }
        let identity = self.identity();
        let service = (!creation.create.is_empty()).then(|| service(identity, spec)).flatten();
        Reconciled {
            create: creation.create,
            service,
            incomplete: creation.incomplete,
            delete,
            events,
            wake: creation.wake,
            ..self.done(status)
        }
    }

    /// Records that a suspended workload resumes.
    fn resume(&self, status: &mut GpuWorkloadStatus) {
        let was = condition::find(&self.old.conditions, condition::SUSPENDED);
        if was.is_some_and(|condition| condition.status == "True") {
            status.back_off = None;
            let update = ConditionUpdate::new("False", "Resumed", "The workload is not suspended.");
            self.condition_writer(status).set(condition::SUSPENDED, update);
        }
    }

    /// Sets phase, conditions, assignment and message.
    fn describe(
        &self,
        table: &TaskTable<'_>,
        assigned: &Assignment,
        blocker: Option<&CreationBlocker>,
        status: &mut GpuWorkloadStatus,
    ) {
        let slots = &table.slots;
        status.phase = Some(if condition::running(slots) {
            WorkloadPhase::Running
        } else if condition::placed(slots) {
            WorkloadPhase::Scheduled
        } else {
            WorkloadPhase::Pending
        });
        status.start_time =
            self.old.start_time.clone().or_else(|| lifecycle::start(table, self.now));
        status.assigned_node.clone_from(&assigned.nodes);
        status.assigned_gpu.clone_from(&assigned.gpus);
        status.price_per_hour = assigned.price_per_hour();
        let retrying = table.spent > 0 && !table.round_has_begun();
        let update =
            condition::schedulable(&self.old.conditions, slots, assigned, self.view, blocker);
        let mut writer = self.condition_writer(status);
        if let Some(update) = update {
            writer.set(condition::SCHEDULABLE, update);
        }
        writer.set(condition::ASSIGNED, condition::assigned(assigned));
        writer.set(condition::READY, condition::ready(slots, retrying));
        let shown =
            if condition::placed(slots) { condition::READY } else { condition::SCHEDULABLE };
        status.message = message_of(status, shown);
    }

    /// Returns true if the user marked the workload as complete.
    fn is_completed_by_hand(&self) -> bool {
        let annotations = self.workload.metadata.annotations.as_ref();
        annotations.and_then(|all| all.get(names::COMPLETE)).is_some_and(|value| value == "true")
    }

    /// Ends the workload as succeeded; running pods are deleted.
    fn complete(&self, spec: &GpuWorkloadSpec) -> Reconciled {
        let table = TaskTable::new(&self.pods, spec, self.old, self.now);
        if table.failed || table.succeeded() {
            return self.finish(spec, &table);
        }
        let placed = condition::placed(&table.slots);
        let ending = event(EventType::Normal, "Completed", "Completed by the user.".to_owned());
        let mut done = self.end(spec, &table, WorkloadPhase::Succeeded, ending);
        if let Some(status) = &mut done.status {
            status.completion_time = Some(lifecycle::whole_second(self.now));
            if !placed {
                let message = "Completed before all tasks were placed.";
                let update = ConditionUpdate::new("False", "Completed", message);
                self.condition_writer(status).set(condition::SCHEDULABLE, update);
            }
        }
        done
    }

    /// Ends the workload as succeeded or failed.
    fn finish(&self, spec: &GpuWorkloadSpec, table: &TaskTable<'_>) -> Reconciled {
        let count = table.slots.len();
        let failed = table.cause.filter(|_| table.failed);
        let (phase, ending) = if let Some(cause) = failed {
            let message = lifecycle::failure(&cause, count, table.spent);
            (WorkloadPhase::Failed, event(EventType::Warning, "Failed", message))
        } else {
            let message = lifecycle::success(count);
            (WorkloadPhase::Succeeded, event(EventType::Normal, "Succeeded", message))
        };
        self.end(spec, table, phase, ending)
    }

    /// Writes the final status.
    fn end(
        &self,
        spec: &GpuWorkloadSpec,
        table: &TaskTable<'_>,
        phase: WorkloadPhase,
        ending: WorkloadEvent,
    ) -> Reconciled {
        let mut status = GpuWorkloadStatus {
            phase: Some(phase),
            retries: table.spent,
            back_off: None,
            completed_tasks: None,
            completion_time: Some(lifecycle::completion(table, self.now)),
            message: Some(ending.message.clone()),
            ..self.fresh()
        };
        status.start_time = status.start_time.or_else(|| lifecycle::start(table, self.now));
        self.close_conditions(spec, table, &ending, &mut status);
        let delete = table.remains(phase == WorkloadPhase::Succeeded);
        Reconciled { delete, events: vec![ending], ..self.done(status) }
    }

    /// Writes the final conditions. Known GPUs stay in the status: kubelets forget them.
    fn close_conditions(
        &self,
        spec: &GpuWorkloadSpec,
        table: &TaskTable<'_>,
        ending: &WorkloadEvent,
        status: &mut GpuWorkloadStatus,
    ) {
        let needs_gpus = spec.gpu_requirements.gpu_count > 0;
        let assigned = table.last_places(|slots| assignment(slots, self.view, needs_gpus));
        let had_gpus = condition::find(&self.old.conditions, condition::ASSIGNED)
            .is_some_and(|condition| condition.status == "True");
        if !had_gpus {
            status.assigned_node.clone_from(&assigned.nodes);
            status.assigned_gpu.clone_from(&assigned.gpus);
            status.price_per_hour = assigned.price_per_hour();
        }
        let mut writer = self.condition_writer(status);
        let update = ConditionUpdate::new("True", "Scheduled", "All tasks were placed.");
        writer.set(condition::SCHEDULABLE, update);
        if !had_gpus {
            writer.set(condition::ASSIGNED, condition::assigned(&assigned));
        }
        writer.set(
            condition::READY,
            ConditionUpdate::new("False", ending.reason, ending.message.clone()),
        );
    }

    /// The old status with the present generation.
    fn fresh(&self) -> GpuWorkloadStatus {
        let observed_generation = self.workload.metadata.generation;
        GpuWorkloadStatus { observed_generation, ..self.old.clone() }
    }

    fn condition_writer<'s>(&self, status: &'s mut GpuWorkloadStatus) -> ConditionWriter<'s> {
        ConditionWriter {
            conditions: &mut status.conditions,
            generation: self.workload.metadata.generation,
            at: lifecycle::whole_second(self.now),
        }
    }

    /// No change except the finalizer of earlier versions.
    fn nothing(&self) -> Reconciled {
        Reconciled {
            create: Vec::new(),
            service: None,
            expired: false,
            delete: Vec::new(),
            status: None,
            remove_finalizer: self.has_finalizer(),
            events: Vec::new(),
            incomplete: false,
            wake: None,
        }
    }

    fn done(&self, status: GpuWorkloadStatus) -> Reconciled {
        Reconciled { status: (status != *self.old).then_some(status), ..self.nothing() }
    }

    pub(super) fn identity(&self) -> Identity<'_> {
        let metadata = &self.workload.metadata;
        Identity {
            name: metadata.name.as_deref().unwrap_or_default(),
            namespace: metadata.namespace.as_deref().unwrap_or_default(),
            uid: metadata.uid.as_deref(),
        }
    }

    fn has_finalizer(&self) -> bool {
        self.workload.metadata.finalizers.iter().flatten().any(|name| name == names::FINALIZER)
    }

    /// A warning Event, once for each generation.
    pub(super) fn warning(&self, reason: &'static str, message: &str) -> Option<WorkloadEvent> {
        let shown = condition::has_reason(&self.old.conditions, condition::SCHEDULABLE, reason)
            && self.old.observed_generation == self.workload.metadata.generation;
        (!shown).then(|| {
            event(EventType::Warning, reason, agentaflow_kube_core::pod_end::clip(message, 900))
        })
    }
}

fn message_of(status: &GpuWorkloadStatus, kind: &str) -> Option<String> {
    condition::find(&status.conditions, kind).map(|condition| condition.message.clone())
}

pub(super) fn event(event_type: EventType, reason: &'static str, message: String) -> WorkloadEvent {
    WorkloadEvent { event_type, reason, message }
}

pub(super) fn count_pods(count: usize) -> String {
    if count == 1 { "1 pod".to_owned() } else { format!("{count} pods") }
}

/// Returns true if a `GPUWorkload` owns the pod; all pods of a reconciliation name the same workload.
fn is_of_namesake(pod: &Pod) -> bool {
    let owners = pod.metadata.owner_references.iter().flatten();
    owners.into_iter().any(|owner| owner.controller == Some(true) && owner.kind == "GPUWorkload")
}

fn owned(pod: &Pod, uid: &str) -> bool {
    let owners = pod.metadata.owner_references.iter().flatten();
    owners.into_iter().any(|owner| owner.controller == Some(true) && owner.uid == uid)
}
